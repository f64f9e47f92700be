"""The answer to a request: the best layout that gradients found, held against every valid one where they can be counted."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import jax
import numpy as np
from jaxtyping import Float, Int

from explorer.candidate import Candidate, candidates
from explorer.documents import Document, Schema, heading, plain
from explorer.evaluate import Case, Evaluation, Tables, evaluate_batch
from explorer.request import Request, RequestError
from explorer.rounding import joined, rounded
from explorer.search import STARTS, STEPS, Found, Goal, goal_of, search
from hw.compat import in_x64
from hw.units import format_bytes
from layouts.enumerate import Space, enumerate_layouts
from layouts.text import text_of

Progress = Callable[[str, float], None]

MOST_ENUMERATED: Final = 400_000  # exact evaluations spent on a whole space
_SHOWN: Final = 8
_DOUBLINGS: Final = tuple(2**i for i in range(13))  # concurrencies tried where the request leaves it open


class InfeasibleError(RequestError):
    """No valid layout holds the load; the message says by how much, and what would."""


@dataclass(frozen=True)
class Search:
    """What the search did. `regret`: relative gap of the gradient's answer to the optimum, None where not enumerated."""

    space: int | None
    exact_evaluations: int
    starts: int
    gradient_steps: int
    regret: float | None
    seconds: float


@dataclass(frozen=True)
class Plan:
    """Candidates, best first, and how they were found."""

    request: Request
    candidates: tuple[Candidate, ...]
    search: Search

    @property
    def best(self) -> Candidate:
        return self.candidates[0]

    def document(self) -> Document:
        """The `plan/1` document."""
        entries = [candidate.document() for candidate in self.candidates]
        return {
            **heading(Schema.PLAN, self.request),
            "best": entries[0],
            "candidates": entries,
            "search": plain(self.search),
        }


@dataclass(frozen=True)
class _Pool:
    """Exactly evaluated layouts, each at a concurrency: its loss (logarithm) and the memory it lacks, in bytes.

    The loss is infinite where a limit is broken.
    """

    space: Space
    concurrency: Int[np.ndarray, " rows"]
    loss: Float[np.ndarray, " rows"]
    lacking: Float[np.ndarray, " rows"]

    def best(self, count: int) -> list[int]:
        """Rows that keep every limit, best first; of equals the first."""
        order = np.argsort(self.loss, kind="stable")[:count]
        return [int(row) for row in order if np.isfinite(self.loss[row])]


def _silent(stage: str, done: float) -> None:
    """Progress for a caller who wants none."""


def plan(request: Request, progress: Progress = _silent) -> Plan:
    """Search, round, evaluate exactly, and compare with the whole space where it is small enough to enumerate.

    Deterministic in the request's seed. Raises InfeasibleError where no valid layout holds the load within the limits.
    """
    started = time.perf_counter()
    tables, goal = Tables(request.model, request.prefill), goal_of(request)
    progress("descending from random starts", 0.05)
    found = search(request, tables)
    progress("rounding to valid layouts", 0.55)
    near, ends = rounded(found, request.site)
    by_gradient = _evaluated(request, tables, goal, near, _concurrency(request, found, ends))
    progress("enumerating the space", 0.65)
    everything = _everything(request, tables, goal)
    progress("describing the candidates", 0.9)
    pool = by_gradient if everything is None else _united(by_gradient, everything)
    rows = pool.best(_SHOWN)
    if not rows:
        raise _infeasible(request, pool)
    chosen = [(pool.space.layout(row), int(pool.concurrency[row])) for row in rows]
    certified = everything is not None and request.concurrency is not None
    summary = Search(
        space=None if everything is None else len(everything.space),
        exact_evaluations=len(near),
        starts=STARTS,
        gradient_steps=STEPS,
        regret=_regret(by_gradient, everything),
        seconds=time.perf_counter() - started,
    )
    return Plan(request, candidates(request, tables, chosen, certified), summary)


def _concurrency(request: Request, found: Found, ends: Int[np.ndarray, " rows"]) -> Int[np.ndarray, " rows"]:
    """What each rounded layout runs: the request's, or whole requests of the end that it came from."""
    if request.concurrency is not None:
        return np.full(len(ends), request.concurrency)
    return np.maximum(np.asarray(found.concurrency)[ends].astype(np.int64), 1)


