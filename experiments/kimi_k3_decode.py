"""Kimi K3's decode over 16 B200s: DP16 against DP2 x DCP8, over concurrency and context.

    python -m experiments.kimi_k3_decode [--json] [--plot DIR]

Both layouts with the start-up parameters of article 000; measured figures stand beside the predicted ones. Expected:
DP2 is faster at low concurrency at every context; at 100k tokens DP16 overtakes it at 343 requests (the article:
between 256 and 384), with a ratio of 1.06 at 384 (measured 1.024); at 200k it would at 367, which no longer
fits, at 400k nowhere. At 64 requests the ratio is 0.88 (measured 0.70): DP2's step is predicted too long and DP16's
too short there. Run time: 5 to 10 s on two cores, nearly all of it compiling one program.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any, Final

import equinox as eqx
import jax
import matplotlib
import numpy as np
from rich.console import Console
from rich.table import Table

from experiments.seed_claims.article import BOTH, Deployment, tables
from explorer.evaluate import Case, Evaluation, Tables, evaluate
from hw.arithmetic import Exact
from hw.compat import in_x64, use_compilation_cache
from hw.errors import MeshwrightError
from layouts.cut import Cut, cuts_of

CONTEXTS: Final = (100_000, 200_000, 400_000)
CONCURRENCIES: Final = tuple(range(16, 385, 16))
SHOWN: Final = (16, 32, 64, 128, 192, 256, 320, 384)

# Article 000 at 100k tokens; ms, and throughput of DP16 over that of DP2.
MEASURED_STEP: Final = {("DP16", 16): 83.5, ("DP16", 320): 142.7, ("DP16", 384): 144.5, ("DP2 x DCP8", 32): 51.1}
MEASURED_DIFFERENCE: Final = {128: 22.5, 256: 7.8}
MEASURED_RATIO: Final = {
    (100_000, 64): 0.70, (100_000, 256): 0.93, (100_000, 384): 1.024, (200_000, 64): 0.73, (400_000, 64): 0.79,
}  # fmt: skip


@eqx.filter_jit
def _sweep(model: Tables, cuts: Cut, cases: Case, axes: Case) -> Evaluation:
    return jax.vmap(lambda cut, case: evaluate(Exact(), model, cut, case), in_axes=(0, axes))(cuts, cases)


def _cases(points: Sequence[tuple[Deployment, int, int]]) -> tuple[Case, Case]:
    """The points as one batch, and which of its leaves have a leading axis: what differs between the points."""
    one = BOTH[0].request.case()

    def varying(case: Case) -> tuple:
        load, budget = case.load, case.budget
        kept = budget.extra_slots, budget.draft_window, budget.mem_fraction
        return load.context, load.concurrency, *kept, case.overlap

    columns = zip(
        *(
            (context, running, d.extra_slots, d.draft_window, d.mem_fraction, d.shared_in_combine)
            for d, context, running in points
        ),
        strict=True,
    )
    batched = eqx.tree_at(varying, one, tuple(np.array(column, np.float64) for column in columns))
    return batched, eqx.tree_at(varying, jax.tree.map(lambda _: None, one), (0,) * 6, is_leaf=lambda x: x is None)


@in_x64
def sweep() -> dict[str, Any]:
    """The whole sweep as a document: `rows` by context and concurrency, and `crossover` by context."""
    points = [(d, context, running) for d in BOTH for context in CONTEXTS for running in CONCURRENCIES]
    cases, axes = _cases(points)
    result = _sweep(tables(), cuts_of([d.layout for d, _, _ in points]), cases, axes)
    shape = (len(BOTH), len(CONTEXTS), len(CONCURRENCIES))
    step, fits = (np.asarray(x).reshape(shape) for x in (result.step, result.feasible))
    rows = [
        _row(context, running, step[:, i, j], fits[:, i, j])
        for i, context in enumerate(CONTEXTS)
        for j, running in enumerate(CONCURRENCIES)
    ]
    found = {str(context): crossover([r for r in rows if r["context"] == context]) for context in CONTEXTS}
    return {"layouts": {d.name: d.text for d in BOTH}, "rows": rows, "crossover": found}


def _row(context: int, running: int, seconds: np.ndarray, fits: np.ndarray) -> dict[str, Any]:
    at_100k = context == CONTEXTS[0]
    measured = {d.name: MEASURED_STEP.get((d.name, running)) if at_100k else None for d in BOTH}
    return {
        "context": context,
        "concurrency": running,
        "step_ms": {d.name: float(s) * 1e3 for d, s in zip(BOTH, seconds, strict=True)},
        "measured_step_ms": measured,
        "difference_ms": float(seconds[0] - seconds[1]) * 1e3,
        "measured_difference_ms": MEASURED_DIFFERENCE.get(running) if at_100k else None,
        "ratio": float(seconds[1] / seconds[0]),
        "measured_ratio": MEASURED_RATIO.get((context, running)),
        "fits": {d.name: bool(f) for d, f in zip(BOTH, fits, strict=True)},
    }


def crossover(rows: Sequence[dict[str, Any]]) -> float | None:
    """Concurrency from which DP16 stays ahead up to the end of the sweep, interpolated; None where it never does."""
    behind = [i for i, row in enumerate(rows) if row["ratio"] < 1]
    if not behind:
        return float(rows[0]["concurrency"])
    if behind[-1] == len(rows) - 1:
        return None
    low, high = rows[behind[-1]], rows[behind[-1] + 1]
    share = (1 - low["ratio"]) / (high["ratio"] - low["ratio"])
    return float(low["concurrency"] + share * (high["concurrency"] - low["concurrency"]))


def show(document: dict[str, Any], console: Console) -> None:
    """Tables and crossovers of a sweep."""
    first, second = document["layouts"]
    table = Table(title=f"{first} ({document['layouts'][first]}) and {second} ({document['layouts'][second]})")
    for name in ("context", "requests", f"{first} ms", f"{second} ms", "difference ms", "throughput ratio", "fits"):
        table.add_column(name, justify="right")
    for row in document["rows"]:
        if row["concurrency"] in SHOWN:
            steps = [_beside(row["step_ms"][n], row["measured_step_ms"][n], 1) for n in (first, second)]
            fits = ", ".join(n for n, ok in row["fits"].items() if ok) or "neither"
            difference = _beside(row["difference_ms"], row["measured_difference_ms"], 1)
            ratio = _beside(row["ratio"], row["measured_ratio"], 3)
            table.add_row(f"{row['context']:,}", str(row["concurrency"]), *steps, difference, ratio, fits)
    console.print(table)
    console.print("In brackets: measured (article 000).")
    for context, at in document["crossover"].items():
        where = f"at {at:.0f} requests" if at is not None else f"none up to {CONCURRENCIES[-1]} requests"
        largest = max(
            (r["concurrency"] for r in document["rows"] if str(r["context"]) == context and _fits(r)), default=0
        )
        where += f"; both layouts hold up to {largest}"
        console.print(f"crossover to {first} at {int(context):,} tokens: {where}")


def _fits(row: dict[str, Any]) -> bool:
    return all(row["fits"].values())


def _beside(predicted: float, measured: float | None, digits: int) -> str:
    return f"{predicted:.{digits}f}" + (f" ({measured:g})" if measured is not None else "")


def plot(document: dict[str, Any], folder: pathlib.Path) -> pathlib.Path:
    """Step time and throughput ratio against concurrency; hollow where the load does not fit. Returns the file."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    first, second = document["layouts"]
    for colour, context in zip(("tab:blue", "tab:orange", "tab:green"), CONTEXTS, strict=True):
        rows = [row for row in document["rows"] if row["context"] == context]
        running = [row["concurrency"] for row in rows]
        for name, style in ((first, "-"), (second, "--")):
            label = f"{name}, {context // 1000}k"
            left.plot(running, [row["step_ms"][name] for row in rows], style, color=colour, label=label)
            _mark(left, [(r["concurrency"], r["step_ms"][name]) for r in rows if not r["fits"][name]], colour)
            for row in rows:
                if row["measured_step_ms"][name] is not None:
                    left.plot(row["concurrency"], row["measured_step_ms"][name], "k^" if name == first else "kv")
        right.plot(running, [row["ratio"] for row in rows], "-", color=colour, label=f"{context // 1000}k tokens")
        _mark(right, [(r["concurrency"], r["ratio"]) for r in rows if not _fits(r)], colour)
        known = [(r["concurrency"], r["measured_ratio"]) for r in rows if r["measured_ratio"] is not None]
        right.plot(*zip(*known, strict=True), "^", color=colour, markeredgecolor="black")
    right.axhline(1.0, color="grey", linewidth=0.8)
    left.set(xlabel="requests of the instance", ylabel="step, ms", ylim=(0, None))
    right.set(xlabel="requests of the instance", ylabel=f"throughput of {first} / {second}")
    left.set_title("step (triangles: measured at 100k; circles: does not fit)", fontsize=10)
    right.set_title(f"above 1 {first} is ahead (triangles: measured)", fontsize=10)
    left.legend(fontsize=8)
    right.legend(fontsize=8)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "kimi_k3_decode.png"
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return path


def _mark(axes: Any, points: Sequence[tuple[float, float]], colour: str) -> None:
    if points:
        axes.plot(*zip(*points, strict=True), "o", color=colour, markerfacecolor="white", markersize=4)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sweep and print it; 2 for an option that cannot be."""
    parser = argparse.ArgumentParser(prog="python -m experiments.kimi_k3_decode", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the sweep as a JSON document")
    parser.add_argument("--plot", metavar="DIR", type=pathlib.Path, help="write a picture into this folder")
    options = parser.parse_args(arguments)
    use_compilation_cache()
    document = sweep()
    if options.json:
        print(json.dumps(document, indent=1))
    else:
        plain = Console()
        show(document, plain if plain.is_terminal else Console(width=120))
    if options.plot is not None:
        try:
            print(f"picture: {plot(document, options.plot)}", file=sys.stderr)
        except OSError as error:
            raise MeshwrightError(
                f"--plot {options.plot}: {error.strerror}: give a folder that can be written"
            ) from None
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MeshwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
