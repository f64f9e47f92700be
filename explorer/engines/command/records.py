"""What an engine says of its own arguments: SGLang's server_info, and the lines in which both engines log them."""

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from explorer.engines.command.arguments import Arguments, short
from explorer.engines.command.launch import CommandError, EngineName, Launch
from explorer.engines.flags import Renamed

_LONGEST: Final = 1 << 20
_SGLANG: Final = re.compile(r"ServerArgs\(")
_VLLM: Final = re.compile(r"non-default args: (\{)|LLM engine \([^)]*\) with config: ")
# names in vLLM's log of its configuration that are not its flags': vLLM 0.33.0 config/vllm.py, VllmConfig.__str__
_LOGGED: Final = {"max_seq_len": "max_model_len", "model_tag": "model"}
# enumerations in what is logged: `<CompilationMode.VLLM_COMPILE: 3>`
_MEMBER: Final = re.compile(r"<[A-Za-z_][\w.]{0,80}: ([^<>]{1,80})>")
_CLOSING: Final = {"(": ")", "[": "]", "{": "}", "<": ">"}


def launch_of_server_info(info: Mapping[str, Any], source: str = "server_info") -> Launch:
    """The launch that SGLang's /get_server_info or /server_info tells of; `server_args` inside it is taken if there.

    It holds what the engine settled on, not only what was written. CommandError for a mapping that is none.
    """
    for inner in ("server_info", "server_args"):
        held = info.get(inner)
        if isinstance(held, Mapping):
            return launch_of_server_info(held, source)
    if "model_path" not in info and "tp_size" not in info:
        raise CommandError(
            f"{source} names neither model_path nor tp_size: give what SGLang's /get_server_info answers"
        )
    return launch_of_record(EngineName.SGLANG, info, source)


def launch_of_server_args(text: str, source: str = "log") -> Launch:
    """The launch of a logged line: SGLang's `server_args=ServerArgs(...)`, vLLM's `non-default args: {...}` or
    `... LLM engine (...) with config: ...`.

    Values are read as Python literals; what is none stays a word. CommandError where there is no such line.
    """
    found = _SGLANG.search(text)
    if found is not None:
        return launch_of_record(EngineName.SGLANG, _pairs(_inside(text, found.end() - 1), "="), source)
    found = _VLLM.search(text)
    if found is None:
        raise CommandError(f"{short(text)!r} logs no arguments: give a line with ServerArgs(...) or vLLM's args")
    if found[1]:
        return launch_of_record(EngineName.VLLM, _pairs(_inside(text, found.end() - 1), ":"), source)
    line = text[found.end() : found.end() + _LONGEST].split("\n", 1)[0]
    return launch_of_record(EngineName.VLLM, _pairs(line, "="), source)


def launch_of_record(engine: EngineName, record: Mapping[str, Any], source: str) -> Launch:
    """The launch of an engine's record of its arguments, by the engine's names for them; what is None is unset."""
    made = Arguments(engine)
    older: list[Renamed] = []
    for name, given in record.items():
        if given is not None:
            _keep(made, older, _LOGGED.get(str(name), str(name)), given)
    made.carry(older)
    return Launch(engine, made.model, made.values, {}, (), (), (), source)


def _keep(made: Arguments, older: list[Renamed], name: str, given: Any) -> None:
    known = made.table
    flag = known.recorded(name)
    given = tuple(given) if isinstance(given, list | tuple | set) else given
    renamed = known.renamed.get("--" + name.replace("_", "-"))
    if renamed is None:
        if flag is not None and isinstance(given, bool | int | float | str | tuple | Mapping):
            made.values[flag.name] = given
    elif given is False:
        return
    elif renamed.moves or renamed.copies:
        older.append(renamed)
    elif renamed.to in known.flags:
        made.values.setdefault(str(renamed.to), renamed.words.get(given, given) if isinstance(given, str) else given)
    else:
        for stands_for, value in renamed.sets.items():
            made.values.setdefault(stands_for, value)


def _inside(text: str, start: int) -> str:
    """What stands between a bracket and its partner, or up to the end where that is missing."""
    held = text[start + 1 : start + 1 + _LONGEST]
    for at, depth in _depths(held):
        if depth < 0:
            return held[:at]
    return held


def _pairs(text: str, mark: str) -> dict[str, Any]:
    """`name=value, ...` or `'name': value, ...` as a mapping."""
    made: dict[str, Any] = {}
    start = 0
    ends = [at for at, depth in _depths(text) if depth == 0 and text[at] == ","]
    for end in (*ends, len(text)):
        name, found, value = text[start:end].partition(mark)
        start = end + 1
        if found:
            made[name.strip(" '\"\n")] = _literal(value.strip())
    return made


def _depths(text: str) -> Iterator[tuple[int, int]]:
    """Each bracket and comma outside quotes with the depth after it; a bracket that closes none has depth -1."""
    closing: list[str] = []
    quote = ""
    at = 0
    while at < len(text):
        letter = text[at]
        if quote:
            at += letter == "\\"
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in _CLOSING:
            closing.append(_CLOSING[letter])
            yield at, len(closing)
        elif letter in ")]}>" and (not closing or closing[-1] == letter):
            if not closing and letter != ">":
                yield at, -1
            elif closing:
                closing.pop()
                yield at, len(closing)
        elif letter == ",":
            yield at, len(closing)
        at += 1


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(_MEMBER.sub(r"\1", text))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text.removeprefix("torch.")
