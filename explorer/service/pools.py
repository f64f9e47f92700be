"""The pools of a measured run as priced steps: from what its source states to a layout, formats and a machine."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np

from explorer.evaluate import Tables
from explorer.fidelity.runs import Pool, Run
from explorer.request import Phase, Request, fitting_context, make_request, verifying_model
from explorer.service.steps import Steps, steps
from hw.errors import MeshwrightError
from layouts.layout import Layout
from layouts.models import Model, load_model
from layouts.models.presets import draft_names
from layouts.moe import MoE

# Loads at which steps are priced; between them a step is a straight line. Graphs are captured at powers of two.
BATCHES: Final = 2.0 ** np.arange(0, 15)
CHUNKS: Final = 2.0 ** np.arange(6, 18)

_FORMATS: Final = {"fp8_block": "fp8", "fp4": "nvfp4", "bfloat16": "bf16", "float16": "bf16", "fp16": "bf16"}
_EXPERTS: Final = "experts"
_NOT_GEMMS: Final = frozenset({_EXPERTS, "head", "draft"})


class Refused(MeshwrightError):
    """A run that cannot be predicted; the message says which input is missing or impossible."""


@dataclass(frozen=True)
class Question:
    """What decides the steps of a pool; equal questions are priced once."""

    model: str
    hardware: str
    gpus: int
    layout: str
    precision: str | None
    prompt: int
    context: int
    verify: int
    phase: Phase


@dataclass(frozen=True)
class Priced:
    """A pool's worker: GPUs, attention groups, pipeline stages, and its steps at many loads.

    `replicas`: equal workers that one question holds; all else is of one of them.
    """

    gpus: int
    groups: int
    stages: int
    replicas: int
    steps: Steps


def question(run: Run, pool: Pool | None, phase: Phase) -> Question:
    """The question that one worker of a pool asks, or the whole run where its layout is stated as text."""
    output = run.mean_share * (run.output_tokens or 1)
    stated = run.input_tokens or run.context
    if stated is None:
        raise Refused("neither input tokens nor a context is stated: a step cannot be priced without its length")
    prompt = max(round(run.mean_share * stated), 1)
    context = run.context or prompt + round(output / 2)
    verify = 1 if phase is Phase.PREFILL else run.verify_width or 1
    gpus, layout = _stated(run) if pool is None else _worker(run, pool)
    return Question(run.model, run.hardware, gpus, layout, _precision(run), prompt, context, verify, phase)


@lru_cache(maxsize=1024)
def priced(asked: Question) -> Priced:
    """Price a worker at many loads; raises MeshwrightError for a layout that breaks a rule."""
    prefill = asked.phase is Phase.PREFILL
    base = _request(asked.model, asked.hardware, asked.gpus, asked.precision, asked.verify, asked.phase)
    length = fitting_context(base.model, asked.prompt if prefill else asked.context)
    request = replace(base, context=length)
    tables = _tables(asked.model, asked.precision, asked.verify, prefill)
    return worker(request, request.layout(asked.layout), tables)


def for_prompts(layout: Layout) -> Layout:
    """The layout in which an instance computes prompts: whatever cuts decode alone is left out."""
    return replace(layout, dcp=1)


def worker(request: Request, layout: Layout, tables: Tables | None = None) -> Priced:
    """Price a valid layout at many loads of the request's phase, all requests as long as its context."""
    loads = CHUNKS if request.prefill else BATCHES
    found = steps(request, layout, loads, request.context, tables)
    return Priced(layout.pp * layout.tp, layout.attn_dp, layout.pp, layout.replicas, found)


@lru_cache(maxsize=256)
def _request(model: str, hardware: str, gpus: int, precision: str | None, verify: int, phase: Phase) -> Request:
    """A question of any length: models and machines are read once."""
    draft = _draft(model, verify)
    return make_request(
        model,
        hardware,
        gpus,
        phase=phase,
        context=1,
        concurrency=1,
        precision=precision,
        draft=draft,
        verify_width=verify,
    )


@lru_cache(maxsize=64)
def _tables(model: str, precision: str | None, verify: int, prefill: bool) -> Tables:
    """A model lowered once for all machines and layouts."""
    verifying, _ = verifying_model(model, _draft(model, verify), precision, verify)
    return Tables(verifying, prefill)


def _stated(run: Run) -> tuple[int, str]:
    if run.layout is None or run.stated_gpus is None:
        raise Refused("no layout is stated: give one as text with the number of GPUs, or the degrees of its pools")
    return run.stated_gpus, run.layout


def _worker(run: Run, pool: Pool) -> tuple[int, str]:
    """A worker's degrees as a layout. A mixture that all-reduces keeps one attention group; with several, experts that
    are whole on their rank get their rows by all-to-all, others by gathers."""
    gpus = pool.worker_gpus
    if gpus is None or pool.tp is None:
        raise Refused("tp is blank: the layout of a worker is unknown")
    groups, stages = pool.attention_dp or 1, pool.pp or 1
    keys = {"pp": stages, "attn_dp": groups, "attn_tp": pool.tp}
    if has_experts(run.model):
        ranks, ep = gpus // stages, pool.moe_ep or 1
        exchange = "all_to_all" if groups > 1 and ep == ranks else "all_gather"
        keys |= {"ep": ep, "expert_tp": max(ranks // ep, 1), "dispatch": exchange}
    return gpus, ",".join(f"{key}={value}" for key, value in keys.items())


def _precision(run: Run) -> str | None:
    """Formats of the weights where stated; a cache of 8 bits beside weights of 8 bits or fewer, as engines are run."""
    stated = {"gemm": _format(run.gemm), "moe": _format(run.moe)}
    if stated["gemm"] is None:
        return None if run.kv is None else f"kv={_format(run.kv)}"
    components = {t.component for layer in _model(run.model).layers for t in layer.tensors()}
    chosen = {name: stated["gemm"] for name in sorted(components - _NOT_GEMMS)}
    if _EXPERTS in components:
        chosen[_EXPERTS] = stated["moe"] or stated["gemm"]
    chosen["kv"] = _format(run.kv) or ("bf16" if stated["gemm"] == "bf16" else "fp8")
    return ",".join(f"{name}={form}" for name, form in chosen.items())


def _format(stated: str | None) -> str | None:
    return None if stated is None else _FORMATS.get(stated.lower(), stated.lower())


def _draft(model: str, verify: int) -> str | None:
    """The draft that a verifying run uses: the model's own layers, else the shipped one that is named after it."""
    if verify <= 1:
        return "none"
    try:
        load_model(model, "mtp")
    except MeshwrightError:
        return next((name for name in draft_names() if name.endswith(f"-{model}")), "none")
    return "mtp"


@lru_cache(maxsize=64)
def _model(model: str) -> Model:
    return load_model(model, "none")


def has_experts(model: str) -> bool:
    """Whether some layer of the model is a mixture of experts."""
    return any(isinstance(layer.ffn, MoE) for layer in _model(model).layers)