def exact_losses(request: Request, tables: Tables, goal: Goal, space: Space) -> Float[np.ndarray, " rows"]:
    """The goal's loss of each layout of a space at the request's concurrency; infinite where a limit is broken."""
    return _evaluated(request, tables, goal, space, np.full(len(space), request.concurrency or 1)).loss


def _evaluated(
    request: Request, tables: Tables, goal: Goal, space: Space, concurrency: Int[np.ndarray, " rows"]
) -> _Pool:
    """Each layout exactly, at its concurrency."""
    loss, lacking = np.full(len(space), np.inf), np.full(len(space), np.inf)
    cuts = space.cuts()
    for requests in np.unique(concurrency):
        rows = np.flatnonzero(concurrency == requests)
        case = request.case(int(requests))
        evaluation = evaluate_batch(tables, jax.tree.map(lambda leaf, rows=rows: leaf[rows], cuts), case)
        loss[rows] = _losses(goal, evaluation, case)
        lacking[rows] = np.maximum(-evaluation.slack, -evaluation.remainder)
    return _Pool(space, concurrency, loss, lacking)


@in_x64
def _losses(goal: Goal, evaluation: Evaluation, case: Case) -> Float[np.ndarray, " rows"]:
    """The goal's loss; infinite where memory, its reserve or the latency limit is broken."""
    excess = np.asarray(goal.excess(evaluation, case))
    return np.where((excess <= 0).all(axis=0), np.asarray(goal.loss(evaluation)), np.inf)


def _everything(request: Request, tables: Tables, goal: Goal) -> _Pool | None:
    """The whole space, or None where it is too large. An open concurrency is tried in doublings."""
    tried = _DOUBLINGS if request.concurrency is None else (request.concurrency,)
    space = enumerate_layouts(request.site, MOST_ENUMERATED // len(tried))
    if space is None:
        return None
    pools = [_evaluated(request, tables, goal, space, np.full(len(space), requests)) for requests in tried]
    best = np.argmin([pool.loss for pool in pools], axis=0)
    rows = np.arange(len(space))
    loss, lacking = (np.stack([getattr(p, name) for p in pools])[best, rows] for name in ("loss", "lacking"))
    return _Pool(space, np.array(tried)[best], loss, lacking)


def _united(by_gradient: _Pool, everything: _Pool) -> _Pool:
    """Both, what the gradient found first, without counting a layout at one concurrency twice."""
    rows = joined([by_gradient.space, everything.space])
    concurrency = np.concatenate([by_gradient.concurrency, everything.concurrency])
    keys = np.stack([*rows.columns.values(), concurrency], axis=1)
    _, first = np.unique(keys, axis=0, return_index=True)
    first = np.sort(first)
    loss = np.concatenate([by_gradient.loss, everything.loss])[first]
    lacking = np.concatenate([by_gradient.lacking, everything.lacking])[first]
    return _Pool(rows.take(first), concurrency[first], loss, lacking)


def _regret(by_gradient: _Pool, everything: _Pool | None) -> float | None:
    """Relative gap of the gradient's answer to the enumerated optimum; negative where it is better.

    None where nothing was enumerated, or where one of the two found nothing that keeps the limits.
    """
    if everything is None:
        return None
    own, optimum = by_gradient.loss.min(initial=np.inf), everything.loss.min(initial=np.inf)
    return float(np.expm1(own - optimum)) if np.isfinite(own) and np.isfinite(optimum) else None


def _infeasible(request: Request, pool: _Pool) -> InfeasibleError:
    """Names the layout that comes nearest, what it lacks, and what would make it fit."""
    row = int(np.argmin(pool.lacking))
    lacking, nearest = float(pool.lacking[row]), text_of(pool.space.layout(row), request.model)
    asked = f"{request.model.name} on {request.gpus} {request.machine.name}"
    if lacking > 0:
        return InfeasibleError(
            f"{asked} does not fit: the nearest layout, {nearest}, lacks {format_bytes(lacking)} a GPU; "
            "give more GPUs, fewer requests (concurrency), a shorter context, or a smaller precision"
        )
    limit = 1e3 * (request.max_tpot or 0.0)
    return InfeasibleError(
        f"{asked} fits, but no layout reaches max-tpot-ms {limit:g}: raise it, lower the concurrency, or give more GPUs"
    )
