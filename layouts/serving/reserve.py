"""The memory that the engine leaves free when no memory fraction is given."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from layouts.serving.errors import EngineRuleError, require_not_negative, require_positive

_MIB: Final = 2**20
_GIB: Final = 2**30
_LARGE_CHIP: Final = 60 * _GIB


class Role(StrEnum):
    """What a server does: both phases, or one of them."""

    UNIFIED = "unified"
    PREFILL = "prefill"
    DECODE = "decode"


class Defaults(NamedTuple):
    """Prefill chunk in tokens and largest captured decode batch in requests."""

    chunk: int
    max_batch: int


@dataclass(frozen=True)
class ServerSettings:
    """The settings that the reserve depends on.

    `chunk` is the prefill chunk before attention DP divides it, or the limit of tokens in a prefill batch where chunks
    are off; `max_batch` the largest captured decode batch of a DP group, which keeps its default where `decode_graphs`
    are off; `prefill_graphs` the number of prefill sizes captured in parts; `latent_kv` an MLA model.
    `max_running` and `verify_width` count in a decode server only, and only as the command gives them: defaults for
    speculation are set later. `sized_after_capture` (SGLANG_ENABLE_POST_CAPTURE_KV_SIZING, off unless set): KV is sized
    by what is free once graphs exist, so that only a slack is reserved.
    """

    chunk: int
    max_batch: int
    tp: int
    pp: int = 1
    attn_dp: int = 1
    role: Role = Role.UNIFIED
    latent_kv: bool = False
    prefill_graphs: int = 0
    deepep: bool = False
    max_running: int | None = None
    verify_width: int = 1
    decode_graphs: bool = True
    sized_after_capture: bool = False

    def __post_init__(self) -> None:
        require_positive(chunk=self.chunk, tp=self.tp, pp=self.pp, attn_dp=self.attn_dp, verify_width=self.verify_width)
        require_not_negative(max_batch=self.max_batch, prefill_graphs=self.prefill_graphs)


# Chip memory below which a row applies (GiB), and the defaults at TP < 4 and from TP 4 on. SGLang 0.5.23, memory_hook.
_DEFAULTS: Final = (
    (20, Defaults(2048, 8), Defaults(2048, 8)),
    (35, Defaults(4096, 48), Defaults(4096, 160)),
    (60, Defaults(4096, 32), Defaults(4096, 160)),
    (160, Defaults(8192, 256), Defaults(8192, 512)),
    (float("inf"), Defaults(16384, 512), Defaults(16384, 512)),
)


def default_limits(chip_bytes: int, tp: int, max_running: int | None = None) -> Defaults:
    """Prefill chunk and largest captured decode batch when neither is given; no batch beyond `max_running`.

    `max_running` is the limit of the whole server, not of an attention group, and only as the command gives it. A batch
    or a list of sizes that is given is not limited by it.
    """
    require_positive(chip_bytes=chip_bytes, tp=tp)
    narrow, wide = next((a, b) for below, a, b in _DEFAULTS if chip_bytes < below * _GIB)
    limits = narrow if tp < 4 else wide
    return limits if max_running is None else limits._replace(max_batch=min(limits.max_batch, max_running))


def reserve_parts(chip_bytes: int, settings: ServerSettings) -> Mapping[str, int]:
    """Bytes that the default memory fraction keeps free, by cause.

    Activations of the rows of a step (1.5 MiB a row, at least 2,048 rows), communication (1 GiB for each 8 ranks),
    decode graphs (2 MiB a request, 3 MiB more for each DP group, half as much again above 300 requests), prefill graphs
    (1.5 GiB for MLA, else 8 MiB a size, and 1 GiB for DeepEP in them), a floor of 10 GiB on chips above 60 GiB, and
    2 GiB for DeepEP on top of it. The DP groups' part is there without decode graphs too.
    Source: SGLang 0.5.23, `handle_gpu_memory_settings`, `reserve_for_graph_mb`, `reserve_for_deepep_a2a_mb`.
    """
    s = settings
    communication = s.tp * s.pp * 1024 * _MIB // 8
    if s.sized_after_capture:
        return {"metadata": 1536 * _MIB, "communication": communication}
    decodes, prefills = s.role is not Role.PREFILL, s.role is not Role.DECODE
    captures = decodes and s.decode_graphs and s.max_batch > 0
    rows = s.chunk if prefills else (s.max_running or s.max_batch or 1) * s.verify_width
    padding = 3 * s.max_batch * s.attn_dp * _MIB if s.attn_dp > 1 else 0
    parts = {
        "metadata": 512 * _MIB,
        "activations": 3 * max(rows, 2048) * _MIB // 2,
        "communication": communication,
        "decode graphs": 2 * s.max_batch * _MIB if captures else 0,
        "DP attention": padding + (padding // 2 if s.max_batch > 300 else 0) if decodes else 0,
        "prefill graphs": _prefill_graph_bytes(s) if prefills else 0,
    }
    parts["floor"] = max(0, 10 * _GIB - sum(parts.values())) if chip_bytes > _LARGE_CHIP else 0
    parts["DeepEP"] = 2 * _GIB if s.deepep and captures else 0
    return parts


def reserve_bytes(chip_bytes: int, settings: ServerSettings) -> int:
    """Bytes of `chip_bytes` that the default memory fraction keeps free. Raises where nothing would be left."""
    require_positive(chip_bytes=chip_bytes)
    reserve = sum(reserve_parts(chip_bytes, settings).values())
    if reserve >= chip_bytes:
        raise EngineRuleError(
            f"the default reserve of {reserve / _GIB:.1f} GiB exceeds the chip's {chip_bytes / _GIB:.1f} GiB: "
            "lower the chunk or the largest graph batch, or give a memory fraction"
        )
    return reserve


def default_mem_fraction(chip_bytes: int, settings: ServerSettings) -> float:
    """The memory fraction that the engine derives from the reserve, rounded to three digits as it does."""
    return round((chip_bytes - reserve_bytes(chip_bytes, settings)) / chip_bytes, 3)


def fraction_with_vision(fraction: float, layers: int, width: int) -> float:
    """The default fraction of a server that encodes images itself, less for a larger encoder.

    95 % of the other default for an encoder of 24 `layers` of 1,024 (ViT-L/14); each further one of that size takes
    10 % of it, within 80 % and 105 %. A decode server and one without the encoder keep the other default.
    Source: SGLang 0.5.23, `adjust_mem_fraction_for_vlm`; without sizing after capture.
    """
    require_positive(layers=layers, width=width)
    size = layers * width**2 / (24 * 1024**2)
    return fraction * (0.95 * max(0.8, min(1.05, 1 - 0.1 * (size - 1))))


def _prefill_graph_bytes(settings: ServerSettings) -> int:
    if not settings.prefill_graphs:
        return 0
    graphs = 3 * _GIB // 2 if settings.latent_kv else 8 * settings.prefill_graphs * _MIB
    return graphs + (_GIB if settings.deepep else 0)
