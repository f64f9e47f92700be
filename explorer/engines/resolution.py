"""What an engine makes of a command before it loads a model: what it changes on its own, and what it refuses."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from explorer.engines.command.launch import CommandError, EngineName, Launch
from explorer.engines.settings import Degrees, Pools, Settings
from explorer.engines.steps import longest, step_limits
from explorer.engines.values import Values
from explorer.engines.vllm import backend
from explorer.request import Request
from hw.errors import MeshwrightError
from layouts.gqa import GQA
from layouts.kda import KDA
from layouts.mla import MLA
from layouts.moe import MoE
from layouts.serving.buffers import sent_width
from layouts.serving.flag_rules import broken_buffer, broken_flags
from layouts.serving.flags import Flags, settled
from layouts.serving.reserve import Role
from layouts.serving.states import StateCache
from layouts.serving.vllm_parallel import All2All, ParallelFlags, all2all
from layouts.serving.vllm_rules import ModelFacts, ServeFlags, broken_rules

_MOST_EXPERTS: Final = 1 << 16


class Resolved(NamedTuple):
    """The settings that the engine runs with, every rule over flags that they break, every change that it made."""

    settings: Settings
    broken: tuple[str, ...]
    changes: tuple[str, ...]


def resolved(launch: Launch, settings: Settings, request: Request) -> Resolved:
    """What the engine makes of the settings of a launch, for the request's model and chip."""
    if settings.pools.redundant_experts > _MOST_EXPERTS:
        raise CommandError(f"{settings.pools.redundant_experts} redundant experts are no real number: give fewer")
    try:
        return _ENGINES[launch.engine](launch, settings, request)
    except MeshwrightError as error:
        return Resolved(settings, (str(error),), ())


def _sglang(launch: Launch, settings: Settings, request: Request) -> Resolved:
    flags, changes = settled(_flags(Values(launch), settings, request))
    broken = broken_flags(flags)
    moe = _moe(request)
    if moe is not None and flags.exchange == "deepep" and settings.role is not Role.PREFILL:
        width = sent_width(moe.width)
        broken += broken_buffer(flags, width, moe.experts + settings.pools.redundant_experts)
    said = tuple(f"{change.flag}: {change.given} becomes {change.used} ({change.why})" for change in changes)
    pools = replace(
        settings.pools,
        prefix_cache=flags.prefix_cache,
        extra_slots=flags.extra_slots,
        max_running=flags.max_running,
        overlap_schedule=flags.overlap,
        graphs=flags.decode_graphs,
    )
    return Resolved(replace(settings, pools=pools, degrees=_settled(settings.degrees, flags)), tuple(broken), said)


def _settled(degrees: Degrees, flags: Flags) -> Degrees:
    """Degrees of a server that gathers expert weights instead of sending rows: each rank a group of its own. A
    number of ranks that the rules refuse is no layout: then they stay."""
    if not 1 < flags.weight_shard == flags.tp:
        return degrees
    return replace(
        degrees,
        attn_dp=flags.attn_dp,
        ep=flags.ep,
        moe_dp=flags.moe_dp,
        dense_tp=flags.dense_tp,
        exchange="all_gather",
        vocab_in_group=flags.vocab_in_group,
    )


def _flags(values: Values, settings: Settings, request: Request) -> Flags:
    """The command's flags as the rules want them; what it leaves out keeps the engine's default."""
    degrees, pools, spec = settings.degrees, settings.pools, settings.speculation
    stated = {
        "hosts": values.count("nnodes", None, 1),
        "page": pools.page,
        "dispatch_tokens": pools.dispatch_tokens,
        "exchange": values.word("moe_a2a_backend"),
        "deepep_mode": values.word("deepep_mode"),
        "track_interval": values.count("mamba_track_interval", None, 1),
        "transfer": values.word("disaggregation_transfer_backend"),
    }
    return Flags(
        tp=degrees.tp,
        pp=degrees.pp,
        dp=degrees.replicas,
        attn_dp=degrees.attn_dp,
        attn_cp=degrees.attn_cp,
        prefill_cp=values.switch("enable_prefill_cp"),
        cp_strategy=values.word("cp_strategy"),
        dcp=degrees.dcp,
        dcp_exchange=degrees.dcp_backend,
        dcp_replicate_q=values.switch("dcp_replicate_q_proj"),
        ep=values.degree("ep_size"),
        moe_dp=degrees.moe_dp,
        dense_tp=values.count("moe_dense_tp_size", None, 1),
        vocab_in_group=values.switch("enable_dp_lm_head"),
        vocab_all_to_all=values.switch("enable_tp_lm_head_all_to_all"),
        weight_shard=values.count("dwdp_size", 1, 1) or 1,
        balance_experts=values.switch("enable_eplb"),
        chunk=pools.chunk,
        role=settings.role,
        extra_slots=pools.extra_slots,
        max_running=pools.max_running,
        graph_batch=max(pools.graph_sizes) if pools.graph_sizes else pools.graph_limit,
        decode_graphs=pools.graphs,
        prefix_cache=pools.prefix_cache,
        decode_prefix_cache=values.switch("disaggregation_decode_enable_radix_cache"),
        overlap=pools.overlap_schedule,
        hierarchical_cache=values.switch("enable_hierarchical_cache"),
        state_cache=state_cache(pools) if _keeps_states(request) else None,
        window_ratio=pools.window_ratio,
        speculative=None if spec is None else spec.algorithm,
        speculative_steps=values.count("speculative_num_steps"),
        speculative_topk=values.count("speculative_eagle_topk"),
        verify_width=None if spec is None else spec.verify,
        **{name: value for name, value in stated.items() if value is not None},  # pyright: ignore[reportArgumentType]
    )


