"""What a client of a layout sees: time to the first token and between tokens, at every concurrency up to one asked for.

The decode and prefill steps of the layout (`explorer.service.steps`) are shared out by a queue of clients
(`explorer.service.queue`), with what the engine adds (`explorer.service.engine`).
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from explorer.documents import Document, Schema, heading, layout_entry, plain
from explorer.evaluate import Tables
from explorer.fidelity.runs import mean_share
from explorer.request import MOST_GPUS, MOST_TOKENS, Phase, Request, RequestError, fitting_context, whole
from explorer.service.engine import ANY, Engine, engine_figures, load_engine
from explorer.service.ladder import concurrencies, ladder
from explorer.service.pools import BATCHES, Priced, for_prompts, worker
from explorer.service.predict import Served, ranged
from explorer.service.queue import Clients, Latency
from hw.figures import Figure
from layouts.enumerate import checked
from layouts.layout import Layout
from layouts.text import text_of

MOST_WORKERS: Final = 1 << 12
KV, PREFILL, POOL, STEP = "KV capacity", "prefill share of a round", "prefill pool", "decode step"
_FULL: Final = 0.999  # of a pool that has nothing left


@dataclass(frozen=True)
class Lengths:
    """The longest prompt and answer of a client, in tokens, and the share of both that the shortest have."""

    input_tokens: int
    output_tokens: int
    shortest: float = 1.0

    @property
    def prompt(self) -> int:
        """Tokens of a prompt, on average."""
        return max(round(mean_share(self.shortest) * self.input_tokens), 1)

    @property
    def context(self) -> int:
        """Tokens that a request holds while it decodes, on average: its prompt and half of its answer."""
        return self.prompt + round(mean_share(self.shortest) * self.output_tokens / 2)


def make_lengths(input_tokens: int, output_tokens: int, shortest: float = 1.0) -> Lengths:
    """Lengths checked; raises RequestError."""
    prompt = whole("input-tokens", input_tokens, None, 1, MOST_TOKENS)
    answer = whole("output-tokens", output_tokens, None, 1, MOST_TOKENS)
    if not 0.0 < shortest <= 1.0:
        raise RequestError(f"shortest {shortest:g} is no share of the longest: give more than 0 and at most 1")
    return Lengths(prompt, answer, shortest)


def make_engine(name: str, chunk: int | None = None) -> Engine:
    """An engine, `chunk` in place of the tokens of its prefill step; raises MeshwrightError for an unknown one."""
    engine = load_engine(name)
    return engine if chunk is None else replace(engine, chunk=whole("chunk", chunk, None, 1, MOST_TOKENS))


def prompts_of(request: Request, lengths: Lengths, gpus: int | None = None) -> Request:
    """The question of a prefill step of the same model and machine, on other GPUs perhaps."""
    length = fitting_context(request.model, lengths.prompt)
    return replace(
        request, phase=Phase.PREFILL, context=length, gpus=whole("prefill-gpus", gpus, request.gpus, 1, MOST_GPUS)
    )


@dataclass(frozen=True)
class Apart:
    """Prompts on GPUs of their own: question and layout of one prefill worker, and how many workers of either kind."""

    request: Request
    layout: Layout
    prefill_workers: int = 1
    decode_workers: int = 1

    def __post_init__(self) -> None:
        whole("prefill-workers", self.prefill_workers, None, 1, MOST_WORKERS)
        whole("decode-workers", self.decode_workers, None, 1, MOST_WORKERS)

    def document(self) -> Document:
        """The `prefill_pool` of a `service/1` document."""
        entry = layout_entry(self.layout, self.request.model)
        workers = {"workers": self.prefill_workers, "decode_workers": self.decode_workers}
        return {**entry, "gpus": self.request.gpus, **workers}


@dataclass(frozen=True)
class Load:
    """What `concurrency` clients see: means in seconds, with 80 % ranges (low, high). Rates are of accepted tokens.

    `running`: requests that decode, or that take turns with those that do; `waiting`: the others, in a queue or on GPUs
    for prompts alone. `prefill_share`: part of the time in which the GPUs that compute prompts do. `binding`: what
    another client, or more speed, would meet first.
    """

    concurrency: int
    ttft_seconds: float
    ttft_seconds_range: tuple[float, float]
    tpot_seconds: float
    tpot_seconds_range: tuple[float, float]
    running: float
    waiting: float
    step_seconds: float
    prefill_share: float
    tokens_per_second: float
    tokens_per_second_per_gpu: float
    binding: str


@dataclass(frozen=True)
class Service:
    """A layout under load. `gpus`: of all workers; `capacity`: requests that all KV pools hold at once."""

    request: Request
    layout: Layout
    engine: Engine
    lengths: Lengths
    apart: Apart | None
    gpus: int
    capacity: int
    loads: tuple[Load, ...]

    @property
    def asked(self) -> Load:
        """The load at the concurrency that was asked for."""
        return self.loads[-1]

    @property
    def parameters(self) -> dict[str, Figure]:
        """The engine's parameters, with provenance."""
        return engine_figures(self.engine.name)

    @property
    def notes(self) -> Iterator[str]:
        """What was assumed beside the model."""
        if self.engine.name == ANY:
            yield "engine other: no parameters of its own, those of the known engines are averaged"
        if self.apart is None and self.layout != for_prompts(self.layout):
            yield f"prompts are computed without dcp={self.layout.dcp}, which cuts decode alone"

    def document(self) -> Document:
        """The `service/1` document."""
        head = heading(Schema.SERVICE, self.request)
        return {
            **head,
            "notes": [*head["notes"], *self.notes],
            **layout_entry(self.layout, self.request.model),
            "engine": {"name": self.engine.name, "policy": str(self.engine.policy), "chunk": self.engine.chunk},
            "clients": plain(self.lengths),
            "prefill_pool": None if self.apart is None else self.apart.document(),
            "gpus": self.gpus,
            "capacity": self.capacity,
            "loads": plain(self.loads),
            "parameters": [{"name": name, **plain(figure)} for name, figure in self.parameters.items()],
        }


