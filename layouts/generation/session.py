"""Requests of a running program: which attention group serves each, where its tokens lie, what was accepted of them.

Every process of a multi-host run keeps the same session: it is deterministic, and only arrays are spread.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from hw.measuring.flight import Times, times
from layouts.cache import Batch, KVPool
from layouts.cache.pool import PoolError
from layouts.decoder.cache import Room
from layouts.decoder.processes import gathered
from layouts.decoder.program import Program
from layouts.decoder.stage import Output
from layouts.decoder.step import Phase, Step
from layouts.generation.checks import (
    SessionError,
    require_accepted,
    require_equal,
    require_rows,
    require_runs,
    require_whole,
)
from layouts.paged import RUN

_ROUNDS: Final = 3  # of steps in flight
_STEPS_TOGETHER: Final = 2  # of a round whose processes must agree on it


@dataclass(frozen=True)
class Capacity:
    """What every attention group has room for: `requests` at once of up to `context` tokens each, in `pages` pages of
    `page` rows a rank (by default as many as all of them can fill). Kernels take pages of a multiple of 64 rows.
    `verify`: tokens of a request that a step verifies at most; linear attention keeps that many beside each state."""

    requests: int
    context: int
    page: int = RUN
    pages: int | None = None
    verify: int = 8

    def pool(self, ranks: int, interleaved_pages: bool = False) -> KVPool:
        """A group's pool when DCP cuts it over `ranks`."""
        each = -(-self.context // (self.page * ranks))
        pages = self.requests * each if self.pages is None else self.pages
        return KVPool(pages, self.page, ranks, self.requests, self.context, interleaved_pages)

    def room(self, ranks: int) -> Room:
        """What the program must hold of it."""
        return Room(self.pool(ranks).rows_a_rank, self.requests + 1, self.verify)


class Request(NamedTuple):
    """A request by its attention group and its line of the group's table."""

    group: int
    line: int


class Scored(NamedTuple):
    """What a step says of one request: the best token behind each of its rows (of the last one in a prefill), and the
    logits."""

    tokens: Int[np.ndarray, " rows"]
    logits: Float[np.ndarray, "rows vocab"]


class Session:
    """`held` are the program's parameters. After `verify` the tokens are provisional until `accept`, and the next step
    waits for it; of a request that is released in between nothing is kept.

    SessionError, and nothing changed, for a call out of this order or rows that the model cannot have."""

    def __init__(
        self, program: Program, held: Sequence[Any], capacity: Capacity, dtype: Any, interleaved_pages: bool = False
    ) -> None:
        layout = program.stages[0].part.layout
        if program.stages[0].room != capacity.room(layout.dcp):
            raise SessionError(f"the program has another room than {capacity}: make both of one Capacity")
        require_runs(capacity.page, program.stages[0].kernels.attention.form)
        self.program, self.held, self.capacity = program, [jax.tree.leaves(each) for each in held], capacity
        self.pools = [capacity.pool(layout.dcp, interleaved_pages) for _ in range(layout.replicas * layout.attn_dp)]
        self._shape = (layout.replicas, layout.attn_dp)
        self._caches = program.empty_caches(dtype)
        self.vocab = program.stages[0].model.vocab
        self._verifying: dict[Request, int] = {}
        self._width = 0
        self._fresh: set[Request] = set()
        self._pending: dict[Request, int] = {}  # accepted tokens that linear attention has beside its state

    def admit(self, group: int | None = None) -> Request:
        """A new request, in the group with the fewest unless one is named; PoolError where there is no line."""
        if group is None:
            group = min(range(len(self.pools)), key=lambda g: self._running(g))
        require_whole("group", group, 0, len(self.pools) - 1)
        request = Request(group, self.pools[group].admit())
        self._fresh.add(request)
        return request

    def release(self, request: Request) -> None:
        """Free its pages and its line; PoolError where it has none."""
        self.pools[request.group].release(request.line)
        self._fresh.discard(request)
        self._verifying.pop(request, None)
        self._pending.pop(request, None)

    def length(self, request: Request) -> int:
        """Tokens that are cached of it."""
        return int(self.pools[request.group].lengths[request.line])

    def prefill(self, prompts: Mapping[Request, Sequence[int]], width: int | None = None) -> dict[Request, Scored]:
        """Cache the next tokens of some requests, of any lengths up to `width` (the longest); PoolError, and nothing
        changed, where a pool is too small."""
        self._require_settled()
        longest = require_rows(prompts, self.vocab)
        width = longest if width is None else width
        if width < longest:
            raise SessionError(
                f"width = {width} is less than the {longest} tokens of a prompt: widen it or cut the prompt"
            )
        before = self._extended(prompts)
        return self._step(prompts, before, width, "prefill")

    def verify(self, rows: Mapping[Request, Sequence[int]]) -> dict[Request, Scored]:
        """Score as many rows for each of some requests; PoolError, and nothing changed, where a pool is too small."""
        self._require_settled()
        width = require_rows(rows, self.vocab)
        require_equal(rows, width)
        require_whole("rows to verify of each request", width, 1, self.capacity.verify)
        before = self._extended(rows)
        scored = self._step(rows, before, width, "verify")
        self._verifying, self._width = before, width
        return scored

    def accept(self, accepted: Mapping[Request, int]) -> None:
        """Keep the first tokens of each request that was verified, as many as said (none if left out)."""
        require_accepted(accepted, self._verifying, self._width)
        for request, before in self._verifying.items():
            self._pending[request] = accepted.get(request, 0)
            self.pools[request.group].truncate(request.line, before + self._pending[request])
        self._verifying = {}

    def timed(self, width: int) -> Times:
        """Seconds of full steps (`step_full`), in flight and waited for. In flight, steps are started one behind the
        other, their inputs on the devices; the first of several stages waits for what the last one says, as it does in
        a text."""
        steps = _STEPS_TOGETHER if self.program.spread else None
        with self._full(width) as (step, entering):
            return times(step, entering, rounds=_ROUNDS, steps=steps, wait=self._wait)[0]

    def step_full(self, width: int) -> None:
        """A verify step of as many requests as there is room for, waited for: their tables are full and their tokens
        unlike each other, so that every row of the pools is read and experts are chosen as a text would.

        Contents of the caches are lost. PoolError where requests are still here, or where the pages are too few.
        """
        with self._full(width) as (step, entering):
            self._wait(step(entering)[0])

    @contextmanager
    def _full(self, width: int) -> Iterator[tuple[Callable[[Any], tuple[Output, Any]], Any]]:
        """A full step as a function of the tokens that enter, which returns those that enter the next; the tokens."""
        require_whole("width", width, 1, min(self.capacity.context, self.capacity.verify))
        requests: list[Request] = []
        try:
            for line in range(len(self.pools) * self.capacity.requests):
                requests.append(self.admit(line // self.capacity.requests))
            self._extended(dict.fromkeys(requests, range(self.capacity.context)))
            self._fresh -= set(requests)  # states are read, and advanced over all tokens of the step before
            self._pending |= dict.fromkeys(requests, width)
            program, placed = self.program, self.program.placed(self._full_arrays(requests, width))

            def step(entering: Any) -> tuple[Output, Any]:
                output, self._caches = program.through(self.held, self._caches, placed, entering, "verify")
                return output, entering if len(program.stages) == 1 else program.behind(entering, output)

            yield step, placed[0].tokens
        finally:
            for request in requests:
                self.release(request)

    def _full_arrays(self, requests: Sequence[Request], width: int) -> Step:
        tokens = np.random.default_rng(0).integers(0, self.vocab, (len(requests), width)).tolist()
        before = dict.fromkeys(requests, self.capacity.context - width)
        return self._arrays(dict(zip(requests, tokens, strict=True)), before, width)[0]

    def _wait(self, output: Output) -> None:
        jax.block_until_ready(output)
        if self.program.spread:  # the last stage may be another process's
            gathered(output.tokens)

    def _require_settled(self) -> None:
        if self._verifying:
            raise SessionError(
                f"{len(self._verifying)} requests have verified tokens: accept some or none of them first"
            )

    def _running(self, group: int) -> int:
        return self.capacity.requests - self.pools[group].idle_lines

    def _extended(self, rows: Mapping[Request, Sequence[int]]) -> dict[Request, int]:
        """Slots for new tokens; what each request had before. All requests get theirs, or none."""
        before: dict[Request, int] = {}
        try:
            for request, tokens in rows.items():
                length = self.length(request)
                self.pools[request.group].extend(request.line, len(tokens))
                before[request] = length
        except PoolError:
            for request, length in before.items():
                self.pools[request.group].truncate(request.line, length)
            raise
        return before

    def _whole(self, dtype: type[np.generic], *rest: int) -> np.ndarray:
        """Zeros with an entry for every line of every group."""
        return np.zeros((len(self.pools) * self.capacity.requests, *rest), dtype)

    def _step(
        self, rows: Mapping[Request, Sequence[int]], before: Mapping[Request, int], width: int, phase: Phase
    ) -> dict[Request, Scored]:
        step, places = self._arrays(rows, before, width)
        output, self._caches = self.program.step(self.held, self._caches, step, phase)
        self._fresh -= set(rows)
        for request in rows:
            self._pending.pop(request, None)
        best, logits = (gathered(x) if self.program.spread else np.asarray(x) for x in output)
        each = width if phase == "verify" else 1
        best, logits = best.reshape(-1, each), logits.reshape(-1, each, logits.shape[-1])
        return {request: Scored(best[at], logits[at]) for request, at in places.items()}

    def _arrays(
        self, rows: Mapping[Request, Sequence[int]], before: Mapping[Request, int], width: int
    ) -> tuple[Step, dict[Request, int]]:
        """What the program is given, and where in it each request stands: in the first rows of its group."""
        tokens, slots = self._whole(np.int32, width), self._whole(np.int32, self.capacity.context)
        lengths, states, new, pending = (self._whole(np.int32) for _ in range(4))
        begins, counts = self._whole(np.bool_), np.zeros(len(self.pools), np.int32)
        places = {}
        for request in sorted(rows):
            pool, at = self.pools[request.group], request.group * self.capacity.requests + counts[request.group]
            counts[request.group] += 1
            places[request] = int(at)
            tokens[at, : len(rows[request])] = rows[request]
            slots[at], lengths[at], states[at] = pool.table[request.line], before[request], request.line + 1
            new[at], begins[at] = len(rows[request]), request in self._fresh
            pending[at] = self._pending.get(request, 0)
        batch: Any = Batch(slots, lengths, self.pools[0].interleave)  # pyright: ignore[reportArgumentType]
        counted: Any = (counts * width).reshape(self._shape)
        return Step(tokens.reshape(-1), batch, counted, states, new, begins, pending), places  # pyright: ignore[reportArgumentType]
