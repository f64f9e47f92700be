"""What serving engines add to a step, fitted to the public runs, engine by engine.

    python -m experiments.fit_service            parameters, errors, and errors of models that were left out
    python -m experiments.fit_service --write    and writes them to explorer/service/engines.toml

Five minutes on two cores. Parameters are common to all models, machines and layouts of an engine. Runs whose inputs do
not say what was run, at whatever load of their configuration, are left out, and the loss forgives those that speculate
without saying so. Errors are of all runs that the scoreboard scores.
"""

import dataclasses
import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
import typer
from jaxtyping import Array, Float
from rich.console import Console
from rich.table import Table

from experiments.fidelity import SHIPPED
from explorer.cli.output import watching
from explorer.fidelity.files import load_runs
from explorer.fidelity.folds import by_model
from explorer.fidelity.repeats import ambiguous, distinct, of_ambiguous_configuration
from explorer.fidelity.runs import Run
from explorer.service.engine import ANY, ENGINES, FITTED, UNITS, Engine, engine_names, load_engine
from explorer.service.predict import Served, served
from explorer.service.queue import Clients, Latency, latency
from explorer.service.steps import Steps
from hw.compat import in_x64
from hw.errors import MeshwrightError
from layouts.cut import Scalar

# Between which a parameter may lie: from nothing worth a name to what no engine would survive.
BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "fixed_share": (0.02, 1.3),
    "step": (1e-6, 2e-2),
    "request": (1e-8, 2e-4),
    "prefill_stretch": (0.3, 3.0),
    "launch": (1e-6, 3e-4),
    "arrival": (1e-3, 0.5),
}
# Relative deviations beyond which a run counts as one of another kind (it speculates, or its server was cold), and how
# much each quantity weighs: a first token is repeated several times worse.
_USUAL: Final = {"tpot": 0.08, "ttft": 0.3}
_WEIGHT: Final = {"tpot": 1.0, "ttft": 0.5}
_PRIOR: Final = 0.1  # of a parameter's logit: one that no run tells stays in the middle of its bounds
_STARTS: Final = (0.0, -1.0, 1.0)
_SPREADS: Final = ("spread_tpot", "spread_ttft")
_HALF_RANGE: Final = 0.8  # share of the runs that a range is to hold


@dataclasses.dataclass(frozen=True)
class Case:
    """A run with its priced pools."""

    run: Run
    served: Served
    fits: bool


class Rows(NamedTuple):
    """Cases of one mode, stacked; a quantity that was not measured is NaN."""

    clients: Clients
    decode: Steps
    prefill: Steps
    groups: Float[np.ndarray, " runs"]
    stages: Float[np.ndarray, " runs"]
    workers: Float[np.ndarray, "runs 2"]
    tpot: Float[np.ndarray, " runs"]
    ttft: Float[np.ndarray, " runs"]


def cases() -> list[Case]:
    """Every distinct shipped run that states its pools and can be priced."""
    runs = [r for path in SHIPPED for r in distinct(load_runs(path).runs).runs if r.pools]
    apart, doubtful = ambiguous(runs), of_ambiguous_configuration(runs)
    found = []
    with watching("pricing") as report:
        for i, run in enumerate(runs):
            report("pricing", i / len(runs))
            if apart[i] or run.unstated:
                continue
            try:
                found.append(Case(run, served(run), not doubtful[i]))
            except MeshwrightError:
                continue  # the scoreboard says which, and why
    return found


@in_x64
def fitted(engine: Engine, chosen: Sequence[Case]) -> Engine:
    """The engine's parameters that predict the cases best; unchanged where there are none."""
    parts = _stacked(chosen)
    if not parts:
        return engine
    found = [_solved(engine, parts, jnp.full(len(FITTED), start)) for start in _STARTS]
    theta = min(found, key=lambda pair: float(pair[1]))[0]
    return jax.device_get(_with(engine, theta))


