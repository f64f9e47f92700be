"""Whole steps: their time, differences, ratios, and how they split into compute, gathers and idle time."""

from experiments.seed_claims.answer import Answer, Topic, answer
from experiments.seed_claims.article import CONTEXT, DP2, DP16, FULL, Deployment, Step, step
from explorer.evaluate import summary
from hw.compat import in_x64
from layouts.cut import cut_of
from layouts.serving.control import Vote, agree_without_exchange

_LOW, _MIDDLE = 64, 128  # instance concurrency at 4 and at 8 requests a card


def ratio(concurrency: int, context: int = CONTEXT) -> float:
    """Throughput of DP16 over that of DP2: equal loads, so step times turned round."""
    return step(DP2, concurrency, context).ms / step(DP16, concurrency, context).ms


def difference(concurrency: int) -> float:
    """DP16 minus DP2, ms."""
    return step(DP16, concurrency).ms - step(DP2, concurrency).ms


def compute_ms(priced: Step) -> float:
    """Union of all kernels but the copies from peers: the local copies run under the main stream's."""
    return float(priced.schedule.main.sum()) * 1e3


def gather_only_ms(priced: Step) -> float:
    """Time in which only a weight gather runs."""
    return float(priced.schedule.wait.sum()) * 1e3


def idle_ms(priced: Step) -> float:
    """Time in which the GPU runs nothing."""
    return round(priced.ms - compute_ms(priced) - gather_only_ms(priced), 9)


def outside_ms(deployment: Deployment, concurrency: int) -> float:
    """Gather only and idle together."""
    return gather_only_ms(step(deployment, concurrency)) + idle_ms(step(deployment, concurrency))


def static_bound() -> Answer:
    """S41: with a bound of 24 every rank computes 24 requests, whatever it has."""
    rows = {agree_without_exchange(24, [Vote(have, have)] * 16, verify_width=6).padded_rows for have in (4, 8, 24)}
    return answer(float(rows == {24 * 6}))


@in_x64
def throughput() -> Answer:
    """M02: tokens a second as the tool reports them, times the step, over requests a card and cards."""
    kept = set()
    for deployment in (DP16, DP2):
        for concurrency in (_LOW, FULL):
            priced, layout = step(deployment, concurrency), deployment.layout
            case = deployment.request.case(concurrency)
            result = summary(cut_of(layout), case, priced.schedule, priced.memory)
            on_a_rank = priced.values["requests"] * layout.attn_dp
            kept.add(f"{float(result.tokens_per_second) * priced.ms / 1e3 / on_a_rank:.4g}")
    return answer(f"bs x dp x {' or '.join(sorted(kept))}", "step")


def beside_compute() -> Answer:
    """M08: gather only and idle, at 16 and 24 requests a card of DP16; the larger of both loads of DP2."""
    high, full = outside_ms(DP16, 256), outside_ms(DP16, FULL)
    return answer((min(high, full), max(high, full)), max(outside_ms(DP2, c) for c in (_MIDDLE, 256)))


CLAIMS: Topic = {
    "S01": lambda: answer(step(DP16, 16).ms),
    "S02": lambda: answer(step(DP16, 320).ms),
    "S03": lambda: answer(step(DP16, FULL).ms),
    "S04": lambda: answer(step(DP2, 32).ms),
    "S05": lambda: answer(compute_ms(step(DP16, _LOW))),
    "S06": lambda: answer(gather_only_ms(step(DP16, _LOW))),
    "S07": lambda: answer(idle_ms(step(DP16, _LOW)), note="the schedule has no launch gaps on the GPU"),
    "S08": lambda: answer(difference(_MIDDLE)),
    "S09": lambda: answer(difference(256)),
    "S10": lambda: answer(ratio(_LOW)),
    "S11": lambda: answer(ratio(256)),
    "S12": lambda: answer(ratio(FULL)),
    "S13": lambda: answer(ratio(_LOW, 200_000)),
    "S14": lambda: answer(ratio(_LOW, 400_000)),
    "S41": static_bound,
    "M02": throughput,
    "M05": lambda: answer(step(DP16, _LOW).ms),
    "M08": beside_compute,
}
