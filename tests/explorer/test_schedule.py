"""The closed form of the schedule against a replay of its events."""

from collections.abc import Sequence

import hypothesis.strategies as st
import jax.numpy as jnp
import pytest
from hypothesis import given

from explorer.schedule import Schedule, schedule
from hw.arithmetic import Arithmetic, Exact, Smooth
from hw.compat import x64

SECONDS = st.integers(0, 8).map(lambda n: n / 8)  # eighths add without rounding, and ties are common
POSITIONS = st.lists(st.tuples(SECONDS, SECONDS | st.just(0.0)), min_size=1, max_size=12)


def priced(main: Sequence[float], gather: Sequence[float], host: float = 0.0, ar: Arithmetic | None = None) -> Schedule:
    with x64():
        return schedule(ar or Exact(), jnp.asarray(main, float), jnp.asarray(gather, float), jnp.asarray(host))


def replay(main: Sequence[float], gather: Sequence[float], ahead: int = 1) -> tuple[float, list[float]]:
    """End of the step and start of every position, event by event.

    Two streams, each in order, and two staging buffers used in turn. A position whose weights are gathered takes the
    next buffer. Its copy is issued when the position `ahead` before it starts (at the beginning, if there is none),
    and begins once the copy stream is free and the buffer's last reader is done. A position starts when the main
    stream is free and its own copy is done.
    """
    main_free = copy_free = 0.0
    buffer_free = [0.0, 0.0]
    starts: list[float] = []
    arrived = [0.0] * len(main)
    reader: dict[int, int] = {}
    taken = 0

    def issue(position: int, now: float) -> None:
        nonlocal copy_free, taken
        if gather[position] == 0:
            return
        buffer = taken % 2
        taken += 1
        begins = max(now, copy_free, buffer_free[buffer])
        copy_free = arrived[position] = begins + gather[position]
        reader[position] = buffer

    for first in range(min(ahead, len(main))):
        issue(first, 0.0)
    for position, seconds in enumerate(main):
        starts.append(max(main_free, arrived[position]))
        main_free = starts[-1] + seconds
        if position in reader:
            buffer_free[reader[position]] = main_free
        if position + ahead < len(main):
            # the buffer that it will write was read, at the latest, by the position before this one
            issue(position + ahead, starts[-1])
    return main_free, starts


@given(POSITIONS)
def test_the_closed_form_is_the_replay(positions: list[tuple[float, float]]) -> None:
    main, gather = (list(column) for column in zip(*positions, strict=True))
    end, starts = replay(main, gather)
    found = priced(main, gather)
    assert float(found.gpu) == end == float(found.step)
    before = [sum(main[:i]) + float(found.wait[: i + 1].sum()) for i in range(len(main))]
    assert before == starts


@given(POSITIONS)
def test_exposed_time_lies_between_nothing_and_all_of_the_gathers(positions: list[tuple[float, float]]) -> None:
    main, gather = (list(column) for column in zip(*positions, strict=True))
    found = priced(main, gather)
    assert max(sum(main), sum(gather)) <= float(found.gpu) <= sum(main) + sum(gather)
    assert all(0 <= w <= g for w, g in zip(found.wait.tolist(), gather, strict=True))


def test_gathers_in_between_positions_without_weights() -> None:
    """Layer 0 is whole: the copy for layer 1 starts with layer 0, and only what layer 0 does not cover is exposed."""
    found = priced([1.0, 2.0, 4.0, 4.0], [0.0, 0.0, 5.0, 3.0])
    assert found.wait.tolist() == [0.0, 0.0, 3.0, 0.0]
    assert float(found.step) == 1 + 2 + 3 + 4 + 4


def test_the_first_gather_is_covered_by_nothing() -> None:
    assert priced([1.0, 1.0], [2.0, 0.5]).wait.tolist() == [2.0, 0.0]


@pytest.mark.parametrize(("host", "step"), [(0.5, 3.0), (3.0, 3.0), (7.0, 7.0)])
def test_the_host_is_hidden_while_it_is_shorter(host: float, step: float) -> None:
    found = priced([1.0, 2.0], [0.0, 0.0], host)
    assert (float(found.step), float(found.gpu)) == (step, 3.0)


@given(POSITIONS, st.sampled_from([0.25, 1e-2, 1e-5]))
def test_smooth_is_never_faster_and_near_when_sharp(positions: list[tuple[float, float]], tau: float) -> None:
    main, gather = (list(column) for column in zip(*positions, strict=True))
    exact, smooth = float(priced(main, gather).step), float(priced(main, gather, ar=Smooth(tau)).step)
    assert exact * (1 - 1e-12) <= smooth
    # each maximum of a and b exceeds the larger by at most log 2 x tau x (a + b)
    most = 0.6932 * tau * (2 * (sum(main) + sum(gather)) + smooth)
    assert smooth <= exact + most + 1e-12
