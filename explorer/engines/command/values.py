"""What is written after a flag, as the kind of value that the flag takes."""

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from explorer.engines.command.launch import Value
from explorer.engines.flags import Flag

_SUFFIXED: Final = re.compile(r"(\d+(?:\.\d+)?)([kmgtKMGT])")
# k is 10^3 and K is 2^10, and so on: SGLang 0.5.23 srt/utils/common.py and vLLM 0.33.0 utils/argparse_utils.py,
# human_readable_int
_TIMES: Final = {letter: 1000 ** (at + 1) for at, letter in enumerate("kmgt")} | {
    letter: 1024 ** (at + 1) for at, letter in enumerate("KMGT")
}
_NEGATIVE: Final = re.compile(r"-\d+(\.\d*)?|-\.\d+")
_LONGEST_DIGITS: Final = 30


class WrongValue(ValueError):
    """A text that is no value of a flag's kind; the message says what the flag takes."""


def is_value(word: str) -> bool:
    """Whether argparse takes a word for a value: it is no flag, or it is a negative number."""
    return not word.startswith("-") or word == "-" or _NEGATIVE.fullmatch(word) is not None


def value(flag: Flag, words: Sequence[str]) -> Value:
    """The value of a flag from the words that belong to it. WrongValue says what the flag takes."""
    if flag.kind == "list":
        return tuple(_one(flag, flag.items, word) for word in words)
    if flag.kind == "json":
        return _json(flag, words[0])
    return _one(flag, flag.kind, words[0])


def _one(flag: Flag, kind: str, word: str) -> Any:
    made: int | float | str = word
    if kind == "count":
        made = _count(flag, word)
    elif kind == "number":
        made = _number(word)
    if flag.choices and not flag.open and made not in flag.choices:
        raise WrongValue(f"one of {', '.join(map(str, flag.choices))}")
    return made


def _count(flag: Flag, word: str) -> int:
    text = word.strip()
    found = _SUFFIXED.fullmatch(text) if flag.suffixes and len(text) <= _LONGEST_DIGITS else None
    if found and ("." not in found[1] or found[2].islower()):
        return int(float(found[1]) * _TIMES[found[2]]) if "." in found[1] else int(found[1]) * _TIMES[found[2]]
    if flag.suffixes and text.lower() == "auto":
        return -1
    try:
        if len(text) > _LONGEST_DIGITS:
            raise ValueError
        return int(text)
    except ValueError:
        raise WrongValue("a whole number") from None


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise WrongValue("a number") from None


def _json(flag: Flag, word: str) -> Value:
    try:
        made = json.loads(word)
    except (ValueError, RecursionError):
        if flag.open and not word.lstrip().startswith(("{", "[")):
            return word
        raise WrongValue("JSON") from None
    return tuple(made) if isinstance(made, list) else made
