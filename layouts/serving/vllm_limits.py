"""The limits that vLLM takes when its flags do not say: tokens and requests of a step, captured graph sizes.

Rules of vLLM 0.33.0, `engine/arg_utils.py` and `config/vllm.py`.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple

from layouts.serving.errors import EngineRuleError, require_positive

_GIB: Final = 2**30
# Tokens of a step with all-to-all kernels that batch by expert: `DEFAULT_MAX_NUM_BATCHED_TOKENS_FOR_BATCHED_DP`.
BATCHED_EXPERTS_TOKENS: Final = 256
# Ceilings of the captured tokens: of Blackwell data-centre chips, and of others.
WIDE_GRAPHS: Final = 1024
GRAPHS: Final = 512
# Beyond any step that an engine runs: a size flag above it is a slip, and listing every stride up to it would not end.
_MOST_TOKENS: Final = 2**22


class Context(StrEnum):
    """How the engine is used: behind its API server (`vllm serve`), or as a class in a program."""

    SERVER = "server"
    OFFLINE = "offline"


class Limits(NamedTuple):
    """Tokens and requests of a step."""

    max_num_batched_tokens: int
    max_num_seqs: int


# GiB from which a row applies, tokens of a step by context, requests: `EngineArgs.get_batch_defaults`.
_DEFAULTS: Final = (
    (160, {Context.SERVER: 16384, Context.OFFLINE: 16384}, 1024),
    (70, {Context.SERVER: 8192, Context.OFFLINE: 16384}, 1024),
    (0, {Context.SERVER: 2048, Context.OFFLINE: 8192}, 256),
)


def default_limits(
    chip_bytes: int,
    max_model_len: int,
    *,
    context: Context = Context.SERVER,
    tokens: int | None = None,
    requests: int | None = None,
    slow_prefill: bool = False,
    chunked_prefill: bool = True,
    batched_experts: bool = False,
    throughput: bool = False,
) -> Limits:
    """Tokens (`tokens`, where given) and requests (`requests`) of a step.

    `slow_prefill` marks large chips that vLLM keeps on its smallest row, as a long step would slow them down (those of
    the generation before H100, and GB10); `batched_experts` an all-to-all backend that batches rows by expert (DeepEP
    low latency, NIXL) with DP and expert parallelism; `throughput` is `--performance-mode throughput`.
    Source: `_set_default_max_num_seqs_and_batched_tokens_args`, without its multimodal floor.
    """
    require_positive(chip_bytes=chip_bytes, max_model_len=max_model_len)
    require_positive(max_num_batched_tokens=tokens or 1, max_num_seqs=requests or 1)
    row = _DEFAULTS[-1] if slow_prefill and chip_bytes < 160 * _GIB else _row(chip_bytes)
    scale = 2 if throughput else 1
    most_requests = row[2] * scale if requests is None else requests
    if tokens is None:
        tokens = (BATCHED_EXPERTS_TOKENS if batched_experts else row[1][context]) * scale
        tokens = tokens if chunked_prefill else max(tokens, max_model_len)
        tokens = min(tokens, most_requests * max_model_len)
    return Limits(tokens, min(most_requests, tokens) if requests is None else requests)


def in_flight_tokens(tokens: int, pp: int = 1, *, async_scheduling: bool = True, v2_runner: bool = True) -> int:
    """Tokens that may be scheduled and not yet settled: a full step for each batch that runs at once.

    `pp` batches, and one more with asynchronous scheduling (of the first model runner only without pipeline stages).
    Source: `VllmConfig.max_in_flight_tokens`.
    """
    require_positive(max_num_batched_tokens=tokens, pp=pp)
    ahead = 1 if async_scheduling and (v2_runner or pp == 1) else 0
    return tokens * (pp + ahead)


def capture_sizes(
    limits: Limits,
    *,
    query: int = 1,
    ceiling: int = GRAPHS,
    largest: int | None = None,
    explicit: Iterable[int] | None = None,
    interactive: bool = False,
) -> tuple[int, ...]:
    """Captured graph sizes in tokens, ascending.

    `query` is the tokens of a request in a decode step (1 + draft tokens); `ceiling` 1,024 on Blackwell data-centre
    chips, 512 elsewhere; `largest` is `--max-cudagraph-capture-size`, `explicit` `--cudagraph-capture-sizes`,
    `interactive` `--performance-mode interactivity`. Without either flag the sizes reach twice the most decode tokens,
    up to the ceiling, and decode batches of whole requests are captured as well.
    Source: `_set_cudagraph_sizes`; a draft width that changes with the batch is not covered.
    """
    require_positive(query=query, ceiling=ceiling)
    if explicit is not None:
        return _given(tuple(explicit), limits.max_num_batched_tokens, largest)
    if largest is not None:
        require_positive(max_cudagraph_capture_size=largest)
    bound = min(limits.max_num_seqs * query * 2, ceiling) if largest is None else largest
    decode = _decode_sizes(limits.max_num_seqs, query, ceiling, bound) if largest is None else set[int]()
    bound = min(bound, limits.max_num_batched_tokens)
    if bound > _MOST_TOKENS:
        raise EngineRuleError(
            f"graphs of up to {bound} tokens: give a --max-cudagraph-capture-size below {_MOST_TOKENS}"
        )
    sizes = set(range(1, min(bound, 32) + 1)) if interactive else {n for n in (1, 2, 4) if n <= bound}
    sizes |= _strided(bound)
    if limits.max_num_batched_tokens <= bound:
        sizes.add(limits.max_num_batched_tokens)
    return tuple(sorted(sizes | {n for n in decode if n <= limits.max_num_batched_tokens}))


def _row(chip_bytes: int) -> tuple[int, dict[Context, int], int]:
    return next(row for row in _DEFAULTS if chip_bytes >= row[0] * _GIB)


def _strided(bound: int) -> set[int]:
    return set(range(8, min(bound + 1, 256), 8)) | set(range(256, bound + 1, 16))


def _decode_sizes(requests: int, query: int, ceiling: int, bound: int) -> set[int]:
    """Decode batches of whole requests, in tokens: the strides count requests where each has several tokens."""
    if query == 1:
        return {requests} if requests <= bound else set()
    most = min(requests, ceiling)
    counts = {n for n in (1, 2, 4) if n <= most} | _strided(most) | {most}
    return {n * query for n in counts if n * query <= bound}


def _given(sizes: tuple[int, ...], tokens: int, largest: int | None) -> tuple[int, ...]:
    if not sizes or min(sizes) < 1:
        raise EngineRuleError(
            f"--cudagraph-capture-sizes {sizes} must be one or more positive integers: drop the others"
        )
    kept = tuple(sorted({n for n in sizes if n <= tokens}))
    if largest is not None and largest != max(kept, default=0):
        raise EngineRuleError(
            f"--max-cudagraph-capture-size {largest} is not the largest of the capture sizes up to "
            f"{tokens} tokens, {max(kept, default=0)}: leave one of the two flags out"
        )
    return kept
