"""One run of a benchmark, whoever wrote it: what was asked, and what was measured. Seconds, tokens, tokens a second."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Times:
    """A latency over all requests of a run, in seconds; None where the client did not write it."""

    mean: float | None = None
    median: float | None = None
    p99: float | None = None


@dataclass(frozen=True)
class Origin:
    """Where a run stands and what ran: `index` (from 0) among all values of the file, `line` (from 1).

    `backend` is the client's word for the server; `model` as it was named to the engine; `date` in ISO form, where the
    client wrote it. `server_info` is what the server said of itself at the end of the run.
    """

    index: int
    line: int
    backend: str = ""
    engine_version: str | None = None
    model: str | None = None
    date: str | None = None
    server_info: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class ServeRun:
    """Clients of a server. `input_tokens`, `output_tokens`: means of the requests that were answered.

    `request_rate`: requests a second that were sent, inf where each was sent as soon as it might, None where a trace
    said when. `max_concurrency`: requests that might be in flight, None for any number; `in_flight`: those that were,
    on average, where it was measured or follows from Little's law. `shortest`: the least length that was drawn over the
    longest, None where the client does not say. `accept_length`: tokens accepted a step, None without drafts.
    `rate`: output tokens a second.
    """

    origin: Origin
    request_rate: float | None
    max_concurrency: int | None
    in_flight: float | None
    completed: int
    input_tokens: float
    output_tokens: float
    shortest: float | None
    duration: float | None
    ttft: Times
    tpot: Times
    itl: Times
    rate: float | None
    accept_length: float | None

    @property
    def closed(self) -> bool:
        """Whether requests waited for answers only, and so as many as might be were in flight."""
        return self.request_rate == float("inf")

    @property
    def concurrency(self) -> float | None:
        """Requests in flight, as far as it is known: the limit where it was reached, else what was measured."""
        if self.closed:
            return float(min(self.max_concurrency or self.completed, self.completed))
        return self.in_flight


@dataclass(frozen=True)
class BatchRun:
    """A batch of equal requests, started together and run to the end of their answers.

    Without a server (`served` False) `prefill` is the one step of all prompts and `step` the median decode step; with
    one, `prefill` is the time until the last request has its first token and `step` the time of an output token after.
    """

    origin: Origin
    served: bool
    batch: int
    input_tokens: int
    output_tokens: int
    prefill: float
    step: float | None
    accept_length: float | None


@dataclass(frozen=True)
class ForwardRun:
    """The forward pass of one batch, alone on the GPU: rows of each request, and its tokens after the step.

    `drafts`: rows beside the first that are drafts to verify. `ranks`: GPUs. `drafter`: whether the draft model ran
    too. `seconds`: the median.
    """

    origin: Origin
    name: str
    rows: tuple[int, ...]
    context: tuple[int, ...]
    drafts: tuple[int, ...]
    ranks: int
    drafter: bool | None
    seconds: float

    @property
    def prefill(self) -> bool:
        """Whether some request computes a prompt: only a decode step has a token before its rows and no others."""
        return any(not self._decodes(i) for i in range(len(self.rows)))

    @property
    def mixed(self) -> bool:
        """Whether others decode beside it."""
        return self.prefill and any(self._decodes(i) for i in range(len(self.rows)))

    def _decodes(self, i: int) -> bool:
        return self.context[i] > self.rows[i] == 1 + self.drafts[i]


Run = ServeRun | BatchRun | ForwardRun
