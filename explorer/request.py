"""A user's question, checked: the one place where options become a model, a machine, a load and a budget."""

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from numbers import Real
from typing import Any, Final, TypeVar

import numpy as np
from jaxtyping import Float

from explorer.evaluate import Case
from explorer.launch import program_launch
from explorer.residents.budget import Budget
from explorer.residents.line import AS_PUBLISHED, Holding
from hw.compat import in_x64
from hw.errors import MeshwrightError
from hw.figures import program_curves
from hw.machine import Machine, load_machine
from layouts.enumerate import checked
from layouts.gqa import GQA
from layouts.layout import Layout
from layouts.load import Load
from layouts.models import Model, load_model
from layouts.rules import Site
from layouts.serving.graphs import graph_sizes
from layouts.text import parse

Kind = TypeVar("Kind", bound=StrEnum)

MOST_GPUS: Final = 1 << 16
MOST_TOKENS: Final = 1 << 30
MOST_REQUESTS: Final = 1 << 20
_GRAPH_LIMIT: Final = 512  # requests of an attention group beyond which no graph is captured by default
# Every component in one dtype, as a run has them.
PLAIN_BF16: Final = ",".join(
    f"{component}=bf16" for component in ("attention", "latent", "shared", "dense", "experts", "head", "kv")
)
_GRAPH_ENTRIES: Final = 128  # padded to one length, so that every request shares a compiled program
DEFAULT_CHUNK: Final = 8192


class RequestError(MeshwrightError):
    """An option that cannot be: the message names it, the rule, and what would do."""


class Phase(StrEnum):
    """What a step does: one token (or verified draft) for every running request, or a chunk of their prompts."""

    DECODE = "decode"
    PREFILL = "prefill"


class Objective(StrEnum):
    """What a plan is best at. GPU-seconds are those spent on one accepted token."""

    STEP = "step"
    THROUGHPUT = "throughput"
    KV = "kv"
    GPU_SECONDS = "gpu-seconds"


@dataclass(frozen=True)
class Request:
    """A question that can be answered. Times in seconds; None where an option was left to the planner. `overlap`:
    whether the engine runs the shared expert under the combine; `holding`: what it keeps beside the model. `program`:
    the step is that of the JAX program here (`of_program`), not an engine's; `room`: tokens a request its tables hold,
    where those are more than the context."""

    model: Model
    machine: Machine
    gpus: int
    phase: Phase
    context: int
    concurrency: int | None
    verify_width: int
    accept_length: float
    objective: Objective
    max_tpot: float | None
    mem_fraction: float | None
    extra_slots: int | None
    draft_window: int
    dispatch_tokens: int | None
    chunk: int
    seed: int
    graphs: Float[np.ndarray, " sizes"] = field(repr=False)
    overlap: bool = False
    holding: Holding = AS_PUBLISHED
    program: bool = False
    room: int = 0

    @property
    def prefill(self) -> bool:
        return self.phase is Phase.PREFILL

    @property
    def site(self) -> Site:
        """What layouts are checked against."""
        host, domain = int(self.machine.gpus_per_host), int(self.machine.domain)
        return Site(self.model, self.gpus, host, domain, self.prefill, self.holding.redundant_experts)

    @in_x64
    def case(self, concurrency: float | None = None) -> Case:
        """The question as numbers, at its own concurrency or another."""
        running = concurrency or self.concurrency or 1
        load = Load(
            context=np.float64(self.context),
            concurrency=np.float64(running),
            verify=np.float64(self.verify_width),
            accept=np.float64(self.accept_length),
            chunk=np.float64(self.chunk),
            graph_sizes=self.graphs,
            prefill=self.prefill,
            room=np.float64(self.room),
        )
        budget = Budget(
            mem_fraction=np.float64(np.nan if self.mem_fraction is None else self.mem_fraction),
            extra_slots=np.float64(self.extra_slots or 0),
            dispatch_tokens=np.float64(np.nan if self.dispatch_tokens is None else self.dispatch_tokens),
            draft_window=np.float64(self.draft_window),
        )
        host = _program_host() if self.program else {}
        return Case(load, budget, self.machine.anonymous(), overlap=np.float64(self.overlap), **host)

    def layout(self, text: str) -> Layout:
        """A layout in text form, checked against every rule; raises a MeshwrightError that names the nearest valid."""
        return checked(parse(text, self.gpus, self.model), self.site, text)


