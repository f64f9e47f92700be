"""The answer to a request: the best layout that gradients found, held against every valid one if they are few."""

import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import jax
import numpy as np
from jaxtyping import Float, Int

from explorer.candidate import Candidate, candidates
from explorer.documents import Document, Schema, heading, plain
from explorer.evaluate import Case, Evaluation, Tables, evaluate_batch
from explorer.request import MOST_REQUESTS, Request, RequestError
from explorer.rounding import MOST_EXACT, joined, neighbours, rounded
from explorer.search import STARTS, STEPS, Found, Goal, goal_of, search
from hw.units import format_bytes
from layouts.enumerate import Space, enumerate_layouts
from layouts.models import Model
from layouts.text import text_of

Progress = Callable[[str, float], None]

MOST_ENUMERATED: Final = 400_000  # exact evaluations spent on a whole space
_SHOWN: Final = 8
_TIE: Final = 1e-3  # relative: smaller differences are less than the curves can tell
_MOST_TIED: Final = 16
_WAY: Final = ("replicas", "pp", "attn_dp", "attn_tp", "attn_cp", "dcp")
_REFINED: Final = 5  # exact evaluations of a look around the best
_LOOKS: Final = (True, True, True, False)  # whether it takes layouts that differ in what moves the cost most
_FILLED: Final = 12  # layouts whose concurrency is refined where it is open
_ROUNDS: Final = 4  # exact evaluations of each rounded layout where the concurrency is open
_DOUBLINGS: Final = tuple(2**i for i in range(13))  # concurrencies tried where the request leaves it open


class InfeasibleError(RequestError):
    """No valid layout holds the load; the message says by how much, and what would."""


@dataclass(frozen=True)
class Search:
    """What the search did: valid layouts in the space, exact evaluations spent on all of them and on rounding.

    `regret`: relative gap of the gradient's answer to the optimum, None where not enumerated."""

    space: int | None
    enumerated: int
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
class Pool:
    """Exactly evaluated layouts, each at a concurrency: its loss (logarithm) and the memory it lacks, in bytes.

    The loss is infinite where a limit is broken; `excess` is how far the worst limit is beyond (relative, <= 0 inside).
    """

    space: Space
    concurrency: Int[np.ndarray, " rows"]
    loss: Float[np.ndarray, " rows"]
    excess: Float[np.ndarray, " rows"]
    lacking: Float[np.ndarray, " rows"]

    @property
    def front(self) -> int:
        """The row to look around: the best that keeps every limit, or else the one that breaks them least."""
        kept = np.isfinite(self.loss).any()
        return int(np.argmin(self.loss if kept else self.excess))

    def best(self, count: int, model: Model) -> list[int]:
        """Rows that keep every limit, best first, one for each way to cut attention and pipeline.

        Of layouts within `_TIE` of the best of its way, the one that needs the fewest keys to say stands for it.
        """
        ways: dict[tuple[int, ...], list[int]] = {}
        for row in np.argsort(self.loss, kind="stable"):
            if not np.isfinite(self.loss[row]):
                break
            tied = ways.setdefault(tuple(int(self.space.columns[name][row]) for name in _WAY), [])
            if not tied and len(ways) > count:
                break
            if len(tied) < _MOST_TIED and (not tied or self.loss[row] - self.loss[tied[0]] < _TIE):
                tied.append(int(row))
        plain = [
            min(tied, key=lambda row: len(text_of(self.space.layout(row), model))) for tied in ways.values() if tied
        ]
        return plain[:count]


_FIGURES: Final = ("loss", "excess", "lacking")


