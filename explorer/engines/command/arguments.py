"""What was read of a launch's arguments so far, and what older switches make of it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from explorer.engines.command.launch import EngineName, Value
from explorer.engines.flags import Renamed, Table, table

MODEL: Final = {EngineName.SGLANG: "model_path", EngineName.VLLM: "model"}
"""The flag that names the model."""
MOST: Final = 100
"""Notes, and unknown flags, of one launch that are named."""


@dataclass
class Arguments:
    """Values by canonical flag, and what there is to say of how they were written."""

    engine: EngineName
    values: dict[str, Value] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    replaced: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    more_unknown: int = 0

    @property
    def table(self) -> Table:
        """The engine's flags."""
        return table(self.engine)

    @property
    def model(self) -> str | None:
        """The model that is served, as written."""
        given = self.values.get(MODEL[self.engine])
        return given if isinstance(given, str) else None

    def note(self, text: str) -> None:
        """Say something, once."""
        say(self.notes, text)

    def spelling(self, name: str) -> str:
        """How a canonical flag is written."""
        return self.table.flags[name].spellings[0]

    def carry(self, older: Iterable[Renamed]) -> None:
        """Older switches that change what another flag means, which is known once all are read."""
        for renamed in older:
            for source, target in (*renamed.moves.items(), *renamed.copies.items()):
                self._carry(renamed, source, target)

    def _carry(self, renamed: Renamed, source: str, target: str) -> None:
        values = self.values
        plain = (None, self.table.flags[target].default)
        if source not in values or values.get(target) not in plain:
            self.note(f"{renamed.spelling} changes nothing here: {self.spelling(target)} says what it said")
            return
        moved = source in renamed.moves
        given = values.pop(source) if moved else values[source]
        values[target] = given
        older = f"{renamed.spelling} {self.spelling(source)} {given}" if moved else renamed.spelling
        self.replaced.append((older, f"{self.spelling(target)} {given}"))


def say(notes: list[str], text: str) -> None:
    """Add a note, once, and no more than MOST of them: a stranger's text may give reason for any number."""
    if len(notes) < MOST and text not in notes:
        notes.append(text)


def short(text: str) -> str:
    """A stretch of a stranger's text that fits into a line."""
    line = " ".join(text[:200].split())
    return line if len(line) <= 80 else line[:77] + "..."
