"""The exchanges of a whole decode step as XLA compiles it: neither more, nor fewer, nor joined, than were traced.

Decoders of the goldens, in float32, which the CPU sends as it is (`test_compiled.py` has what it makes of other types),
for 16 simulated devices. Each case has exchanges that the others lack.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hw.compat import COMPILE_TO_RUN_ONCE
from hw.work import CollectiveKind
from layouts.audit import Message, compiled_messages, count, differences, traced_messages
from layouts.audit.traced import step_shapes
from layouts.decoder import weights
from layouts.decoder.cache import Room
from layouts.decoder.program import Program, StageProgram
from layouts.enumerate import checked
from layouts.rules import Site
from layouts.text import parse
from tests.layouts.decoding import golden

REQUESTS, VERIFY, CONTEXT = 8, 2, 32  # of an attention group; a request; tokens
CASES = [
    ("llama", "attn_dp=16,weight_shard=8"),
    ("qwen3", "attn_dp=4,dcp=2,dcp_backend=ag_rs"),
    ("qwen3_moe", "replicas=2,attn_dp=2,dcp=2,ep=8,dcp_backend=fi_a2a"),
    ("gpt_oss", "attn_dp=8,ep=4,moe_dp=4,vocab_tp=8"),
    ("deepseek_v3", "pp=2,attn_dp=2,dcp=2,ep=4,moe_dp=2"),
    ("glm_moe_dsa", "attn_dp=4,dcp=4,ep=16"),
    ("kimi-k3", "attn_dp=2,dcp=4,ep=16,weight_shard=4"),
]
Messages = Mapping[Message, int]


def stages(family: str, text: str) -> tuple[StageProgram, ...]:
    model, forms, _, _ = golden(family)
    layout = checked(parse(text, 16, model), Site(model, 16, 8, domain=16), text)
    return Program.of(model, forms, layout, Room(REQUESTS * CONTEXT + 8, REQUESTS + 1, VERIFY), jax.devices()).stages


def in_float32(shapes: Any) -> Any:
    return jax.tree.map(lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32), shapes, is_leaf=weights.is_shape)


def both(family: str, text: str) -> tuple[Messages, Messages]:
    """Exchanges of a step of all stages, traced and compiled."""
    traced, compiled = Counter[Message](), Counter[Message]()
    entering: Any = None
    for stage in stages(family, text):
        step = step_shapes(stage.part.layout, REQUESTS, VERIFY, CONTEXT)
        held = stage.module(in_float32(stage.weight_shapes()))[1]
        body = jax.jit(stage.body("verify"), compiler_options=COMPILE_TO_RUN_ONCE)
        caches = tuple(map(in_float32, stage.cache_shapes()))
        found = body.trace(held, step.tokens if entering is None else entering, caches, step)
        written = found.lower().compile().as_text()
        assert written is not None
        traced.update(traced_messages(count(found.jaxpr)))
        compiled.update(compiled_messages(written))
        entering = found.out_info.leaving
    return traced, compiled


@pytest.mark.parametrize(("family", "text"), CASES, ids=lambda value: value)
def test_xla_adds_drops_and_joins_nothing(family: str, text: str) -> None:
    traced, compiled = both(family, text)
    assert differences(traced, compiled) == ()
    assert traced


def test_another_backend_is_another_compiled_program() -> None:
    """The comparison can fail: DCP's all-to-all against the gather and reduce-scatter that stand for it."""
    text = "attn_dp=4,dcp=2,dcp_backend="
    traced, compiled = both("qwen3", f"{text}a2a")[0], both("qwen3", f"{text}ag_rs")[1]
    found = {difference.kind for difference in differences(traced, compiled)}
    assert found == {CollectiveKind.ALL_TO_ALL, CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER}