@dataclass(frozen=True)
class Bracket:
    """For each layout the most requests known to keep the limits and the fewest known to break one, and the excess
    there; zero and infinity where none is known yet."""

    least: Float[np.ndarray, " rows"]
    most: Float[np.ndarray, " rows"]
    inside: Float[np.ndarray, " rows"]
    outside: Float[np.ndarray, " rows"]

    @classmethod
    def open(cls, rows: int) -> "Bracket":
        return cls(np.zeros(rows), np.full(rows, np.inf), np.zeros(rows), np.zeros(rows))

    def closed(self, requests: Int[np.ndarray, " rows"], excess: Float[np.ndarray, " rows"]) -> "Bracket":
        """With one more evaluation of each layout."""
        keeps = (excess <= 0) & (requests >= self.least)
        breaks = (excess > 0) & (requests <= self.most)
        return Bracket(
            np.where(keeps, requests, self.least),
            np.where(breaks, requests, self.most),
            np.where(keeps, excess, self.inside),
            np.where(breaks, excess, self.outside),
        )

    def next(self) -> Int[np.ndarray, " rows"]:
        """Where to look next: on the straight line between the two ends, or four times as far where one is open."""
        known = np.isfinite(self.most)
        most = np.where(known, self.most, 4.0 * np.maximum(self.least, 1.0))
        slope = np.where(self.outside > self.inside, self.outside - self.inside, 1.0)
        between = self.least + (most - self.least) * np.clip(-self.inside / slope, 0.0, 1.0)
        guess = np.where(known, np.where(self.least > 0, between, self.most / 4.0), most)
        return np.clip(np.floor(guess), 1, MOST_REQUESTS).astype(np.int64)


def _silent(stage: str, done: float) -> None:
    """Progress for a caller who wants none."""


def plan(request: Request, progress: Progress = _silent) -> Plan:
    """Search, round, evaluate exactly, and compare with the whole space where it is small enough to enumerate.

    Deterministic in the request's seed. Raises InfeasibleError where no valid layout holds the load within the limits.
    """
    started = time.perf_counter()
    tables, goal = Tables(request.model, request.prefill, request.holding), goal_of(request)
    progress("descending from random starts, and enumerating the space", 0.05)
    with ThreadPoolExecutor(1) as beside:  # the two know nothing of each other, and compile on a core each
        enumerating = beside.submit(_everything, request, tables, goal)
        found = search(request, tables)
        progress("rounding to valid layouts", 0.7)
        valid, everything = enumerating.result()
    by_gradient = gradient_pool(request, tables, goal, found)
    progress("describing the candidates", 0.85)
    pool = by_gradient if everything is None else _united(by_gradient, everything)
    rows = pool.best(_SHOWN, request.model)
    if not rows:
        raise _infeasible(request, pool)
    chosen = [(pool.space.layout(row), int(pool.concurrency[row])) for row in rows]
    certified = everything is not None and request.concurrency is not None
    summary = Search(
        space=valid or None,
        enumerated=valid * len(_tried(request)),
        exact_evaluations=len(by_gradient.loss),
        starts=STARTS,
        gradient_steps=STEPS,
        regret=_regret(by_gradient, everything),
        seconds=time.perf_counter() - started,
    )
    return Plan(request, candidates(request, tables, chosen, certified), summary)


def gradient_pool(request: Request, tables: Tables, goal: Goal, found: Found) -> Pool:
    """What the relaxed ends round to, with at most `MOST_EXACT` exact evaluations.

    Most go to the layouts nearest to the ends, the rest to neighbours of the best of them. Where the concurrency is
    open, fewer layouts are tried, each at several: limits are nearly straight lines in the number of requests, so a
    bracket closes on the most that a layout can run in a few evaluations.
    """
    if request.concurrency is None:
        return _bracketed(request, tables, goal, found)
    near, _ = rounded(found, request.site, MOST_EXACT - len(_LOOKS) * _REFINED)
    pool = _evaluated(request, tables, goal, near, np.full(len(near), request.concurrency))
    for major in _LOOKS:
        best = pool.space.take(np.array([pool.front]))
        beside = neighbours(best, pool.space, request.site, _REFINED, major)
        if len(beside):
            pool = _united(pool, _evaluated(request, tables, goal, beside, np.full(len(beside), request.concurrency)))
    return pool


