"""What requests keep between steps, each in a slot: its states, and the tokens of its last step that are not in them.

How many tokens of a verification are accepted is known only after sampling. So a step leaves what its tokens would
write (key, delta and decay of each: ReplaySSM) and the inputs of the convolution in a ring beside the state, and the
next step of the request begins by advancing the state over those that were accepted. Nothing is ever undone.

Slot 0 is the padding sink: rows without a request point at it, nothing has to be written there, and what it holds means
nothing.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from layouts.kda.chunked import Writes, advance
from layouts.kda.reference import State


class Slots(eqx.Module):
    """Slots of one layer: states, the writes of the last step's tokens, and the convolution's window before them with
    their inputs behind. A ring has room for the most tokens of a request that a step verifies."""

    recurrent: Float[Array, "slots heads dim dim"]
    writes: Writes
    inputs: Float[Array, "slots inputs 3 heads dim"]

    @property
    def ring(self) -> int:
        """Tokens of a request that the ring has room for."""
        return self.writes.keys.shape[1]

    @property
    def taps(self) -> int:
        """Inputs before a token that its convolution sees."""
        return self.inputs.shape[1] - self.ring


class Standing(eqx.Module):
    """Where each request of a batch stands: its slot, of which only the sink may be named twice; how many tokens of its
    ring were accepted and are not in the state; whether it begins, from zeros whatever its slot was left with."""

    slots: Int[Array, " requests"]
    pending: Int[Array, " requests"]
    begins: Bool[Array, " requests"]

    @property
    def due(self) -> Int[Array, " requests"]:
        """Tokens of the ring to advance over; none of the sink's, which idle requests may write side by side."""
        return jnp.where(self.empty, 0, self.pending)

    @property
    def empty(self) -> Bool[Array, " requests"]:
        """Whether zeros take the place of what the slot holds: requests that begin, and those of the sink."""
        return self.begins | (self.slots == 0)


def states_at(held: Slots, standing: Standing) -> State:
    """The state of every request, accepted tokens included: S, and the window."""
    return State(advanced(held.recurrent, held.writes, standing), windows_at(held, standing))


def advanced(
    recurrent: Float[Array, "slots heads dim dim"], writes: Writes, standing: Standing
) -> Float[Array, "requests heads dim dim"]:
    """S of every request after its accepted tokens, in float32 whatever is kept."""
    before = recurrent[standing.slots].astype(jnp.float32)
    ring = jax.tree.map(lambda x: x[standing.slots], writes)
    return advance(jnp.where(_like(standing.begins, before), 0, before), ring, standing.due)


def windows_at(held: Slots, standing: Standing) -> Float[Array, "requests taps 3 heads dim"]:
    """The convolution's last inputs of every request."""
    rows = standing.due[:, None] + jnp.arange(held.taps, dtype=standing.pending.dtype)[None, :]
    windows = held.inputs[standing.slots[:, None], rows]
    return jnp.where(_like(standing.begins, windows), 0, windows)


def _like(flags: Bool[Array, " requests"], held: Array) -> Array:
    return flags.reshape(-1, *(1,) * (held.ndim - 1))
