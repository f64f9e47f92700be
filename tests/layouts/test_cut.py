"""Layouts as numbers."""

import dataclasses

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from hw.compat import x64
from layouts.cut import DEGREES, cut_of, cuts_of, window
from layouts.layout import DCP_BACKENDS, DISPATCHES, PADDINGS, Layout, ShardedLayers
from tests.spaces import layouts, space

K3 = "kimi-k3@article"


@given(layouts(K3, 16) | layouts(K3, 16, prefill=True))
def test_a_cut_holds_the_layout(layout: Layout) -> None:
    cut = cut_of(layout)
    assert all(float(getattr(cut, name)) == getattr(layout, name) for name in DEGREES)
    assert float(cut.tp) == layout.tp
    for key, choices in (("dcp_backend", DCP_BACKENDS), ("dispatch", DISPATCHES), ("padding", PADDINGS)):
        weights = {choice: float(cut.weight(f"{key}={choice}")) for choice in choices}
        assert weights == {choice: float(choice == getattr(layout, key)) for choice in choices}
    assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(cut))


def test_every_degree_of_a_layout_is_one_of_a_cut() -> None:
    numbers = {f.name for f in dataclasses.fields(Layout) if isinstance(getattr(Layout(), f.name), int)}
    assert numbers == set(DEGREES)


def test_a_batch_is_its_layouts_one_after_the_other() -> None:
    some = space(K3, 16)
    rows = np.arange(0, len(some), 97)
    chosen = [some.layout(int(row)) for row in rows]
    batch = cuts_of(chosen)
    for i, layout in enumerate(chosen):
        one = jax.tree.map(lambda leaf, i=i: leaf[i], batch)
        assert jax.tree.all(jax.tree.map(np.array_equal, one, cut_of(layout)))
    assert jax.tree.all(jax.tree.map(np.array_equal, batch, some.take(rows).cuts()))


@given(st.integers(0, 20), st.integers(-1, 20))
def test_a_window_of_whole_bounds_is_a_range(first: int, last: int) -> None:
    with x64():
        found = window(jnp.asarray(float(first)), jnp.asarray(float(last)), 21).tolist()
    assert found == [float(first <= i <= last) for i in range(21)]


def test_no_sharded_layers_are_an_empty_window() -> None:
    none = cut_of(Layout(weight_shard_layers=ShardedLayers()))
    with x64():
        assert float(window(none.sharded_first, none.sharded_last, 93).sum()) == 0


@pytest.mark.parametrize(
    ("first", "last", "held"), [(2.5, 5.0, [0, 0, 0.5, 1, 1, 1, 0]), (2.0, 3.25, [0, 0, 1, 1, 0.25, 0, 0])]
)
def test_a_window_between_whole_bounds_is_a_ramp_of_one_layer(first: float, last: float, held: list[float]) -> None:
    with x64():
        assert window(jnp.asarray(float(first)), jnp.asarray(float(last)), 7).tolist() == held
