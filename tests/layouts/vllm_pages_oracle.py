"""Bytes that vLLM's specs give a token or a state, written again beside the shapes of `layouts` as their oracle."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from layouts.serving.errors import EngineRuleError, require_not_negative, require_positive

# Bytes of a latent token in the packed formats, whatever the width: `MLAAttention.get_kv_cache_spec`.
PACKED_LATENT: Final[Mapping[str, int]] = MappingProxyType({"fp8_ds_mla": 656, "nvfp4_ds_mla": 352})


def attention_token_bytes(kv_heads: int, tp: int, head: int, element_bytes: int, value_head: int | None = None) -> int:
    """Bytes of a token in one attention layer of one GPU: K and V of its heads, at least one head.

    Source: `AttentionSpec.unpadded_page_size_bytes`, `ModelConfig.get_num_kv_heads`.
    """
    require_positive(kv_heads=kv_heads, tp=tp, head=head, element_bytes=element_bytes)
    return max(1, kv_heads // tp) * (head + (head if value_head is None else value_head)) * element_bytes


def latent_token_bytes(width: int, element_bytes: int, packed: str | None = None) -> int:
    """Bytes of a token in one latent attention layer, the same on every rank: `width` elements, or a packed row."""
    require_positive(width=width, element_bytes=element_bytes)
    if packed is None:
        return width * element_bytes
    if packed not in PACKED_LATENT:
        raise EngineRuleError(f"{packed!r} is no packed latent format: choose one of {', '.join(PACKED_LATENT)}")
    return PACKED_LATENT[packed]


def index_token_bytes(width: int, *, four_bits: bool = False) -> int:
    """Bytes of a token in an indexer's K cache.

    Values in fp8 with an fp32 scale for each 128 of them, or in fp4 with a scale of one byte for each 32.
    Source: vLLM 0.33.0, `Indexer` in `model_executor/models/deepseek_v2.py`; vllm#48993 for the four bits.
    """
    require_positive(width=width)
    return width // 2 + width // 32 if four_bits else width + 4 * (width // 128)


def state_bytes(
    *,
    channels: int,
    kernel: int,
    state: int,
    tp: int,
    speculative: int = 0,
    conv_bytes: int = 2,
    element_bytes: int = 4,
) -> int:
    """Bytes of one state of a linear-attention layer on one GPU.

    `channels` of the convolution (q, k and v) and `state` numbers of the recurrence are those of the whole layer and
    are cut over TP; the convolution keeps `kernel - 1` inputs and one more for each draft token.
    Source: vLLM 0.33.0, `MambaStateShapeCalculator.kda_state_shape` and `gated_delta_net_state_shape`.
    """
    require_positive(channels=channels, kernel=kernel, state=state, tp=tp)
    require_not_negative(speculative=speculative)
    if channels % tp or state % tp:
        raise EngineRuleError(f"{channels} channels and a state of {state} do not divide over TP {tp}: lower TP")
    return channels // tp * (kernel - 1 + speculative) * conv_bytes + state // tp * element_bytes
