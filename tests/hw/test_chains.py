"""What a chain runs: every turn once, in order, on its own arguments, and inside of the ranks of a mesh."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hw.measuring import Bench, Place, chained, exchanges
from hw.measuring.bench import size_of
from hw.measuring.chain import own_sets, turns_of
from hw.work import CollectiveKind, Family, Rate, Work, sent_bytes

WORK = Work.of([Family.ELEMENTWISE], [Rate.BF16], np.zeros(1), np.ones(1))
HERE = Place(jax.devices()[0], None, 0)


def ran(bench: Bench, expected: float = 2.5e-5) -> tuple[Any, np.ndarray, Any]:
    """A chain, what its program returns, and its arguments."""
    chain = chained(bench, HERE, expected, 1e3, {})
    arguments = chain.draw(jax.random.key(0, impl="rbg"))
    return chain, np.asarray(chain.run(*arguments)), arguments


def drawn(key: jax.Array) -> jax.Array:
    return jax.random.uniform(key, (8,))


@pytest.mark.smoke
def test_a_turn_has_arguments_of_its_own_and_shared_ones() -> None:
    """Values returned: that of the pause, then of each turn held[0] + own[0], own arguments in turn."""
    bench = Bench("one", WORK, lambda held, own: held + own, held=drawn, own=drawn)
    chain, values, (_, held, owns) = ran(bench)
    assert (chain.turns, len(owns)) == (10, 10)
    np.testing.assert_allclose(values[1:], [held[0] + own[0] for own in owns], rtol=1e-6)
    assert len({float(own[0]) for own in owns}) == 10


def test_a_carried_result_is_what_the_next_turn_holds() -> None:
    """held is doubled in each of 5 turns; only the last is seen, of a copy turned by one place."""
    bench = Bench("one", WORK, lambda held, own: held * 2.0, held=drawn, carried=True)
    chain, values, (_, held, _) = ran(bench, 5e-5)
    assert chain.turns == 5
    np.testing.assert_allclose(values[1:], [held[-1] * 2.0**5], rtol=1e-6)


def test_as_few_turns_as_tell_the_time() -> None:
    assert turns_of(1e-6, 0) == 24
    assert turns_of(2.5e-5, 0) == 10
    assert turns_of(1.0, 0) == 2
    assert turns_of(1e-5, 1 << 30) == 8  # results of a GiB
    assert turns_of(1e-5, 1 << 40) == 2


def test_own_arguments_leave_the_cache() -> None:
    assert own_sets(0, 24, 5e7) == 1
    assert own_sets(1 << 20, 24, 5e7) == 24
    assert own_sets(1 << 26, 24, 5e7) == 3  # 3 x 64 MiB are four caches of 50 MB
    assert own_sets(1 << 30, 24, 5e7) == 2
    assert own_sets(1 << 34, 24, 5e7) == 1  # nothing else would fit


@pytest.mark.parametrize("ranks", [2, 4])
def test_an_exchange_is_of_the_payload_that_it_says(ranks: int) -> None:
    """Bytes held before and after, by what `hw.work.Collective` counts as the payload of each kind."""
    for bench in exchanges.benches(jax.devices()[:4], small=True):
        asks: Any = bench.asks
        kind, payload = asks.kind[0], float(asks.payload[0])
        if float(asks.size[0]) != ranks:
            continue
        held = size_of(jax.eval_shape(bench.held, jax.random.key(0)))
        assert held == payload / (ranks if kind is CollectiveKind.ALL_GATHER else 1), bench.name
        assert float(sent_bytes(kind, payload, ranks)) <= 2 * payload


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send"])
def test_an_exchange_does_what_it_says(kind: str) -> None:
    """One turn over 2 groups of 2 of 4 devices: the first value on each rank, from the ranks' own by hand."""
    (bench,) = (b for b in exchanges.benches(jax.devices()[:4], small=True) if b.name == f"{kind} of 1.00 KiB over 2")
    assert bench.mesh is not None and callable(bench.turn)
    place, turn = Place(jax.devices()[0], bench.mesh, 0), bench.turn
    held = jnp.arange(4.0)[:, None, None] + jnp.zeros((4, 4, 128))  # rank r holds r
    held = held.at[:, 2:].add(10.0)
    found = np.asarray(place.on_ranks(lambda x: turn(x, ()))(held))
    first = {
        "all_gather": [0.0, 0.0, 2.0, 2.0],
        "reduce_scatter": [1.0, 21.0, 5.0, 25.0],
        "all_reduce": [1.0, 1.0, 5.0, 5.0],
        "all_to_all": [0.0, 10.0, 2.0, 12.0],
        "send": [1.0, 0.0, 3.0, 2.0],
    }
    np.testing.assert_array_equal(found[:, 0, 0], first[kind])
    assert found.shape[1] == {"all_gather": 8, "reduce_scatter": 2}.get(kind, 4)


def test_seconds_of_a_turn_do_not_count_the_pause() -> None:
    """A pause of 64 MB takes milliseconds on a CPU, a turn over eight values microseconds."""
    bench = Bench("one", WORK, lambda held, own: jnp.sin(held), held=drawn)
    chain = chained(bench, Place(jax.devices()[0], None, 1 << 26), 1e-5, 1e3, {})
    paused = chain.draw(jax.random.key(0, impl="rbg"))[0]
    assert paused.nbytes == 1 << 25  # read, and written once more
    assert chain.seconds() < 1e-3
