"""The closed form of the schedule against a replay of its events."""

from collections.abc import Sequence

import equinox as eqx
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from explorer.schedule import schedule
from hw.arithmetic import Exact, Smooth
from hw.compat import x64

SECONDS = st.integers(0, 8).map(lambda n: n / 8)  # eighths add without rounding, and ties are common
MOST = 12
POSITIONS = st.lists(st.tuples(SECONDS, SECONDS | st.just(0.0)), min_size=1, max_size=MOST)

_schedule = eqx.filter_jit(lambda ar, main, gather, host: (lambda s: (s.wait, s.gpu, s.step))(schedule(ar, main, gather, host)))


def priced(
    main: Sequence[float], gather: Sequence[float], host: float = 0.0, tau: float | None = None
) -> tuple[list[float], float, float]:
    """Waits, time on the GPU and step. Positions without work at the end change nothing and share one compilation."""
    with x64():
        columns = (np.array([*column, *[0.0] * (MOST - len(column))]) for column in (main, gather))
        wait, gpu, step = _schedule(Exact() if tau is None else Smooth(tau), *columns, np.float64(host))
        return wait.tolist()[: len(main)], float(gpu), float(step)


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
    wait, gpu, step = priced(main, gather)
    assert gpu == step == end
    assert [sum(main[:i]) + sum(wait[: i + 1]) for i in range(len(main))] == starts


@given(POSITIONS)
def test_exposed_time_lies_between_nothing_and_all_of_the_gathers(positions: list[tuple[float, float]]) -> None:
    main, gather = (list(column) for column in zip(*positions, strict=True))
    wait, gpu, _ = priced(main, gather)
    assert max(sum(main), sum(gather)) <= gpu <= sum(main) + sum(gather)
    assert all(0 <= w <= g for w, g in zip(wait, gather, strict=True))


def test_gathers_in_between_positions_without_weights() -> None:
    """Layer 0 is whole: the copy for layer 1 starts with layer 0, and only what layer 0 does not cover is exposed."""
    wait, gpu, _ = priced([1.0, 2.0, 4.0, 4.0], [0.0, 0.0, 5.0, 3.0])
    assert wait == [0.0, 0.0, 3.0, 0.0]
    assert gpu == 1 + 2 + 3 + 4 + 4


def test_the_first_gather_is_covered_by_nothing() -> None:
    assert priced([1.0, 1.0], [2.0, 0.5])[0] == [2.0, 0.0]


@pytest.mark.parametrize(("host", "expected"), [(0.5, 3.0), (3.0, 3.0), (7.0, 7.0)])
def test_the_host_is_hidden_while_it_is_shorter(host: float, expected: float) -> None:
    _, gpu, step = priced([1.0, 2.0], [0.0, 0.0], host)
    assert (step, gpu) == (expected, 3.0)


@given(POSITIONS, st.sampled_from([0.25, 1e-2, 1e-5]))
def test_smooth_is_never_faster_and_near_when_sharp(positions: list[tuple[float, float]], tau: float) -> None:
    main, gather = (list(column) for column in zip(*positions, strict=True))
    exact, smooth = priced(main, gather)[2], priced(main, gather, tau=tau)[2]
    # each maximum of a and b exceeds the larger by at most log 2 x tau x (a + b)
    most = 0.6932 * tau * (2 * (sum(main) + sum(gather)) + smooth)
    assert exact * (1 - 1e-12) <= smooth <= exact + most + 1e-12
