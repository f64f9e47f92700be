"""What one step is given: token rows of every request, their addresses, and how full each attention group is."""

from typing import Literal

import equinox as eqx
from jaxtyping import Array, Bool, Int

from layouts.cache.batch import Batch
from layouts.kda.slots import Standing
from layouts.mesh import Axes

Phase = Literal["verify", "prefill"]


class Step(eqx.Module):
    """Rows are in request order, as many for each request. `counts`: rows of each attention group that hold a token;
    they come first. `slots`: where each request's linear-attention state lives (0: the sink).

    In a prefill `new` of each request's rows hold a token. Where `begins` a state starts from zeros; elsewhere
    `pending` tokens of its last verification were accepted, and are first brought into its state.
    """

    tokens: Int[Array, " rows"]
    batch: Batch
    counts: Int[Array, "replicas groups"]
    slots: Int[Array, " requests"]
    new: Int[Array, " requests"]
    begins: Bool[Array, " requests"]
    pending: Int[Array, " requests"]

    @property
    def standing(self) -> Standing:
        """Where requests stand in linear attention."""
        return Standing(self.slots, self.pending, self.begins)

    @property
    def width(self) -> int:
        """Rows of a request."""
        return len(self.tokens) // len(self.batch.lengths)


def step_specs(axes: Axes, interleave: int) -> Step:
    """How the arrays of a step are cut: by requests over the attention groups of every replica."""
    each = axes.spec("requests")
    batch = Batch(axes.spec("requests", None), each, interleave)  # pyright: ignore[reportArgumentType]
    return Step(each, batch, axes.spec("replicas", None), each, each, each, each)  # pyright: ignore[reportArgumentType]
