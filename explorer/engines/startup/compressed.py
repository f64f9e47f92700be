"""What compressed attention keeps in vLLM's blocks: rows, index keys, windows, and states of unfinished rows."""

from collections.abc import Iterator
from typing import Final

from layouts.csa import CSA
from layouts.serving.vllm_pages import Cache, Kind, padded_page

COMPRESSED_BLOCK: Final = 256  # tokens of a block that rows of 4 and of 128 tokens divide
_WINDOW_BLOCK: Final = 64
_ROWS: Final = 576  # bytes to which kernels of the packed fp8 rows align a page; 512 for plain rows
_PLAIN: Final = 512
_FP32 = 4


def compressed_caches(csa: CSA, layers: int, held: int, block: int, kv: str) -> Iterator[Cache]:
    """The caches of `layers` equal layers, `held` of them on this GPU; `block` tokens are one of the whole context.

    Source: vLLM 0.33.0, `get_kv_cache_spec` in `models/deepseek_v4/attention.py` and `compressor.py` and in
    `v1/attention/backends/mla/sparse_swa.py`; blocks of states are as long as rows of 4 and 8 tokens fit a page.
    """
    unit = _ROWS if kv == "fp8" else _PLAIN
    row = csa.row_bytes(kv)

    def cache(kind: Kind, tokens: int, size: int, window: int = 0) -> Cache:
        return Cache(kind, layers, tokens, padded_page(size, unit), latent=True, window=window, stage_layers=held)

    yield cache(Kind.WINDOW, _WINDOW_BLOCK, _WINDOW_BLOCK * row, csa.window)
    if not csa.ratio:
        return
    halves = csa.row_tokens // csa.ratio
    yield cache(Kind.FULL, block, block // csa.ratio * row)
    tokens = 4 if csa.indexed else 8
    widths = [csa.head_dim]
    if csa.indexed:
        yield cache(Kind.FULL, block, block // csa.ratio * csa.index_bytes)
        widths.append(csa.index_dim)
    for width in widths:
        yield cache(Kind.WINDOW, tokens, tokens * 2 * halves * width * _FP32, csa.row_tokens)
