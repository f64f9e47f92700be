"""Layouts as meshes: every group is a view of the same devices, and holds the ranks that the engines put there."""

import math

import jax
import numpy as np
import pytest
from hypothesis import given

from layouts.cut import DEGREES
from layouts.layout import Layout
from layouts.mesh import abstract_mesh_of, axes_of, mesh_of
from layouts.rules import LayoutError
from tests.spaces import layouts


def groups(layout: Layout, logical: str) -> list[list[int]]:
    """Ranks of each group along a logical axis."""
    axes = axes_of(layout)
    ranks = np.arange(layout.gpus).reshape(axes.sizes)
    inside = [axes.names.index(name) for name in axes[logical]]
    outside = [i for i in range(len(axes.names)) if i not in inside]
    return ranks.transpose(*outside, *inside).reshape(-1, axes.size(logical)).tolist()


@given(layouts("kimi-k3@article", 16))
def test_every_degree_is_a_product_of_axes(layout: Layout) -> None:
    axes = axes_of(layout)
    assert math.prod(axes.sizes) == layout.gpus
    for degree in DEGREES:
        assert axes.size(degree) == getattr(layout, degree)
        members = groups(layout, degree)
        assert sorted(rank for group in members for rank in group) == list(range(layout.gpus))


def test_the_groups_of_the_article() -> None:
    dp2 = Layout(attn_dp=2, attn_tp=8, dcp=8, ep=16, vocab_tp=8, weight_shard=8)
    host = [list(range(8)), list(range(8, 16))]
    for logical in ("dcp", "attn_tp", "vocab_tp", "weight_shard"):
        assert groups(dp2, logical) == host
    assert groups(dp2, "ep") == [list(range(16))]
    assert groups(dp2, "attn_dp") == [[r, r + 8] for r in range(8)]


def test_tp64_dp4_dcp8_has_two_dcp_groups_in_an_attention_group() -> None:
    """Serving rules: TP64 / DP4 / DCP8 has attn_tp 16; dcp_rank = tp_rank mod dcp."""
    layout = Layout(attn_dp=4, attn_tp=16, dcp=8, ep=64, vocab_tp=16)
    assert groups(layout, "attn_tp")[1] == list(range(16, 32))
    assert groups(layout, "dcp")[2] == list(range(16, 24))
    assert abstract_mesh_of(layout).size == 64


def test_pipeline_stages_and_replicas_are_outermost() -> None:
    layout = Layout(replicas=2, pp=2, attn_tp=4, expert_tp=4, vocab_tp=4)
    assert groups(layout, "attn_tp") == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert groups(layout, "pp") == [[r, r + 4] for r in (0, 1, 2, 3, 8, 9, 10, 11)]
    assert groups(layout, "replicas") == [[r, r + 8] for r in range(8)]


def test_a_real_mesh_has_the_devices_in_rank_order() -> None:
    layout = Layout(attn_dp=4, attn_tp=4, dcp=2, ep=8, expert_tp=2)
    mesh = mesh_of(layout)
    assert [device.id for device in mesh.devices.ravel()] == [device.id for device in jax.devices()[:16]]
    axes = axes_of(layout)
    assert axes.spec("attn_dp", None, "attn_tp") == jax.sharding.PartitionSpec(axes["attn_dp"], None, axes["attn_tp"])


def test_one_gpu_is_a_mesh_too() -> None:
    assert mesh_of(Layout()).size == 1
    assert axes_of(Layout()).spec("attn_tp") == jax.sharding.PartitionSpec(None)


def test_what_does_not_nest_or_is_missing_is_an_error() -> None:
    with pytest.raises(LayoutError, match="do not nest"):
        axes_of(Layout(attn_dp=3, attn_tp=2, ep=2, expert_tp=3))
    with pytest.raises(LayoutError, match="32 devices"):
        mesh_of(Layout(attn_tp=32, expert_tp=32))
