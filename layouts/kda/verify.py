"""Verification of drafted tokens: outputs of all of them from one pass over the state, which stays where it was.

How many tokens are accepted is known only after sampling. The ring keeps what each token would write (key, delta and
decay: ReplaySSM) and the inputs of the convolution, so that any accepted prefix can be committed, and the rest undone,
without running the layer again.
"""

import equinox as eqx
from jaxtyping import Array, Float, Int

from layouts.kda.chunked import Writes, advance, solve
from layouts.kda.reference import Form, State, Weights, finish, prepare, window_after


class Ring(eqx.Module):
    """Verified tokens not yet committed: their writes, and the window of the convolution with their inputs behind."""

    writes: Writes
    inputs: Float[Array, "requests inputs 3 heads dim"]


def verify(
    x: Float[Array, "requests verify hidden"], state: State, weights: Weights, form: Form
) -> tuple[Float[Array, "requests verify hidden"], Ring]:
    """Rows of `verify` tokens that follow `state`, and the ring to commit from. One token is plain decode."""
    tokens, inputs = prepare(x, state.window, weights, form)
    output, writes = solve(tokens, state.recurrent, block=x.shape[1])
    return finish(output, x, weights, form), Ring(writes, inputs)


def commit(state: State, ring: Ring, accepted: Int[Array, " requests"]) -> State:
    """The state after the first `accepted` (0 to all) tokens of the ring that was verified from `state`."""
    recurrent = advance(state.recurrent, ring.writes, accepted)
    return State(recurrent, window_after(ring.inputs, accepted, state.window.shape[1]))
