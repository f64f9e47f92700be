"""What SGLang's flags mean, both ways. Names are those of 0.5.23; older ones are renamed where commands are read.

Sources: SGLang 0.5.23, `arg_groups/fields/*.py` and the hooks that resolve them (`parallel_hook.py`, `moe_hook.py`,
`overrides.py`); public facts on older names.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from explorer.engines.command.launch import EngineName, Launch, Value
from explorer.engines.meaning import exchanges, format_of, unmodelled, verified_rows
from explorer.engines.settings import Degrees, Pools, Settings, Speculation
from explorer.engines.values import Values, flag
from layouts.serving.reserve import Role

# A field of `Pools` that one flag sets, read and written alike.
COUNTS: Final[Mapping[str, str]] = {
    "max_tokens": "max_total_tokens",
    "max_running": "max_running_requests",
    "context_length": "context_length",
    "page": "page_size",
    "graph_limit": "cuda_graph_max_bs_decode",
    "state_slots": "max_mamba_cache_size",
    "extra_slots": "disaggregation_decode_extra_slots",
    "redundant_experts": "ep_num_redundant_experts",
}
DENSE_TP: Final = "moe_dense_tp_size"
# Kernels of sparse attention whose fp8 rows have no scales in them: `calculate_mla_kv_cache_dim`.
PLAIN_ROWS: Final = ("trtllm", "tilelang")
_SPARSE_BACKENDS: Final = ("dsa_decode_backend", "dsa_prefill_backend")
CHUNK: Final = "chunked_prefill_size"  # -1 switches chunks off
NUMBERS: Final[Mapping[str, str]] = {"state_ratio": "mamba_full_memory_ratio", "window_ratio": "swa_full_tokens_ratio"}
DISPATCH_TOKENS: Final = "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"

EXCHANGE: Final = "moe_a2a_backend"
EXPORTED_EXCHANGE: Final = "deepep"
EXPORTED_SPLIT: Final = "interleave"  # of a prompt: sparse attention refuses zigzag (`parallel_hook.py`)
_ROLES: Final = {"null": Role.UNIFIED, "prefill": Role.PREFILL, "decode": Role.DECODE}


def read(launch: Launch) -> Settings:
    """The settings of a launch; raises CommandError for a value that cannot be."""
    values = Values(launch)
    speculation = _speculation(values)
    return Settings(
        engine=EngineName.SGLANG,
        model=launch.model,
        degrees=_degrees(values),
        pools=_pools(values, launch.env),
        speculation=speculation,
        role=_ROLES.get(values.word("disaggregation_mode") or "null", Role.UNIFIED),
        formats=dict(_formats(values)),
        unmodelled=(*unmodelled(values), *_other_buffers(values)),
    )


def write(settings: Settings) -> tuple[dict[str, Value], dict[str, str]]:
    """Flags and environment that mean these settings: the inverse of `read`, plain defaults left out."""
    degrees, pools, spec = settings.degrees, settings.pools, settings.speculation
    flags: dict[str, Value] = {"model_path": settings.model or "", "tp_size": degrees.tp}
    sizes = {
        "pp_size": degrees.pp,
        "dp_size": degrees.replicas,
        "attn_dp_size": degrees.attn_dp,
        "attn_cp_size": degrees.attn_cp,
        "dcp_size": degrees.dcp,
        "ep_size": degrees.ep,
        "moe_dp_size": degrees.moe_dp,
    }
    flags |= {name: size for name, size in sizes.items() if size > 1}
    if degrees.attn_cp > 1:
        flags |= {"enable_prefill_cp": True, "cp_strategy": EXPORTED_SPLIT}
    if degrees.dcp > 1 and degrees.dcp_backend:
        flags["dcp_comm_backend"] = degrees.dcp_backend
    if degrees.exchange == "all_to_all":
        flags[EXCHANGE] = EXPORTED_EXCHANGE
    if degrees.vocab_in_group and degrees.attn_dp > 1:
        flags["enable_dp_lm_head"] = True
    if degrees.attn_dp > 1 and degrees.dense_tp is None:
        flags["enable_dense_mlp_attn_tp"] = True
    elif degrees.attn_dp > 1 and degrees.dense_tp != degrees.tp:
        flags[DENSE_TP] = degrees.dense_tp or 1
    if settings.role is not Role.UNIFIED:
        flags["disaggregation_mode"] = settings.role.value
    if pools.share is not None:
        flags["mem_fraction_static"] = pools.share
    flags |= {name: getattr(pools, field) for field, name in (COUNTS | NUMBERS).items() if getattr(pools, field)}
    if pools.chunk is not None:
        flags[CHUNK] = pools.chunk
    if pools.graph_sizes:
        flags["cuda_graph_bs_decode"] = pools.graph_sizes
    if not pools.prefix_cache:
        flags["disable_radix_cache"] = True
    if spec is not None:
        flags |= {"speculative_algorithm": spec.algorithm, "speculative_num_draft_tokens": spec.verify}
        flags |= {"speculative_num_steps": spec.verify - 1, "speculative_eagle_topk": 1}
        flags |= {"speculative_draft_model_path": spec.model} if spec.model else {}
    if "kv" in settings.formats:
        kv = settings.formats["kv"]
        flags["kv_cache_dtype"] = "fp8_e4m3" if kv.startswith("fp8") else "bfloat16"
        flags |= dict.fromkeys(_SPARSE_BACKENDS, PLAIN_ROWS[0]) if kv == "fp8_raw" else {}
    if settings.formats.get("state") == "bf16":
        flags["mamba_ssm_dtype"] = "bfloat16"
    elif "state" in settings.formats:
        flags["mamba_ssm_dtype"] = "float32"
    if "weights" in settings.formats:
        flags["quantization"] = settings.formats["weights"]
    env = {} if pools.dispatch_tokens is None else {DISPATCH_TOKENS: str(pools.dispatch_tokens)}
    return flags, env


def _degrees(values: Values) -> Degrees:
    tp, dp, attn_dp = (values.degree(name) for name in ("tp_size", "dp_size", "attn_dp_size"))
    if values.switch("enable_dp_attention") and attn_dp == 1:
        dp, attn_dp = 1, dp  # the older spelling: --dp-size counts attention groups
    if values.degree("dwdp_size") > 1:
        dp = 1  # `handle_dwdp`, which makes every rank an attention group
    exchanged = exchanges(EngineName.SGLANG, values.word(EXCHANGE))
    return Degrees(
        replicas=dp,
        pp=values.degree("pp_size"),
        tp=tp,
        attn_dp=attn_dp,
        attn_cp=values.degree("attn_cp_size"),
        dcp=values.degree("dcp_size"),
        ep=tp if exchanged else values.degree("ep_size"),
        moe_dp=values.degree("moe_dp_size"),
        exchange="all_to_all" if exchanged and tp > 1 else "all_gather",
        dcp_backend=values.word("dcp_comm_backend"),
        vocab_in_group=attn_dp > 1 and values.switch("enable_dp_lm_head"),
        dense_tp=_dense_tp(values, tp, attn_dp),
    )


def _other_exchange(values: Values) -> str | None:
    """The backend that exchanges rows, where its buffers are not DeepEP's."""
    backend = values.word(EXCHANGE)
    return backend if exchanges(EngineName.SGLANG, backend) and backend != EXPORTED_EXCHANGE else None


