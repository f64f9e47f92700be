"""From a layout and a load to the settings of one server: the inverse of `setup.layout_keys`.

A key that an engine has no flag for is found by reading the settings back: the layout that they mean is the nearest
one that can be said.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from explorer.engines.command.launch import EngineName
from explorer.engines.export.errors import ExportError
from explorer.engines.settings import Degrees, Pools, Settings, Speculation
from explorer.engines.setup import LOW_LATENCY_ROWS, QUANTISED, layout_keys
from explorer.request import Request
from layouts.layout import Layout, resolve
from layouts.models import Model, load_model
from layouts.models.presets import base_of
from layouts.rules import broken
from layouts.serving.reserve import Role
from layouts.text import text_of

TITLES: Final = {EngineName.SGLANG: "SGLang", EngineName.VLLM: "vLLM"}
_MOST_GRAPH: Final = (
    512  # requests of a group beyond which no graph is captured by default (SGLang 0.5.23, memory_hook)
)
_DRAFTS: Final = {  # a draft that keeps KV of every token is the model's own, one with a window a block draft
    EngineName.SGLANG: {"token": "NEXTN", "window": "DSPARK"},
    EngineName.VLLM: {"token": "MTP", "window": "DSPARK"},
}
BLOCK_DRAFTS: Final = frozenset(kinds["window"] for kinds in _DRAFTS.values())
"""Algorithms whose draft is a checkpoint of its own."""

# Why a key has the values that it has, an engine.
LIMITS: Final[Mapping[EngineName, Mapping[str, str]]] = {
    EngineName.SGLANG: {
        "weight_shard": "it has no flag that spreads weights run TP1 over a host",
        "weight_shard_layers": "it has no flag that spreads weights run TP1 over a host",
        "vocab_tp": "it cuts the head over all of tp, or over an attention group (--enable-dp-lm-head)",
        "padding": "prefill under attention DP gathers rows unpadded, all else pads to the longest",
    },
    EngineName.VLLM: {
        "weight_shard": "it has no flag that spreads weights run TP1 over a host",
        "weight_shard_layers": "it has no flag that spreads weights run TP1 over a host",
        "vocab_tp": "it cuts the head over --tensor-parallel-size, an attention group",
        "ep": "--enable-expert-parallel divides experts among all ranks, or none are divided",
        "expert_tp": "--enable-expert-parallel divides experts among all ranks, or all are cut over them",
        "moe_dp": "it has no flag for copies of the experts",
        "dispatch": "--all2all-backend exchanges rows between data-parallel ranks, of which there must be two",
        "padding": "prefill under attention DP gathers rows unpadded, all else pads to the longest",
    },
}


@dataclass(frozen=True)
class Intent:
    """What is to be said of a server beside its layout: who starts it, as what, and the share of memory that it takes
    (None: the engine's default). `model`: the name or path that the engine loads, `known_as` that by which it is known
    here (None: the same)."""

    engine: EngineName
    role: Role
    model: str
    share: float | None = None
    known_as: str | None = None


def server_of(request: Request, layout: Layout, engine: EngineName) -> Layout:
    """The part of a layout that one server of the engine is; the others are copies of it.

    Replicas are one server where the engine starts them together: SGLang's without attention DP on one host
    (0.5.23, `check_server_args`), vLLM's of a model without experts, whose data-parallel ranks share nothing.
    """
    together = (
        layout.attn_dp == 1 and layout.gpus <= int(request.machine.gpus_per_host)
        if engine is EngineName.SGLANG
        else not _sparse(request.model)
    )
    return layout if together else replace(layout, replicas=1)


def settings_of(request: Request, layout: Layout, intent: Intent) -> Settings:
    """The settings that mean the layout of one server and the load of a request on it.

    `request.concurrency` is that of this server, rounded up to as many in every attention group. ExportError for a
    layout or format that no flag can say: key, the engine's limit, the nearest layout that can be said.
    """
    settings = _said(request, layout, intent)
    meant = meaning(settings, request.model, layout.gpus)
    if meant != layout:
        raise ExportError(_unsayable(request, layout, meant, intent))
    return settings


def meaning(settings: Settings, model: Model, gpus: int) -> Layout:
    """The layout that settings mean."""
    return resolve(layout_keys(settings, model), gpus, model)


def _said(request: Request, layout: Layout, intent: Intent) -> Settings:
    return Settings(
        engine=intent.engine,
        model=intent.model,
        degrees=_degrees(request, layout, intent.engine),
        pools=_pools(request, layout, intent),
        speculation=_speculation(request, intent),
        role=intent.role,
        formats=_formats(request.model, intent.known_as or intent.model),
    )


def _degrees(request: Request, layout: Layout, engine: EngineName) -> Degrees:
    la = layout
    return Degrees(
        replicas=la.replicas,
        pp=la.pp,
        tp=la.tp,
        attn_dp=la.attn_dp,
        attn_cp=la.attn_cp,
        dcp=la.dcp,
        ep=la.ep if engine is EngineName.SGLANG or la.ep in (1, la.tp) else 1,
        moe_dp=la.moe_dp if engine is EngineName.SGLANG else 1,
        exchange=la.dispatch if engine is EngineName.SGLANG or la.attn_dp * la.attn_cp > 1 else "all_gather",
        dcp_backend=la.dcp_backend if la.dcp > 1 else None,
        vocab_in_group=engine is EngineName.VLLM or (la.attn_dp > 1 and la.vocab_tp <= la.attn_tp),
        # what the engine does where it is told nothing: a dense MLP over all of tp
        dense_tp=la.tp if engine is EngineName.SGLANG and la.attn_dp > 1 else None,
    )


def _pools(request: Request, layout: Layout, intent: Intent) -> Pools:
    sglang = intent.engine is EngineName.SGLANG
    running = ceil((request.concurrency or 1) / (layout.replicas * layout.attn_dp))  # of an attention group
    chunk = request.chunk if sglang else ceil(request.chunk / layout.attn_dp)
    common = Pools(share=intent.share, context_length=request.context)
    if request.prefill:
        return replace(common, chunk=chunk)
    if not sglang:  # its graphs follow from the requests, its step must hold one row of each
        return replace(common, max_running=running, chunk=max(chunk, running * request.verify_width))
    explicit = tuple(n for n in request.model.defaults.get("graph_sizes", ()) if n <= running)
    return replace(
        common,
        max_running=running * layout.attn_dp,
        chunk=None if intent.role is Role.DECODE else chunk,
        graph_sizes=explicit or None,
        graph_limit=None if explicit else min(running, _MOST_GRAPH),
        extra_slots=request.extra_slots if intent.role is Role.DECODE else None,
        dispatch_tokens=_dispatch_tokens(request, layout, running) if layout.dispatch == "all_to_all" else None,
    )


def _dispatch_tokens(request: Request, layout: Layout, running: int) -> int:
    """Rows that a rank may dispatch: as stated, and no fewer than a full step has."""
    rows = ceil(running * request.verify_width / layout.attn_tp)
    return max(request.dispatch_tokens or LOW_LATENCY_ROWS, rows)


def _speculation(request: Request, intent: Intent) -> Speculation | None:
    draft, rows = request.model.draft, request.verify_width
    if request.prefill or rows == 1:
        return None
    if draft is None:
        raise ExportError(f"verify-width {rows} without a draft: name one with --draft, or leave --verify-width out")
    return Speculation(_DRAFTS[intent.engine][draft.kv], rows)


def _formats(model: Model, name: str) -> dict[str, str]:
    """Formats that differ from those of the checkpoint, which the engine reads itself. A build (`kimi-k3@article`) has
    its weights as it says, its KV and states as flags say."""
    base, build = (load_model(stored, "none").precision.formats for stored in (base_of(name), name))
    formats = model.precision.formats
    said = {part: formats[part].name for part in ("kv", "state") if formats[part] != base[part]}
    changed = {part: kind.name for part, kind in formats.items() if part not in ("kv", "state") and kind != build[part]}
    online = {part for part in QUANTISED if build[part].name == "bf16"}
    if changed and set(changed) == online and set(changed.values()) == {"fp8"}:
        return said | {"weights": "fp8"}
    if changed:
        part, kind = next(iter(changed.items()))
        raise ExportError(
            f"precision {part}={kind} is not what {name} is stored in: engines load a checkpoint as it is; leave it out"
        )
    return said


def _unsayable(request: Request, layout: Layout, meant: Layout, intent: Intent) -> str:
    """One line: the first key that is not said, why, and the layout that would be said in its place if it is valid."""
    key = next(key for key in layout.as_dict() if getattr(layout, key) != getattr(meant, key))
    title, limits = TITLES[intent.engine], LIMITS[intent.engine]
    why = limits.get(key, "it has no flag for that")
    line = f"{title} cannot say {key}={getattr(layout, key)}: {why}"
    near = meaning(_said(request, meant, intent), request.model, meant.gpus)
    if near == meant and not broken(meant, replace(request.site, gpus=meant.gpus)):
        return f"{line}; nearest that it can say: {text_of(meant, request.model)}"
    return f"{line}; choose another {key}"


def _sparse(model: Model) -> bool:
    return any(layer.experts for layer in model.layers)
