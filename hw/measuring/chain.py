"""A bench as one program of several turns, each of which waits for the one before: how an op runs inside a step.

A launch from Python takes many times what a small kernel takes, and a step is one program; so is a chain.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from hw.measuring.bench import Bench, Turn, size_of

_LONG: Final = 6e-4  # seconds on the device beside which the launch of a program is short
_MOST_TURNS: Final = 64
_LEAST_TURNS: Final = 2
_ROOM: Final = 8 << 30  # bytes of arguments, and of results, that a chain may hold


@dataclass(frozen=True)
class Chain:
    """A compiled program of `turns` turns, and one that draws its arguments. `form`: which of the bench's it is, if
    there are several, and `errors` why those before it do not run here, a line each."""

    turns: int
    form: str | None
    errors: tuple[str, ...]
    draw: Callable[[jax.Array], Any]
    run: Callable[..., Any]


def turns_of(expected: float, result_bytes: int) -> int:
    """Turns of which one is expected to take so many seconds and leaves so many bytes: a power of two.

    Enough to hide the launch of the program, as few as the memory has room for.
    """
    wanted = 1 << math.ceil(math.log2(max(_LONG / expected, 1.0)))
    room = max(_ROOM // max(result_bytes, 1), 1)
    return max(_LEAST_TURNS, min(wanted, _MOST_TURNS, 1 << room.bit_length() - 1))


def own_sets(bench: Bench, turns: int, cache_bytes: float) -> int:
    """Of how many turns the own arguments differ: as many as leave none of them in a cache of so many bytes."""
    own = bench.own_bytes
    if not own:
        return 1
    uncached = math.ceil(4.0 * cache_bytes / own)
    return max(1, min(turns, max(uncached, 2), _ROOM // own))


def chained(bench: Bench, expected: float, cache_bytes: float, options: Mapping[str, Any]) -> Chain:
    """The bench compiled; `expected` seconds of a turn, `cache_bytes` of the device, `options` of XLA's compiler.

    May be called from several threads at once: the compiler lets go of Python's lock. Raises what the last form raises
    where none compiles.
    """
    errors: list[str] = []
    for form, turn in bench.forms:
        try:
            return _chain(bench, turn, form, errors, expected, cache_bytes, options)
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
    expected: float,
    cache_bytes: float,
    options: Mapping[str, Any],
) -> Chain:
    key = jax.eval_shape(lambda: jax.random.key(0, impl="rbg"))
    turn = jax.jit(turn)  # like turns are traced once
    left = jax.eval_shape(_turned(bench, turn, 1), *jax.eval_shape(_drawn(bench, 1), key))
    turns = turns_of(expected, size_of(left) // (bench.mesh.size if bench.mesh else 1))
    draw = _drawn(bench, own_sets(bench, turns, cache_bytes))
    drawing = draw.lower(key).compile()
    arguments = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        jax.eval_shape(draw, key), drawing.output_shardings,
    )  # fmt: skip
    compiled = _turned(bench, turn, turns).lower(*arguments).compile(compiler_options=dict(options))
    return Chain(turns, form, tuple(errors), drawing, compiled)


def _drawn(bench: Bench, sets: int) -> Any:
    """(held, own of each set), drawn by every rank for itself."""

    def draw(key: jax.Array) -> Any:
        first, *others = jax.random.split(key, 1 + sets)
        return bench.held(first), tuple(bench.own(other) for other in others)

    if bench.mesh is None:
        return jax.jit(draw)
    mesh = bench.mesh

    def by_rank(key: jax.Array) -> Any:
        mine = jax.random.fold_in(key, lax.axis_index(mesh.axis_names))
        return jax.tree.map(lambda leaf: leaf[None], draw(mine))

    spec = PartitionSpec(mesh.axis_names)
    mapped = jax.shard_map(by_rank, mesh=mesh, in_specs=PartitionSpec(), out_specs=spec, check_vma=False)
    return jax.jit(mapped, out_shardings=NamedSharding(mesh, spec))


def _turned(bench: Bench, turn: Turn, turns: int) -> Any:
    """All turns in a row, and what each left; of carried results the last."""

    def run(held: Any, owns: tuple[Any, ...]) -> list[Any]:
        left, own = [], owns[0]
        for i in range(turns):
            out = turn(held, own)
            # nothing of a turn may begin before the one before it has ended, nor be shared with it
            held, own, out = lax.optimization_barrier((held, owns[(i + 1) % len(owns)], out))
            held, left = (out, [out]) if bench.carried else (held, [*left, out])
        return left

    if bench.mesh is None:
        return jax.jit(run)
    spec = PartitionSpec(bench.mesh.axis_names)

    def by_rank(held: Any, owns: tuple[Any, ...]) -> list[Any]:
        left = run(*jax.tree.map(lambda leaf: leaf[0], (held, owns)))
        return jax.tree.map(lambda leaf: leaf[None], left)

    return jax.jit(jax.shard_map(by_rank, mesh=bench.mesh, in_specs=spec, out_specs=spec, check_vma=False))
