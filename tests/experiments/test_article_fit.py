"""The curves of the article's engine: fitted to what they may see, and as the file has them."""

from experiments.article_fit.parameters import FREE, SET, value
from experiments.article_fit.rows import ROWS
from experiments.article_fit.solve import rows
from experiments.seed_claims.claims import read_claims
from explorer.request import make_request
from hw.compat import x64
from hw.figures import Provenance
from hw.machine import load_machine

ENGINE = load_machine("b200", curves="b200@article")


def test_no_row_that_is_checked_is_seen() -> None:
    uses = {claim.id: claim.use for claim in read_claims()}
    assert {uses[name] for name in ROWS} == {"fit", "given"}
    assert {row.claim for row in rows()} == set(ROWS)


def test_every_fit_row_of_a_time_is_seen() -> None:
    assert {c.id for c in read_claims() if c.kind == "time" and c.use == "fit"} <= set(ROWS)


def test_the_file_states_every_fitted_figure_with_its_claims() -> None:
    for path, claims in [*((p, free.claims) for free in FREE for p in free.paths), *((p, "S15") for p in SET)]:
        figure = ENGINE.figure(path)
        assert figure.provenance is Provenance.FITTED
        assert figure.source.startswith(f"article 000, claims {claims.split()[0]}")
        with x64():
            assert float(value(ENGINE, path)) == figure.value


def test_figures_stay_possible() -> None:
    for path in (p for free in FREE for p in free.paths):
        figure = ENGINE.figure(path)
        assert figure.value > 0
        assert figure.unit != "fraction" or figure.value <= 1.0


def test_the_build_runs_on_its_own_engine_and_other_models_on_the_tables() -> None:
    article, plain = (make_request(name, "b200", 16).machine for name in ("kimi-k3@article", "kimi-k3"))
    assert article.figure("state.contention") == ENGINE.figure("state.contention")
    assert plain.figure("state.contention") == load_machine("b200").figure("state.contention")
    elsewhere = make_request("kimi-k3@article", "h200", 16).machine
    assert elsewhere.figure("state.contention") == load_machine("h200").figure("state.contention")
