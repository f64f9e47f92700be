"""Units: everything inside is in bytes, seconds and FLOP/s; these turn a figure into what a person reads."""

import math
from typing import Final

KIB: Final = 2**10
MIB: Final = 2**20
GIB: Final = 2**30
GB: Final = 1e9

_BINARY: Final = ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"), (1, "B"))
_SECONDS: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_DECIMAL: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def format_bytes(count: float) -> str:
    """`44130791424` -> `41.1 GiB`: powers of two, three significant digits, bytes in full."""
    for scale, unit in _BINARY:
        if abs(count) >= scale and scale > 1:
            return f"{_significant(count / scale)} {unit}"
    return f"{count:.0f} B"


def format_seconds(seconds: float) -> str:
    """`0.0835` -> `83.5 ms`."""
    for scale, unit in _SECONDS:
        if abs(seconds) >= scale:
            return f"{_significant(seconds / scale)} {unit}"
    return f"{_significant(seconds / 1e-9)} ns" if seconds else "0 s"


def format_rate(per_second: float, unit: str = "B/s") -> str:
    """`7.7e12` -> `7.7 TB/s`: powers of ten."""
    for scale, prefix in _DECIMAL:
        if abs(per_second) >= scale:
            return f"{per_second / scale:.4g} {prefix}{unit}"
    return f"{per_second:.4g} {unit}"


def _significant(value: float) -> str:
    """Three significant digits without an exponent; whole numbers of four digits stay whole."""
    if not math.isfinite(value):
        return str(value)
    digits = 2 - math.floor(math.log10(abs(value))) if value else 2
    return f"{value:.{max(0, digits)}f}"
