"""The default memory fraction of older releases, for commands and logs that come from them.

Two rules came before the one in `layouts.serving.reserve`, told apart by what a release contains: a fixed fraction for
each TP width (SGLang 0.4), and the first reserve by cause (SGLang pull request 10975, in 0.5 releases until the reserve
was told apart by phase). Forks move the border, so the caller names the rule.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from layouts.serving.errors import require_not_negative, require_positive
from layouts.serving.reserve import Defaults

_MIB: Final = 2**20
_GIB: Final = 2**30
# Least TP width and the fraction from there on. Source: SGLang 0.4, `ServerArgs.__post_init__`.
_FRACTIONS: Final = ((16, 0.79), (8, 0.81), (4, 0.85), (2, 0.87), (1, 0.88))
# As `layouts.serving.reserve` has it, but for chips below 35 GiB. Source: SGLang pull request 10975.
_SMALL_CHIP: Final = 35 * _GIB
_SMALLEST_CHIP: Final = 20 * _GIB


class Draft(StrEnum):
    """What a draft's weights and graphs need, as far as the first reserve tells drafts apart."""

    NONE = "none"
    LOOKUP = "lookup"
    LAYERS = "layers"
    STANDALONE = "standalone"


_DRAFT_BYTES: Final = {Draft.NONE: 0, Draft.LOOKUP: 0, Draft.LAYERS: 2 * _GIB, Draft.STANDALONE: 6 * _GIB}


def fraction_by_width(tp: int) -> float:
    """The fraction of SGLang 0.4 where none is given: by TP width, whatever the chip, the chunk and the graphs."""
    require_positive(tp=tp)
    return next(fraction for least, fraction in _FRACTIONS if tp >= least)


def early_limits(chip_bytes: int, tp: int, later: Defaults) -> Defaults:
    """Chunk and largest captured batch of the first reserve, where `later` are those of `reserve.default_limits`."""
    require_positive(chip_bytes=chip_bytes, tp=tp)
    if _SMALLEST_CHIP <= chip_bytes < _SMALL_CHIP:
        return Defaults(2048, 24 if tp < 4 else 80)
    return later


def early_reserve_parts(
    chip_bytes: int,
    *,
    chunk: int,
    max_batch: int,
    tp: int,
    pp: int = 1,
    attn_dp: int = 1,
    prefill_graphs: int = 0,
    draft: Draft = Draft.NONE,
) -> Mapping[str, int]:
    """Bytes that the first reserve by cause keeps free.

    Every server counts both phases, MLA or not; a draft is counted on top of the floor, DeepEP is not; captured prefill
    sizes take 8 MiB each where they are asked for. `max_batch` is that of an attention group, `chunk` the server's.
    Source: SGLang pull request 10975 and the release that followed it, `ServerArgs._handle_gpu_memory_settings`.
    """
    require_positive(chip_bytes=chip_bytes, chunk=chunk, tp=tp, pp=pp, attn_dp=attn_dp)
    require_not_negative(max_batch=max_batch, prefill_graphs=prefill_graphs)
    padding = 3 * max_batch * attn_dp * _MIB if attn_dp > 1 else 0
    parts = {
        "metadata": 512 * _MIB,
        "activations": 3 * max(chunk, 2048) * _MIB // 2,
        "communication": tp * pp * 1024 * _MIB // 8,
        "decode graphs": 2 * max_batch * _MIB,
        "DP attention": padding + (padding // 2 if max_batch > 300 else 0),
        "prefill graphs": 8 * prefill_graphs * _MIB,
    }
    parts["floor"] = max(0, 10 * _GIB - sum(parts.values())) if chip_bytes > 60 * _GIB else 0
    parts["draft"] = _DRAFT_BYTES[draft]
    return parts


def early_mem_fraction(chip_bytes: int, parts: Mapping[str, int]) -> float:
    """The fraction that follows from the first reserve, rounded to three digits."""
    return round((chip_bytes - sum(parts.values())) / chip_bytes, 3)
