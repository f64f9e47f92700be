"""Every claim of the four articles, held against what the tool predicts.

    python -m experiments.seed_claims [--json] [--seed 000] [--kind bytes]

Expected: every `bytes` and `rule` row of seeds 000 and 003 that is marked `check` passes (M23 by little: 2.749 ms
where 2.75 are allowed). `time` rows come out as they may. A claim that is not reached has
no prediction. Run time: 10 to 20 s on two cores, most of it compiling.
"""
