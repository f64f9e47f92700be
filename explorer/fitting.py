"""Whether a program fits the devices that are here: known before any of it is made, and one line if it does not."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import jax

from hw.errors import MeshwrightError
from hw.host import memory_of
from hw.units import format_bytes
from layouts.decoder.footprint import bytes_a_device
from layouts.decoder.program import Program

_SMALLER: Final = "keep fewer --layers or --experts, take --scale tiny, or less --context or --requests"
_EXHAUSTED: Final = "RESOURCE_EXHAUSTED"  # how XLA's status begins where an allocation fails


class MemoryShortError(MeshwrightError):
    """A program that needs more memory than the devices have."""


def require_memory(program: Program, dtype: jax.typing.DTypeLike, devices: Sequence[Any], alone: bool) -> None:
    """MemoryShortError where weights and caches do not fit the devices of this process among `devices`, which are those
    of the program; `alone`: it is the one device of a check."""
    here = [device for device in devices if device.process_index == jax.process_index()]
    room = memory_of(here) if here else None
    needed = bytes_a_device(program, dtype)
    if room is None or needed <= room:
        return
    where, remedy = ("the one device of the check", "leave out --check") if alone else ("each device", "more GPUs")
    raise MemoryShortError(
        f"weights and caches need {format_bytes(needed)} on {where}, which has {format_bytes(room)}: {_SMALLER}, or "
        f"{remedy}"
    )


@contextlib.contextmanager
def exhaustion_named() -> Iterator[None]:
    """A MemoryShortError for an allocation that fails inside, which is one of a step beside weights and caches."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if _EXHAUSTED not in str(error):
            raise
        asked = re.search(r"(\d+) ?bytes", str(error))
        size = f" for {format_bytes(int(asked[1]))} more" if asked else ""
        raise MemoryShortError(f"a device has no memory{size}: {_SMALLER}, or more GPUs") from None
