"""Every claim of the four articles, held against what the tool predicts.

    python -m experiments.seed_claims [--json] [--seed 000] [--kind bytes]

Expected: every `bytes` and `rule` row of seeds 000 and 003 that is marked `check` passes, but for M23: its bytes hold
(1.49 of 1.5 GiB), its time does not (2.83 of 2.5 ms). `time` rows come out as they may. A claim that is not reached has
no prediction. Run time: 10 to 20 s on two cores, most of it compiling.
"""
