"""What streams take from each other, against a walk through each position in time."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from explorer.contention import Contended, Order, contended, windows
from hw.compat import x64
from hw.programs import compiled

# two blocks: kernel, exchange, kernel; and a kernel with an exchange behind it
ORDER = Order(
    ops=((0, 3, 1), (2, 4)),
    sends=((0.0, 1.0, 0.0), (0.0, 1.0)),
    positions=((0, 1, 3), (2, 4)),
)
BLOCK_OF = (0, 0, 1, 0, 1)
SLOWER = (0.5, 0.25, 0.0, 1.0, 0.5)  # of ops 0 to 4 beside copies
COPIES = 0.25  # of the copies beside exchanges
SECONDS = st.integers(0, 16).map(lambda n: n / 8)
GATHER = st.none() | SECONDS


_contended = compiled(contended)


def run(seconds: list[float], gather: list[float | None]) -> Contended:
    with x64():
        each = jnp.array(seconds)
        by_block = [sum(seconds[op] for op in ops) for ops in ORDER.ops]
        main = jnp.array([by_block[b] for b in BLOCK_OF])
        gathers = jnp.array([float(g is not None) for g in gather])
        copied = jnp.array([g or 0.0 for g in gather])
        found = _contended(ORDER, each, jnp.array(SLOWER), jnp.asarray(COPIES), main, copied, gathers)
        return jax.tree.map(np.asarray, found)


def walk(seconds: list[float], window: float, block: int) -> tuple[float, dict[int, float], float]:
    """One position in time: how long it takes while copies run for `window`, what each op takes more, and for how long
    an exchange runs beside copies."""
    now, more, sent = 0.0, {}, 0.0
    for op, sends in zip(ORDER.ops[block], ORDER.sends[block], strict=True):
        left, start = seconds[op], now
        inside = max(min(window - now, left * (1 + SLOWER[op])), 0.0)
        left -= inside / (1 + SLOWER[op])
        now += inside + left
        more[op] = now - start - seconds[op]
        sent += inside * sends
    return now, more, sent


@given(st.lists(SECONDS, min_size=5, max_size=5), st.lists(SECONDS, min_size=4, max_size=4))
def test_a_gather_at_every_position_is_the_walk(seconds: list[float], copies: list[float]) -> None:
    """Each position runs beside the gather of the next one from its start; the last beside none."""
    found = run(seconds, [0.0, *copies])
    slowed = dict.fromkeys(range(5), 0.0)
    for position, block in enumerate(BLOCK_OF):
        took, more, sent = walk(seconds, [*copies, 0.0][position], block)
        assert float(found.main[position]) == pytest.approx(took, abs=1e-12)
        for op, seconds_more in more.items():
            slowed[op] += seconds_more
        if position < 4:
            longer = copies[position] + sent * COPIES / (1 + COPIES)
            assert float(found.gather[position + 1]) == pytest.approx(longer, abs=1e-12)
    assert found.slowed.tolist() == pytest.approx(list(slowed.values()), abs=1e-12)


@given(st.lists(SECONDS, min_size=5, max_size=5), st.lists(GATHER, min_size=5, max_size=5))
def test_contention_never_saves_time_and_only_gathers_cost_any(
    seconds: list[float], gather: list[float | None]
) -> None:
    alone, found = run(seconds, [None] * 5), run(seconds, gather)
    assert (found.main >= alone.main - 1e-12).all()
    assert alone.slowed.sum() == 0.0
    assert float((found.main - alone.main).sum()) == pytest.approx(float(found.slowed.sum()), abs=1e-12)


def test_a_window_goes_on_behind_the_position_of_its_issue() -> None:
    """Issued at the second of three positions of 1 s without weights in between: 2.5 s last until half of the fourth,
    for a gather may be issued three positions ahead and not four."""
    with x64():
        found = windows(jnp.ones(5), jnp.array([0, 0, 0, 0, 2.5]), jnp.array([0.0, 0, 0, 0, 1]))
        assert found.tolist() == [0.0, 2.5, 1.5, 0.5, 0.0]
        found = windows(jnp.ones(4), jnp.array([0, 4.0, 0, 2.5]), jnp.array([0.0, 1, 0, 1]))
        assert found.tolist() == [4.0, 2.5, 1.5, 0.0]
