"""Why a load does not fit into a layout's memory, and what would make it fit."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, floor

from explorer.residents.division import Division
from explorer.residents.line import Group
from hw.units import format_bytes


@dataclass(frozen=True)
class Shortage:
    """One sentence each: what is over, by how much; what would do."""

    reason: str
    remedy: str


def shortage(books: Division) -> Shortage | None:
    """None where the load fits: the static share holds what the load needs, the reserve what lives in it."""
    over = books.needed - books.static
    if over <= 0 and books.remainder >= 0:
        return None
    remedies = list(_remedies(books))
    return Shortage(
        _over_static(books, over) if over > 0 else _over_reserve(books),
        "; or ".join(remedies) or "more GPUs, or weights in a smaller format",
    )


def _over_static(books: Division, over: int) -> str:
    request = books.found.request
    largest = max((line for line in books.lines if line.group is Group.WEIGHTS), key=books.size)
    kv = ceil(books.wanted * books.kv_request)
    return (
        f"the static share of {format_bytes(books.static)} is short of {format_bytes(over)}: weights and staging "
        f"{format_bytes(books.weights)} (most: {largest.name}, {format_bytes(books.size(largest))}), state "
        f"{format_bytes(books.state)}, KV of {float(books.wanted):g} x {request.context} tokens {format_bytes(kv)}"
    )


def _over_reserve(books: Division) -> str:
    largest = max((line for line in books.lines if line.group is Group.RESERVE), key=books.size)
    return (
        f"the reserve of {format_bytes(books.before - books.static)} is short of {format_bytes(-books.remainder)}: it "
        f"holds {format_bytes(books.reserve)} (most: {largest.name}, {format_bytes(books.size(largest))})"
    )


def _remedies(books: Division) -> Iterator[str]:
    yield from _another_fraction(books)
    if books.needed > books.static:
        yield from _less_load(books)
        yield from _more_sharding(books)


def _another_fraction(books: Division) -> Iterator[str]:
    """The nearest fraction, to three digits, that holds the load and leaves the reserve its room."""
    least = ceil(1000 * books.needed / books.before) / 1000
    most = floor(1000 * (books.before - books.reserve) / books.before) / 1000
    if least <= most:
        yield f"a mem_fraction of {f'at least {least}' if books.needed > books.static else f'at most {most}'}"


def _less_load(books: Division) -> Iterator[str]:
    """As many requests as fit beside weights and the slots that no request uses; or a shorter context."""
    request = books.found.request
    idle_slots = books.slots - books.wanted
    left = books.budget - idle_slots * books.state_slot
    fit = floor(left / (books.state_slot + books.kv_request)) if left > 0 else 0
    if 1 <= fit < books.wanted and not request.prefill:
        yield f"a concurrency of at most {fit * books.groups}"
    if books.slot and books.for_kv > 0 and books.wanted:
        tokens = floor(books.for_kv * books.dcp / (books.slot * books.wanted))
        if tokens:
            yield f"a context of at most {tokens} tokens"


def _more_sharding(books: Division) -> Iterator[str]:
    """Weights that stand whole on every card may be sharded over the cards of a host."""
    host, values = int(books.found.request.machine.gpus_per_host), books.found.values
    width = books.found.layout.weight_shard
    whole = values["gathers_attention"] + values["gathers_moe"]
    if whole and width < host and books.found.layout.tp % host == 0:
        yield f"weight_shard={host}, which keeps 1/{host} of the weights that stand whole on every card"
