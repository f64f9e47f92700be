"""How good and how fast the search is.

    python -m experiments.bench_search [--problems N] [--json]

Three tables: exact evaluations a second in a batch; `plan` cold (empty compilation cache) and warm, as whole processes;
and over 36 problems (model, hardware, context, concurrency) on 16 to 1,024 GPUs the regret of the gradient's answer
beside random search with as many exact evaluations. Regret is the relative gap in step time to the optimum of the
enumerated space; where the space is too large to enumerate, to the better of the two.

Expected on 2 cores: over 100,000 evaluations a second, `plan` under 10 s cold and 3 s warm, a mean regret of the
gradient below that of random search. Takes about 6 minutes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final

import jax
import numpy as np
from jaxtyping import Float
from rich.console import Console
from rich.progress import track
from rich.table import Table

from explorer.evaluate import Tables, evaluate_batch
from explorer.planner import exact_losses, gradient_pool
from explorer.relax import bounds_of, cut_from, random_starts
from explorer.request import Request, make_request
from explorer.rounding import MOST_EXACT, rounded
from explorer.search import Found, goal_of, search
from hw.compat import in_x64, use_compilation_cache
from layouts.enumerate import Space, enumerate_layouts

_MOST_ENUMERATED: Final = 400_000
_COMMAND: Final = [
    "plan",
    "--model",
    "kimi-k3@article",
    "--hardware",
    "b200",
    "--gpus",
    "16",
    "--context",
    "100000",
    "--verify-width",
    "5",
    "--concurrency",
    "64",
    "--json",
]


@dataclass(frozen=True)
class Problem:
    """One deployment to plan: model and machine by name, mean tokens of context, running requests of the instance."""

    model: str
    hardware: str
    gpus: int
    context: int
    concurrency: int

    def request(self, seed: int = 0) -> Request:
        return make_request(
            self.model, self.hardware, self.gpus, context=self.context, concurrency=self.concurrency, seed=seed
        )


@dataclass(frozen=True)
class Outcome:
    """Regrets as fractions; `space` is None where it was not enumerated, a regret where no layout fitted."""

    problem: Problem
    space: int | None
    exact_evaluations: int
    gradient: float | None
    random: float | None
    seconds: float


def problems() -> Iterator[Problem]:
    """Loads that fit, on sizes from a pair of hosts to a thousand GPUs."""
    for gpus, each in ((16, 4), (64, 8), (256, 4), (1024, 2)):
        yield Problem("kimi-k3@article", "b200", gpus, 100_000, gpus * each)
        yield Problem("kimi-k3@article", "gb200", gpus, 400_000, gpus)
        yield Problem("kimi-k3@article", "b200", gpus, 8_192, gpus * 16)
        yield Problem("deepseek-v3", "h200", gpus, 16_384, gpus * each)
        yield Problem("deepseek-v3.2", "gb200", gpus, 131_072, gpus * 2)
        yield Problem("glm-5.2", "b200", gpus, 65_536, gpus * each)
        yield Problem("kimi-k2.5", "h200", gpus, 32_768, gpus * 2)
        yield Problem("qwen3-235b-a22b", "h100", gpus, 8_192, gpus * each)
        yield Problem("llama-3.1-70b", "h100", gpus, 32_768, gpus * 2)


def solve(problem: Problem) -> Outcome:
    """Gradient and random search with equally many exact evaluations, against the enumerated optimum."""
    started = time.perf_counter()
    request = problem.request()
    tables, goal = Tables(request.model), goal_of(request)

    def best(space: Space) -> float:
        return float(exact_losses(request, tables, goal, space).min(initial=np.inf))

    pool = gradient_pool(request, tables, goal, search(request, tables))
    chance, _ = rounded(_random_ends(request), request.site, len(pool.loss))
    by_gradient, by_chance = float(pool.loss.min()), best(chance)
    space = enumerate_layouts(request.site, _MOST_ENUMERATED)
    optimum = min(by_gradient, by_chance) if space is None else best(space)
    gaps = [float(np.expm1(loss - optimum)) if np.isfinite(loss) else None for loss in (by_gradient, by_chance)]
    size = None if space is None else len(space)
    return Outcome(problem, size, len(pool.loss), gaps[0], gaps[1], time.perf_counter() - started)


@in_x64
def _random_ends(request: Request) -> Found:
    """Random points of the relaxed space, each to be rounded to its nearest valid layout."""
    bounds = bounds_of(request.site)
    starts = random_starts(request.seed + 1, MOST_EXACT)
    cuts = jax.vmap(lambda relaxed: cut_from(relaxed, bounds))(starts)
    return Found(cuts, np.ones(MOST_EXACT), np.zeros(MOST_EXACT))


def evaluations_a_second() -> Float[np.ndarray, " repeats"]:
    """Exact evaluations a second over every valid layout of the article's 16 GPUs, compiled before."""
    request = Problem("kimi-k3@article", "b200", 16, 100_000, 64).request()
    tables, space = Tables(request.model), enumerate_layouts(request.site)
    assert space is not None
    cuts, case, rates = space.cuts(), request.case(), []
    evaluate_batch(tables, cuts, case)
    for _ in range(7):
        started = time.perf_counter()
        evaluate_batch(tables, cuts, case)
        rates.append(len(space) / (time.perf_counter() - started))
    return np.array(rates)


