"""Every way to cut four models over 16 GPUs, audited: exchanges to the byte, FLOPs within a thousandth.

6052 layouts, about an hour of one core: `make sweep`, or `pytest -m sweep -n auto tests/audit`. Models have their first
layers, which are of every kind; `test_audit.py` has whole ones.
"""

import functools

import jax
import pytest

from layouts.enumerate import Space, enumerate_layouts
from layouts.layout import Layout
from tests.audit.auditing import CHOICES, CUTS, Subject, subject, swept

# first layers: enough for all kinds, and in Kimi K3 for a second block of its residual stream
MODELS = {"kimi-k3": 13, "deepseek-v3": 8, "glm-5.2-nvfp4": 8, "qwen3-235b-a22b": 8}
LAYERS = 16  # under a cut into more stages than that
PARTS = 32


@functools.cache
def space(name: str, layers: int) -> Space:
    found = enumerate_layouts(subject(name, layers).site())
    assert found is not None
    return found


def cases(name: str) -> list[tuple[Subject, Layout]]:
    """Every layout, with the first layers of the model that it cuts."""
    few, more = (
        [(subject(name, layers), layout) for layout in swept(space(name, layers))] for layers in (MODELS[name], LAYERS)
    )
    return few + [(whole, layout) for whole, layout in more if layout.pp > MODELS[name]]


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", MODELS)
def test_model_and_program_agree_under_every_cut(name: str, part: int) -> None:
    found = cases(name)[part::PARTS]
    assert found
    wrong = [line for asked, layout in found for line in asked.wrong(layout, asked.audit(layout))]
    jax.clear_caches()  # no two parts share a layout
    assert wrong == []


@pytest.mark.parametrize("name", MODELS)
def test_the_first_layers_are_of_every_kind(name: str) -> None:
    whole, short = subject(name).model, subject(name, MODELS[name]).model
    assert whole.residual is None or whole.residual.blocks_before(len(short.layers)) > 1
    assert {layer.label for layer in short.layers} == {layer.label for layer in whole.layers}


def test_the_sweep_has_every_cut_and_every_exchange_under_it() -> None:
    """Of the smallest space, by counting pairs of a cut and a choice."""
    found, every = [layout for _, layout in cases("qwen3-235b-a22b")], space("qwen3-235b-a22b", LAYERS)
    for choice in CHOICES:
        names = (*CUTS, choice)
        all_of = {tuple(getattr(every.layout(i), name) for name in names) for i in range(len(every))}
        assert {tuple(getattr(layout, name) for name in names) for layout in found} == all_of
    assert len({layout.vocab_tp for layout in found}) == 5  # 1 to 16
