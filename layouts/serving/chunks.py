"""Prefill chunks of an attention group and the prefill sizes that are captured. Rules of SGLang 0.5.23."""

from typing import Final

from layouts.serving.errors import EngineRuleError, require_positive

# (first, stop, step) of each run of captured token counts; the last goes on to the limit. Source: SGLang 0.5.23,
# `generate_prefill_cuda_graph_batch_sizes`.
_SIZES: Final = (
    (4, 33, 4),
    (48, 257, 16),
    (288, 513, 32),
    (576, 1025, 64),
    (1280, 4097, 256),
    (4608, None, 512),
)
# Where MLA or pipeline stages keep captured prefills small.
_SMALL_LIMIT: Final = 8192
# Exchanges of experts that a captured prefill is known to work with: `disable_breakable_cudagraph_if_incompatible`.
_CAPTURED_EXCHANGES: Final = frozenset({"none", "deepep", "megamoe", "flashinfer"})


def group_chunk(chunk: int, attn_dp: int) -> int:
    """Prefill tokens of one attention group in a step: the server's chunk, shared among the groups and rounded down.

    -1 (no chunks) stays as it is with one group. Under attention DP the engine divides it too, rounding down to -1:
    prompts then go whole. The memory reserve counts the chunk before it is divided.
    Source: SGLang 0.5.23, `handle_data_parallelism`. Raises where no token is left for a group.
    """
    require_positive(attn_dp=attn_dp)
    share = chunk // attn_dp
    if chunk > 0 and share < 1:
        raise EngineRuleError(
            f"chunked_prefill_size {chunk} over {attn_dp} attention groups leaves none a token: raise it to {attn_dp}"
        )
    return share


def captures_prefill(
    *,
    decode_only: bool = False,
    kda: bool = False,
    pp: int = 1,
    dcp: int = 1,
    exchange: str = "none",
    two_batch: bool = False,
    multimodal: bool = False,
) -> bool:
    """Whether prefill is captured where the command does not say: in parts ("breakable"), unless something forbids it.

    `exchange` is the value of `--moe-a2a-backend`. Models with KDA layers, pipeline stages, DCP, two overlapping
    batches, other exchanges and most multimodal models run prefill without graphs; so does a decode server.
    Source: SGLang 0.5.23, `apply_cuda_graph_compatibility`; without its exceptions for single models.
    """
    forbidden = decode_only or kda or pp > 1 or dcp > 1 or two_batch or multimodal
    return not forbidden and exchange in _CAPTURED_EXCHANGES


def prefill_graph_limit(chunk: int, *, latent_kv: bool, pp: int = 1, max_total_tokens: int | None = None) -> int:
    """Largest captured prefill in tokens where none is given: the chunk, at most 8,192 for MLA or pipeline stages.

    `chunk` is that of the server, before attention DP divides it. Source: SGLang 0.5.23, `handle_gpu_memory_settings`.
    """
    require_positive(chunk=chunk, pp=pp)
    limit = min(chunk, _SMALL_LIMIT) if latent_kv or pp > 1 else chunk
    return limit if max_total_tokens is None else min(limit, max_total_tokens)


def prefill_graph_count(limit: int) -> int:
    """How many sizes `prefill_graph_sizes` has, without listing them: a limit of a user may be any number."""
    require_positive(limit=limit)
    return sum(len(range(first, min(stop or limit + 1, limit + 1), step)) for first, stop, step in _SIZES)


def prefill_graph_sizes(limit: int) -> tuple[int, ...]:
    """Token counts at which prefill is captured, ascending; the limit itself only where the series meets it."""
    require_positive(limit=limit)
    return tuple(s for first, stop, step in _SIZES for s in range(first, stop or limit + 1, step) if s <= limit)
