"""Layouts that an engine's flags can say, by the engines' rules written out here, and exports of them."""

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import explorer.engines.export.intent
import explorer.engines.setup
import explorer.request
from explorer.engines.command import EngineName
from explorer.engines.export import Intent, Options, server_of, settings_of
from explorer.engines.export.answer import files_of
from explorer.engines.export.command import Server
from explorer.engines.export.hosts import hosts_of
from explorer.engines.export.versions import version_of
from explorer.request import Request, make_request
from hw.machine import load_machine
from layouts.enumerate import Space, enumerate_layouts
from layouts.layout import Layout
from layouts.models import load_model
from layouts.serving.reserve import Role

MODELS = ("deepseek-v3", "kimi-k3", "qwen3-235b-a22b", "llama-3.1-70b")
GPUS = (1, 2, 4, 8, 16, 32, 64)
HOST = 8


@contextlib.contextmanager
def files_read_once() -> Iterator[None]:
    """Every launch that is read back names its model and chip again: hundreds of them in the tests that use this."""
    model, machine = functools.cache(load_model), functools.cache(load_machine)
    with pytest.MonkeyPatch.context() as patch:
        for module in (explorer.engines.setup, explorer.engines.export.intent, explorer.request):
            patch.setattr(module, "load_model", model)
        patch.setattr(explorer.request, "load_machine", machine)
        yield


@functools.cache
def request_of(model: str, gpus: int, prefill: bool) -> Request:
    return make_request(model, "h200", gpus, phase="prefill" if prefill else "decode", draft="none")


@functools.cache
def layouts_of(engine: EngineName, model: str, gpus: int, prefill: bool) -> Space:
    """Every valid layout that the engine can say; weights are never sharded over a host (a host of one GPU)."""
    request = request_of(model, gpus, prefill)
    space = enumerate_layouts(replace(request.site, gpus_per_host=1, domain=1))
    assert space is not None
    columns: dict[str, Any] = space.columns
    rules = _sglang if engine is EngineName.SGLANG else _vllm
    sparse = any(layer.experts for layer in request.model.layers)
    keep = rules(columns, request, sparse) & _padded(columns, prefill)
    return space.take(np.flatnonzero(keep))


def _padded(c: dict[str, Any], prefill: bool) -> Any:
    """Rows of prefill under attention DP without an exchange are gathered unpadded; choices are indices."""
    unpadded = prefill & (c["attn_dp"] > 1) & (c["dispatch"] == 0)
    return c["padding"] == unpadded


def _stage(c: dict[str, Any]) -> Any:
    return c["attn_dp"] * c["attn_tp"] * c["attn_cp"]


def _sglang(c: dict[str, Any], request: Request, sparse: bool) -> Any:
    """SGLang 0.5.23: the head, copies of experts beside prefill CP, whole stages or whole hosts."""
    tp = _stage(c)
    head = (c["vocab_tp"] == tp) | ((c["attn_dp"] > 1) & (c["vocab_tp"] == c["attn_tp"]))
    ranks = tp // np.maximum(c["moe_dp"], 1)
    copies = (c["moe_dp"] == 1) | (
        (c["pp"] == 1) & ((c["ep"] == 1) | (c["ep"] == ranks)) & (c["attn_cp"] == c["moe_dp"])
    )
    together = (c["attn_dp"] == 1) & (request.gpus <= HOST)
    hosts = np.maximum(c["pp"] * tp // HOST, 1)
    places = together | (hosts % c["pp"] == 0) | (c["pp"] % hosts == 0)
    return head & copies & places


def _vllm(c: dict[str, Any], request: Request, sparse: bool) -> Any:
    """vLLM 0.33.0: no copies of experts, all of EP or none, exchanges between data-parallel ranks, DCP of GQA."""
    tp, group = _stage(c), c["attn_tp"]
    experts = ((c["ep"] == 1) | (c["ep"] == tp)) & (c["moe_dp"] == 1)
    exchanged = (c["dispatch"] == 0) | (c["attn_dp"] * c["attn_cp"] > 1)
    keep = (c["vocab_tp"] == group) & experts & exchanged & (sparse | (c["attn_dp"] == 1))
    keep &= c["dcp_backend"] != 2
    heads = {layer.attention.heads for layer in request.model.layers}
    for kv in request.site.kv_heads:
        grouped = (group > kv) & (c["dcp"] <= group // kv) & np.all([h // kv % c["dcp"] == 0 for h in heads], axis=0)
        keep &= (c["dcp"] == 1) | grouped
    rank, local = c["pp"] * group * c["attn_cp"], np.minimum(HOST, request.gpus)
    return keep & ((rank % local == 0) | (local % rank == 0))


def exported(
    request: Request, layout: Layout, options: Options, role: Role, model: str, share: float
) -> tuple[Server, int, dict[str, str]]:
    """A server, how many there are, and its files."""
    part = server_of(request, layout, options.engine)
    servers = layout.replicas // part.replicas
    settings = settings_of(request, part, Intent(options.engine, role, model, share, request.model.name))
    server = Server(settings, part, hosts_of(part.gpus, HOST), version_of(options.engine, options.version))
    return server, servers, files_of(server, options, request, servers)
