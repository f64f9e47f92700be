"""A decode step of a whole model traced without devices, at full size, in the dtypes that its weights are stored in."""

from typing import Any, Final

import jax
import jax.numpy as jnp

from hw.work import CollectiveKind
from layouts.audit.count import count
from layouts.audit.counts import Counts, Exchanged, merged
from layouts.cache.batch import Batch
from layouts.decoder import weights
from layouts.decoder.cache import Room
from layouts.decoder.program import Program, StageProgram
from layouts.decoder.step import Step
from layouts.kda import KDA
from layouts.layout import Layout
from layouts.models.forms import Forms
from layouts.models.model import Model

_ACTIVATIONS: Final = jnp.bfloat16
_PAGE: Final = 64
_CACHED: Final = {"fp32": jnp.float32, "bf16": jnp.bfloat16, "fp8": jnp.float8_e4m3fn}  # formats of KV and states


def traced(model: Model, forms: Forms, layout: Layout, batch: int, verify: int, context: int) -> Counts:
    """FLOPs and exchanges of one rank in a step of a replica: `batch` requests in each attention group, each with a
    table of `context` tokens, verify `verify` rows. Stages follow each other, as in the cost model."""
    pages = batch * -(-context // (_PAGE * layout.dcp)) + 1
    program = Program.of(model, forms, layout, Room((pages + 1) * _PAGE, batch + 1, verify), None, stored=True)
    groups = layout.replicas * layout.attn_dp
    step = step_shapes(layout, batch, verify, context)
    counted, entering = [], step.tokens
    for stage in program.stages:
        held = stage.module(stage.stored_shapes())[1]
        trace = jax.jit(stage.body("verify")).trace(held, entering, _caches(stage), step)
        counted.append(count(trace.jaxpr))
        entering = trace.out_info.leaving
        if not stage.part.last:
            counted.append(_handed_on(entering, groups, layout))
    return merged(counted)


def step_shapes(layout: Layout, batch: int, verify: int, context: int) -> Step:
    """A step's inputs as shapes: all attention groups, `batch` requests each, `verify` rows a request."""

    def whole(*shape: int, dtype: Any = jnp.int32) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype)

    requests = layout.replicas * layout.attn_dp * batch
    return Step(
        whole(requests * verify),
        Batch(whole(requests, context), whole(requests)),
        whole(layout.replicas, layout.attn_dp),
        whole(requests),
        whole(requests),
        whole(requests, dtype=bool),
        whole(requests),
    )


def _handed_on(carried: Any, groups: int, layout: Layout) -> Counts:
    """What one rank sends to the next stage: the rows of its attention group."""
    payload = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(carried)) // groups
    send = Exchanged(CollectiveKind.SEND, payload, layout.pp, layout.tp, ("pp",), "stage")
    return Counts({}, (send,))


def _caches(stage: StageProgram) -> tuple[Any, ...]:
    """Caches as shapes: KV in its format, states in theirs, their rings in float32 whatever engines keep."""
    precision = stage.model.precision
    kv, state = _CACHED[precision["kv"].name], _CACHED[precision["state"].name]

    def cache(layer: int, shapes: Any) -> Any:
        recurrent = isinstance(stage.model.layers[layer].attention, KDA)

        def leaf(path: Any, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
            kept = {"recurrent": state, "writes": jnp.float32}.get(path[0].name, _ACTIVATIONS) if recurrent else kv
            return jax.ShapeDtypeStruct(shape, kept)

        return jax.tree_util.tree_map_with_path(leaf, shapes, is_leaf=weights.is_shape)

    return tuple(cache(i, shapes) for i, shapes in zip(stage.part.layers, stage.cache_shapes(), strict=True))
