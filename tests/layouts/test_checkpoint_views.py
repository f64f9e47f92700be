"""Views against numpy on whole arrays: every box is the box of the whole, and no more than it is read."""

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layouts.checkpoint import CheckpointError
from layouts.checkpoint.views import (
    Box,
    Joined,
    Merged,
    Padded,
    Part,
    Repeated,
    Split,
    Stacked,
    Stored,
    Transposed,
    View,
    box_of,
    flat,
    lengths,
    whole,
)


@dataclass
class Memory:
    """Arrays by name, and how many values were read of them in how many reads."""

    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    values_read: int = 0
    reads: int = 0

    def stored(self, shape: tuple[int, ...], dtype: str = "int32") -> tuple[View, np.ndarray]:
        """A view of a new array without equal values, and the array."""
        name, before = f"tensor{len(self.arrays)}", sum(a.size for a in self.arrays.values())
        self.arrays[name] = np.arange(before, before + math.prod(shape)).astype(dtype).reshape(shape)
        return Stored(self, name, shape), self.arrays[name]

    def read(self, name: str, box: Box) -> np.ndarray:
        self.values_read += math.prod(lengths(box))
        self.reads += 1
        return self.arrays[name][box].copy()

    def dtype(self, name: str) -> np.dtype:
        return self.arrays[name].dtype


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


@st.composite
def wrapped(draw: st.DrawFn) -> tuple[Memory, View, np.ndarray]:
    """Up to four random operations over a stored tensor, and the same done by numpy."""
    memory = Memory()
    view, array = memory.stored(tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))))
    for _ in range(draw(st.integers(1, 4))):
        axis = draw(st.integers(0, array.ndim - 1))
        size = array.shape[axis]
        kind = draw(st.sampled_from(("stack", "join", "split", "merge", "transpose", "part", "repeat", "pad")))
        if kind == "stack" and array.ndim < 5:
            other, other_array = memory.stored(array.shape)
            view, array = Stacked((view, other, view)), np.stack((array, other_array, array))
        elif kind == "join":
            shape = (*array.shape[:axis], draw(st.integers(1, 3)), *array.shape[axis + 1 :])
            other, other_array = memory.stored(shape)
            view, array = Joined((other, view), axis), np.concatenate((other_array, array), axis)
        elif kind == "split" and array.ndim < 5:
            outer = draw(st.sampled_from(divisors(size)))
            view = Split(view, axis, outer)
            array = array.reshape(*array.shape[:axis], outer, size // outer, *array.shape[axis + 1 :])
        elif kind == "merge" and axis + 1 < array.ndim:
            view = Merged(view, axis)
            array = array.reshape(*array.shape[:axis], -1, *array.shape[axis + 2 :])
        elif kind == "transpose":
            order = tuple(draw(st.permutations(range(array.ndim))))
            view, array = Transposed(view, order), array.transpose(order)
        elif kind == "part":
            start = draw(st.integers(0, size - 1))
            stop = draw(st.integers(start + 1, size))
            view, array = Part(view, axis, start, stop), array.take(range(start, stop), axis)
        elif kind == "repeat" and array.size < 2000:
            times = draw(st.integers(1, 3))
            view, array = Repeated(view, axis, times), np.repeat(array, times, axis)
        elif kind == "pad":
            rows = array.shape[0] + draw(st.integers(0, 3))
            padding = [(0, rows - array.shape[0]), *((0, 0) for _ in array.shape[1:])]
            view, array = Padded(view, rows), np.pad(array, padding)
    return memory, view, array


@pytest.mark.smoke
@given(wrapped(), st.data())
def test_any_box_of_any_view_is_that_box_of_the_whole(case, data):
    memory, view, array = case
    assert view.shape == array.shape and view.dtype == array.dtype
    np.testing.assert_array_equal(view.read(whole(view.shape)), array)
    index = []
    for size in array.shape:
        start = data.draw(st.integers(0, size - 1))
        index.append(slice(start, data.draw(st.integers(start + 1, size))))
    memory.values_read = 0
    got = view.read(tuple(index))
    np.testing.assert_array_equal(got, array[tuple(index)])
    assert memory.values_read <= got.size  # copies and padding need less, nothing needs more
    assert set(view.names()) <= set(memory.arrays)


def test_what_is_read_is_the_box_and_nothing_twice():
    memory = Memory()
    view, array = memory.stored((8, 6))
    columns = (slice(0, 8), slice(2, 4))
    by_head = Split(view, 0, 4)
    for made, box, read in (
        (Transposed(view, (1, 0)), (slice(2, 4), slice(0, 8)), 16),
        (by_head, (slice(1, 3), slice(0, 1), slice(0, 6)), 12),
        (Merged(by_head, 0), columns, 16),
        (Repeated(view, 0, 4), (slice(3, 9), slice(0, 6)), 18),
        (Padded(view, 16), (slice(8, 16), slice(0, 6)), 0),
        (Padded(view, 16), (slice(7, 9), slice(0, 6)), 6),
        (Stacked((view, view)), (slice(1, 2), slice(0, 1), slice(0, 6)), 6),
    ):
        memory.values_read = 0
        made.read(box)
        assert memory.values_read == read, made
    memory.reads = 0
    by_head.read((slice(0, 3), slice(0, 2), slice(0, 6)))
    assert memory.reads == 1  # whole runs lie side by side
    np.testing.assert_array_equal(flat(by_head).read((slice(5, 20),)), array.reshape(-1)[5:20])


def test_index_of_jax_is_a_box():
    assert box_of((slice(None), slice(2, None)), (4, 6, 3)) == (slice(0, 4), slice(2, 6), slice(0, 3))
    assert box_of((), (4,)) == (slice(0, 4),)


def test_parts_of_two_dtypes_are_an_error():
    memory = Memory()
    (one, _), (two, _) = memory.stored((2,)), memory.stored((2,), "float32")
    with pytest.raises(CheckpointError, match="tensor1 is float32, others of its weight are int32"):
        Joined((one, two), 0)[()]