@eqx.filter_jit
def _solved(engine: Engine, parts: list[tuple[Rows, bool]], start: Array) -> tuple[Array, Array]:
    def residuals(theta: Array, _: None) -> Array:
        tuned = _with(engine, theta)
        found = [_PRIOR * theta]
        for rows, apart in parts:
            predicted = latencies(tuned, rows, apart)
            found.append(_WEIGHT["tpot"] * _forgiving(predicted.tpot, rows.tpot, _USUAL["tpot"]))
            if not apart:  # queues between pools are not modelled
                found.append(_WEIGHT["ttft"] * _forgiving(predicted.ttft, rows.ttft, _USUAL["ttft"]))
        return jnp.concatenate(found)

    solver = optx.LevenbergMarquardt(rtol=1e-6, atol=1e-6)
    theta = optx.least_squares(residuals, solver, start, max_steps=200, throw=False).value
    return theta, jnp.sum(residuals(theta, None) ** 2)


def latencies(engine: Engine, rows: Rows, apart: bool) -> Latency:
    """Predictions of all rows at once."""

    def serve(row: Rows) -> Latency:
        workers = (row.workers[0], row.workers[1]) if apart else None
        return latency(engine, row.clients, row.decode, row.prefill, row.groups, row.stages, workers)

    return jax.vmap(serve)(rows)


def _forgiving(predicted: Scalar, measured: Float[np.ndarray, " runs"], usual: float) -> Array:
    """Cauchy's loss as a residual: the square of it grows with the logarithm of the deviation."""
    off = jnp.where(jnp.isnan(measured), 0.0, jnp.log(predicted / jnp.where(jnp.isnan(measured), predicted, measured)))
    return jnp.sign(off) * jnp.sqrt(jnp.log1p((off / usual) ** 2) + 1e-12)


def _with(engine: Engine, theta: Array) -> Engine:
    """The engine with its parameters at these logits between their bounds, on a logarithmic scale."""
    low, high = (jnp.log(jnp.array([BOUNDS[name][end] for name in FITTED])) for end in (0, 1))
    values = jnp.exp(low + (high - low) * jax.nn.sigmoid(theta))
    return eqx.tree_at(lambda e: [getattr(e, name) for name in FITTED], engine, [values[i] for i in range(len(FITTED))])


def _stacked(chosen: Sequence[Case]) -> list[tuple[Rows, bool]]:
    """Aggregated and disaggregated cases, each as arrays; what there is none of is left out."""
    modes = ((False, [c for c in chosen if c.served.workers is None]), (True, [c for c in chosen if c.served.workers]))
    return [(_rows(mine), apart) for apart, mine in modes if mine]


Stacked = TypeVar("Stacked", Clients, Steps)


def _column(of: Sequence[Stacked]) -> Stacked:
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf, np.float64) for leaf in leaves]), *of)


def _rows(mine: Sequence[Case]) -> Rows:
    return Rows(
        clients=_column([c.served.clients for c in mine]),
        decode=_column([c.served.decode.steps for c in mine]),
        prefill=_column([c.served.prefill.steps for c in mine]),
        groups=np.array([float(c.served.prefill.groups) for c in mine]),
        stages=np.array([float(c.served.prefill.stages) for c in mine]),
        workers=np.array([c.served.workers or (1.0, 1.0) for c in mine]),
        tpot=np.array([c.run.measured.get("tpot", np.nan) for c in mine]),
        ttft=np.array([c.run.measured.get("ttft", np.nan) for c in mine]),
    )


def predicted(engine: Engine, chosen: Sequence[Case]) -> Iterator[tuple[Case, dict[str, tuple[float, float, float]]]]:
    """Value, and values at both ends of the machine's range, of every quantity of every case."""
    for rows, apart in _stacked(chosen):
        mine = [c for c in chosen if (c.served.workers is not None) == apart]
        with_ends = [latencies(engine, _at(rows, end), apart) for end in ("gpu", "fast", "slow")]
        for i, case in enumerate(mine):
            yield case, {q: tuple(float(getattr(one, q)[i]) for one in with_ends) for q in _USUAL}  # pyright: ignore


def _at(rows: Rows, end: str) -> Rows:
    return rows._replace(decode=rows.decode.with_seconds(end), prefill=rows.prefill.with_seconds(end))


