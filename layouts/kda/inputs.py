"""What every kernel for a step of linear attention is given, and what it gives back."""

from typing import Any, Final, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from layouts.kda.chunked import Writes
from layouts.kda.reference import Tokens
from layouts.kda.slots import Standing

# outputs of the new tokens, the states before them, and the ring with them
Result = tuple[Float[Array, "requests tokens heads dim"], Float[Array, "slots heads dim dim"], Writes]


class Inputs(NamedTuple):
    """What a kernel is given, arrays or references to them: where requests stand (int32, one a request), the new tokens
    in the shapes of `Tokens`, and what the slots hold in those of `Slots`, which it updates."""

    slots: Any
    due: Any
    empty: Any
    q: Any
    k: Any
    v: Any
    log_decay: Any
    beta: Any
    recurrent: Any
    keys: Any
    deltas: Any
    decay: Any


READ: Final = Inputs._fields.index("recurrent")  # so many are only read


def inputs_of(
    tokens: Tokens, recurrent: Float[Array, "slots heads dim dim"], writes: Writes, standing: Standing
) -> Inputs:
    """The arrays of a step; states as they are kept, all else of the slots in float32."""
    new = (tokens.q, tokens.k, tokens.v, tokens.log_decay, tokens.beta)
    stand = (standing.slots, standing.due, standing.empty.astype(jnp.int32))
    return Inputs(*stand, *new, recurrent, writes.keys, writes.deltas, writes.decay)