def _keeps_states(request: Request) -> bool:
    return any(isinstance(layer.attention, KDA) for layer in request.model.kinds)


def state_cache(pools: Pools) -> StateCache:
    """How the prefix cache keeps states: the strategy stated; else (`auto`) in extra buffers, unless steps do not
    overlap and pages hold one token. Source: SGLang 0.5.23, `overrides`, for models that extra buffers work with."""
    if not pools.prefix_cache:
        return StateCache.OFF
    word = pools.state_strategy or "auto"
    if word in tuple(StateCache):
        return StateCache(word)
    return StateCache.EXTRA_BUFFER if pools.overlap_schedule or (pools.page or 1) > 1 else StateCache.NO_BUFFER


def _vllm(launch: Launch, settings: Settings, request: Request) -> Resolved:
    values, pools, d = Values(launch), settings.pools, settings.degrees
    group = d.tp // max(d.attn_dp * d.attn_cp, 1)
    parallel = ParallelFlags(
        tp=group,
        pp=d.pp,
        dp=d.attn_dp,
        pcp=d.attn_cp,
        dcp=d.dcp,
        expert_parallel=values.switch("enable_expert_parallel"),
        all2all=all2all(backend(values) or All2All.GATHER_SCATTER),
        eplb=values.switch("enable_eplb"),
        redundant_experts=pools.redundant_experts,
    )
    drafts = settings.speculation.verify - 1 if settings.speculation is not None else 0
    serve = ServeFlags(
        max_model_len=longest(settings, request),
        limits=step_limits(settings, request),
        chunked_prefill=pools.chunked_prefill,
        prefix_caching=pools.prefix_cache,
        block=pools.page or 16,
        dcp_interleave=values.count("cp_kv_cache_interleave_size", 1, 1) or 1,
        dcp_exchange=d.dcp_backend,
        kv_dtype=values.word("kv_cache_dtype") or "auto",
        speculative=drafts,
        dual_batch=values.switch("enable_dbo"),
        nodes=values.count("nnodes", 1, 1) or 1,
        local_dp=values.count("data_parallel_size_local", None, 1),
        hybrid_lb=values.switch("data_parallel_hybrid_lb"),
        external_lb=values.switch("data_parallel_external_lb"),
        quantised=request.model.precision["experts"].name != "bf16",
    )
    return Resolved(settings, broken_rules(parallel, serve, _facts(request)), ())


def _facts(request: Request) -> ModelFacts:
    attentions = [layer.attention for layer in request.model.kinds]
    moe = _moe(request)
    return ModelFacts(
        heads=max(attention.heads for attention in attentions),
        kv_heads=max((a.kv_heads for a in attentions if isinstance(a, GQA)), default=1),
        latent=any(isinstance(a, MLA) for a in attentions),
        experts=0 if moe is None else moe.experts,
        hybrid=any(isinstance(a, KDA) for a in attentions),
    )


def _moe(request: Request) -> MoE | None:
    return next((layer.ffn for layer in request.model.kinds if isinstance(layer.ffn, MoE)), None)


_Resolves = Callable[[Launch, Settings, Request], Resolved]
_ENGINES: Final[Mapping[EngineName, _Resolves]] = {EngineName.SGLANG: _sglang, EngineName.VLLM: _vllm}
