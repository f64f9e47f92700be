"""A step updates its caches where they lie: what is donated aliases what is left, and no pool is copied on the way."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from layouts.audit.traced import step_shapes
from layouts.decoder import weights
from layouts.generation import Capacity
from layouts.layout import Layout
from tests.layouts.decoding import program_of

CAPACITY = Capacity(2, 64, page=4)


@pytest.mark.parametrize("family", ["deepseek_v3", "kimi-k3", "glm_moe_dsa", "gpt_oss"])
def test_a_verify_step_leaves_caches_in_place(family):
    (stage,) = program_of(family, Layout(), CAPACITY).stages
    held = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32), stage.weight_shapes(), is_leaf=weights.is_shape
    )
    step = step_shapes(Layout(), CAPACITY.requests, 3, CAPACITY.context)
    caches = stage.described_caches(jnp.float32)
    compiled: Any = stage.compiled("verify")
    made = compiled.lower(jax.tree.leaves(stage.module(held)[1]), step.tokens, caches, step).compile()
    leaves = jax.tree_util.tree_leaves_with_path(caches)
    assert made.memory_analysis().alias_size_in_bytes == sum(leaf.size * leaf.dtype.itemsize for _, leaf in leaves)
    # but for rings: they are read and written in one step, and the CPU copies those few rows first
    large = {leaf.shape for path, leaf in leaves if ".writes" not in jax.tree_util.keystr(path)}
    text = made.as_text()
    assert large and text is not None
    copied = {tuple(map(int, sizes.split(","))) for sizes in re.findall(r"= f32\[([\d,]+)\]\S* copy\(", text)}
    assert not large & copied
