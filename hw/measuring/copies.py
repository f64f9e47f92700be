"""Copies inside one device's memory: what bandwidth there is, and what a small kernel takes at least."""

from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

from hw.measuring.bench import Bench, normal
from hw.units import GIB, KIB, MIB, format_bytes
from hw.work import Family, Rate, Work

# The bandwidth of a device is that of the best of these over at least a GiB.
_FORMS: Final = {"copy": jnp.copy, "add": lambda x: x + 1, "negate": lambda x: -x}
_LARGE: Final = 2 * GIB
_SIZES: Final = (64 * KIB, MIB, 8 * MIB, 64 * MIB, 512 * MIB)
_SMALL: Final = (16 * KIB, 64 * KIB, 256 * KIB, MIB)
_ROW: Final = 1024  # values


def benches(small: bool = False) -> list[Bench]:
    """Plain copies of small to large arrays, and large ones in every form."""
    sizes = _SMALL if small else _SIZES
    plain = [_moved("copy", Family.COPY, size) for size in sizes]
    largest = sizes[-1] if small else _LARGE
    return [*plain, *(_moved(name, Family.COPY if name == "copy" else Family.ELEMENTWISE, largest) for name in _FORMS)]


def _moved(form: str, family: Family, size: int) -> Bench:
    def turn(held: tuple[()], own: jax.Array) -> jax.Array:
        return _FORMS[form](own)

    return Bench(
        name=f"{form} of {format_bytes(size)}",
        asks=Work.of([family], [Rate.BF16], np.zeros(1), np.array([2.0 * size])),
        turn=turn,
        own=partial(normal, shape=(size // (2 * _ROW), _ROW)),
    )
