"""The data file of engines: what it must say, and what it may."""

import numpy as np
import pytest

from experiments.fit_service import BOUNDS
from explorer.service import engine
from explorer.service.engine import ANY, FITTED, UNITS, Policy, engine_figures, engine_for, engine_names, load_engine
from hw.errors import MeshwrightError
from hw.figures import Provenance

SPREADS = ("spread_tpot", "spread_ttft")


@pytest.mark.parametrize("name", engine_names())
def test_every_parameter_has_unit_source_and_a_value_within_bounds(name: str) -> None:
    figures = engine_figures(name)
    assert list(figures) == [*FITTED, *SPREADS] == list(UNITS)
    for what, figure in figures.items():
        assert figure.unit == UNITS[what]
        assert figure.provenance is (Provenance.ASSUMED if name == ANY else Provenance.FITTED)
        assert len(figure.source.split()) > 3  # a sentence, not a key of the table of sources
        if what in FITTED:
            low, high = BOUNDS[what]
            assert low <= figure.value <= high
        else:
            assert 0.0 <= figure.value < 1.5
    loaded = load_engine(name)
    assert {what: float(getattr(loaded, what)) for what in figures} == {w: f.value for w, f in figures.items()}
    assert (loaded.name, loaded.chunk) == (name, 8192)
    assert loaded.anonymous().name == "" and loaded.anonymous().policy is loaded.policy


def test_policies_are_those_of_the_engines() -> None:
    """SGLang computes waiting prompts before anything else; the other two mix chunks into decode steps."""
    found = {name: (load_engine(name).policy, load_engine(name).chunk_by_group) for name in engine_names()}
    assert found["sglang"] == (Policy.PREFILL_FIRST, False)
    assert found["trtllm"] == found["vllm"] == found[ANY] == (Policy.MIXED, True)


def test_any_other_engine_is_the_mean() -> None:
    known = [name for name in engine_names() if name != ANY]
    for what in FITTED:
        mean = np.exp(np.mean([np.log(engine_figures(name)[what].value) for name in known]))
        assert engine_figures(ANY)[what].value == pytest.approx(mean, rel=2e-3)
    for what in SPREADS:
        assert engine_figures(ANY)[what].value == max(engine_figures(name)[what].value for name in known)
    assert engine_for("llama.cpp").name == ANY
    assert engine_for("vllm").name == "vllm"


@pytest.mark.parametrize("ask", [load_engine, engine_figures])
@pytest.mark.parametrize(
    ("name", "near"), [("vlm", "vllm"), ("SGLang", "sglang"), ("", "sglang"), ("sources", "other")]
)
def test_an_unknown_engine_names_the_nearest(ask: object, name: str, near: str) -> None:
    assert callable(ask)
    with pytest.raises(MeshwrightError, match="known are sglang, trtllm, vllm, other") as caught:
        ask(name)
    assert str(caught.value).startswith(f"unknown engine {name!r}: nearest is ") and "\n" not in str(caught.value)
    assert near in str(caught.value)


def test_a_parameter_without_unit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {"x": {"policy": "mixed", "chunk": 1, "chunk_by_group": True, "step": {"value": 1.0}}, "sources": {}}
    monkeypatch.setattr(engine, "_document", lambda: broken)
    with pytest.raises(MeshwrightError, match="step lacks source, unit"):
        engine_figures("x")