def make_request(
    model: str,
    hardware: str,
    gpus: int,
    *,
    phase: str = "decode",
    context: float = 8192,
    concurrency: float | None = None,
    verify_width: int | None = None,
    accept_length: float | None = None,
    draft: str | None = None,
    precision: str | None = None,
    objective: str = "step",
    max_tpot_ms: float | None = None,
    mem_fraction: float | None = None,
    extra_slots: int | None = None,
    chunk: int = DEFAULT_CHUNK,
    gpus_per_host: int | None = None,
    domain: int | None = None,
    seed: int = 0,
) -> Request:
    """Check every option and look up what they name.

    Options left out take the build's own defaults (`kimi-k3@article` verifies 5 rows and accepts 3.5) and then the
    plain ones. Raises MeshwrightError with one line: the option, its value, the rule, what would do.
    """
    loaded, width = verifying_model(model, draft, precision, verify_width)
    defaults = loaded.defaults
    accept = _number("accept-length", accept_length, min(defaults.get("accept_length", 1.0), width), 1, 64)
    if accept > width:
        raise RequestError(f"accept-length {accept:g} exceeds verify-width {width}: a step accepts what it verifies")
    length = fitting_context(loaded, context)
    goal = _choice("objective", objective, Objective)
    running = None if concurrency is None else whole("concurrency", concurrency, None, 1, MOST_REQUESTS)
    # a prefill chunk is full whatever waits behind it; a decode step needs requests to be fast or roomy for
    if running is None and (goal in (Objective.STEP, Objective.KV) or phase == Phase.PREFILL):
        running = 1
    dispatch = defaults.get("dispatch_tokens")
    machine = load_machine(hardware, gpus_per_host, domain, loaded.curves.get(hardware))
    return Request(
        model=on_host(loaded, int(machine.gpus_per_host)),
        machine=machine,
        gpus=whole("gpus", gpus, None, 1, MOST_GPUS),
        phase=_choice("phase", phase, Phase),
        context=length,
        concurrency=running,
        verify_width=width,
        accept_length=accept,
        objective=goal,
        max_tpot=None if max_tpot_ms is None else _number("max-tpot-ms", max_tpot_ms, None, 1e-3, 1e7) / 1e3,
        mem_fraction=None if mem_fraction is None else _number("mem-fraction", mem_fraction, None, 0.05, 0.99),
        extra_slots=None if extra_slots is None else whole("extra-slots", extra_slots, None, 0, MOST_REQUESTS),
        draft_window=whole("draft_window", None, defaults.get("draft_window", _window(loaded)), 1, MOST_TOKENS),
        dispatch_tokens=None if dispatch is None else int(dispatch),
        chunk=whole("chunk", chunk, None, 1, MOST_TOKENS),
        seed=whole("seed", seed, None, 0, 2**31 - 1),
        graphs=captured(loaded, width),
    )


def _program_host() -> dict[str, Any]:
    """Seconds of the CPU in a step of the program: it is started, and no group asks another."""
    seconds, *ends = np.array([program_launch(several=several) for several in (False, True)]).T
    return {"host": np.float64(0.0), "launch": seconds, "launch_ends": np.stack(ends)}


def of_program(request: Request, room: int = 0) -> Request:
    """The same question of the JAX program: it computes as many requests as there are, no group asks another, and the
    shared expert runs while rows travel. `room`: tokens a request that its tables hold, if more than its context. A
    chip has the curves of our own kernels where they ship; a curve file of the user's is taken as it is."""
    machine = request.machine
    if curves := program_curves(machine.name):
        machine = load_machine(machine.name, int(machine.gpus_per_host), int(machine.domain), curves)
    graphs = np.ones_like(request.graphs)
    return replace(request, machine=machine, program=True, room=room, graphs=graphs, overlap=True)


def verifying_model(
    model: str, draft: str | None, precision: str | None, verify_width: int | None
) -> tuple[Model, int]:
    """The model that was named, and the rows that a step of it verifies a request: the build's own where left out."""
    loaded = load_model(model, draft, precision)
    drafted = loaded.draft is not None  # without a draft there is nothing to verify, whatever the build is used to
    default = loaded.defaults.get("verify_width", 1) if drafted else 1
    width = whole("verify-width", verify_width, default, 1, 64)
    return _verifying(loaded, width) if drafted and width > 1 else loaded, width


def fitting_context(model: Model, context: float) -> int:
    """Tokens of a request, no more than the model has positions."""
    length = whole("context", context, None, 1, MOST_TOKENS)
    if length > model.context_limit:
        raise RequestError(f"context {length} exceeds the {model.context_limit} positions of {model.name}: shorten it")
    return length


def _number(name: str, value: object, default: object, least: float, most: float) -> float:
    """A finite number within its bounds."""
    chosen = default if value is None else value
    if isinstance(chosen, bool) or not isinstance(chosen, Real) or chosen != chosen:
        raise RequestError(f"{name} must be a number from {least:g} to {most:g}, not {chosen!r}")
    if chosen < least or not chosen <= most:
        raise RequestError(f"{name} = {chosen} is out of range: give {least:g} to {most:g}")
    return float(chosen)


def whole(name: str, value: object, default: object, least: int, most: int) -> int:
    """The same where only whole numbers make sense."""
    chosen = _number(name, value, default, least, most)
    if chosen != int(chosen):
        raise RequestError(f"{name} = {chosen:g} must be a whole number from {least} to {most}")
    return int(chosen)


def on_host(model: Model, gpus_per_host: int) -> Model:
    """A build that shards weights over the cards of its own hosts shards them over those of this machine's."""
    shard = model.defaults.get("weight_shard")
    if shard is None:
        return model
    return replace(model, defaults={**model.defaults, "weight_shard": math.gcd(int(shard), gpus_per_host)})


def _choice(name: str, value: str, kind: type[Kind]) -> Kind:
    try:
        return kind(value)
    except ValueError:
        raise RequestError(f"{name} {value!r} is unknown: choose one of {', '.join(kind)}") from None


def _verifying(model: Model, width: int) -> Model:
    """The model with a draft that proposes as many tokens as the step verifies beside the one it knows."""
    assert model.draft is not None
    return replace(model, draft=model.draft.verifying(width))


def _window(model: Model) -> int:
    """Draft KV slots of a request: the window of a block draft, where it has one."""
    layers = model.draft.layers if model.draft is not None else ()
    return max((la.attention.window for la in layers if isinstance(la.attention, GQA)), default=0) or 1


def captured(model: Model, width: int) -> Float[np.ndarray, " sizes"]:
    """Captured decode batches of an attention group: the build's own, or the engine's."""
    explicit = model.defaults.get("graph_sizes")
    sizes = graph_sizes(_GRAPH_LIMIT, speculative=width > 1) if explicit is None else tuple(explicit)
    return np.array([*sizes, *[sizes[-1]] * (_GRAPH_ENTRIES - len(sizes))], np.float64)
