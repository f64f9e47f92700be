"""The kernel of linear attention for Hopper: against float64 in interpret mode, lowered for a GPU; what it refuses."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hw.errors import MeshwrightError
from layouts.decoder.choices import _verified
from layouts.kda import KDA, hopper
from layouts.kda.hopper import advance_and_solve
from layouts.kda.slots import Standing
from layouts.layout import Layout
from tests.layouts.decoding import error
from tests.layouts.test_kda_kernel import RING, SLOTS, drawn, exact

FROM_0_11 = pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="the kernel is for Mosaic GPU of JAX 0.11")
CLOSE = 1e-5


@pytest.mark.smoke
@FROM_0_11
@pytest.mark.parametrize(("count", "strength"), [(1, 0.1), (4, 5.0), (5, 200.0)])
def test_the_kernel_equals_float64(count: int, strength: float) -> None:
    """Requests with none, some and all tokens of the ring accepted, one that begins in a slot of NaN, idle ones."""
    slots, due, begins = [3, 0, 6, 2, 0, 5], [RING, 2, 0, 1, 0, 3], [False, False, False, False, False, True]
    tokens, states, writes = drawn(count, len(slots), count, 128, strength)
    states = states.at[5].set(jnp.nan)
    standing = Standing(jnp.array(slots, jnp.int32), jnp.array(due, jnp.int32), jnp.array(begins))
    run = jax.jit(lambda *held: advance_and_solve(*held, interpret=True))
    output, after, ring = jax.tree.map(np.asarray, run(tokens, states, writes, standing))
    for row, slot in enumerate(slots):
        if not slot:
            assert np.isfinite(output[row]).all()
            continue
        held, accepted = (np.zeros_like(states[slot]), 0) if begins[row] else (np.asarray(states[slot]), due[row])
        expected, before, deltas = exact(tokens, held, writes, slot, accepted, row)
        assert error(output[row], expected) < CLOSE
        assert np.abs(after[slot] - before).max() <= CLOSE * max(np.abs(before).max(), 1e-30)
        assert error(ring.deltas[slot, :count], deltas) < CLOSE
        assert np.array_equal(ring.keys[slot, :count], tokens.k[row])
        assert np.allclose(ring.decay[slot, :count], np.exp(tokens.log_decay[row]), rtol=1e-6)
        assert np.array_equal(ring.keys[slot, count:], writes.keys[slot, count:])
    for slot in {*range(SLOTS)} - {*slots}:
        assert np.array_equal(after[slot], states[slot])
        assert np.array_equal(ring.deltas[slot], writes.deltas[slot])


@pytest.mark.smoke
@FROM_0_11
@pytest.mark.parametrize("count", [1, 8])
def test_the_kernel_lowers_for_a_gpu(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """States and rings given up are not copied: the program's arguments are its results."""
    monkeypatch.setattr(hopper, "device_for_kernels", lambda: None)
    kda: Any = KDA(hidden=1, heads=96, head_dim=128, conv_kernel=4, full_rank_gate=False)
    device = jax.sharding.AbstractDevice(device_kind="NVIDIA H200", num_cores=None, platform="gpu")
    mesh = jax.sharding.AbstractMesh((1,), ("x",), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        traced = jax.jit(advance_and_solve, donate_argnums=(1, 2)).trace(*_verified(kda, Layout(), count))
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "mosaic_gpu" in text
    assert text.count("tf.aliasing_output") == 4


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
    standing = Standing(jnp.ones(1, jnp.int32), jnp.zeros(1, jnp.int32), jnp.zeros(1, bool))
    with pytest.raises(MeshwrightError, match=message):
        advance_and_solve(tokens, states.astype(dtype), writes, standing, interpret=True)
