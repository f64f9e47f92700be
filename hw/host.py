"""How much memory there is for arrays: of an accelerator what its driver says, of CPU devices the machine's."""

import os
from collections.abc import Sequence
from typing import Any


def memory_of(devices: Sequence[Any]) -> int | None:
    """Bytes that are left for arrays on each of some devices of this process, at least; those of a CPU share the
    machine's memory equally, whatever is in use of it. None where nothing says it."""
    if devices[0].platform == "cpu":
        return _machine() // len(devices) if hasattr(os, "sysconf") else None
    stats = [device.memory_stats() or {} for device in devices]
    if not all("bytes_limit" in held for held in stats):
        return None
    return min(held["bytes_limit"] - held.get("bytes_in_use", 0) for held in stats)


def _machine() -> int:
    """Bytes of the machine's memory (POSIX sysconf)."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
