"""Exchanges between the devices of a process, as XLA makes them, over groups of every size that there is."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh

from hw.compat import automatic_mesh
from hw.measuring.bench import Bench, normal
from hw.units import KIB, MIB, format_bytes
from hw.work import Collective, CollectiveKind

_PAYLOADS: Final = (KIB, 64 * KIB, 512 * KIB, 2 * MIB, 8 * MIB, 32 * MIB, 256 * MIB)
_SMALL: Final = (KIB, 16 * KIB, 64 * KIB, 256 * KIB)
_GROUP: Final = "group"
_WIDTH: Final = 128  # values of a row
_BF16: Final = 2


def benches(devices: Sequence[Any], small: bool = False) -> list[Bench]:
    """Every kind at every payload, in bytes as `hw.work.Collective` counts them by kind, over groups of every size."""
    payloads = _SMALL if small else _PAYLOADS
    meshes = _groups_of(devices).values()
    return [_exchange(kind, mesh, payload) for mesh in meshes for kind in _TURNS for payload in payloads]


def _groups_of(devices: Sequence[Any]) -> dict[int, Mesh]:
    """A mesh for each group size: the powers of two below all devices, and all of them. Groups of neighbours work side
    by side, as many as there are; devices that are too few for a further one are idle."""
    count = len(devices)
    sizes = [*(1 << i for i in range(1, count.bit_length()) if 1 << i < count), *([count] if count > 1 else [])]
    groups = {n: np.array(devices)[: count // n * n].reshape(-1, n) for n in sizes}
    return {n: automatic_mesh(of, ("groups", _GROUP)) for n, of in groups.items()}


def _exchange(kind: CollectiveKind, mesh: Mesh, payload: int) -> Bench:
    ranks = mesh.shape[_GROUP]
    each = max(payload // (_WIDTH * _BF16 * ranks), 1)
    rows = each if kind is CollectiveKind.ALL_GATHER else each * ranks
    return Bench(
        name=f"{kind} of {format_bytes(payload)} over {ranks}",
        asks=Collective.of([kind], np.array([float(each * ranks * _WIDTH * _BF16)]), np.array([float(ranks)])),
        turn=partial(_turn, kind, ranks),
        held=partial(normal, shape=(rows, _WIDTH)),
        mesh=mesh,
        carried=kind is CollectiveKind.ALL_REDUCE,  # in place, as where its operand is not needed again
    )


def _turn(kind: CollectiveKind, ranks: int, held: jax.Array, own: tuple[()]) -> jax.Array:
    return _TURNS[kind](held, ranks)


_TURNS: Final[dict[CollectiveKind, Callable[[jax.Array, int], jax.Array]]] = {
    CollectiveKind.ALL_GATHER: lambda x, n: lax.all_gather(x, _GROUP, tiled=True),
    CollectiveKind.REDUCE_SCATTER: lambda x, n: lax.psum_scatter(x, _GROUP, tiled=True),
    CollectiveKind.ALL_REDUCE: lambda x, n: lax.psum(x, _GROUP),
    CollectiveKind.ALL_TO_ALL: lambda x, n: lax.all_to_all(x, _GROUP, 0, 0, tiled=True),
    CollectiveKind.SEND: lambda x, n: lax.ppermute(x, _GROUP, [(i, (i + 1) % n) for i in range(n)]),
}
