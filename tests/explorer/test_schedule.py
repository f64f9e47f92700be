"""The closed form of the schedule against a replay of its events."""

from collections.abc import Sequence

import hypothesis.strategies as st
import jax.numpy as jnp
import pytest
from hypothesis import given
from jaxtyping import Array

from explorer.contention import Contended
from explorer.schedule import schedule
from hw.arithmetic import Arithmetic, Exact, Smooth
from hw.compat import x64
from hw.programs import compiled

SECONDS = st.integers(0, 8).map(lambda n: n / 8)  # eighths add without rounding, and ties are common
MOST = 12
# work, and the seconds of a gather or None for a position that has no weights to gather
POSITIONS = st.lists(st.tuples(SECONDS, st.none() | SECONDS), min_size=1, max_size=MOST)
Position = tuple[float, float | None]


@compiled
def _schedule(ar: Arithmetic, main: Array, gather: Array, gathers: Array, host: Array):
    found = schedule(ar, Contended(main, gather, jnp.zeros(0)), gathers, host)
    return found.wait, found.gpu, found.step


def priced(
    positions: Sequence[Position], host: float = 0.0, tau: float | None = None
) -> tuple[list[float], float, float]:
    """Waits, time on the GPU and step. Positions without work at the end change nothing and share one compilation."""
    padded = [*positions, *[(0.0, None)] * (MOST - len(positions))]
    with x64():
        wait, gpu, step = _schedule(
            Exact() if tau is None else Smooth(tau),
            jnp.array([work for work, _ in padded]),
            jnp.array([copy or 0.0 for _, copy in padded]),
            jnp.array([float(copy is not None) for _, copy in padded]),
            jnp.asarray(host),
        )
        return wait.tolist()[: len(positions)], float(gpu), float(step)


def replay(positions: Sequence[Position], ahead: int = 3) -> tuple[float, list[float]]:
    """End of the step and start of every position, event by event.

    Two streams, each in order, and two staging buffers used in turn. Whenever a position starts, the copy for the next
    position that gathers is issued, unless that is more than `ahead` away or was issued before; it begins once the copy
    stream is free and the last reader of its buffer is done. A position starts when the main stream is free and its
    own copy has arrived.
    """
    main_free = copy_free = 0.0
    buffer_free = [0.0, 0.0]
    arrival: dict[int, float] = {}
    buffer_of: dict[int, int] = {}
    starts: list[float] = []

    def issue(position: int, now: float) -> None:
        nonlocal copy_free
        buffer_of[position] = len(buffer_of) % 2
        copy_free = max(now, copy_free, buffer_free[buffer_of[position]]) + (positions[position][1] or 0.0)
        arrival[position] = copy_free

    gathering = [i for i, (_, copy) in enumerate(positions) if copy is not None]
    if gathering[:1] == [0]:
        issue(0, 0.0)
    for i, (work, _) in enumerate(positions):
        starts.append(max(main_free, arrival.get(i, 0.0)))
        main_free = starts[-1] + work
        following = next((g for g in gathering if g > i), None)
        if following is not None and following not in arrival and following - i <= ahead:
            issue(following, starts[-1])
        if i in buffer_of:
            buffer_free[buffer_of[i]] = main_free
    return main_free, starts


@given(POSITIONS)
def test_the_closed_form_is_the_replay(positions: list[Position]) -> None:
    end, starts = replay(positions)
    wait, gpu, step = priced(positions)
    assert gpu == step == end
    assert [sum(work for work, _ in positions[:i]) + sum(wait[: i + 1]) for i in range(len(positions))] == starts


@given(POSITIONS)
def test_exposed_time_lies_between_nothing_and_all_of_the_gathers(positions: list[Position]) -> None:
    work, copies = sum(w for w, _ in positions), [c or 0.0 for _, c in positions]
    wait, gpu, _ = priced(positions)
    assert max(work, sum(copies)) <= gpu <= work + sum(copies)
    assert all(0 <= w <= c for w, c in zip(wait, copies, strict=True))


def test_gathers_in_between_positions_without_weights() -> None:
    """Head and layer 0 are whole: the copy for layer 1 starts with the step, and only what they do not cover waits."""
    wait, gpu, _ = priced([(1.0, None), (2.0, None), (4.0, 5.0), (4.0, 3.0)])
    assert wait == [0.0, 0.0, 2.0, 0.0]
    assert gpu == 1 + 2 + 2 + 4 + 4


def test_the_first_gather_is_covered_by_nothing() -> None:
    assert priced([(1.0, 2.0), (1.0, 0.5)])[0] == [2.0, 0.0]


def test_one_layer_hides_one_gather() -> None:
    """Layers of 1 s whose gathers take 1.5 s wait half a second each, however many there are."""
    assert priced([(1.0, 1.5)] * 5)[0] == [1.5, 0.5, 0.5, 0.5, 0.5]


def test_a_gather_is_issued_three_positions_ahead_at_most() -> None:
    wait, _, _ = priced([(1.0, None)] * 6 + [(1.0, 5.0)])
    assert wait[-1] == 2.0


@pytest.mark.parametrize(("host", "expected"), [(0.5, 3.0), (3.0, 3.0), (7.0, 7.0)])
def test_the_host_is_hidden_while_it_is_shorter(host: float, expected: float) -> None:
    _, gpu, step = priced([(1.0, None), (2.0, None)], host)
    assert (step, gpu) == (expected, 3.0)


@given(POSITIONS, st.sampled_from([0.25, 1e-2, 1e-5]))
def test_smooth_is_never_faster_and_near_when_sharp(positions: list[Position], tau: float) -> None:
    exact, smooth = priced(positions)[2], priced(positions, tau=tau)[2]
    # a maximum of a and b exceeds the larger by a share of tau x (a + b); a cover holds three positions at most
    whole = sum(w + (c or 0.0) for w, c in positions)
    assert exact * (1 - 1e-12) <= smooth <= exact + tau * (3 * whole + smooth) + 1e-12
