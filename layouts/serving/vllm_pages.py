"""What vLLM keeps of a token and of a request in one layer: bytes of a KV token, of a state, and of a page.

A page is what one layer keeps in one block. Rules of vLLM 0.33.0, `v1/kv_cache_interface.py` unless stated otherwise.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from layouts.serving.errors import EngineRuleError, require_not_negative, require_positive

# Tokens of a block when neither the user nor the attention kernel asks for another size: `CacheConfig`.
DEFAULT_BLOCK: Final = 16
# Least multiple of a block where latent attention shares a pool with states: `Platform._align_hybrid_block_size`.
LATENT_ALIGNMENT: Final = 128


class Kind(StrEnum):
    """How the blocks that a layer holds for a request grow."""

    FULL = "full"
    WINDOW = "window"
    STATE = "state"


class StateMode(StrEnum):
    """Which states a request keeps for the prefix cache. `ALL` is of earlier versions, 0.33.0 has the other two."""

    NONE = "none"
    ALIGN = "align"
    ALL = "all"


@dataclass(frozen=True)
class Cache:
    """What `layers` equal layers keep of a request.

    `block` is in tokens, `page_bytes` in bytes a layer and block, padding included. `latent` marks rows that a kernel
    addresses one by one, whose pages cannot be padded. `window` (tokens) is of `Kind.WINDOW`, `slots` (blocks a
    request) of `Kind.STATE`. `stage_layers` are the layers that this GPU's pipeline stage holds (None: all of them);
    `dcp_sharded` is false where every DCP rank keeps all tokens (a draft that is not cut); `padding` are the bytes of
    a page that hold nothing.
    """

    kind: Kind
    layers: int
    block: int
    page_bytes: int
    latent: bool = False
    window: int = 0
    slots: int = 1
    stage_layers: int | None = None
    dcp_sharded: bool = True
    padding: int = 0

    def __post_init__(self) -> None:
        require_positive(layers=self.layers, block=self.block, page_bytes=self.page_bytes, slots=self.slots)
        require_not_negative(window=self.window, stage_layers=self.held, padding=self.padding)
        if (self.kind is Kind.WINDOW) != (self.window > 0):
            raise EngineRuleError(
                f"a {self.kind} cache with a window of {self.window} tokens: give one to a window cache alone"
            )
        if self.held > self.layers:
            raise EngineRuleError(f"a stage holds {self.held} of {self.layers} layers: give at most all of them")

    @property
    def held(self) -> int:
        """Layers on this GPU."""
        return self.layers if self.stage_layers is None else self.stage_layers


def state_slots(mode: StateMode, speculative: int = 0, checkpoints: int = 0, replay: bool = False) -> int:
    """State blocks that a request holds in one group of layers.

    One, and one more for each draft token (none with ReplaySSM); with `StateMode.ALIGN` one for the last full block
    and `checkpoints` (1 for the kernels that export a state from inside a prefill) as well.
    `StateMode.ALL` keeps a state a block: such a cache is a `Kind.FULL` one.
    Source: vLLM 0.33.0, `MambaSpec.max_memory_usage_bytes`, `MambaBase.get_kv_cache_spec`.
    """
    require_not_negative(speculative=speculative, checkpoints=checkpoints)
    if mode is StateMode.ALL:
        raise EngineRuleError("mode 'all' keeps a state a block, so its slots grow with the length: use a full cache")
    drafts = 0 if replay else speculative
    return 2 + drafts + checkpoints if mode is StateMode.ALIGN else 1 + drafts


def aligned_block(
    token_bytes: int,
    state_page: int,
    *,
    block: int = DEFAULT_BLOCK,
    kernel_block: int = 16,
    latent: bool = False,
    checkpoint: int = 1,
) -> int:
    """Tokens of an attention block whose page holds a state: `block`, raised where it is too small.

    It is a multiple of the larger of `block` and the kernel's own `kernel_block` (of 128 for latent attention) and of
    `checkpoint`, the tokens between two states that a kernel exports from inside a prefill (`StateMode.ALIGN`).
    The states are then padded to this page. Source: vLLM 0.33.0, `Platform._align_hybrid_block_size`; in 0.11 latent
    attention was aligned to 64.
    """
    require_positive(token_bytes=token_bytes, state_page=state_page, block=block, kernel_block=kernel_block)
    step = math.lcm(max(kernel_block, block, LATENT_ALIGNMENT if latent else 1), checkpoint)
    needed = step * math.ceil(state_page / (step * token_bytes))
    return max(block, kernel_block * math.ceil(needed / kernel_block))


def padded_page(page_bytes: int, multiple: int) -> int:
    """Bytes of a page rounded up to a multiple, as the packed formats of compressed attention need."""
    require_positive(page_bytes=page_bytes, multiple=multiple)
    return math.ceil(page_bytes / multiple) * multiple
