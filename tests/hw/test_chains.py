"""What a chain runs: every turn once, in order, on its own arguments, and inside of the ranks of a mesh."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hw.measuring import Bench, Chain, Place, chained, clock, exchanges
from hw.measuring.bench import size_of
from hw.measuring.chain import TooShortError, own_sets, turns_of
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


def ancestors(jaxpr: Any, of: Sequence[Any]) -> set[int]:
    """The equations that values come from, by place."""
    wanted, found = set(of), set()
    for i in reversed(range(len(jaxpr.eqns))):
        if wanted & set(jaxpr.eqns[i].outvars):
            found.add(i)
            wanted |= {v for v in jaxpr.eqns[i].invars if not hasattr(v, "val")}
    return found


@pytest.mark.parametrize("carried", [False, True])
def test_a_turn_waits_for_the_one_before(carried: bool) -> None:
    """In the program as it is traced: whatever a turn reads, its own arguments too, is handed on by a barrier that has
    what the turn before left, and the first turn waits for the pause."""
    bodies: list[Any] = []

    @dataclass(frozen=True)
    class Seen(Place):
        def on_ranks(self, body: Any) -> Any:
            bodies.append(body)
            return super().on_ranks(body)

    bench = Bench("one", WORK, lambda held, own: jnp.sin(held) * own, held=drawn, own=drawn, carried=carried)
    chain = chained(bench, Seen(jax.devices()[0], None, 0), 6e-5, 1e3, {})
    arguments = chain.draw(jax.random.key(0, impl="rbg"))
    traced = jax.make_jaxpr(bodies[1])(*arguments).jaxpr
    turns = [i for i, e in enumerate(traced.eqns) if "sin" in str(e.params.get("jaxpr"))]
    assert len(turns) == chain.turns == 5
    (pause,) = (i for i, e in enumerate(traced.eqns) if e.primitive.name == "neg")
    for before, turn in zip([pause, *turns[:-1]], turns, strict=True):
        for read in traced.eqns[turn].invars:
            assert before in ancestors(traced, [read])


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


class Paced:
    """A device on which a launch takes 10 us, a pause 5 ms and up to so much more as it is unsteady, and a turn as long
    as it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, unsteady: float):
        self.now, self.unsteady, self.random = 0.0, unsteady, np.random.default_rng(0)
        monkeypatch.setattr(clock, "time", self)

    def perf_counter(self) -> float:
        return self.now

    def chain(self, turn: float, pauses: bool = True) -> Chain:
        def call(turns: int) -> Any:
            def run(*given: Any) -> tuple[()]:
                self.now += 1e-5 + (5e-3 + self.unsteady * self.random.random()) * pauses + turns * turn
                return ()

            return run

        return Chain(10, pauses, None, (), lambda key: ((), (), ()), call(10), call(0))


def test_seconds_of_a_turn_do_not_count_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Paced(monkeypatch, 0.0).chain(2e-5).seconds() == pytest.approx(2e-5)
    assert Paced(monkeypatch, 2e-5).chain(2e-6).seconds() == pytest.approx(2e-6, rel=0.1)
    place = Place(jax.devices()[0], None, 1 << 12)
    bench = Bench("one", WORK, lambda held, own: held, held=drawn)
    chain = chained(bench, place, 1e-4, 1e3, {})
    assert chain.pauses and not ran(bench)[0].pauses
    assert chain.draw(jax.random.key(0, impl="rbg"))[0].nbytes == 1 << 11  # read, and written once more


def test_a_row_that_a_pause_hides_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten turns of 0.2 us seem to take 1.4 us, which cannot be told from a pause that varies by 20 us."""
    says = r"^10 turns take 1\.4e-06 s, and the pause before them is as steady as 2\.9e-06 s: "
    with pytest.raises(TooShortError, match=says):
        Paced(monkeypatch, 2e-5).chain(2e-7).seconds()
    # without a pause what is hidden is a launch, which such rows count
    assert Paced(monkeypatch, 0.0).chain(0.0, pauses=False).seconds() == pytest.approx(1e-6)
