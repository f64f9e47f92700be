"""Where the layers of a step begin and end: by patterns that the user gives, by annotations, or by repetition."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from jaxtyping import Int

from explorer.traces.events import Annotation, Events, TraceError, shown
from explorer.traces.steps import Step, compiled, main_stream

BEFORE: Final = "before the first layer"
_LAYER: Final = re.compile(r"(layer|block)s?[\W_]*\d+$", re.IGNORECASE)
_NUMBER: Final = re.compile(r"[\W_]*\d+$")
_LONGEST: Final = 4096  # kernels of a layer that repetition is looked for
_REPEATS: Final = 3  # times that something must come to be a layer
_NEAR: Final = 0.8  # of the most kernels that any period explains, what a shorter one must


@dataclass(frozen=True)
class Layers:
    """Layers in order of time, which do not overlap. `kind` points into `kinds`. `found_by` says how in words."""

    kinds: tuple[str, ...]
    kind: Int[np.ndarray, " layers"]
    start: Int[np.ndarray, " layers"]
    end: Int[np.ndarray, " layers"]
    found_by: str


@dataclass(frozen=True)
class Pattern:
    """`NAME=REGEX`: a kernel whose name matches is the first of a layer of kind NAME; the expression alone is its own
    name."""

    kind: str
    expression: re.Pattern[str]


def parse_pattern(text: str) -> Pattern:
    """Read `NAME=REGEX` or `REGEX`; TraceError for what is no regular expression."""
    name, equals, rest = text.partition("=")
    named = equals and not name.endswith(("(?", "(?<"))  # looking ahead and behind have an equals sign of their own
    return Pattern(name.strip() if named else text, compiled("layer-pattern", rest if named else text))


def find_layers(step: Step, patterns: Sequence[Pattern]) -> Layers:
    """Patterns if there are any, else annotations that end in "layer" or "block" and a number, else the sequence of
    kernel names that repeats. TraceError for a pattern that no kernel of the main stream matches."""
    stream = main_stream(step.events)
    main = step.events.take(step.events.stream == (-1 if stream is None else stream))
    if patterns:
        return _by_patterns(step, main, patterns)
    label = None if stream is None else step.events.streams[stream]
    marks = [a for a in step.annotations if a.stream in (None, label) and (a.layer_kind or _LAYER.search(a.name))]
    return _by_annotations(step, marks) if marks else _by_repetition(main)


def _by_patterns(step: Step, main: Events, patterns: Sequence[Pattern]) -> Layers:
    of_name = np.full(len(main.names), -1)
    for number, pattern in reversed(list(enumerate(patterns))):
        of_name[[bool(pattern.expression.search(name)) for name in main.names]] = number
    kind = of_name[main.name]
    for number, pattern in enumerate(patterns):
        if not (kind == number).any():
            there = shown([main.names[i] for i in np.unique(main.name)])
            raise TraceError(f"layer-pattern {pattern.expression.pattern!r} is in no kernel's name: there is {there}")
    kind, start = kind[kind >= 0], main.start[kind >= 0]
    kinds = (*dict.fromkeys(p.kind for p in patterns), BEFORE)
    kind = np.array([kinds.index(p.kind) for p in patterns])[kind]
    if main.start[0] < start[0]:
        kind, start = np.append(len(kinds) - 1, kind), np.append(step.start, start)
    return Layers(kinds, kind, start, np.append(start[1:], step.end), "patterns")


def _by_annotations(step: Step, marks: Sequence[Annotation]) -> Layers:
    """The outermost ones, cut off at the ends of the step."""
    ordered = sorted(marks, key=lambda a: (a.start, -a.end))
    start = np.maximum([a.start for a in ordered], step.start)
    end = np.minimum([a.end for a in ordered], step.end)
    outer = start >= np.append(step.start, np.maximum.accumulate(end)[:-1])
    names = [a.layer_kind or _NUMBER.sub("", a.name) for a in ordered]
    kinds = tuple(dict.fromkeys(names))
    kind = np.array([kinds.index(name) for name in names])
    whose = "annotations of the host" if step.on_host else "annotations"
    return Layers(kinds, kind[outer], start[outer], end[outer], whose)


def _by_repetition(main: Events) -> Layers:
    """The shortest sequence of kernels that explains nearly as many of them as any does, where it comes again and
    again."""
    nothing = Layers((), *np.zeros((3, 0), np.int64), found_by="nothing")
    stems, stem = main.stems
    explained = [_runs(stem, period) for period in range(1, min(_LONGEST, len(main) // _REPEATS) + 1)]
    lengths = np.array([int(length.sum()) for _, length in explained], np.int64)
    if not lengths.any():
        return nothing
    period = int(np.argmax(lengths >= _NEAR * lengths.max())) + 1
    first, length = explained[period - 1]
    at = np.concatenate([np.arange(a, b, period) for a, b in zip(first, first + length - period + 1, strict=True)])
    kind = f"{period} kernels from {stems[stem[at[0]]]}"
    return Layers((kind,), np.zeros_like(at), main.start[at], main.end[at + period - 1], "repetition")


def _runs(
    sequence: Int[np.ndarray, " events"], period: int
) -> tuple[Int[np.ndarray, " runs"], Int[np.ndarray, " runs"]]:
    """First index and length of each stretch that repeats with a period, often enough."""
    same = np.concatenate([[False], sequence[period:] == sequence[:-period], [False]])
    edges = np.flatnonzero(same[1:] != same[:-1])
    first, length = edges[::2], edges[1::2] - edges[::2] + period
    enough = length >= _REPEATS * period
    return first[enough], length[enough]
