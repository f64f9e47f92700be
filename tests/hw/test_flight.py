"""A step in flight and one that is waited for, by a clock that the test moves."""

import pytest

from hw.measuring import flight


def clocked(monkeypatch: pytest.MonkeyPatch, step_seconds: float) -> tuple[flight.Step, flight.Wait]:
    """A clock by which a call takes 1 ms, a step so long behind the one before, and the wait for the last 2 ms more."""
    now, done = 0.0, 0.0

    def step(state: int) -> tuple[str, int]:
        nonlocal now, done
        now += 1e-3
        done = max(done, now) + step_seconds
        return "output", state + 1

    def wait(output: str) -> None:
        nonlocal now
        assert output == "output"
        now = done + 2e-3

    monkeypatch.setattr(flight.time, "perf_counter", lambda: now)
    return step, wait


def test_a_step_in_flight_is_timed_without_what_a_round_pays_once(monkeypatch: pytest.MonkeyPatch) -> None:
    step, wait = clocked(monkeypatch, 5e-3)
    found, state = flight.times(step, 0, wait=wait)
    assert (found.flight, found.synced, found.host) == pytest.approx((5e-3, 8e-3, 1e-3))
    assert found.steps == 5 and state == 2 + 5 + 5 * (5 + 15)


def test_steps_that_are_long_or_counted_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    step, wait = clocked(monkeypatch, 0.5)
    found, state = flight.times(step, 0, rounds=3, wait=wait)
    assert found.flight == pytest.approx(0.5)
    assert found.steps == 1 and state == 2 + 3 + 3 * (1 + 3)
    found, state = flight.times(step, 0, rounds=1, steps=2, wait=wait)
    assert found.steps == 2 and state == 2 + 3 + (2 + 6)


def test_an_unsteady_machine_gives_no_negative_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each pair the short round takes 4 s, the long one of three steps 3 s: none is longer, a step takes 1 s."""
    now, calls = 0.0, 0

    def step(state: None) -> tuple[None, None]:
        nonlocal now, calls
        calls += 1
        rounds = (calls - 1 - 5) % 4  # two steps first, three that are waited for
        now += 4.0 if rounds == 0 else 1.0
        return None, None

    monkeypatch.setattr(flight.time, "perf_counter", lambda: now)
    found, _ = flight.times(step, None, steps=1, wait=lambda output: None)
    assert (found.least, found.flight, found.most) == (1.0, 1.0, 1.0)
