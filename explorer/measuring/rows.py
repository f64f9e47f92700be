"""Timed benches as rows of a `measure/1` document (docs/json.md)."""

from collections.abc import Mapping
from typing import Any

from hw.work import EXCHANGE_SHAPES, LAUNCHES, SHAPES, Collective, Work

Row = Mapping[str, Any]


def row_of(name: str, asks: Work | Collective, seconds: float) -> dict[str, Any]:
    """What was asked and how long it took; numbers that are as they would be if left out are."""
    ops = _kernels(asks) if isinstance(asks, Work) else _exchanges(asks)
    (alone,) = ops if len(ops) == 1 else ({"ops": ops},)
    return {"name": name, **alone, "seconds": seconds}


def owners_of(row: Row) -> list[str]:
    """The families at their rates, or the kind, whose curves a row tells something about."""
    ops = row.get("ops", [row])
    return list(dict.fromkeys(f"{op['family']}.{op['rate']}" if "family" in op else op["kind"] for op in ops))


def _kernels(work: Work) -> list[dict[str, Any]]:
    columns = ("flops", "bytes", *SHAPES)
    return [
        {"family": str(family), "rate": str(rate), **_told(work, columns, i)}
        for i, (family, rate) in enumerate(zip(work.family, work.rate, strict=True))
    ]


def _exchanges(collective: Collective) -> list[dict[str, Any]]:
    columns = ("payload", "size", "stride", *EXCHANGE_SHAPES)
    return [{"kind": str(kind), **_told(collective, columns, i)} for i, kind in enumerate(collective.kind)]


def _told(asks: Work | Collective, columns: tuple[str, ...], i: int) -> dict[str, float]:
    values = {name: float(getattr(asks, name)[i]) for name in columns}
    return {name: value for name, value in values.items() if value != (name in ("stride", LAUNCHES))}
