"""When the ops of a step run: streams beside each other, a layer waits for its stream and for its inputs.

The gather of position i + 1 is issued when position i may start. It has the gather stream to itself once gather i is
done, and its staging buffer (one of two) is free once position i - 1 is done; position i starts at the later of the
same two moments. Both times cancel: the main stream waits max(0, gather[i + 1] - main[i]) before position i + 1, and
the recurrence of max and + becomes a sum (`tests/explorer/test_schedule.py` replays it event by event).
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from hw.arithmetic import Arithmetic


class Schedule(eqx.Module):
    """Seconds of one step on one rank.

    `main` and `gather` are the work of each position on its stream, `wait` how long the main stream stands still for
    the weights of the position. `host` is the CPU's work, which is hidden while it is shorter than the GPU's.
    """

    main: Float[Array, " positions"]
    gather: Float[Array, " positions"]
    wait: Float[Array, " positions"]
    host: Float[Array, ""]
    step: Float[Array, ""]

    @property
    def gpu(self) -> Float[Array, ""]:
        """Start to end on the GPU."""
        return self.main.sum() + self.wait.sum()


def schedule(
    ar: Arithmetic, main: Float[Array, " positions"], gather: Float[Array, " positions"], host: Float[Array, ""]
) -> Schedule:
    """Lay the positions of a step out in time. The first position's own weights are not overlapped by anything."""
    cover = jnp.concatenate([jnp.zeros(1, main.dtype), main[:-1]])
    wait = ar.maximum(gather, cover) - cover
    return Schedule(main, gather, wait, host, ar.maximum(main.sum() + wait.sum(), host))
