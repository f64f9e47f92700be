"""The kernel of linear attention, in interpret mode: against float64 on ragged requests, and in whole decoders."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hw.compat import COMPILE_TO_RUN_ONCE
from hw.errors import MeshwrightError
from layouts.decoder.choices import state_form
from layouts.kda.kernel import advance_and_solve
from layouts.kernels import ALL_PLAIN, INTERPRETED, PLAIN, Choice, Kernels
from layouts.layout import Layout
from layouts.text import parse
from tests.layouts.decoding import SCORED, error, golden, session_of, teacher_forced
from tests.layouts.kda_problem import RING, assert_equal_to_float64, drawn, exact, spoilt, standing

STEP = jax.jit(lambda *held: advance_and_solve(*held, interpret=True), compiler_options=COMPILE_TO_RUN_ONCE)
# each request's slot (0: idle), how many tokens of its ring were accepted (-1: it begins)
RAGGED = st.lists(st.tuples(st.booleans(), st.integers(-1, RING)), min_size=4, max_size=4)


@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**20),
    asked=RAGGED,
    count=st.sampled_from([1, 4, 5]),
    dim=st.sampled_from([4, 64, 128]),
    strength=st.sampled_from([0.1, 5.0, 200.0]),
)
def test_the_kernel_equals_float64(
    seed: int, asked: list[tuple[bool, int]], count: int, dim: int, strength: float
) -> None:
    """Blocks of columns and one alone; rings longer than a step; idle requests beside others, all of them in slot 0;
    what is in a slot whose request begins does not matter, NaN included."""
    tokens, states, writes = drawn(seed, len(asked), count, dim, strength)
    slots = [0 if idle else int(slot) for (idle, _), slot in zip(asked, (3, 1, 6, 4), strict=True)]
    begins = [number < 0 for _, number in asked]
    states, writes = spoilt(states, writes, slots, begins)
    stand = standing(slots, [0 if idle else max(number, 0) for idle, number in asked], begins)
    assert_equal_to_float64(STEP(tokens, states, writes, stand), tokens, states, writes, stand)


def test_states_in_bf16_are_advanced_in_float32() -> None:
    tokens, states, writes = drawn(3, 1, 2, 16, 1.0)
    rounded = states.astype(jnp.bfloat16)
    output, after, _ = STEP(tokens, rounded, writes, standing([2], [3], [False]))
    expected, before, _ = exact(tokens, np.asarray(rounded[2], np.float32), writes, 2, 3, 0)
    assert after.dtype == jnp.bfloat16
    assert error(np.asarray(output[0]), expected) < 1e-5
    assert error(np.asarray(after[2], np.float32), before) < 2**-8


@pytest.mark.parametrize("dim", [24, 512, 2])
def test_widths_that_the_kernel_does_not_have_are_an_error(dim: int) -> None:
    tokens, states, writes = drawn(0, 1, 1, dim, 1.0)
    with pytest.raises(MeshwrightError, match=f"heads of {dim} channels: .* use another form"):
        advance_and_solve(tokens, states, writes, standing([1], [0], [False]), interpret=True)


def test_a_decoder_gives_what_others_give() -> None:
    """In steps of ten tokens, all of them accepted, with heads over two ranks and requests over two groups."""
    model, _, tokens, expected = golden("kimi_linear")
    kernels = Kernels(state=Choice(INTERPRETED))
    session = session_of("kimi_linear", parse("attn_dp=2,attn_tp=2,ep=4", 4, model), kernels=kernels)
    assert error(teacher_forced(session, tokens, 10)[:, -SCORED:], expected) < 2e-5


def test_the_form_is_chosen_by_compiling_it() -> None:
    found: Any = state_form(golden("kimi_linear")[0], Layout())
    assert found.form == PLAIN
    assert [line.split(":")[0] for line in found.errors] == ["mosaic_gpu", "triton"]
    assert state_form(golden("llama")[0], Layout()) == ALL_PLAIN.state
