"""The rules at which SGLang refuses a command before it loads a model, one line each.

About flags alone: what a layout must hold is in `layouts.rules`. Rules of SGLang 0.5.23: `parallel_hook`, `moe_hook`,
`mamba_hook`, `pd_disaggregation_hook`, `speculative_hook`, `kv_cache_hook`, `validation_hook`; the dispatch cap is that
of `token_dispatcher/deepep`. Where the engine checks less than it needs, the rule here is what it needs and says so.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from layouts.serving.buffers import most_dispatch_tokens
from layouts.serving.flags import Flags, rows_dispatched
from layouts.serving.reserve import Role
from layouts.serving.states import StateCache

# Most rows that a rank may send to another in one step: DeepEP counts them below a tag of 1,024.
_DEEPEP_CAP: Final = 1024
_DCP_TRANSFERS: Final = frozenset({"mooncake", "nixl", "mori", "ascend", "fake"})


@dataclass(frozen=True)
class FlagRule:
    """`holds` decides over settled flags, `says` states the rule and the remedy for flags that break it."""

    holds: Callable[[Flags], bool]
    says: Callable[[Flags], str]


RULES: Final[tuple[FlagRule, ...]] = (
    FlagRule(
        lambda f: f.attn_dp == 1 or f.dp == 1,
        lambda f: f"--dp-size {f.dp} with --attn-dp-size {f.attn_dp}: replicas take no attention DP; drop one of them",
    ),
    FlagRule(
        lambda f: f.tp % (f.attn_dp * f.attn_cp) == 0,
        lambda f: (
            f"--attn-dp-size x --attn-cp-size = {f.attn_dp} x {f.attn_cp} does not divide --tp-size {f.tp}, the ranks "
            "of all groups: change one of them"
        ),
    ),
    FlagRule(
        lambda f: f.tp * f.pp % f.hosts == 0,
        lambda f: f"--tp-size x --pp-size = {f.tp} x {f.pp} is no multiple of --nnodes {f.hosts}: change one of them",
    ),
    FlagRule(
        lambda f: f.dp == 1 or f.hosts == 1,
        lambda f: f"--dp-size {f.dp} with --nnodes {f.hosts}: replicas stay on one host; use --attn-dp-size",
    ),
    FlagRule(
        lambda f: f.tp % f.ep == 0,
        lambda f: f"--ep-size {f.ep} does not divide --tp-size {f.tp}: take a divisor",
    ),
    FlagRule(
        lambda f: f.moe_dp == 1 or (f.pp == 1 and f.tp % f.moe_dp == 0 and f.ep in (1, f.tp // f.moe_dp)),
        lambda f: (
            f"--moe-dp-size {f.moe_dp} with --ep-size {f.ep}: their product must be --tp-size {f.tp}, in one pipeline "
            f"stage (--pp-size {f.pp}); change them"
        ),
    ),
    FlagRule(
        lambda f: f.attn_cp == f.moe_dp or f.moe_dp == 1,
        lambda f: f"--attn-cp-size {f.attn_cp} differs from --moe-dp-size {f.moe_dp}: make them equal, or the latter 1",
    ),
    FlagRule(
        lambda f: f.dense_tp in (None, 1, f.tp),
        lambda f: (
            f"--moe-dense-tp-size {f.dense_tp} is neither 1 nor --tp-size {f.tp}: take one of these or leave it out"
        ),
    ),
    FlagRule(
        lambda f: not f.vocab_in_group or f.attn_dp > 1,
        lambda f: "--enable-dp-lm-head needs attention DP: add --attn-dp-size or drop it",
    ),
    FlagRule(
        lambda f: not f.vocab_all_to_all or (f.attn_dp == f.tp > 1 and f.attn_cp == 1 and not f.vocab_in_group),
        lambda f: (
            f"--enable-tp-lm-head-all-to-all needs --attn-dp-size {f.attn_dp} to be --tp-size {f.tp}, no attention CP "
            "and no --enable-dp-lm-head: drop it"
        ),
    ),
    FlagRule(
        lambda f: not f.prefill_cp or f.cp_strategy is not None,
        lambda f: "--enable-prefill-cp needs --cp-strategy: give zigzag or interleave",
    ),
    FlagRule(
        lambda f: f.tp // (f.attn_dp * f.attn_cp) % f.dcp == 0,
        lambda f: (
            f"--dcp-size {f.dcp} does not divide the {f.tp // (f.attn_dp * f.attn_cp)} ranks of an attention group: "
            "DCP cuts them and adds none, though start-up may let it pass; take a divisor"
        ),
    ),
    FlagRule(
        lambda f: f.dcp == 1 or not f.prefill_cp,
        lambda f: f"--dcp-size {f.dcp} with --enable-prefill-cp: drop one of them",
    ),
    FlagRule(
        lambda f: f.dcp > 1 or f.dcp_exchange not in ("a2a", "fi_a2a"),
        lambda f: f"--dcp-comm-backend {f.dcp_exchange} needs --dcp-size > 1: drop it",
    ),
    FlagRule(
        lambda f: not f.dcp_replicate_q or (f.dcp > 1 and f.dcp_exchange in (None, "a2a", "fi_a2a")),
        lambda f: "--dcp-replicate-q-proj needs --dcp-size > 1 and the backend a2a or fi_a2a: change them or drop it",
    ),
    FlagRule(
        lambda f: f.weight_shard == 1 or f.weight_shard == f.tp,
        lambda f: f"--dwdp-size {f.weight_shard} must be --tp-size {f.tp}: make them equal",
    ),
    FlagRule(
        lambda f: f.weight_shard == 1 or (f.pp == 1 and f.speculative is None and not f.balance_experts),
        lambda f: "--dwdp-size takes no pipeline stages, speculation or --enable-eplb: drop them",
    ),
    FlagRule(
        lambda f: f.weight_shard == 1 or f.role is not Role.DECODE,
        lambda f: "--dwdp-size is for prefill: drop it on a decode server",
    ),
    FlagRule(
        lambda f: not f.balance_experts or f.ep > 1,
        lambda f: f"--enable-eplb with --ep-size {f.ep}: experts move between ranks of an EP group; raise --ep-size",
    ),
    FlagRule(
        lambda f: f.exchange not in ("flashinfer", "flashinfer_megamoe") or f.attn_dp == f.tp,
        lambda f: f"--moe-a2a-backend {f.exchange} needs --attn-dp-size {f.attn_dp} to be --tp-size {f.tp}",
    ),
    FlagRule(
        lambda f: f.exchange != "pplx" or f.attn_dp > 1,
        lambda f: "--moe-a2a-backend pplx needs two attention groups or more: raise --attn-dp-size",
    ),
    FlagRule(
        lambda f: f.exchange != "pplx" or f.deepep_mode != "normal",
        lambda f: "--moe-a2a-backend pplx has no normal mode: take --deepep-mode low_latency",
    ),
    FlagRule(
        lambda f: f.exchange != "deepep" or f.dispatch_tokens <= _DEEPEP_CAP,
        lambda f: (
            f"SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK={f.dispatch_tokens} exceeds {_DEEPEP_CAP}, the most that "
            "DeepEP counts: lower it"
        ),
    ),
    FlagRule(
        lambda f: not _low_latency(f) or rows_dispatched(f) <= f.dispatch_tokens,
        lambda f: (
            f"{rows_dispatched(f)} rows a rank in the largest decode step exceed "
            f"SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK={f.dispatch_tokens}: raise it, or lower "
            "--max-running-requests or --cuda-graph-max-bs-decode"
        ),
    ),
    FlagRule(
        lambda f: f.chunk is None or f.chunk <= 0 or f.role is Role.DECODE or f.chunk % f.page == 0,
        lambda f: f"a prefill chunk of {f.chunk} tokens is no multiple of --page-size {f.page}: change one of them",
    ),
    FlagRule(
        lambda f: f.window_ratio is None or 0 < f.window_ratio <= 1,
        lambda f: f"--swa-full-tokens-ratio {f.window_ratio} must lie in (0, 1]: change it",
    ),
    FlagRule(
        lambda f: not f.hierarchical_cache or f.prefix_cache,
        lambda f: "--enable-hierarchical-cache without a prefix cache: drop it, or --disable-radix-cache",
    ),
    FlagRule(
        lambda f: f.role is not Role.DECODE or f.dcp == 1 or f.transfer in _DCP_TRANSFERS,
        lambda f: f"--disaggregation-transfer-backend {f.transfer} cannot feed decode with DCP: take mooncake or nixl",
    ),
    FlagRule(
        lambda f: f.role is not Role.PREFILL or f.transfer != "fake",
        lambda f: "--disaggregation-transfer-backend fake is for decode servers: take mooncake or nixl",
    ),
    FlagRule(
        lambda f: not (f.role is Role.DECODE and f.prefix_cache and f.transfer == "fake"),
        lambda f: "--disaggregation-decode-enable-radix-cache keeps nothing of a fake transfer: drop it",
    ),
    FlagRule(
        lambda f: f.speculative is None or f.speculative.upper() != "STANDALONE" or f.attn_dp == 1,
        lambda f: f"--speculative-algorithm STANDALONE takes no attention DP: drop --attn-dp-size {f.attn_dp}",
    ),
    FlagRule(
        lambda f: f.pp == 1 or f.speculative is None or f.role is Role.PREFILL,
        lambda f: (
            f"--speculative-algorithm {f.speculative} with --pp-size {f.pp} runs on prefill servers only: drop one"
        ),
    ),
    FlagRule(
        lambda f: f.state_cache is not StateCache.EXTRA_BUFFER_LAZY or f.overlap,
        lambda f: "extra_buffer_lazy needs the overlap schedule, which pipeline stages lack: take extra_buffer",
    ),
    FlagRule(
        lambda f: f.state_cache is not StateCache.EXTRA_BUFFER_LAZY or f.role is Role.UNIFIED,
        lambda f: "extra_buffer_lazy does not serve one phase alone: take --mamba-radix-cache-strategy extra_buffer",
    ),
    FlagRule(
        lambda f: f.state_cache is not StateCache.NO_BUFFER or f.page == 1,
        lambda f: f"no_buffer needs --page-size 1, not {f.page}: change it, or take extra_buffer",
    ),
    FlagRule(
        lambda f: not _tracks(f) or f.track_interval % f.page == 0,
        lambda f: (
            f"--mamba-track-interval {f.track_interval} is no multiple of --page-size {f.page}: change one of them"
        ),
    ),
    FlagRule(
        lambda f: not _tracks(f) or f.track_interval >= (f.verify_width or 1),
        lambda f: f"--mamba-track-interval {f.track_interval} is below the {f.verify_width} rows verified: raise it",
    ),
)


def broken_flags(flags: Flags) -> list[str]:
    """Every rule that settled flags break, with its values and a remedy; empty for a command that passes."""
    return [rule.says(flags) for rule in RULES if not rule.holds(flags)]


def broken_buffer(flags: Flags, width: int, experts: int) -> list[str]:
    """The rule of the exchange buffer, which the model's row width and its experts (redundant ones too) decide."""
    if not _low_latency(flags):
        return []
    most = most_dispatch_tokens(width, experts)
    if flags.dispatch_tokens <= most:
        return []
    return [
        f"{flags.dispatch_tokens} dispatched tokens a rank of {width} values to {experts} experts need a DeepEP buffer "
        f"above 32 GiB: at most {most}"
    ]


def _low_latency(flags: Flags) -> bool:
    return flags.exchange == "deepep" and flags.deepep_mode != "normal" and flags.role is not Role.PREFILL


def _tracks(flags: Flags) -> bool:
    return flags.state_cache in (StateCache.EXTRA_BUFFER, StateCache.EXTRA_BUFFER_LAZY)