def serve(
    request: Request,
    layout: Layout,
    engine: Engine,
    lengths: Lengths,
    apart: Apart | None = None,
    tables: Tables | None = None,
) -> Service:
    """Price a valid decode layout for every power of two of clients up to the request's concurrency.

    `apart`: who computes the prompts; the same GPUs if left out. `tables` of the decode steps may be handed in. Raises
    MeshwrightError for a question of prefill or without a concurrency, for more tokens than the model has positions or
    more requests than steps are priced for, and where not one request fits.
    """
    asked = _concurrency(request, lengths)
    prompts = apart.request if apart else prompts_of(request, lengths)
    computing = apart.layout if apart else checked(for_prompts(layout), prompts.site, text_of(layout, request.model))
    with ThreadPoolExecutor(1) as beside:  # the two know nothing of each other, and take a core each
        later = beside.submit(worker, prompts, computing)
        decode = worker(request, layout, tables)
        prefill = later.result()
    instances = decode.replicas * (apart.decode_workers if apart else 1)
    capacity = _capacity(request, decode, instances)
    rungs = concurrencies(asked)
    alike = 1 if apart else instances  # of which each serves its part of the clients
    stated = (float(lengths.input_tokens), float(lengths.output_tokens), lengths.shortest, request.accept_length)
    clients = Clients.drawing(np.array(rungs) / alike, *stated)
    workers = (float(prefill.replicas * apart.prefill_workers), float(instances)) if apart else None
    found = Served(engine, clients, decode, prefill, workers)
    gpus = request.gpus * (apart.decode_workers if apart else 1)
    gpus += apart.request.gpus * apart.prefill_workers if apart else 0
    seen = ladder(found)
    loads = tuple(_load(found, Latency(*(row[:, i] for row in seen)), n, alike, gpus) for i, n in enumerate(rungs))
    return Service(request, layout, engine, lengths, apart, gpus, capacity, loads)


def _concurrency(request: Request, lengths: Lengths) -> int:
    """The clients of a question that a service can answer."""
    if request.prefill:
        raise RequestError("phase prefill is half of a service: leave phase out, both halves are priced")
    if request.concurrency is None:
        raise RequestError("concurrency is missing: say how many requests clients keep in flight")
    longest, model = lengths.input_tokens + lengths.output_tokens, request.model
    if longest > model.context_limit:
        tokens = f"input-tokens + output-tokens = {longest}"
        raise RequestError(f"{tokens} exceeds the {model.context_limit} positions of {model.name}: shorten them")
    return request.concurrency


def _capacity(request: Request, decode: Priced, instances: int) -> int:
    """Requests that the KV pools of all instances hold."""
    most, capacity = int(BATCHES[-1]) * instances, int(decode.steps.capacity) * instances
    if request.concurrency is not None and request.concurrency > most:
        raise RequestError(f"concurrency {request.concurrency} exceeds the {most} that steps are priced for: lower it")
    if capacity < 1:
        tokens = f"no request of {request.context} tokens"
        raise RequestError(f"{tokens} fits beside weights and reserve: give more GPUs, or narrower formats")
    return capacity


def _load(found: Served, seen: Latency, concurrency: int, alike: int, gpus: int) -> Load:
    """One rung of the ladder: `seen` at the machine's likely speed and its two ends, of one of `alike` instances."""
    ttft, tpot = (
        ranged(float(row[0]), [float(end) for end in row[1:]], float(np.asarray(spread)))
        for row, spread in ((seen.ttft, found.engine.spread_ttft), (seen.tpot, found.engine.spread_tpot))
    )
    step, share, held = (float(row[0]) for row in (seen.step, seen.prefill_share, seen.running))
    answer = float(np.asarray(found.clients.output_tokens))
    rate = concurrency * answer / (ttft.value + answer * tpot.value)
    running = min(held * alike, float(concurrency))
    return Load(
        concurrency=concurrency,
        ttft_seconds=ttft.value,
        ttft_seconds_range=(ttft.low, ttft.high),
        tpot_seconds=tpot.value,
        tpot_seconds_range=(tpot.low, tpot.high),
        running=running,
        waiting=concurrency - running,
        step_seconds=step,
        prefill_share=share,
        tokens_per_second=rate,
        tokens_per_second_per_gpu=rate / gpus,
        binding=_binding(found, concurrency / alike, held, share),
    )


def _binding(found: Served, requests: float, running: float, prefill_share: float) -> str:
    """Full KV pools, prompts where they take most of the time of the GPUs that compute them, or else decode itself."""
    capacity = float(found.decode.steps.capacity) * (1.0 if found.workers is None else found.workers[1])
    if found.workers is not None and prefill_share > _FULL:
        return POOL
    if requests > capacity and running > _FULL * capacity:
        return KV
    return PREFILL if found.workers is None and prefill_share > 0.5 else STEP
