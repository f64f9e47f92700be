"""The kernel of linear attention for Hopper: against float64 in interpret mode, lowered for a GPU; what it refuses.

The interpreter runs copies as they are asked for: a wait or a fence that is missing is found on a GPU alone, by
`experiments/sanitize_kernels`.
"""

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hw.errors import MeshwrightError
from layouts.decoder.choices import _verified
from layouts.kda import KDA, hopper
from layouts.kda.hopper import advance_and_solve
from layouts.layout import Layout
from tests.layouts.kda_problem import RING, assert_equal_to_float64, drawn, spoilt, standing

FROM_0_11 = pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="the kernel is for Mosaic GPU of JAX 0.11")


@pytest.mark.smoke
@FROM_0_11
@pytest.mark.parametrize(("count", "strength"), [(1, 0.1), (4, 5.0), (5, 200.0)])
def test_the_kernel_equals_float64(count: int, strength: float) -> None:
    """Requests with none, some and all tokens of the ring accepted, one that begins in a slot of NaN, idle ones."""
    slots, begins = [3, 0, 6, 2, 0, 5], [False, False, False, False, False, True]
    tokens, states, writes = drawn(count, len(slots), count, 128, strength)
    states, writes = spoilt(states, writes, slots, begins)
    stand = standing(slots, [RING, 2, 0, 1, 0, 3], begins)
    run = jax.jit(lambda *held: advance_and_solve(*held, interpret=True))
    assert_equal_to_float64(run(tokens, states, writes, stand), tokens, states, writes, stand)


@pytest.mark.smoke
@FROM_0_11
@pytest.mark.parametrize("count", [1, 8])
def test_the_kernel_lowers_for_a_gpu(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program's states and rings are those that the kernel is given, and gives back: none is copied."""
    monkeypatch.setattr(hopper, "device_for_kernels", lambda: None)
    kda: Any = KDA(hidden=1, heads=96, head_dim=128, conv_kernel=4, full_rank_gate=False)
    device = jax.sharding.AbstractDevice(device_kind="NVIDIA H200", num_cores=None, platform="gpu")
    mesh = jax.sharding.AbstractMesh((1,), ("x",), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        traced = jax.jit(advance_and_solve, donate_argnums=(1, 2)).trace(*_verified(kda, Layout(), count))
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    ((results, given),) = re.findall(r"(%\d+):5 = stablehlo.custom_call @mosaic_gpu\w*\(([^)]*)\)", text)
    held = re.findall(r"(%arg\d+): [^%]*tf.aliasing_output = (\d)", text)
    assert given.split(", ")[-4:] == [name for name, _ in held]
    assert "".join(number for _, number in held) == "1234"
    assert f"return {', '.join(f'{results}#{i}' for i in range(5))} :" in text
    assert text.count("stablehlo.output_operand_alias") == 4


@pytest.mark.parametrize(
    ("dim", "count", "dtype", "message"),
    [
        (64, 1, jnp.float32, "states of 64 channels in float32: .* use another form"),
        (128, 1, jnp.bfloat16, "states of 128 channels in bfloat16: .* use another form"),
        (128, 60, jnp.float32, "60 tokens beside a ring of 5: .* use another form"),
    ],
)
def test_what_the_kernel_does_not_have_is_an_error(dim: int, count: int, dtype: Any, message: str) -> None:
    tokens, states, writes = drawn(0, 1, count, dim, 1.0)
    with pytest.raises(MeshwrightError, match=message):
        advance_and_solve(tokens, states.astype(dtype), writes, standing([1], [0], [False]), interpret=True)
