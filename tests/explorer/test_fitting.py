"""Programs that are too large for the devices: said before anything is made, or when an allocation fails."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import explorer.fitting
from explorer.fitting import MemoryShortError, exhaustion_named, require_memory
from hw.host import memory_of
from layouts.decoder.footprint import bytes_a_device
from layouts.kda import KDA
from layouts.layout import Layout
from layouts.text import parse
from tests.layouts.decoding import golden, session_of

CUTS = ("kimi_linear", "replicas=2,attn_dp=2,attn_tp=4,ep=4,moe_dp=2"), ("glm_moe_dsa", "pp=2,attn_dp=2,dcp=2,ep=8")


def held_by(device: Any, arrays: Any) -> int:
    """Bytes that a device really holds of some arrays."""
    shards = (shard for array in jax.tree.leaves(arrays) for shard in array.addressable_shards)
    return sum(shard.data.nbytes for shard in shards if shard.device == device)


@pytest.mark.parametrize(("family", "text"), CUTS)
def test_bytes_are_those_that_the_fullest_device_holds(family: str, text: str) -> None:
    session = session_of(family, parse(text, 16, golden(family)[0]))
    arrays = (session.held, session.program.empty_caches(np.float32))
    assert bytes_a_device(session.program, np.float32) == max(held_by(device, arrays) for device in jax.devices())


def test_states_stay_wide_in_half_the_bytes() -> None:
    """bf16 halves all but what linear attention keeps in 4 bytes for each of three slots (with the sink), a head and
    layer: a square of the head's width, and three such vectors a token that its ring has room for."""
    program, (model, *_) = session_of("kimi_linear", Layout()).program, golden("kimi_linear")
    tokens = program.stages[0].room.verify
    linear = [la.attention for la in model.layers if isinstance(la.attention, KDA)]
    kept = sum(3 * a.heads * 4 * (a.head_dim**2 + 3 * tokens * a.head_dim) for a in linear)
    wide, half = (bytes_a_device(program, dtype) for dtype in (jnp.float32, jnp.bfloat16))
    assert kept > 0
    assert wide - kept == 2 * (half - kept)


def device(limit: int | None, used: int = 0) -> Any:
    """What a driver says of an accelerator."""
    stats = None if limit is None else {"bytes_limit": limit, "bytes_in_use": used}
    return SimpleNamespace(platform="gpu", process_index=0, memory_stats=lambda: stats)


def test_an_accelerator_has_what_its_driver_says() -> None:
    assert memory_of([device(100, 30), device(100, 10)]) == 70
    assert memory_of([device(100), device(None)]) is None


def test_devices_of_a_cpu_share_its_memory() -> None:
    one, two = memory_of(jax.devices()[:1]), memory_of(jax.devices()[:2])
    assert one is not None
    assert one > 2**28  # no machine that runs this has less
    assert two == one // 2


def test_a_program_must_fit_to_the_byte() -> None:
    program = session_of("llama", Layout()).program
    needed = bytes_a_device(program, np.float32)
    require_memory(program, np.float32, [device(needed + 5, 5)], alone=False)
    require_memory(program, np.float32, [device(None)], alone=False)  # nobody knows
    for alone, says in (
        (False, "on each device, which has .*or more GPUs"),
        (True, "one device of the check.*--check"),
    ):
        with pytest.raises(MemoryShortError, match=says):
            require_memory(program, np.float32, [device(needed + 4, 5)], alone)


def test_a_failed_allocation_is_one_line() -> None:
    """A real one: 2^46 float32 are 256 TiB."""
    with (
        pytest.raises(MemoryShortError, match=r"no memory for 262,?144 GiB more: keep fewer --layers") as error,
        exhaustion_named(),
    ):
        jnp.zeros((2**46,), jnp.float32).block_until_ready()
    assert "\n" not in str(error.value)
    with pytest.raises(ZeroDivisionError), exhaustion_named():
        _ = 1 // 0


def test_other_failures_of_xla_are_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explorer.fitting, "_EXHAUSTED", "NOT THIS")
    with pytest.raises(jax.errors.JaxRuntimeError), exhaustion_named():
        jnp.zeros((2**46,), jnp.float32).block_until_ready()
