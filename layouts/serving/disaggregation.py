"""Prefill servers that hand their KV to decode servers: what a pool holds, who owns which layer, how it is packed.

Source: seed article 004 and the rules for GLM-5.x in the project's serving rules, where no other is named.
"""

from collections.abc import Sequence

from layouts.serving.errors import EngineRuleError, require_not_negative, require_positive


def split_layers(layers: int, ranks: int) -> tuple[int, ...]:
    """Layers whose KV each rank keeps under LayerSplit: contiguous ranges, the first `layers mod ranks` one longer."""
    require_positive(layers=layers, ranks=ranks)
    return tuple(layers // ranks + (rank < layers % ranks) for rank in range(ranks))


def extra_request_slots(max_running: int | None, dp_ranks: int) -> int:
    """Request slots of a rank that a decode server holds for arriving requests, where the command gives none.

    Twice the rank's share of the limit where that is 32 or less, so that the pool is three times the running requests;
    none above it or without a limit. `dp_ranks` are replicas x attention groups.
    Source: SGLang 0.5.23, `handle_pd_disaggregation`.
    """
    require_positive(dp_ranks=dp_ranks)
    if max_running is None:
        return 0
    share = max(1, max_running // dp_ranks)
    return 2 * share if share <= 32 else 0


def pool_fits(pool: int, prefixes: Sequence[int], suffixes: Sequence[int]) -> bool:
    """Whether a prefill pool of `pool` token slots holds the shared prefixes once and every request's own suffix.

    The ranks' pools are copies of each other, so the pool is not multiplied by them. A bound: pages, reserved slots and
    other requests' KV come off it.
    """
    require_positive(pool=pool)
    require_not_negative(least_prefix=min(prefixes, default=0), least_suffix=min(suffixes, default=0))
    return sum(prefixes) + sum(suffixes) <= pool


def page_shard_gain(layers: int, ranks: int, scratch_layers: int) -> float:
    """Token capacity of page-sharded KV over that of full copies, at equal bytes a rank.

    A rank keeps 1/ranks of the tokens of all layers, and beside them scratch into which `scratch_layers` whole layers
    are gathered (two where the next one is prefetched). Draft pools and pack buffers would lower it further.
    """
    require_positive(layers=layers, ranks=ranks)
    require_not_negative(scratch_layers=scratch_layers)
    return layers / (layers / ranks + scratch_layers)


def packs_in_rounds(rows: int, item_bytes: Sequence[int], buffer_bytes: int) -> bool:
    """Whether a transfer is packed through the bounded buffer in several rounds: it exceeds the buffer in one.

    `rows` source rows of `item_bytes` each, one item a pool (latent KV, index keys, ...). The payload is the same
    either way; the pieces are fewer and larger than without packing.
    """
    require_positive(rows=rows, buffer_bytes=buffer_bytes)
    if not item_bytes or min(item_bytes) < 1:
        raise EngineRuleError(
            f"item lengths {tuple(item_bytes)} must be one or more positive byte counts: correct them"
        )
    return rows * sum(item_bytes) > buffer_bytes


def served_tokens_a_gpu(requests_a_second: float, prompt: int, output: int, gpus: int) -> float:
    """Tokens a second and GPU of a deployment as it is usually quoted: prompt tokens count, cached ones included.

    `gpus` are all those of prefill and decode. With the prompt's fresh tokens alone as `prompt` it is the work done.
    """
    require_positive(gpus=gpus)
    require_not_negative(prompt=prompt, output=output)
    return requests_a_second * (prompt + output) / gpus
