"""What a launch command of a serving engine says."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hw.errors import MeshwrightError

Value = bool | int | float | str | tuple[int | float | str, ...] | Mapping[str, Any]
"""What is written for a flag; a mapping for one that takes JSON."""


class CommandError(MeshwrightError):
    """A text in which no launch command of an engine can be read."""


class EngineName(enum.StrEnum):
    """A serving engine whose commands are read."""

    SGLANG = "sglang"
    VLLM = "vllm"


@dataclass(frozen=True)
class Launch:
    """One launch of an engine, as written: nothing is filled in that was left out.

    `values` is by the flag's name in the newest version that is known, with underscores and no leading dashes
    (`tp_size`, `tensor_parallel_size`). `env` holds what the text sets for the command. `unknown` are flags of no
    table, as written, with the nearest known one; `replaced` are pairs of an old flag, as written, and what to write
    now; `notes` say what was read in a way that may surprise. `source` says where it was written.
    """

    engine: EngineName
    model: str | None
    values: Mapping[str, Value]
    env: Mapping[str, str]
    unknown: tuple[str, ...]
    replaced: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    source: str