def _bracketed(request: Request, tables: Tables, goal: Goal, found: Found) -> Pool:
    """The same where the concurrency is open."""
    near, ends = rounded(found, request.site, MOST_EXACT // _ROUNDS)
    requests = np.maximum(np.rint(np.asarray(found.concurrency)[ends]), 1).astype(np.int64)
    bracket, pools = Bracket.open(len(near)), []
    for _ in range(_ROUNDS):
        pools.append(_evaluated(request, tables, goal, near, requests))
        bracket = bracket.closed(requests, pools[-1].excess)
        requests = bracket.next()
    return functools.reduce(_united, pools)


def exact_losses(request: Request, tables: Tables, goal: Goal, space: Space) -> Float[np.ndarray, " rows"]:
    """The goal's loss of each layout of a space at the request's concurrency; infinite where a limit is broken."""
    return _evaluated(request, tables, goal, space, np.full(len(space), request.concurrency or 1)).loss


def _evaluated(
    request: Request, tables: Tables, goal: Goal, space: Space, concurrency: Int[np.ndarray, " rows"]
) -> Pool:
    """Each layout exactly, at its concurrency."""
    loss, excess, lacking = (np.full(len(space), np.inf) for _ in range(3))
    cuts = space.cuts()
    for requests in np.unique(concurrency):
        rows = np.flatnonzero(concurrency == requests)
        case = request.case(int(requests))
        evaluation = evaluate_batch(tables, jax.tree.map(lambda leaf, rows=rows: leaf[rows], cuts), case)
        loss[rows], excess[rows] = _judged(goal, evaluation, case)
        lacking[rows] = np.maximum(-evaluation.slack, -evaluation.remainder)
    return Pool(space, concurrency, np.where(excess <= 0, loss, np.inf), excess, lacking)


def _judged(
    goal: Goal, evaluation: Evaluation, case: Case
) -> tuple[Float[np.ndarray, " rows"], Float[np.ndarray, " rows"]]:
    """The goal's loss, and how far the worst of memory, its reserve and the latency limit is beyond."""
    return np.asarray(goal.loss(evaluation, np)), np.asarray(goal.excess(evaluation, case, np)).max(axis=0)


def _everything(request: Request, tables: Tables, goal: Goal) -> tuple[int, Pool | None]:
    """How many valid layouts there are, and all of them evaluated; 0 and None where they are too many.

    An open concurrency is tried in doublings.
    """
    tried = _tried(request)
    space = enumerate_layouts(request.site, MOST_ENUMERATED // len(tried))
    if space is None:
        return 0, None
    pools = [_evaluated(request, tables, goal, space, np.full(len(space), requests)) for requests in tried]
    best = np.argmin([pool.loss for pool in pools], axis=0)
    rows = np.arange(len(space))
    figures = (np.stack([getattr(p, name) for p in pools])[best, rows] for name in _FIGURES)
    whole = Pool(space, np.array(tried)[best], *figures)
    return len(space), whole if request.concurrency is not None else _filled(request, tables, goal, whole)


def _filled(request: Request, tables: Tables, goal: Goal, whole: Pool) -> Pool:
    """The best of the doublings, each filled up with requests until a limit holds it."""
    rows = np.array(whole.best(_FILLED, request.model), np.int64)
    if not len(rows):
        return whole
    chosen = whole.space.take(rows)
    bracket = Bracket.open(len(rows)).closed(whole.concurrency[rows], whole.excess[rows])
    requests = np.minimum(2 * whole.concurrency[rows], MOST_REQUESTS)
    for _ in range(_ROUNDS):
        pool = _evaluated(request, tables, goal, chosen, requests)
        bracket = bracket.closed(requests, pool.excess)
        requests = bracket.next()
        whole = _united(pool, whole)
    return whole


def _tried(request: Request) -> tuple[int, ...]:
    return _DOUBLINGS if request.concurrency is None else (request.concurrency,)


def _united(by_gradient: Pool, everything: Pool) -> Pool:
    """Both, what the gradient found first, without counting a layout at one concurrency twice."""
    rows = joined([by_gradient.space, everything.space])
    concurrency = np.concatenate([by_gradient.concurrency, everything.concurrency])
    keys = np.stack([*rows.columns.values(), concurrency], axis=1)
    _, first = np.unique(keys, axis=0, return_index=True)
    first = np.sort(first)
    figures = (np.concatenate([getattr(by_gradient, n), getattr(everything, n)])[first] for n in _FIGURES)
    return Pool(rows.take(first), concurrency[first], *figures)


def _regret(by_gradient: Pool, everything: Pool | None) -> float | None:
    """Relative gap of the gradient's answer to the enumerated optimum; negative where it is better.

    None where nothing was enumerated, or where one of the two found nothing that keeps the limits.
    """
    if everything is None:
        return None
    own, optimum = by_gradient.loss.min(initial=np.inf), everything.loss.min(initial=np.inf)
    return float(np.expm1(own - optimum)) if np.isfinite(own) and np.isfinite(optimum) else None


def _infeasible(request: Request, pool: Pool) -> InfeasibleError:
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
