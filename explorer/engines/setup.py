"""From a launch to a question that can be answered: the model, machine and layout that it means, and what it breaks."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from explorer.engines import sglang, vllm
from explorer.engines.command.launch import CommandError, EngineName, Launch
from explorer.engines.resolution import resolved
from explorer.engines.settings import Settings, Speculation
from explorer.engines.steps import decode_batches, step_limits
from explorer.request import Request, captured, make_request
from explorer.residents.line import Holding
from hw.machine import Machine
from layouts.layout import Layout, resolve
from layouts.mla import MLA
from layouts.models import Model, load_model
from layouts.rules import broken
from layouts.serving.graphs import graph_sizes
from layouts.serving.reserve import Role, default_limits

READERS: Final = {EngineName.SGLANG: sglang.read, EngineName.VLLM: vllm.read}
WRITERS: Final = {EngineName.SGLANG: sglang.write, EngineName.VLLM: vllm.write}
QUANTISED: Final = ("attention", "dense", "shared", "experts")  # what an online weight format applies to
# How DCP ranks exchange unsaid: SGLang 0.5.23 `_dcp_comm_backend_default` (without fi_a2a), vLLM `set_dcp_defaults`.
_DCP_BACKENDS: Final = {EngineName.SGLANG: "a2a", EngineName.VLLM: "ag_rs"}
_MOST_GRAPHS: Final = 128  # entries that a request carries
_CONTEXT: Final = 8192  # tokens of a request where nothing is asked
LOW_LATENCY_ROWS: Final = 128  # SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK where it is not set


@dataclass(frozen=True)
class Asked:
    """What a command does not say: the machine, and what it will be asked to serve. `model` and `draft` stand in for
    names that mean nothing here. Tokens; `requests` are those in flight on the whole server. `memory_bytes` and
    `free_bytes`: of a GPU, where they are not what the chip's file says; `shared_clones`: of the shared expert, where a
    log counts them."""

    hardware: str
    model: str | None = None
    draft: str | None = None
    precision: str | None = None
    gpus_per_host: int | None = None
    domain: int | None = None
    context: int | None = None
    requests: int | None = None
    accept_length: float | None = None
    memory_bytes: int | None = None
    free_bytes: int | None = None
    shared_clones: int = 1


@dataclass(frozen=True)
class Setup:
    """A launch understood, its settings as the engine runs with them. `broken`: every rule over its flags and its
    layout that it breaks; `notes`: what was assumed, and what the engine changes on its own."""

    launch: Launch
    settings: Settings
    asked: Asked
    request: Request
    layout: Layout
    broken: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def latent(self) -> bool:
        """Whether attention keeps a latent instead of keys and values."""
        return any(isinstance(layer.attention, MLA) for layer in self.request.model.kinds)


def setup_of(launch: Launch, asked: Asked) -> Setup:
    """What a launch means on a machine; raises MeshwrightError for a model, chip or value that is unknown."""
    settings = READERS[launch.engine](launch)
    return understood(launch, settings, asked)


def understood(launch: Launch, settings: Settings, asked: Asked) -> Setup:
    """The same for settings that are read already, perhaps changed."""
    name = asked.model or settings.model
    if not name:
        raise CommandError("the command names no model: add --model-path (SGLang), a model (vLLM), or --model here")
    notes = [*settings.notes, *_draft_notes(settings, asked)]
    stored = load_model(name, "none", asked.precision)
    precision, more = _precision(settings, stored, asked.precision)
    prefill, speculation = settings.role is Role.PREFILL, settings.speculation
    verify = 1 if speculation is None or prefill else speculation.verify
    longest = settings.pools.context_length or stored.context_limit
    request = make_request(
        name,
        asked.hardware,
        settings.degrees.gpus,
        phase="prefill" if prefill else "decode",
        context=min(asked.context or _CONTEXT, longest, stored.context_limit),
        concurrency=asked.requests or 1,
        verify_width=verify,
        accept_length=asked.accept_length,
        draft=_draft(speculation, stored, asked),
        precision=precision or None,
        mem_fraction=None,
        gpus_per_host=asked.gpus_per_host,
        domain=asked.domain,
    )
    settings, refused, changed = resolved(launch, settings, request)
    layout = resolve(layout_keys(settings, request.model), request.gpus, request.model)
    request = _told(request, settings, asked, layout)
    notes += [*more, *changed, *request.model.notes]
    rules = tuple(dict.fromkeys([*refused, *broken(layout, request.site)]))
    return Setup(launch, settings, asked, request, layout, rules, tuple(notes))


def layout_keys(settings: Settings, model: Model) -> dict[str, int | str]:
    """Keys of the layout that settings mean for a model. Without experts, a group of vLLM's is a replica of its own."""
    d = settings.degrees
    group = max(d.tp // max(d.attn_dp * d.attn_cp, 1), 1)
    sparse = any(layer.experts for layer in model.layers)
    replicated = settings.engine is EngineName.VLLM and not sparse
    attn_dp, replicas = (1, d.replicas * d.attn_dp) if replicated else (d.attn_dp, d.replicas)
    tp = attn_dp * group * d.attn_cp
    exchanged = d.exchange == "all_to_all" and sparse and tp > 1
    ep, moe_dp = (tp if exchanged else d.ep, d.moe_dp) if sparse else (1, 1)
    summed = settings.role is Role.PREFILL and attn_dp > 1 and not exchanged
    return {
        "replicas": replicas,
        "pp": d.pp,
        "attn_dp": attn_dp,
        "attn_tp": group,
        "attn_cp": d.attn_cp,
        "dcp": d.dcp,
        "ep": ep,
        "expert_tp": max(tp // max(ep * moe_dp, 1), 1),
        "moe_dp": moe_dp,
        "weight_shard": 1,
        "vocab_tp": group if d.vocab_in_group else tp,
        "dcp_backend": d.dcp_backend or _DCP_BACKENDS[settings.engine] if d.dcp > 1 else "a2a",
        "dispatch": "all_to_all" if exchanged else "all_gather",
        "padding": "sum_len" if summed else "max_len",
    }


def _told(request: Request, settings: Settings, asked: Asked, layout: Layout) -> Request:
    """The request with what the command says of contexts, graphs and copies."""
    pools, d = settings.pools, settings.degrees
    model = replace(request.model, context_limit=pools.context_length or request.model.context_limit)
    spread = settings.engine is EngineName.SGLANG and d.attn_dp > 1 and not d.vocab_in_group
    rows = pools.dispatch_tokens or (LOW_LATENCY_ROWS if settings.engine is EngineName.SGLANG else None)
    buffered = d.exchange == "all_to_all" and pools.low_latency and pools.exchange_buffer
    return replace(
        request,
        model=model,
        machine=_machine(request.machine, asked),
        graphs=_graphs(request, settings),
        dispatch_tokens=rows if buffered else request.dispatch_tokens,
        holding=Holding(pools.redundant_experts, spread, d.dense_tp, asked.shared_clones, pools.exchange_buffer),
        chunk=_chunk(request, settings, layout),
        extra_slots=pools.extra_slots,
    )


def _machine(machine: Machine, asked: Asked) -> Machine:
    """The machine with the memory that was stated. What is taken at start stays, unless it is stated what is free."""
    total = float(machine.memory_bytes) if asked.memory_bytes is None else float(asked.memory_bytes)
    start = float(machine.start_bytes) if asked.free_bytes is None else total - asked.free_bytes
    if not 0 <= start < total:
        raise CommandError(
            f"{asked.free_bytes} bytes are free of {total:.0f}: give what one GPU has, and less that is free"
        )
    return replace(machine, memory_bytes=np.float64(total), start_bytes=np.float64(start))


def _graphs(request: Request, settings: Settings) -> np.ndarray:
    """Captured decode batches: those stated, those up to the stated limit, or those of the engine's default limit."""
    pools, width = settings.pools, request.verify_width
    if settings.engine is EngineName.VLLM:
        sizes = decode_batches(settings, request)
    else:
        limits = default_limits(int(request.machine.memory_bytes), settings.degrees.tp)
        sizes = pools.graph_sizes or graph_sizes(pools.graph_limit or limits.max_batch, speculative=width > 1)
    if len(sizes) > _MOST_GRAPHS:
        return captured(request.model, width)
    return np.array([*sizes, *[sizes[-1]] * (_MOST_GRAPHS - len(sizes))], np.float64)


def _chunk(request: Request, settings: Settings, layout: Layout) -> int:
    """Prefill tokens of a step over all attention groups: SGLang's figure is of them all, vLLM's of each."""
    if settings.engine is EngineName.VLLM:
        return step_limits(settings, request).max_num_batched_tokens * layout.attn_dp
    chunk = settings.pools.chunk
    return default_limits(int(request.machine.memory_bytes), settings.degrees.tp).chunk if chunk is None else chunk


def _draft(speculation: Speculation | None, model: Model, asked: Asked) -> str | None:
    """The draft to load: the one asked for, the model's own MTP layers, or a block draft that ships for it."""
    if asked.draft is not None:
        return asked.draft
    if speculation is None:
        return "none"
    return _KNOWN_DRAFTS.get(speculation.algorithm, "none")


# Drafts of which the algorithm alone says what they are.
_KNOWN_DRAFTS: Final = {"NEXTN": "mtp", "EAGLE": "mtp", "MTP": "mtp", "DSPARK": "dspark"}


_NO_DRAFT: Final = "NGRAM"  # guesses from the text itself: no weights


def _draft_notes(settings: Settings, asked: Asked) -> Iterator[str]:
    speculation = settings.speculation
    if speculation is None or asked.draft is not None:
        return
    draft = _KNOWN_DRAFTS.get(speculation.algorithm)
    if draft == "mtp" and speculation.model not in (None, settings.model):
        yield f"the draft {speculation.model} is taken to be the model's own MTP layers: name another with --draft"
    elif draft is None and speculation.algorithm != _NO_DRAFT:
        yield f"the draft of {speculation.algorithm} is not counted: name its config with --draft"


def _precision(settings: Settings, model: Model, asked: str | None) -> tuple[str, list[str]]:
    """Changes of formats that the command makes, as text, and what was left as it is."""
    changes, notes = [asked] if asked else [], []
    for component, name in settings.formats.items():
        if component != "weights":
            changes.append(f"{component}={name}")
        elif name == "fp8" and model.precision["attention"].name == "bf16":
            changes += [f"{part}=fp8" for part in QUANTISED]
        elif name == "fp8" or "fp4" in name:
            continue  # the checkpoint is in that format already: its config says so
        else:
            notes.append(f"--quantization {name} is taken to be what the checkpoint is stored in")
    return ",".join(changes), notes
