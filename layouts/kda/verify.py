"""Steps of requests whose states live in slots: verification of drafted tokens (one is plain decode), and prefill.

`FORMS` are the ways to take a verification: kernels that pass over each state once, for Hopper and for others, the
operations of the latter one by one for tests, and what XLA makes of matrix products.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import jax
from jaxtyping import Array, Float, Int

from layouts.kda import chunked, hopper
from layouts.kda.chunked import Writes, solve
from layouts.kda.inputs import Result
from layouts.kda.kernel import advance_and_solve
from layouts.kda.reference import Form, State, Tokens, Weights, finish, prepare
from layouts.kda.slots import Slots, Standing, advanced, states_at, windows_at
from layouts.kernels import INTERPRETED, MOSAIC, PLAIN
from layouts.rows import written

TRIED: Final = (MOSAIC, "triton", PLAIN)


def verify(
    x: Float[Array, "requests verify hidden"],
    held: Slots,
    standing: Standing,
    weights: Weights,
    form: Form,
    kernel: str,
) -> tuple[Float[Array, "requests verify hidden"], Slots]:
    """Partial rows of `verify` tokens that follow the accepted ones, and the slots with accepted tokens in the states
    and these in the rings. `kernel` is one of `FORMS`."""
    tokens, inputs = prepare(x, windows_at(held, standing), weights, form)
    output, recurrent, writes = FORMS[kernel](tokens, held.recurrent, held.writes, standing)
    kept = written(held.inputs, standing.slots, inputs)
    return finish(output, x, weights, form), Slots(recurrent, writes, kept)


def prefill(
    x: Float[Array, "requests tokens hidden"],
    held: Slots,
    standing: Standing,
    lengths: Int[Array, " requests"],
    weights: Weights,
    form: Form,
) -> tuple[Float[Array, "requests tokens hidden"], Slots]:
    """Partial rows of the next `lengths` tokens of each prompt, and the slots with them in the states: nothing is
    pending behind them."""
    rows, after = chunked.prefill(x, states_at(held, standing), lengths, weights, form)
    return rows, _with_states(held, standing, after)


def _with_states(held: Slots, standing: Standing, states: State) -> Slots:
    recurrent = written(held.recurrent, standing.slots, states.recurrent)
    return Slots(recurrent, held.writes, written(held.inputs, standing.slots, states.window))


def _by_products(
    tokens: Tokens, recurrent: Float[Array, "slots heads dim dim"], writes: Writes, standing: Standing
) -> Result:
    count = tokens.k.shape[1]
    before = advanced(recurrent, writes, standing)
    output, new = solve(tokens, before, block=count)
    kept = jax.tree.map(lambda ring, x: written(ring, standing.slots, x), writes, new)
    return output, written(recurrent, standing.slots, before), kept


FORMS: Final[Mapping[str, Callable[[Tokens, Any, Writes, Standing], Result]]] = {
    MOSAIC: hopper.advance_and_solve,
    "triton": advance_and_solve,
    INTERPRETED: partial(advance_and_solve, interpret=True),
    PLAIN: _by_products,
}
