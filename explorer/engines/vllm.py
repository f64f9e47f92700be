"""What vLLM's flags mean, both ways. Names are those of 0.33.0; older ones are renamed where commands are read.

Sources: vLLM 0.33.0, `engine/arg_utils.py`, `config/parallel.py`, `layers/fused_moe/config.py`
(`FusedMoEParallelConfig.make`: without expert parallelism experts are cut over tp x dp, with it they are divided among
as many ranks).
"""

from collections.abc import Iterator, Mapping
from typing import Final

from explorer.engines.command.launch import EngineName, Launch, Value
from explorer.engines.meaning import format_of, unmodelled
from explorer.engines.settings import Degrees, Pools, Settings, Speculation
from explorer.engines.values import Values
from layouts.serving.reserve import Role
from layouts.serving.vllm_parallel import BATCHED, All2All, ParallelFlags, all2all, degrees, exchanges_rows

COUNTS: Final[Mapping[str, str]] = {
    "kv_bytes": "kv_cache_memory_bytes",
    "max_running": "max_num_seqs",
    "context_length": "max_model_len",
    "page": "block_size",
    "chunk": "max_num_batched_tokens",
    "graph_limit": "max_cudagraph_capture_size",
    "blocks": "num_gpu_blocks_override",
}
BACKEND_VARIABLE: Final = "VLLM_ALL2ALL_BACKEND"
EXPORTED_EXCHANGE: Final = "deepep_low_latency"
_MTP: Final = "_mtp"
_UNSAID_MTP: Final = "taken to be 1, of one MTP layer"
_UNSAID: Final = "no draft is counted, say how many tokens it proposes"
_ROLES: Final = {"kv_producer": Role.PREFILL, "kv_consumer": Role.DECODE}
_WRITTEN_ROLES: Final = {role: name for name, role in _ROLES.items()}
_CONNECTOR: Final = "NixlConnector"


def read(launch: Launch) -> Settings:
    """The settings of a launch; raises CommandError for a value that cannot be."""
    values = Values(launch)
    role = str(values.table("kv_transfer_config").get("kv_role", ""))
    speculation, notes = _speculation(values)
    return Settings(
        engine=EngineName.VLLM,
        model=launch.model,
        degrees=_degrees(values),
        pools=_pools(values),
        speculation=speculation,
        role=_ROLES.get(role, Role.UNIFIED),
        formats=dict(_formats(values)),
        notes=notes,
        unmodelled=tuple(unmodelled(values)),
    )


def write(settings: Settings) -> tuple[dict[str, Value], dict[str, str]]:
    """Flags and environment that mean these settings: the inverse of `read`, plain defaults left out."""
    cut, pools, spec = settings.degrees, settings.pools, settings.speculation
    group = cut.tp // (cut.attn_dp * cut.attn_cp)
    flags: dict[str, Value] = {"model": settings.model or "", "tensor_parallel_size": group}
    sizes = {
        "pipeline_parallel_size": cut.pp,
        "data_parallel_size": cut.attn_dp * cut.replicas,
        "prefill_context_parallel_size": cut.attn_cp,
        "decode_context_parallel_size": cut.dcp,
    }
    flags |= {name: size for name, size in sizes.items() if size > 1}
    if cut.dcp > 1 and cut.dcp_backend:
        flags["dcp_comm_backend"] = cut.dcp_backend
    if cut.ep > 1:
        flags["enable_expert_parallel"] = True
    if cut.exchange == "all_to_all":
        flags["all2all_backend"] = EXPORTED_EXCHANGE
    if settings.role in _WRITTEN_ROLES:
        flags["kv_transfer_config"] = {"kv_connector": _CONNECTOR, "kv_role": _WRITTEN_ROLES[settings.role]}
    if pools.share is not None:
        flags["gpu_memory_utilization"] = pools.share
    flags |= {name: getattr(pools, field) for field, name in COUNTS.items() if getattr(pools, field)}
    if pools.graph_sizes:
        flags["cudagraph_capture_sizes"] = pools.graph_sizes
    if not pools.graphs:
        flags["enforce_eager"] = True
    if not pools.prefix_cache:
        flags["enable_prefix_caching"] = False
    if not pools.chunked_prefill:
        flags["enable_chunked_prefill"] = False
    if pools.replay_state:
        flags["use_replayssm"] = True
    if pools.redundant_experts:
        flags |= {"enable_eplb": True, "eplb_config": {"num_redundant_experts": pools.redundant_experts}}
    if spec is not None:
        draft: dict[str, Value] = {"method": spec.algorithm.lower(), "num_speculative_tokens": spec.verify - 1}
        flags["speculative_config"] = draft | ({"model": spec.model} if spec.model else {})
    if "kv" in settings.formats:
        flags["kv_cache_dtype"] = "fp8" if settings.formats["kv"] == "fp8" else "bfloat16"
    if settings.formats.get("state") == "bf16":
        flags["mamba_ssm_cache_dtype"] = "bfloat16"
    elif "state" in settings.formats:
        flags["mamba_ssm_cache_dtype"] = "float32"
    if "weights" in settings.formats:
        flags["quantization"] = settings.formats["weights"]
    return flags, {}