def spreads(found: Sequence[tuple[Case, Mapping[str, tuple[float, float, float]]]]) -> dict[str, float]:
    """Half-widths (logarithms) that, beside the range of the ops, make the ranges hold `_HALF_RANGE` of the runs."""
    widths = {}
    for quantity in _USUAL:
        pairs = [(c.run.measured[quantity], p[quantity]) for c, p in found if quantity in c.run.measured]
        off = np.array([abs(np.log(value / measured)) for measured, (value, *_) in pairs])
        ops = np.array([np.log(slow / fast) / 2.0 for _, (_, fast, slow) in pairs])
        missing = np.sqrt(np.maximum(off**2 - ops**2, 0.0))
        widths[quantity] = float(np.quantile(missing, _HALF_RANGE)) if pairs else 0.3
    return widths


def errors(
    found: Sequence[tuple[Case, Mapping[str, tuple[float, float, float]]]], quantity: str
) -> Float[np.ndarray, " n"]:
    """predicted / measured - 1."""
    return np.array([p[quantity][0] / c.run.measured[quantity] - 1 for c, p in found if quantity in c.run.measured])


def main(write: Annotated[bool, typer.Option("--write", help="Write explorer/service/engines.toml.")] = False) -> None:
    """Fit every engine and print how far off it is."""
    every, console = cases(), Console()
    engines: dict[str, Engine] = {}
    table = Table("engine", "fitted to", "quantity", "runs", "mean %", "median %", "bias %", "model left out: mean %")
    for name in (n for n in engine_names() if n != ANY):
        mine = [c for c in every if c.run.engine == name]
        engine = fitted(load_engine(name), [c for c in mine if c.fits])
        found = list(predicted(engine, mine))
        width = spreads(found)
        engines[name] = dataclasses.replace(engine, spread_tpot=width["tpot"], spread_ttft=width["ttft"])
        unseen = list(_left_out(name, mine))
        for quantity in _USUAL:
            off, held = errors(found, quantity), errors(unseen, quantity)
            figures = (
                np.abs(off).mean(),
                np.median(np.abs(off)),
                np.median(off),
                np.abs(held).mean() if len(held) else np.nan,
            )
            table.add_row(
                name, str(sum(c.fits for c in mine)), quantity, str(len(off)), *(f"{100 * f:.1f}" for f in figures)
            )
    console.print(table)
    for name, engine in engines.items():
        console.print(name, {what: float(f"{float(getattr(engine, what)):.3g}") for what in FITTED})
    if write:
        _write(engines)


def _left_out(name: str, mine: Sequence[Case]) -> Iterator[tuple[Case, dict[str, tuple[float, float, float]]]]:
    """Each model's cases predicted by the engine fitted to the others; nothing where there is one model only."""
    for fold in by_model([c.run for c in mine]):
        kept = [c for c in mine if c.run.model != fold.model and c.fits]
        if kept:
            yield from predicted(fitted(load_engine(name), kept), [c for c in mine if c.run.model == fold.model])


def _write(engines: Mapping[str, Engine]) -> None:
    """All engines, and as `other` the geometric mean of them, in the widest of their ranges."""
    values = {what: [float(getattr(e, what)) for e in engines.values()] for what in (*FITTED, *_SPREADS)}
    mean = {what: np.exp(np.mean(np.log(values[what]))) for what in FITTED}
    other = dataclasses.replace(load_engine(ANY), **mean, **{what: max(values[what]) for what in _SPREADS})
    lines = [
        "# What engines add to a step, for all models and machines; `python -m experiments.fit_service` writes it.",
        "",
    ]
    for name, engine in {**engines, ANY: other}.items():
        lines += [f"[{name}]", f'policy = "{engine.policy}"', f"chunk = {engine.chunk}"]
        lines += [f"chunk_by_group = {str(engine.chunk_by_group).lower()}"]
        source = "mean" if name == ANY else "runs"
        provenance = "assumed" if name == ANY else "fitted"
        lines += [
            f'{what} = {{ value = {float(getattr(engine, what)):.4g}, unit = "{UNITS[what]}", '
            f'provenance = "{provenance}", source = "{source}" }}'
            for what in (*FITTED, *_SPREADS)
        ] + [""]
    day = datetime.date.today().isoformat()
    lines += ["[sources]", f'runs = "public runs of silicon_sample_fit.csv, by least squares of logarithms, {day}"']
    lines += ['mean = "geometric mean of the engines above; of the ranges the widest"']
    ENGINES.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
