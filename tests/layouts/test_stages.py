"""Pipeline stages: which layers each holds, and the counts that the ledger reads."""

import dataclasses

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import given

from hw.compat import x64
from layouts.cut import cut_of, cuts_of
from layouts.layout import Layout, ShardedLayers
from layouts.stages import heaviest_stages, layer_counts, stage_bounds
from tests.layouts.oracle import stage_layers
from tests.spaces import model_of


@given(st.integers(1, 200), st.data())
def test_stages_follow_the_engine(layers: int, data: st.DataObject) -> None:
    """SGLang: the remainder goes to the last stages. Together they hold every layer once."""
    stages = data.draw(st.integers(1, layers))
    bounds = [stage_bounds(layers, stage, stages) for stage in range(stages)]
    assert [range(a, b + 1) for a, b in bounds] == [stage_layers(layers, stage, stages) for stage in range(stages)]
    assert [i for a, b in bounds for i in range(a, b + 1)] == list(range(layers))


def test_stages_by_hand() -> None:
    assert [stage_bounds(93, s, 4) for s in range(4)] == [(0, 22), (23, 45), (46, 68), (69, 92)]
    assert [stage_bounds(10, s, 4) for s in range(4)] == [(0, 1), (2, 3), (4, 6), (7, 9)]


@pytest.mark.parametrize("name", ["kimi-k3@article", "deepseek-v3", "gpt-oss-120b"])
def test_counts_are_exact_at_every_number_of_stages(name: str) -> None:
    model = model_of(name)
    bounds = heaviest_stages(model)
    layers = len(model.layers)
    sharded = ShardedLayers(layers // 3, 2 * layers // 3)
    cuts = cuts_of([Layout(pp=stages, weight_shard_layers=sharded) for stages in range(1, layers + 1)])
    with x64():
        found = jax.vmap(lambda cut: layer_counts(cut, model.kind_of_layer, bounds))(cuts)
    for stages in range(1, layers + 1):
        counts = {name: column[stages - 1] for name, column in jax.tree.map(np.asarray, found).items()}
        first, last = map(int, bounds[stages - 1])
        held = range(first, last + 1)
        assert held in [stage_layers(layers, s, stages) for s in range(stages)]
        for kind in range(len(model.kinds)):
            mine = [i for i in held if model.kind_of_layer[i] == kind]
            both = [i for i in mine if sharded.first <= i <= sharded.last]
            np.testing.assert_allclose(float(counts[f"layers_{kind}"]), len(mine), atol=1e-9)
            np.testing.assert_allclose(float(counts[f"sharded_{kind}"]), len(both), atol=1e-9)


def test_no_stage_is_heavier_than_the_heaviest() -> None:
    model = model_of("kimi-k3@article")
    for stages, (first, last) in enumerate(heaviest_stages(model).astype(int), start=1):
        weights = [sum(model.layers[i].parameters for i in stage_layers(93, s, stages)) for s in range(stages)]
        assert sum(model.layers[i].parameters for i in range(first, last + 1)) == max(weights)


def test_between_two_stage_counts_the_layers_fall_steadily() -> None:
    """From one stage to two, 93 layers become 47, without a jump or a rise."""
    model = model_of("kimi-k3@article")
    bounds, cut = heaviest_stages(model), cut_of(Layout())
    held = []
    for pp in np.linspace(1, 2, 41):
        with x64():
            counts = layer_counts(dataclasses.replace(cut, pp=pp), model.kind_of_layer, bounds)
        held.append(sum(float(counts[f"layers_{k}"]) for k in range(len(model.kinds))))
    assert (held[0], held[-1]) == (93, 47)
    steps = np.diff(held)
    assert np.all(steps <= 0)
    assert np.all(steps > -3)
