"""The words after an engine's program: flags and their values, as its parser takes them."""

import json
from collections.abc import Sequence
from typing import Any, Final

from explorer.engines.command.arguments import MODEL, MOST, Arguments, short
from explorer.engines.command.launch import EngineName, Value
from explorer.engines.command.values import WrongValue, is_value, value
from explorer.engines.flags import Flag, Renamed, table

_AMBIGUOUS: Final = 4
_DEEPEST: Final = 20


def read_arguments(engine: EngineName, words: Sequence[str], before: Sequence[str] = ()) -> Arguments:
    """Flags and values of the words after a program. Nothing raises: what cannot be read is named.

    `before` are the words of a configuration file, which the launch's own words may overrule.
    """
    reader = _Reader(engine)
    reader.read(before)
    reader.given.clear()
    reader.read(words)
    return reader.finish()


class _Reader:
    """One pass over the words of a launch."""

    def __init__(self, engine: EngineName) -> None:
        self._words: Sequence[str] = []
        self._at = 0
        self._table = table(engine)
        self._engine = engine
        self.made = Arguments(engine)
        self._older: list[Renamed] = []
        self.given: set[str] = set()

    def read(self, words: Sequence[str]) -> None:
        """Read words to the end."""
        self._words, self._at = words, 0
        if self._words and is_value(self._words[0]):
            self.made.values[MODEL[self._engine]] = self._words[0]
            self._at = 1
        while self._at < len(self._words):
            word = self._words[self._at]
            self._at += 1
            if is_value(word) and self._engine is EngineName.VLLM and self.made.model is None:
                # vLLM's parser takes its one positional word wherever it stands (make_arg_parser, model_tag)
                self.made.values[MODEL[self._engine]] = word
            elif is_value(word):
                self.made.note(f"{short(word)!r} belongs to no flag")
            elif word != "--":
                self._flag(word)

    def finish(self) -> Arguments:
        """What was read, older switches carried over."""
        self.made.carry(self._older)
        return self.made

    def _flag(self, word: str) -> None:
        spelling, written = _parted(word)
        if self._engine is EngineName.VLLM:
            short = _optimization(spelling, written)
            spelling, written = short if short else (_dashed(spelling), written)
            head, dot, path = spelling.partition(".")
            if dot and spelling.startswith("-"):
                self._dotted(word, head, path, written)
                return
        renamed = self._table.renamed.get(spelling)
        if renamed is not None:
            self._renamed(renamed, spelling, written)
            return
        found = self._find(spelling, word)
        if found is not None:
            self._take(*found, spelling, written)

    def _find(self, spelling: str, word: str) -> tuple[Flag, bool] | None:
        """The flag of a spelling, or of the one spelling that begins with it."""
        known = self._table.spellings
        if spelling in known:
            return known[spelling]
        begun = self._table.beginning(spelling) if spelling.startswith("--") and len(spelling) > 2 else ()
        meant = {known[each] for each in begun}
        if len(meant) == 1:
            return meant.pop()
        self._unknown(spelling, begun)
        self._pass_values()
        return None

    def _unknown(self, spelling: str, begun: Sequence[str]) -> None:
        if len(self.made.unknown) >= MOST:
            self.made.more_unknown += 1
            return
        shown = short(spelling)
        if begun:
            more = ", ..." if len(begun) > _AMBIGUOUS else ""
            self.made.unknown.append(f"{shown} (could be {', '.join(begun[:_AMBIGUOUS])}{more})")
            return
        near = self._table.nearest(spelling)
        self.made.unknown.append(f"{shown} (did you mean {near}?)" if near else shown)

    def _pass_values(self) -> list[str]:
        start = self._at
        while self._at < len(self._words) and is_value(self._words[self._at]):
            self._at += 1
        return list(self._words[start : self._at])

    def _take(self, flag: Flag, says: bool, spelling: str, written: str | None) -> None:
        """Read the value of a known flag and keep it."""
        if flag.kind in ("switch", "optional-bool"):
            if written is not None:
                self.made.note(f"{spelling} takes no value: {short(written)!r} is left out")
            self._keep(flag, says, spelling)
            return
        words = self._values(flag, written)
        if not words and not (flag.bare or flag.may_be_empty):
            self.made.note(f"{spelling} has no value")
            return
        try:
            self._keep(flag, value(flag, words) if words or flag.kind == "list" else True, spelling)
        except WrongValue as wrong:
            kept = " ".join(words)
            self.made.note(f"{spelling} takes {wrong}, not {short(kept)!r}")
            self._keep(flag, kept, spelling)

    def _values(self, flag: Flag, written: str | None) -> list[str]:
        if written is not None:
            return [written]
        if flag.kind == "list" and not flag.repeated:
            return self._pass_values()
        if self._at < len(self._words) and is_value(self._words[self._at]):
            self._at += 1
            return [self._words[self._at - 1]]
        return []

    def _keep(self, flag: Flag, given: Value, spelling: str) -> None:
        values = self.made.values
        if flag.repeated and flag.name in values:
            earlier = values[flag.name]
            assert isinstance(earlier, tuple) and isinstance(given, tuple)
            given = earlier + given
        elif flag.name in self.given and values[flag.name] != given:
            self.made.note(f"second value wins: {spelling} given twice")
        self.given.add(flag.name)
        values[flag.name] = given

    def _renamed(self, renamed: Renamed, spelling: str, written: str | None) -> None:
        """An older flag: what it stood for now."""
        if renamed.moves or renamed.copies:
            self._older.append(renamed)
        elif renamed.write:
            self.made.replaced.append((spelling, renamed.write))
        else:
            self.made.note(f"{spelling} is gone and nothing takes its place: leave it out")
        for name, given in renamed.sets.items():
            self._keep(self._table.flags[name], given, spelling)
        if renamed.to is None:
            if renamed.kind != "switch" and written is None:
                self._pass_values()
            return
        name, dot, path = renamed.to.partition(".")
        if renamed.words and written is None and self._at < len(self._words):
            written, self._at = self._words[self._at], self._at + 1
        if written is not None:
            written = renamed.words.get(written, written)
        if dot:
            self._key(self._table.flags[name], path, written)
        else:
            self._take(self._table.flags[name], True, spelling, written)

    def _dotted(self, word: str, head: str, path: str, written: str | None) -> None:
        """`--config.key value`: one key of a flag that takes JSON."""
        found = self._find(head, word)
        if found is not None:
            self._key(found[0], path, written)

    def _key(self, flag: Flag, path: str, written: str | None) -> None:
        if written is None and self._at < len(self._words):
            written = self._words[self._at]
            self._at += 1
        keys = path.removesuffix("+").split(".")
        held = self.made.values.get(flag.name)
        merged = dict(held) if isinstance(held, dict) else {}
        if isinstance(held, str):
            self.made.note(f"{self.made.spelling(flag.name)} is given as a word and by keys: the keys win")
        _put(merged, keys[:_DEEPEST], _loose(written or "", path.endswith("+")))
        self.made.values[flag.name] = merged


def _put(held: dict[str, Any], keys: Sequence[str], given: Any) -> None:
    for key in keys[:-1]:
        inner = held.get(key)
        held[key] = dict(inner) if isinstance(inner, dict) else {}
        held = held[key]
    held[keys[-1]] = given


def _loose(text: str, several: bool) -> Any:
    """A value of a dotted key: JSON if it is, else the word (vLLM 0.33.0, FlexibleArgumentParser.parse_args)."""
    if several:
        return text.split(",")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _parted(word: str) -> tuple[str, str | None]:
    spelling, equals, written = word.partition("=")
    return (spelling, written) if equals else (word, None)


def _dashed(spelling: str) -> str:
    """vLLM reads underscores as dashes up to the first dot (FlexibleArgumentParser.parse_args)."""
    head, dot, path = spelling.partition(".")
    return head.replace("_", "-") + dot + path if spelling.startswith("--") else spelling


def _optimization(spelling: str, written: str | None) -> tuple[str, str | None] | None:
    """`-O3`, `-O=3` and `-O 3` are `--optimization-level 3`."""
    if not spelling.startswith("-O"):
        return None
    return "--optimization-level", written if written is not None else spelling[2:] or None