def plan_seconds() -> tuple[float, float]:
    """Wall seconds of the whole `meshwright plan` process with an empty and with a filled compilation cache."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "MESHWRIGHT_CACHE": cache, "JAX_PLATFORMS": "cpu"}
        times = []
        for _ in range(2):
            started = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "explorer.cli", *_COMMAND],
                env=environment,
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            times.append(time.perf_counter() - started)
    return times[0], times[1]


def _draw(console: Console, outcomes: list[Outcome]) -> None:
    table = Table("model", "hardware", "GPUs", "context", "conc.", "space", "gradient regret", "random regret")
    for o in outcomes:
        p = o.problem
        gaps = ["none fits" if gap is None else f"{100 * gap:.2f} %" for gap in (o.gradient, o.random)]
        space = "not enumerated" if o.space is None else f"{o.space:,}"
        table.add_row(p.model, p.hardware, f"{p.gpus}", f"{p.context:,}", f"{p.concurrency:,}", space, *gaps)
    console.print(table)
    for name in ("gradient", "random"):
        gaps = np.array([gap for o in outcomes if (gap := getattr(o, name)) is not None])
        console.print(
            f"{name}: mean regret {100 * gaps.mean():.2f} %, median {100 * np.median(gaps):.2f} %, "
            f"worst {100 * gaps.max():.2f} %, found nothing that fits in {len(outcomes) - len(gaps)} of {len(outcomes)}"
        )


def main() -> None:
    """Run the three measurements and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=None, help="only the first N problems")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of tables")
    options = parser.parse_args()
    use_compilation_cache()
    progress = Console(stderr=True)
    rates, (cold, warm) = evaluations_a_second(), plan_seconds()
    chosen = list(problems())[: options.problems]
    outcomes = [solve(problem) for problem in track(chosen, "searching", console=progress)]
    if options.json:
        found = {"evaluations_a_second": float(np.median(rates)), "plan_cold_seconds": cold, "plan_warm_seconds": warm}
        print(json.dumps({**found, "problems": [asdict(outcome) for outcome in outcomes]}, indent=1))
        return
    console = Console()
    console.print(
        f"exact evaluations a second: {np.median(rates):,.0f} (from {rates.min():,.0f} to {rates.max():,.0f})"
    )
    console.print(f"plan: {cold:.1f} s cold, {warm:.1f} s warm")
    _draw(console, outcomes)


if __name__ == "__main__":
    main()
