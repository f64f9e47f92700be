"""When the ops of a step run: streams beside each other, a layer waits for its stream and for its inputs.

A gather is issued when the gathering position before it may start, or, where positions without weights of their own
stand between them (logits, the commit of states), up to three positions ahead: article 000 calls the draft's first
gather hoisted. By then the gather stream is free, for that earlier gather is done, and so is one of the two staging
buffers, whose reader came still earlier. So all times before cancel: the main stream waits for what a gather takes
longer than the work since it was issued, and the recurrence of max and + becomes a sum
(`tests/explorer/test_schedule.py` replays it event by event).
"""

import equinox as eqx
from jaxtyping import Array, Float

from explorer.contention import Contended, since_issue
from hw.arithmetic import Arithmetic


class Schedule(eqx.Module):
    """Seconds of one step on one rank.

    `main` and `gather` are the work of each position on its stream, `wait` how long the main stream stands still for
    the weights of the position. `host` is the CPU's work, which is hidden while it is shorter than the GPU's. `slowed`
    is what the streams' contention adds to each op, in all its executions: it is in `main` already.
    """

    main: Float[Array, " positions"]
    gather: Float[Array, " positions"]
    wait: Float[Array, " positions"]
    host: Float[Array, ""]
    step: Float[Array, ""]
    slowed: Float[Array, " ops"]

    @property
    def gpu(self) -> Float[Array, ""]:
        """Start to end on the GPU."""
        return self.main.sum() + self.wait.sum()


def schedule(ar: Arithmetic, work: Contended, gathers: Float[Array, " positions"], host: Float[Array, ""]) -> Schedule:
    """Lay the positions of a step out in time; `gathers` is 1 at those that gather weights, 0 at others.

    The first position's own weights are not overlapped by anything.
    """
    main, gather, slowed = work
    cover = since_issue(main, gathers)
    wait = ar.maximum(gather, cover) - cover
    return Schedule(main, gather, wait, host, ar.maximum(main.sum() + wait.sum(), host), slowed)
