"""The points of the experiment: which slices run under which layouts and loads, and which third is fitted to."""

import math
import pathlib
import random
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

FILE: Final = pathlib.Path(__file__).with_name("points.toml")
SEED: Final = 6


@dataclass(frozen=True)
class Slice:
    """The first layers of a model at full width, with so many experts in each."""

    model: str
    layers: int
    experts: int


@dataclass(frozen=True)
class Shape:
    """One compiled step: `requests` of all groups together verify `verify` tokens each; its tables hold the longest of
    the `contexts` that it is timed at."""

    slice: Slice
    layout: str
    gpus: int
    requests: int
    verify: int
    contexts: tuple[int, ...]

    @property
    def longest(self) -> int:
        return max(self.contexts)

    @property
    def key(self) -> str:
        """What a result is stored under, less the context."""
        return f"{self.slice.model}|{self.gpus}|{self.layout}|{self.requests}|{self.verify}"


@dataclass(frozen=True)
class Point:
    """A shape at one context."""

    shape: Shape
    context: int

    @property
    def key(self) -> str:
        return f"{self.shape.key}|{self.context}"

    @property
    def question(self) -> tuple[Any, ...]:
        """What layouts are compared for."""
        shape = self.shape
        return (shape.slice.model, shape.gpus, shape.requests, shape.verify, self.context)


def shapes(path: pathlib.Path = FILE) -> tuple[Shape, ...]:
    """Those of the data file, in the order in which they are measured: load by load, and model by model in each."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    found = [
        Shape(_slice(data, model), layout, part["gpus"], requests, verify, _contexts(data, model, requests))
        for part in data["part"]
        for requests, verify in part["loads"]
        for layout in part["layouts"]
        for model in part["models"]
    ]
    return tuple(dict.fromkeys(found))


def points(of: Iterable[Shape]) -> tuple[Point, ...]:
    """Every context of every shape."""
    return tuple(Point(shape, context) for shape in of for context in shape.contexts)


def fitted(among: Iterable[Point], seed: int = SEED) -> frozenset[str]:
    """Keys of the third that constants are fitted to: of each model and layout a third of the points, chosen by the
    seed and the points' names alone, before anything is measured."""
    strata: dict[tuple[str, str], list[str]] = defaultdict(list)
    for point in among:
        strata[point.shape.slice.model, point.shape.layout].append(point.key)
    chosen: set[str] = set()
    for name, keys in sorted(strata.items()):
        draw = random.Random(f"{seed} {name}")
        chosen |= set(draw.sample(sorted(keys), round(len(keys) / 3)))
    return frozenset(chosen)


def in_words(gpus: int) -> str:
    """So many GPUs, in words."""
    return f"{gpus} GPU" if gpus == 1 else f"{gpus} GPUs"


def _slice(data: Mapping[str, Any], model: str) -> Slice:
    cut = data["slices"][model]
    return Slice(model, cut["layers"], cut["experts"])


def _contexts(data: Mapping[str, Any], model: str, requests: int) -> tuple[int, ...]:
    """The shortest, the longest that a load may have, and what lies between."""
    loads, longest = data["loads"], data["slices"][model]["longest"]
    first = loads["shortest"]
    last = next(most for limit, most in zip(loads["requests"], longest, strict=True) if requests <= limit)
    middle = 1 << round(math.log2(math.sqrt(first * last)))
    return (first, middle, last)