def _degrees(values: Values) -> Degrees:
    """Degrees as for a model with experts: what they come to without is known where the model is (`setup`)."""
    flags = ParallelFlags(
        tp=values.degree("tensor_parallel_size"),
        pp=values.degree("pipeline_parallel_size"),
        dp=values.degree("data_parallel_size"),
        pcp=values.degree("prefill_context_parallel_size"),
        dcp=values.degree("decode_context_parallel_size"),
        expert_parallel=values.switch("enable_expert_parallel"),
        all2all=_exchange(values),
    )
    found = degrees(flags, experts=True)
    exchanged = flags.expert_parallel and flags.all2all is not All2All.GATHER_SCATTER and exchanges_rows(flags)
    return Degrees(
        pp=found.pp,
        tp=found.attn_tp * found.attn_dp * found.pcp,
        attn_dp=found.attn_dp,
        attn_cp=found.pcp,
        dcp=found.dcp,
        ep=found.ep,
        exchange="all_to_all" if exchanged else "all_gather",
        dcp_backend=values.word("dcp_comm_backend"),
        vocab_in_group=True,
    )


def _exchange(values: Values) -> All2All:
    """The backend that is named; the engine's own where none is, or none that it knows (which its rules then say)."""
    name = backend(values)
    return all2all(name) if name and name in tuple(All2All) else All2All.GATHER_SCATTER


def backend(values: Values) -> str | None:
    """What the flag says, or the variable that older versions read (vLLM 0.11, `envs.py`)."""
    return values.word("all2all_backend") or values.launch.env.get(BACKEND_VARIABLE, "").lower() or None


def _pools(values: Values) -> Pools:
    redundant = values.table("eplb_config").get("num_redundant_experts", 0)
    return Pools(
        share=values.share("gpu_memory_utilization"),
        graph_sizes=values.counts("cudagraph_capture_sizes"),
        graphs=not values.switch("enforce_eager") and not _ungraphed(values),
        prefix_cache=values.switch("enable_prefix_caching", True),
        replay_state=values.switch("use_replayssm"),
        low_latency=_exchange(values) in BATCHED,
        chunked_prefill=values.switch("enable_chunked_prefill", True),
        redundant_experts=redundant if isinstance(redundant, int) and not isinstance(redundant, bool) else 0,
        **{field: values.count(name) for field, name in COUNTS.items()},  # pyright: ignore[reportArgumentType]
    )


def _ungraphed(values: Values) -> bool:
    """Whether graphs are switched off in the words of the compilation (`CUDAGraphMode.NONE`)."""
    config = values.launch.values.get("compilation_config")
    return isinstance(config, Mapping) and str(config.get("cudagraph_mode") or "").upper() == "NONE"


def _speculation(values: Values) -> tuple[Speculation | None, tuple[str, ...]]:
    """A step verifies the proposed tokens and one more. MTP layers have names by model, all of which mean `mtp`, and
    propose as many tokens as there are where none is said (`SpeculativeConfig.__post_init__`)."""
    config = values.table("speculative_config")
    tokens = config.get("num_speculative_tokens", values.count("spec_tokens"))
    method, model = config.get("method", values.word("spec_method")), config.get("model", values.word("spec_model"))
    name = str(method or "draft_model").lower()
    name = "mtp" if name.endswith(_MTP) else name
    notes: tuple[str, ...] = ()
    if tokens is None and method is not None:
        notes = (f"{name[:40]!r} drafts, num_speculative_tokens unsaid: {_UNSAID_MTP if name == 'mtp' else _UNSAID}",)
        tokens = 1 if name == "mtp" else None
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        return None, notes
    return Speculation(name.upper(), tokens + 1, None if model is None else str(model)), notes


def _formats(values: Values) -> Iterator[tuple[str, str]]:
    kv, state = values.word("kv_cache_dtype"), values.word("mamba_ssm_cache_dtype")
    if kv is not None and kv != "auto":
        yield "kv", format_of(kv)
    if state is not None and state != "auto":
        yield "state", format_of(state)
    if "quantization" in values:
        yield "weights", values.word("quantization") or ""