def _other_buffers(values: Values) -> Iterator[str]:
    backend = _other_exchange(values)
    if backend is not None:
        yield f"{flag(EXCHANGE)}: buffers of {backend}"


def _dense_tp(values: Values, tp: int, attn_dp: int) -> int | None:
    """Under DP attention a dense MLP gathers the rows of all groups unless it is told otherwise (`deepseek_v2.py`)."""
    if attn_dp == 1 or values.switch("enable_dense_mlp_attn_tp"):
        return None
    return values.count(DENSE_TP, tp, 1)


def _pools(values: Values, env: Mapping[str, str]) -> Pools:
    counts = {field: values.count(name) for field, name in COUNTS.items()}
    dispatch = env.get(DISPATCH_TOKENS, "")
    chunk, decode = values.number(CHUNK), values.word("cuda_graph_backend_decode")
    return Pools(
        share=values.share("mem_fraction_static"),
        graph_sizes=values.counts("cuda_graph_bs_decode"),
        graphs=decode != "disabled" and not values.switch("disable_decode_cuda_graph"),
        prefix_cache=not values.switch("disable_radix_cache"),
        overlap_schedule=not values.switch("disable_overlap_schedule"),
        state_strategy=values.word("mamba_radix_cache_strategy"),
        replay_state=values.switch("enable_linear_replayssm_spec"),
        dispatch_tokens=int(dispatch) if dispatch.isdecimal() and len(dispatch) < 10 else None,
        low_latency=(values.word("deepep_mode") or "auto") != "normal",
        exchange_buffer=not _other_exchange(values),
        chunk=None if chunk is None or chunk <= 0 else int(chunk),
        redundant_experts=counts.pop("redundant_experts") or 0,
        **{field: values.number(name) for field, name in NUMBERS.items()},  # pyright: ignore[reportArgumentType]
        **counts,  # pyright: ignore[reportArgumentType]
    )


def _speculation(values: Values) -> Speculation | None:
    """Rows verified: those stated, else one more than the draft's steps (`speculative_hook.py`, top-k of 1)."""
    algorithm = values.word("speculative_algorithm")
    if algorithm in (None, "none"):
        return None
    steps, rows = values.count("speculative_num_steps"), values.count("speculative_num_draft_tokens")
    chain = (values.count("speculative_eagle_topk", 1) or 1) == 1
    if chain and steps is not None:
        rows = steps + 1
    block = values.count("speculative_dspark_block_size")
    if rows is None and block is not None:
        rows = block + 1
    path = values.launch.values.get("speculative_draft_model_path")
    name = algorithm.upper()
    return Speculation(name, rows or verified_rows(name), None if path is None else str(path))


def _formats(values: Values) -> Iterator[tuple[str, str]]:
    kv, state = values.word("kv_cache_dtype"), values.word("mamba_ssm_dtype")
    if kv is not None and kv != "auto":
        raw = any(values.word(name) in PLAIN_ROWS for name in _SPARSE_BACKENDS)
        yield "kv", "fp8_raw" if raw and format_of(kv) == "fp8" else format_of(kv)
    if state is not None:
        yield "state", format_of(state)
    if "quantization" in values:
        yield "weights", values.word("quantization") or ""
