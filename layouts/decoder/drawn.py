"""Random weights for a decoder, drawn on its devices: the same model under every layout."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from layouts.decoder import weights
from layouts.decoder.program import Program, StageProgram
from layouts.gqa import GQA
from layouts.gqa.sharded import repeated_kv

_AROUND = 1 << 20  # number of what stands around the layers, past every layer's


def drawn(program: Program, dtype: jax.typing.DTypeLike, seed: int = 0) -> tuple[Any, ...]:
    """Parameters of every stage. Products keep the size of their input; norms and other vectors lie around one."""
    return program.load([_stage(stage, dtype, seed) for stage in program.stages])


def _stage(stage: StageProgram, dtype: jax.typing.DTypeLike, seed: int) -> Any:
    key, specs = jax.random.key(seed), stage.weight_specs()
    made: dict[str, Any] = {"layers": []}
    for i, layer_specs in zip(stage.part.layers, specs["layers"], strict=True):
        shapes = weights.layer_shapes(stage.model.layers[i], stage.part.layout)
        made["layers"].append(_tree(stage, i, shapes, layer_specs, dtype, jax.random.fold_in(key, i)))
    around = weights.model_shapes(stage.model, stage.part.layout)
    around_specs = {name: specs[name] for name in around}
    return made | _tree(stage, None, around, around_specs, dtype, jax.random.fold_in(key, _AROUND))


def _tree(
    stage: StageProgram, layer: int | None, shapes: Any, specs: Any, dtype: jax.typing.DTypeLike, key: jax.Array
) -> Any:
    attention = None if layer is None else stage.model.layers[layer].attention

    def leaf(path: Any, shape: tuple[int, ...], spec: Any) -> jax.Array:
        name = weights.name_of(path)
        # every leaf has a stream of its own, whatever else the stage holds
        own = jax.random.fold_in(key, sum(ord(c) << (8 * (i % 3)) for i, c in enumerate(jax.tree_util.keystr(path))))
        shared = attention if isinstance(attention, GQA) and name in ("kv_proj", "kv_bias") else None
        ranks = stage.part.layout.attn_tp
        if shared is not None:
            shape = (shared.kv_heads * 2 * shared.head_dim, *shape[1:])
        return _draw(shape, jnp.dtype(dtype), shared, ranks, stage.sharding(spec))(own)

    return jax.tree_util.tree_map_with_path(leaf, shapes, specs, is_leaf=weights.is_shape)


@cache
def _draw(shape: tuple[int, ...], dtype: jnp.dtype, shared: GQA | None, ranks: int, sharding: NamedSharding) -> Any:
    def make(key: jax.Array) -> jax.Array:
        noise = jax.random.normal(key, shape, jnp.float32)
        value = 1.0 + 0.1 * noise if len(shape) == 1 else noise * shape[-1] ** -0.5
        value = value.astype(dtype)
        return value if shared is None else repeated_kv(shared, value, ranks)

    return jax.jit(make, out_shardings=sharding)
