"""The rules at which vLLM refuses a command before it loads a model, as one line each.

Rules of vLLM 0.33.0: `ParallelConfig._validate_parallel_config`, `ModelConfig.verify_with_parallel_config`,
`SchedulerConfig.verify_max_model_len`, `EngineArgs.create_engine_config`, `VllmConfig.__post_init__`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from layouts.serving.vllm_limits import Limits
from layouts.serving.vllm_parallel import All2All, ParallelFlags, degrees

DCP_EXCHANGES: Final = ("ag_rs", "a2a")
# Backends that can split a step in two halves that overlap, on CUDA: `VllmConfig.__post_init__`.
_MICRO_BATCHED: Final = (All2All.DEEPEP_LOW_LATENCY, All2All.DEEPEP_HIGH_THROUGHPUT, All2All.NIXL_EP)


@dataclass(frozen=True)
class ModelFacts:
    """What the rules need of a model: heads, KV heads (ignored for `latent` attention), experts (0: dense)."""

    heads: int
    kv_heads: int
    latent: bool = False
    experts: int = 0
    hybrid: bool = False
    dtype: str = "bfloat16"


@dataclass(frozen=True)
class ServeFlags:
    """Flags beside the degrees, with vLLM's defaults. `max_model_len` is the resolved one; `speculative` draft tokens.

    `nodes` is `--nnodes`; `local_dp`, `hybrid_lb` and `external_lb` say where data-parallel ranks run and who spreads
    requests over them; `lookahead` is the draft's KV slots beyond the step (None: as many as draft tokens);
    `transfers_kv` a NIXL connector.
    """

    max_model_len: int
    limits: Limits
    max_num_active_seqs: int | None = None
    long_prefill_threshold: int = 0
    chunked_prefill: bool = True
    prefix_caching: bool = True
    block: int = 16
    dcp_interleave: int = 1
    dcp_exchange: str | None = None
    kv_dtype: str = "auto"
    speculative: int = 0
    lookahead: int | None = None
    dual_batch: bool = False
    decode_threshold: int = 32
    prefill_threshold: int = 512
    elastic_ep: bool = False
    nodes: int = 1
    local_dp: int | None = None
    hybrid_lb: bool = False
    external_lb: bool = False
    quantised: bool = False
    transfers_kv: bool = False


def broken_rules(parallel: ParallelFlags, serve: ServeFlags, model: ModelFacts) -> tuple[str, ...]:
    """Every rule that a command breaks, in one line each: the flag, the rule, the remedy; none where it would start."""
    return (
        *_heads(parallel, model),
        *_context_parallel(parallel, serve, model),
        *_experts(parallel, serve, model),
        *_data_parallel(parallel, serve, model),
        *_scheduler(serve),
        *_dual_batch(parallel, serve, model),
        *_cache(parallel, serve, model),
    )


def _heads(p: ParallelFlags, m: ModelFacts) -> Iterator[str]:
    if m.heads % p.tp:
        yield f"--tensor-parallel-size {p.tp} does not divide {m.heads} heads: choose a divisor"


def _context_parallel(p: ParallelFlags, s: ServeFlags, m: ModelFacts) -> Iterator[str]:
    allowed = {1, p.pcp, p.tp * p.pcp}
    if p.pcp == 1 and p.tp % p.dcp:
        yield f"--decode-context-parallel-size {p.dcp} does not divide TP {p.tp}: choose a divisor of TP"
    if p.pcp > 1 and p.dcp not in allowed:
        choices = ", ".join(map(str, sorted(allowed)))
        yield f"--decode-context-parallel-size {p.dcp} with PCP {p.pcp} and TP {p.tp}: choose one of {choices}"
    if s.dcp_exchange is not None and s.dcp_exchange not in DCP_EXCHANGES:
        yield f"--dcp-comm-backend {s.dcp_exchange!r} is unknown: choose one of {', '.join(DCP_EXCHANGES)}"
    if p.dcp == 1:
        return
    # with a NIXL connector the interleave follows from the blocks
    if not s.transfers_kv and s.block % s.dcp_interleave:
        yield f"--cp-kv-cache-interleave-size {s.dcp_interleave} does not divide a block of {s.block}: change one"
    if not m.latent:
        yield from _grouped_heads(p, m)


def _grouped_heads(p: ParallelFlags, m: ModelFacts) -> Iterator[str]:
    """DCP of grouped-query attention cuts only the copies of a KV head among the TP ranks."""
    if p.tp <= m.kv_heads:
        yield f"DCP {p.dcp} with TP {p.tp} and {m.kv_heads} KV heads: no KV head has a copy; raise TP or set DCP to 1"
        return
    if p.dcp > p.tp // m.kv_heads:
        yield f"DCP {p.dcp} exceeds the {p.tp // m.kv_heads} copies of each KV head at TP {p.tp}: lower it"
    if m.heads // m.kv_heads % p.dcp:
        yield f"DCP {p.dcp} does not divide the {m.heads // m.kv_heads} query heads of a KV head: choose a divisor"


def _experts(p: ParallelFlags, s: ServeFlags, m: ModelFacts) -> Iterator[str]:
    if p.expert_parallel and not m.experts:
        yield "--enable-expert-parallel needs a model with experts: leave it out"
    if not p.eplb:
        if p.redundant_experts:
            yield f"{p.redundant_experts} redundant experts need --enable-eplb: add it or set them to 0"
    elif not p.expert_parallel:
        yield "--enable-eplb needs --enable-expert-parallel: add it"
    else:
        yield from _balanced_experts(p, m)
    if s.elastic_ep and not p.eplb:
        yield "--enable-elastic-ep needs --enable-eplb: add it"
    if s.elastic_ep and p.pp > 1:
        yield f"--enable-elastic-ep with {p.pp} pipeline stages: set --pipeline-parallel-size to 1"
    if p.all2all is All2All.MOONEP and (s.quantised or m.dtype != "bfloat16" or p.eplb):
        yield "--all2all-backend moonep takes bfloat16 weights that are not quantised, without EPLB: choose another"


def _balanced_experts(p: ParallelFlags, m: ModelFacts) -> Iterator[str]:
    ranks = degrees(p, experts=True).ep
    if ranks == 1:
        yield "--enable-eplb needs more than one rank over TP x PCP x DP: raise one of them"
    elif (m.experts + p.redundant_experts) % ranks:
        missing = -m.experts % ranks
        yield (
            f"{m.experts} + {p.redundant_experts} experts do not divide over {ranks} ranks, which --enable-eplb needs: "
            f"set the redundant experts to {missing} or a multiple of {ranks} more"
        )


def _data_parallel(p: ParallelFlags, s: ServeFlags, m: ModelFacts) -> Iterator[str]:
    gpus = degrees(p, experts=True).gpus
    if s.nodes > 1 and gpus % s.nodes:
        yield f"--nnodes {s.nodes} does not divide the {gpus} GPUs of TP x PP x PCP x DP: choose a divisor"
    if s.local_dp is not None and s.local_dp > p.dp:
        yield f"--data-parallel-size-local {s.local_dp} exceeds --data-parallel-size {p.dp}: lower it"
    if s.hybrid_lb and s.external_lb:
        yield "--data-parallel-hybrid-lb and --data-parallel-external-lb exclude each other: choose one"
    if s.hybrid_lb and not s.external_lb and s.local_dp is None and s.nodes == 1:
        yield "--data-parallel-hybrid-lb needs --data-parallel-size-local: give the ranks of this node"
    if s.external_lb and p.dp <= 1:
        yield "--data-parallel-external-lb needs --data-parallel-size above 1: raise it or leave the flag out"
    if s.external_lb and p.dp > 1 and not m.experts:
        yield "a dense model takes no external data parallelism: start independent servers instead"


def _scheduler(s: ServeFlags) -> Iterator[str]:
    tokens, requests = s.limits
    if not s.chunked_prefill and tokens < s.max_model_len:
        yield (
            f"--max-num-batched-tokens {tokens} is below --max-model-len {s.max_model_len} without chunked prefill: "
            "raise it, shorten requests or enable chunked prefill"
        )
    if tokens < requests:
        yield f"--max-num-batched-tokens {tokens} is below --max-num-seqs {requests}: raise it or lower requests"
    if s.max_num_active_seqs is not None and s.max_num_active_seqs > requests:
        yield f"--max-num-active-seqs {s.max_num_active_seqs} exceeds --max-num-seqs {requests}: lower it"
    if s.long_prefill_threshold > s.max_model_len:
        yield (
            f"--long-prefill-token-threshold {s.long_prefill_threshold} exceeds --max-model-len {s.max_model_len}: "
            "lower it"
        )
    lookahead = s.speculative if s.lookahead is None else s.lookahead
    if s.speculative and tokens <= lookahead:
        yield f"--max-num-batched-tokens {tokens} leaves no token beside {lookahead} draft slots: raise it"


def _dual_batch(p: ParallelFlags, s: ServeFlags, m: ModelFacts) -> Iterator[str]:
    if not s.dual_batch:
        return
    if p.all2all not in _MICRO_BATCHED:
        yield f"--enable-dbo with --all2all-backend {p.all2all}: choose one of {', '.join(_MICRO_BATCHED)}"
    if min(s.decode_threshold, s.prefill_threshold) < 2:
        yield "the token thresholds of --enable-dbo must be at least 2, one token for each half: raise them"
    excluded = {
        "speculative decoding": s.speculative > 0,
        "pipeline parallelism": p.pp > 1,
        "context parallelism": p.dcp > 1 or p.pcp > 1,
        "hybrid models": m.hybrid,
    }
    for feature, used in excluded.items():
        if used:
            yield f"--enable-dbo does not go with {feature}: leave one of the two out"


def _cache(p: ParallelFlags, s: ServeFlags, m: ModelFacts) -> Iterator[str]:
    if m.hybrid and s.prefix_caching and not s.chunked_prefill:
        yield "prefix caching of a hybrid model needs chunked prefill: enable it or disable prefix caching"
    if s.kv_dtype in ("float16", "bfloat16") and s.kv_dtype != m.dtype:
        yield f"--kv-cache-dtype {s.kv_dtype} differs from the model's {m.dtype}: set it to auto"
    if s.transfers_kv and p.dcp not in (1, max(p.tp, p.pcp)):
        yield f"DCP {p.dcp} with KV transfer over NIXL: set it to 1 or to {max(p.tp, p.pcp)}"
    if s.transfers_kv and p.dcp > 1 and not m.latent:
        yield f"DCP {p.dcp} with KV transfer over NIXL is for latent attention: set it to 1"
