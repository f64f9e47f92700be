"""The share of memory that a server is told to take."""

from math import ceil, floor
from typing import Final

from explorer.engines.command.launch import EngineName
from explorer.engines.startup import Startup
from explorer.engines.startup.room import room
from explorer.priced import priced
from explorer.request import Request
from explorer.residents.budget import LEAST_FRACTION
from explorer.residents.division import Division
from explorer.residents.estimates import prompts
from explorer.residents.line import Group
from hw.compat import in_x64
from layouts.layout import Layout
from layouts.serving.chunks import group_chunk
from layouts.serving.reserve import Role

_MOST_SHARE: Final = 0.98  # of a GPU; the engine refuses to start where less than its share is free


@in_x64
def share_of(request: Request, layout: Layout, engine: EngineName, role: Role) -> float:
    """The share of memory that holds what the ledger holds, three digits, rounded down.

    SGLang's is that of free memory for weights and pools, which is the ledger's; prompts of a server of both phases
    need room outside it. vLLM's is of the whole GPU and has graphs, buffers and prompts in it as well: all but what the
    ledger leaves free (`vllm_memory.kv_budget`).
    """
    if engine is EngineName.SGLANG and request.mem_fraction is not None:
        return request.mem_fraction
    books = Division(priced(request, layout))
    fraction, free = float(books.found.held.mem_fraction), books.before
    if engine is EngineName.SGLANG:
        taken = prompts(group_chunk(request.chunk, layout.attn_dp))[1] if role is Role.UNIFIED else 0
        return floor(1000 * max(fraction - taken / free, LEAST_FRACTION)) / 1000
    total = int(request.machine.memory_bytes)
    spare = max((1.0 - fraction) * free - books.of(Group.RESERVE), 0.0)
    most = min(_MOST_SHARE, float(request.machine.free_bytes) / total)
    return floor(1000 * min(1.0 - spare / total, most)) / 1000


def lowered(share: float, up: Startup, engine: EngineName) -> float:
    """The share less what a start with it leaves too little for graphs and buffers (`room`), three digits."""
    whole = up.free if engine is EngineName.SGLANG else up.parts.total
    lacking = ceil(1000 * max(room(up) - up.left, 0) / whole) / 1000
    return round(max(share - lacking, LEAST_FRACTION), 3)
