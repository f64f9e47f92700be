"""Pseudo-random weights for a decoder, made on its devices: the same model under every layout.

A value depends on its own indices alone (the finaliser of MurmurHash3 over them), so that no layout changes it and a
rank makes only its part; and it compiles in a fraction of the time of a counter-based generator. A program of stored
weights gets them quantised.
"""

import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, UInt32

from layouts.decoder import weights
from layouts.decoder.program import Program, StageProgram
from layouts.decoder.storage import Place
from layouts.gqa import GQA
from layouts.gqa.sharded import repeated_kv

_WORKERS: Final = 16  # on a CPU one: its compiler runs on the threads that the devices share
_MIX: Final = ((16, 0x85EBCA6B), (13, 0xC2B2AE35))


def drawn(program: Program, dtype: jax.typing.DTypeLike, seed: int = 0) -> tuple[Any, ...]:
    """Parameters of every stage. Products keep the size of their input; norms and other vectors lie around one."""
    return program.load([_stage(stage, jnp.dtype(dtype), seed) for stage in program.stages])


def _stage(stage: StageProgram, dtype: jnp.dtype, seed: int) -> Any:
    """Weights of a stage, made side by side: most of the time goes into compiling a program for each shape."""
    workers = _WORKERS if isinstance(stage.mesh, Mesh) and stage.mesh.devices.flat[0].platform != "cpu" else 1

    def leaf(path: Any, place: Place, spec: Any) -> Any:
        shape = place.shape
        layer = stage.part.layers[path[1].idx] if path[0].key == "layers" else None
        name = f"{seed} {layer} {jax.tree_util.keystr(path[2:] if layer is not None else path)}"
        shared = _shared_kv(stage, layer, path)
        if shared is not None:
            shape = (shared.kv_heads * 2 * shared.head_dim, *shape[1:])
        quantised = stage.stored and place.scaled
        sharding = jax.tree.map(stage.sharding, spec, is_leaf=lambda node: isinstance(node, PartitionSpec))
        make = _maker(shape, dtype, shared, stage.part.layout.attn_tp, place if quantised else None, sharding)
        return make(jnp.uint32(zlib.crc32(name.encode())))

    with ThreadPoolExecutor(workers) as pool:
        made = jax.tree_util.tree_map_with_path(lambda *one: pool.submit(leaf, *one), stage.places, stage.held_specs())
        return jax.tree.map(lambda future: future.result(), made)


def _shared_kv(stage: StageProgram, layer: int | None, path: Any) -> GQA | None:
    """The attention whose KV heads stand here, to be repeated over the ranks."""
    attention = None if layer is None else stage.model.layers[layer].attention
    return attention if isinstance(attention, GQA) and weights.name_of(path) in ("kv_proj", "kv_bias") else None


@lru_cache(maxsize=256)  # like layers of a few programs; more would keep every layout that ever ran
def _maker(
    shape: tuple[int, ...], dtype: jnp.dtype, shared: GQA | None, ranks: int, place: Place | None, sharding: Any
) -> Any:
    def make(stream: UInt32[Array, ""]) -> Any:
        even = noise(shape, stream)
        value = (1.0 + 0.1 * even if len(shape) == 1 else even * shape[-1] ** -0.5).astype(dtype)
        value = value if shared is None else repeated_kv(shared, value, ranks)
        return value if place is None else place.stored(value)

    return jax.jit(make, out_shardings=sharding)


def noise(shape: tuple[int, ...], stream: UInt32[Array, ""]) -> Float[Array, "*shape"]:
    """Values of mean 0 and variance 1, spread evenly; each depends on its indices and the stream alone."""
    mixed = jnp.broadcast_to(stream, shape)
    for axis in range(len(shape)):
        mixed = (mixed ^ lax.broadcasted_iota(jnp.uint32, shape, axis)) * jnp.uint32(0x9E3779B1)
        for shift, factor in _MIX:
            mixed = (mixed ^ (mixed >> shift)) * jnp.uint32(factor)
        mixed = mixed ^ (mixed >> 16)
    return (mixed.astype(jnp.float32) * 2.0**-31 - 1.0) * 3**0.5
