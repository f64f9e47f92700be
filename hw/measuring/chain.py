"""A bench as one program of several turns, each of which waits for the one before: how an op runs inside a step.

The host takes longer to launch a small kernel than the device to run it. In a step the device is behind, at work on
some large kernel, and what a small one costs is its time there; so a chain begins with a pause, a large pass over
memory whose own time is taken off again.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hw.errors import MeshwrightError
from hw.measuring.bench import Bench, Turn, normal, size_of
from hw.measuring.clock import median_difference

_LONG: Final = 2.5e-4  # seconds of all turns together beside which the pause's own unsteadiness is small
_MOST_TURNS: Final = 24
_LEAST_TURNS: Final = 2
_ROOM: Final = 8 << 30  # bytes of arguments, and of results, that a chain may hold
_ROW: Final = 1024
_KEY: Final = "rbg"  # the generator that compiles fastest


class TooShortError(MeshwrightError):
    """What was timed cannot be told from how unsteady the clock is."""


@dataclass(frozen=True)
class Place:
    """Where chains run: a device, or the ranks of a mesh, with a pause of `pause_bytes` through memory before each."""

    device: Any
    mesh: Mesh | None
    pause_bytes: int

    def on_ranks(self, body: Callable[..., Any]) -> Any:
        """A function of what one rank holds, compiled for all of them; each argument has a leading axis of ranks."""
        if self.mesh is None:
            return jax.jit(body)
        spec = PartitionSpec(self.mesh.axis_names)

        def by_rank(*given: Any) -> Any:
            return jax.tree.map(lambda leaf: leaf[None], body(*jax.tree.map(lambda leaf: leaf[0], given)))

        return jax.jit(jax.shard_map(by_rank, mesh=self.mesh, in_specs=spec, out_specs=spec, check_vma=False))

    def drawn(self, draw: Callable[[jax.Array], Any]) -> Any:
        """A function that draws arrays from a key, by every rank for itself."""
        if self.mesh is None:
            return jax.jit(draw)
        names, spec = self.mesh.axis_names, PartitionSpec(self.mesh.axis_names)

        def by_rank(key: jax.Array) -> Any:
            return jax.tree.map(lambda leaf: leaf[None], draw(jax.random.fold_in(key, lax.axis_index(names))))

        mapped = jax.shard_map(by_rank, mesh=self.mesh, in_specs=PartitionSpec(), out_specs=spec, check_vma=False)
        return jax.jit(mapped, out_shardings=NamedSharding(self.mesh, spec))

    def pause(self, key: jax.Array) -> jax.Array:
        """What a pause reads."""
        return normal(key, (max(self.pause_bytes // (4 * _ROW), 1), _ROW))


@dataclass(frozen=True)
class Chain:
    """Compiled programs: one draws arguments, one runs a pause and `turns` turns, one a pause alone.

    `pauses`: whether there is a pause to speak of. `form`: which of the bench's it is, if there are several, and
    `errors` why those before it do not run here, a line each.
    """

    turns: int
    pauses: bool
    form: str | None
    errors: tuple[str, ...]
    draw: Callable[[jax.Array], Any]
    run: Callable[..., Any]
    rest: Callable[..., Any]

    def seconds(self) -> float:
        """Median seconds of a turn. TooShortError where the turns cannot be told from what the pause varies by; where
        there is no pause, they are then counted with what a launch takes."""
        paused, held, owns = self.draw(jax.random.key(0, impl=_KEY))
        found = median_difference(lambda: self.run(paused, held, owns), lambda: self.rest(paused, held))
        if found.longer > found.noise:
            return found.longer / self.turns
        if not self.pauses:
            return found.whole / self.turns
        raise TooShortError(
            f"{self.turns} turns take {found.longer:.1e} s, and the pause before them is as steady as {found.noise:.1e}"
            " s: see that nothing else runs on the devices"
        )


def turns_of(expected: float, result_bytes: int) -> int:
    """Turns of which one is expected to take so many seconds and leaves so many bytes: as few as tell its time."""
    room = max(_ROOM // max(result_bytes, 1), 1)
    return max(_LEAST_TURNS, min(math.ceil(_LONG / expected), _MOST_TURNS, room))


def own_sets(own_bytes: int, turns: int, cache_bytes: float) -> int:
    """Of how many turns the own arguments differ: as many as leave none of them in a cache of so many bytes."""
    if not own_bytes:
        return 1
    uncached = math.ceil(4.0 * cache_bytes / own_bytes)
    return max(1, min(turns, max(uncached, 2), _ROOM // own_bytes))


def chained(bench: Bench, place: Place, expected: float, cache_bytes: float, options: Mapping[str, Any]) -> Chain:
    """The bench compiled; `expected` seconds of a turn, `cache_bytes` of the device, `options` of XLA's compiler.

    May be called from several threads at once: the compiler lets go of Python's lock. Raises what the last form raises
    where none compiles.
    """
    errors: list[str] = []
    for form, turn in bench.forms:
        try:
            with jax.default_device(place.device):
                return _chain(bench, turn, form, errors, place, expected, cache_bytes, options)
        except Exception as error:  # whatever a compiler raises: the next form is tried, and the reason kept
            if form == bench.forms[-1][0]:
                raise
            errors.append(f"{form}: {(str(error).splitlines() or [type(error).__name__])[0]}")
    raise AssertionError("a bench has at least one form")


def _chain(
    bench: Bench,
    turn: Turn,
    form: str | None,
    errors: Sequence[str],
    place: Place,
    expected: float,
    cache_bytes: float,
    options: Mapping[str, Any],
) -> Chain:
    key = jax.eval_shape(lambda: jax.random.key(0, impl=_KEY))
    turn = jax.jit(turn)  # like turns are traced once
    one = place.on_ranks(lambda held, owns: turn(held, owns[0]))
    ranks = 1 if place.mesh is None else place.mesh.size
    left = size_of(jax.eval_shape(one, *jax.eval_shape(_drawn(bench, place, 1), key)[1:])) // ranks
    turns = turns_of(expected, left)
    draw = _drawn(bench, place, own_sets(bench.own_bytes, turns, cache_bytes))
    drawing = draw.lower(key).compile()
    arguments = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        jax.eval_shape(draw, key), drawing.output_shardings,
    )  # fmt: skip
    run = place.on_ranks(lambda paused, held, owns: _turns(bench, turn, turns, paused, held, owns))
    rest = place.on_ranks(lambda paused, held: _values([lax.optimization_barrier(_begun(bench, paused, held))]))
    compiled = [
        program.lower(*given).compile(compiler_options=dict(options))
        for program, given in ((run, arguments), (rest, arguments[:2]))
    ]
    return Chain(turns, place.pause_bytes > 0, form, tuple(errors), drawing, *compiled)


def _drawn(bench: Bench, place: Place, sets: int) -> Any:
    """What a pause reads, held, and own of each set."""

    def draw(key: jax.Array) -> Any:
        first, second, third = jax.random.split(key, 3)
        # one by one, in a loop: many draws side by side take a compiler longer than all that is timed
        owns = lax.map(bench.own, jax.random.split(third, sets))
        each = tuple(jax.tree.map(operator.itemgetter(i), owns) for i in range(sets))
        return place.pause(first), bench.held(second), each

    return place.drawn(draw)


def _turns(bench: Bench, turn: Turn, turns: int, paused: Any, held: Any, owns: tuple[Any, ...]) -> jax.Array:
    """All turns in a row, behind a pause."""
    before, held = _begun(bench, paused, held)
    before, held, own = lax.optimization_barrier((before, held, owns[0]))
    left = []
    for i in range(turns):
        out = turn(held, own)
        # nothing of a turn may begin before the one before it has ended, nor be shared with it
        held = out if bench.carried else held
        held, own, out = lax.optimization_barrier((held, owns[(i + 1) % len(owns)], out))
        left = [out] if bench.carried else [*left, out]
    return _values([before, *left])


def _begun(bench: Bench, paused: jax.Array, held: Any) -> tuple[jax.Array, Any]:
    """What the pause left, and what the first turn holds: where turns write in place, a copy of their own."""
    own = jax.tree.map(lambda leaf: jnp.roll(leaf, 1, axis=0), held) if bench.carried else held
    return -paused, own


def _values(results: list[Any]) -> jax.Array:
    """One value of each, so that none can be left out: whole ones would be buffers to allocate at every launch."""
    return jnp.stack([leaf.reshape(-1)[0].astype(jnp.float32) for leaf in jax.tree.leaves(results)])
