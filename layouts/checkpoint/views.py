"""Lazy views over the tensors of a checkpoint, read one box at a time.

A view is an array that has not been read: stored tensors stacked, joined, split, turned, repeated or padded. `read`
takes a box, one slice of step 1 for each dimension, and brings no more from the file than the box is made of. So a rank
whose part of a program's weight is a box reads its part of the checkpoint and holds no whole tensor.
"""

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from layouts.checkpoint.errors import CheckpointError

Box = tuple[slice, ...]
T = TypeVar("T")


class Source(Protocol):
    """Where stored tensors are read from."""

    def read(self, name: str, box: Box) -> np.ndarray:
        """A copy of the box of a tensor."""
        ...

    def dtype(self, name: str) -> np.dtype:
        """In which the tensor is stored."""
        ...


class View(abc.ABC):
    """An array that is read box by box."""

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Sizes of the whole array."""

    @property
    @abc.abstractmethod
    def dtype(self) -> np.dtype:
        """In which it is stored."""

    @abc.abstractmethod
    def read(self, box: Box) -> np.ndarray:
        """The box, in the dtype in which it is stored. Its slices have start and stop within the shape, and step 1."""

    @abc.abstractmethod
    def names(self) -> tuple[str, ...]:
        """Stored tensors that the view is made of."""

    def __getitem__(self, index: Box) -> np.ndarray:
        """`read` of an index as JAX gives it, with open slices."""
        return self.read(box_of(index, self.shape))


def box_of(index: Box, shape: Sequence[int]) -> Box:
    """The box of an index with open slices; whole dimensions where the index ends early."""
    filled = (*index, *(slice(None) for _ in shape[len(index) :]))
    return tuple(slice(*cut.indices(size)[:2]) for cut, size in zip(filled, shape, strict=True))


def whole(shape: Sequence[int]) -> Box:
    """All of an array."""
    return tuple(slice(0, size) for size in shape)


def lengths(box: Box) -> tuple[int, ...]:
    """Shape of a box."""
    return tuple(cut.stop - cut.start for cut in box)


@dataclass(frozen=True)
class Stored(View):
    """A tensor of the checkpoint."""

    source: Source
    name: str
    sizes: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.sizes

    @property
    def dtype(self) -> np.dtype:
        return self.source.dtype(self.name)

    def read(self, box: Box) -> np.ndarray:
        return self.source.read(self.name, box)

    def names(self) -> tuple[str, ...]:
        return (self.name,)


@dataclass(frozen=True)
class _OfParts(View):
    """A view over several views of one dtype."""

    parts: tuple[View, ...]

    @property
    def dtype(self) -> np.dtype:
        return self.parts[0].dtype

    def names(self) -> tuple[str, ...]:
        return tuple(name for part in self.parts for name in part.names())


@dataclass(frozen=True)
class OfOne(View):
    """A view over one view."""

    view: View

    @property
    def dtype(self) -> np.dtype:
        return self.view.dtype

    def names(self) -> tuple[str, ...]:
        return self.view.names()


@dataclass(frozen=True)
class Stacked(_OfParts):
    """Views of one shape along a new first dimension."""

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.parts), *self.parts[0].shape)

    def read(self, box: Box) -> np.ndarray:
        return _filled(self.dtype, lengths(box), 0, [(1, part, box[1:]) for part in self.parts[box[0]]])


@dataclass(frozen=True)
class Joined(_OfParts):
    """Views one behind another along a dimension in which alone they may differ."""

    axis: int

    @property
    def shape(self) -> tuple[int, ...]:
        return _with(self.parts[0].shape, self.axis, sum(part.shape[self.axis] for part in self.parts))

    def read(self, box: Box) -> np.ndarray:
        reads, before = [], 0
        for part in self.parts:
            size = part.shape[self.axis]
            start, stop = max(box[self.axis].start - before, 0), min(box[self.axis].stop - before, size)
            before += size
            if start < stop:
                reads.append((stop - start, part, _with(box, self.axis, slice(start, stop))))
        return _filled(self.dtype, lengths(box), self.axis, reads)


@dataclass(frozen=True)
class Split(OfOne):
    """One dimension as two: `outer` runs of equal length."""

    axis: int
    outer: int

    @property
    def shape(self) -> tuple[int, ...]:
        before = self.view.shape
        return (*before[: self.axis], self.outer, before[self.axis] // self.outer, *before[self.axis + 1 :])

    def read(self, box: Box) -> np.ndarray:
        at, size = self.axis, self.shape[self.axis + 1]
        outer, inner = box[at], box[at + 1]
        if inner == slice(0, size):  # whole runs lie side by side: one read
            runs = [slice(outer.start * size, outer.stop * size)]
        else:
            runs = [slice(i * size + inner.start, i * size + inner.stop) for i in range(outer.start, outer.stop)]
        reads = [(run.stop - run.start, self.view, (*box[:at], run, *box[at + 2 :])) for run in runs]
        shape = lengths(box)
        merged = (*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :])
        return _filled(self.dtype, merged, at, reads).reshape(shape)


@dataclass(frozen=True)
class Merged(OfOne):
    """A dimension and the next one as one."""

    axis: int

    @property
    def shape(self) -> tuple[int, ...]:
        before, at = self.view.shape, self.axis
        return (*before[:at], before[at] * before[at + 1], *before[at + 2 :])

    def read(self, box: Box) -> np.ndarray:
        at, size = self.axis, self.view.shape[self.axis + 1]
        reads = []
        for rows, columns in _blocks(box[at], size):
            count = (rows.stop - rows.start) * (columns.stop - columns.start)
            reads.append((count, self.view, (*box[:at], rows, columns, *box[at + 1 :])))
        return _filled(self.dtype, lengths(box), at, reads)


@dataclass(frozen=True)
class Transposed(OfOne):
    """Dimension i is dimension order[i] of the view."""

    order: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.view.shape[axis] for axis in self.order)

    def read(self, box: Box) -> np.ndarray:
        turned = [slice(0, 0)] * len(box)
        for cut, axis in zip(box, self.order, strict=True):
            turned[axis] = cut
        return self.view.read(tuple(turned)).transpose(self.order)


@dataclass(frozen=True)
class Part(OfOne):
    """Entries [start, stop) of a dimension."""

    axis: int
    start: int
    stop: int

    @property
    def shape(self) -> tuple[int, ...]:
        return _with(self.view.shape, self.axis, self.stop - self.start)

    def read(self, box: Box) -> np.ndarray:
        cut = box[self.axis]
        return self.view.read(_with(box, self.axis, slice(cut.start + self.start, cut.stop + self.start)))


@dataclass(frozen=True)
class Repeated(OfOne):
    """Each entry of a dimension `times` times, its copies side by side."""

    axis: int
    times: int

    @property
    def shape(self) -> tuple[int, ...]:
        return _with(self.view.shape, self.axis, self.view.shape[self.axis] * self.times)

    def read(self, box: Box) -> np.ndarray:
        cut = box[self.axis]
        first = cut.start // self.times
        once = self.view.read(_with(box, self.axis, slice(first, -(-cut.stop // self.times))))
        return once.take(np.arange(cut.start, cut.stop) // self.times - first, axis=self.axis)


@dataclass(frozen=True)
class Padded(OfOne):
    """The view with zero rows behind it, up to `rows`."""

    rows: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, *self.view.shape[1:])

    def read(self, box: Box) -> np.ndarray:
        held = self.view.shape[0]
        start, stop = min(box[0].start, held), min(box[0].stop, held)
        out = np.zeros(lengths(box), self.dtype)
        if start < stop:
            out[: stop - start] = self.view.read((slice(start, stop), *box[1:]))
        return out


def flat(view: View) -> View:
    """A view as one dimension."""
    while len(view.shape) > 1:
        view = Merged(view, 0)
    return view


def _filled(dtype: np.dtype, shape: tuple[int, ...], axis: int, reads: Sequence[tuple[int, View, Box]]) -> np.ndarray:
    """What is read, (entries, view, box) each, one behind another along a dimension, which a view may lack.

    One part at a time is held beside the whole.
    """
    if len(reads) == 1:
        return reads[0][1].read(reads[0][2]).reshape(shape)
    out, at = np.empty(shape, dtype), 0
    for count, view, box in reads:
        part = view.read(box)
        if part.dtype != dtype:
            others = f"others of its weight are {dtype}"
            raise CheckpointError(f"{view.names()[0]} is {part.dtype}, {others}; save them in one dtype")
        out[(*(slice(None),) * axis, slice(at, at + count))] = part.reshape(_with(shape, axis, count))
        at += count
    return out


def _blocks(cut: slice, size: int) -> list[tuple[slice, slice]]:
    """A run of merged entries as boxes (rows, columns): the end of a row, whole rows, the start of a row."""
    start, stop = cut.start, cut.stop
    blocks = []
    if start % size and start < stop:
        end = min(stop, (start // size + 1) * size)
        blocks.append((_one(start // size), slice(start % size, start % size + end - start)))
        start = end
    if stop // size > start // size:
        blocks.append((slice(start // size, stop // size), slice(0, size)))
        start = stop // size * size
    if start < stop:
        blocks.append((_one(start // size), slice(0, stop - start)))
    return blocks


def _one(index: int) -> slice:
    return slice(index, index + 1)


def _with(values: tuple[T, ...], at: int, value: T) -> tuple[T, ...]:
    return (*values[:at], value, *values[at + 1 :])
