"""The sweep: one program for all of it, the same figures as one layout at a time, crossovers, table and picture."""

import json

import pytest

from experiments import kimi_k3_decode
from experiments.kimi_k3_decode import CONCURRENCIES, CONTEXTS, crossover, main, plot, sweep
from experiments.seed_claims.article import BOTH, step


@pytest.fixture(scope="module")
def document():
    return sweep()


def rows_of(ratios):
    return [{"concurrency": 16 * (i + 1), "ratio": ratio} for i, ratio in enumerate(ratios)]


@pytest.mark.parametrize(
    ("ratios", "at"),
    [
        ((0.8, 0.9, 1.1), 40.0),  # halfway between 32 and 48
        ((0.8, 1.1, 0.9, 1.3), 52.0),  # the last time that counts: a quarter of the way from 48 to 64
        ((0.8, 0.9), None),
        ((1.2, 1.1), 16.0),
    ],
)
def test_crossover(ratios, at):
    found = crossover(rows_of(ratios))
    assert found == (pytest.approx(at) if at is not None else None)


def test_the_sweep_agrees_with_one_layout_at_a_time(document):
    rows = {(r["context"], r["concurrency"]): r for r in document["rows"]}
    assert len(rows) == len(CONTEXTS) * len(CONCURRENCIES)
    for context, running in ((100_000, 16), (400_000, 320)):
        for deployment in BOTH:
            alone = step(deployment, running, context).ms
            assert rows[context, running]["step_ms"][deployment.name] == pytest.approx(alone, rel=1e-9)


def test_the_sweep_compiles_once(document, monkeypatch):
    """All points are one call, and a second sweep traces nothing: tracing would call `evaluate`."""
    calls = []
    monkeypatch.setattr(kimi_k3_decode, "evaluate", lambda *given: calls.append(given))
    assert sweep() == document
    assert not calls


def test_what_the_articles_say_of_the_trend(document):
    """DP2 is ahead at low concurrency at every context; at 100k DP16 is ahead at 384, and not yet at 256."""
    for context in CONTEXTS:
        low = next(r for r in document["rows"] if r["context"] == context and r["concurrency"] == 64)
        assert low["ratio"] < 1
    assert 256 < document["crossover"]["100000"] < 384


def test_a_load_beyond_the_pools_does_not_fit(document):
    """384 requests of 400k tokens are 154 M; the pools hold about 51 M and 43 M (article 000)."""
    row = next(r for r in document["rows"] if r["context"] == 400_000 and r["concurrency"] == 384)
    assert not any(row["fits"].values())
    assert all(document["rows"][0]["fits"].values())


def test_output(capsys, tmp_path, document):
    assert main(["--json", "--plot", str(tmp_path / "new")]) == 0
    assert json.loads(capsys.readouterr().out) == document
    assert (tmp_path / "new" / "kimi_k3_decode.png").stat().st_size > 10_000
    assert main([]) == 0
    assert "crossover to DP16 at 400,000 tokens: none up to 384" in capsys.readouterr().out


def test_a_picture_needs_a_folder(tmp_path, document):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        plot(document, tmp_path / "file")
