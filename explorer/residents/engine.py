"""What the engine would choose and count itself, beside ours: information, nothing is tuned to it."""

from dataclasses import dataclass
from math import ceil

from explorer.residents.division import Division
from layouts.mla import MLA
from layouts.moe import MoE
from layouts.serving.errors import EngineRuleError
from layouts.serving.reserve import Role, ServerSettings, default_limits, default_mem_fraction


@dataclass(frozen=True)
class EngineMemory:
    """The engine's default fraction (None where its reserve leaves nothing) and the pools that follow from it; and its
    own count of slots: pools are sized for `slots_deducted` of the `slots_allocated`, so that `beyond_budget_bytes`
    come out of the reserve and `kv_tokens_per_rank` is the larger pool that it reports."""

    default_mem_fraction: float | None
    default_budget_bytes: int | None
    slots_deducted: int
    slots_allocated: int
    beyond_budget_bytes: int
    kv_tokens_per_rank: int


def engine_memory(books: Division) -> EngineMemory:
    """Source: `layouts.serving.reserve`; slots: SGLang 0.5.23 deducts those of running requests and of padding, and
    allocates the extra ones besides."""
    fraction = _default_fraction(books)
    extra = books.found.request.extra_slots or 0
    deducted = books.slots - extra
    beyond = ceil(extra * books.state_slot)
    return EngineMemory(
        default_mem_fraction=fraction,
        default_budget_bytes=None if fraction is None else int(books.before * fraction) - books.weights,
        slots_deducted=deducted,
        slots_allocated=books.slots,
        beyond_budget_bytes=beyond,
        kv_tokens_per_rank=max(books.for_kv + beyond, 0) // books.slot if books.slot else 0,
    )


def _default_fraction(books: Division) -> float | None:
    request, layout = books.found.request, books.found.layout
    chip = int(request.machine.memory_bytes)
    running = max(1, ceil(books.wanted))  # of one attention group
    limits = default_limits(chip, layout.tp, running * layout.attn_dp)
    settings = ServerSettings(
        chunk=limits.chunk,
        max_batch=limits.max_batch,
        tp=layout.tp,
        pp=layout.pp,
        attn_dp=layout.attn_dp,
        role=Role.PREFILL if request.prefill else Role.DECODE,
        latent_kv=any(isinstance(layer.attention, MLA) for layer in request.model.kinds),
        prefill_graphs=int(request.prefill),
        deepep=layout.dispatch == "all_to_all" and any(isinstance(la.ffn, MoE) for la in request.model.kinds),
        max_running=running * layout.attn_dp,
        verify_width=request.verify_width,
    )
    try:
        return default_mem_fraction(chip, settings)
    except EngineRuleError:
        return None
