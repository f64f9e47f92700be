"""Every way to cut four models over 16 GPUs, audited: exchanges to the byte, FLOPs within a thousandth.

6058 layouts, about an hour of one core: `pytest -m sweep -n auto tests/audit`. Models have their first 20 layers,
which are of every kind and enough for 16 stages; `test_audit.py` has whole ones.
"""

import functools
import itertools

import jax
import pytest

from layouts.enumerate import Space, enumerate_layouts
from tests.audit.auditing import CHOICES, CUTS, subject, swept

MODELS = ("kimi-k3", "deepseek-v3", "glm-5.2-nvfp4", "qwen3-235b-a22b")
LAYERS = 20
PARTS = 16


@functools.cache
def space(name: str) -> Space:
    found = enumerate_layouts(subject(name, LAYERS).site())
    assert found is not None
    return found


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", MODELS)
def test_model_and_program_agree_under_every_cut(name: str, part: int) -> None:
    asked = subject(name, LAYERS)
    layouts = list(itertools.islice(swept(space(name)), part, None, PARTS))
    assert layouts
    wrong = [line for layout in layouts for line in asked.wrong(layout, asked.audit(layout))]
    jax.clear_caches()  # no two parts share a layout
    assert wrong == []


@pytest.mark.parametrize("name", MODELS)
def test_the_first_layers_are_of_every_kind(name: str) -> None:
    whole, short = subject(name).model, subject(name, LAYERS).model
    assert {layer.label for layer in short.layers} == {layer.label for layer in whole.layers}


def test_the_sweep_has_every_cut_and_every_exchange_under_it() -> None:
    """Of the smallest space, by counting pairs of a cut and a choice."""
    found, every = list(swept(space("qwen3-235b-a22b"))), space("qwen3-235b-a22b")
    for choice in CHOICES:
        names = (*CUTS, choice)
        all_of = {tuple(getattr(every.layout(i), name) for name in names) for i in range(len(every))}
        assert {tuple(getattr(layout, name) for name in names) for layout in found} == all_of
    assert len({layout.vocab_tp for layout in found}) == 5  # 1 to 16
