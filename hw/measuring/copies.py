"""Copies inside one device's memory: what bandwidth there is, and what a small one takes at least."""

from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from hw.measuring.bench import Bench, normal
from hw.measuring.clock import median_seconds
from hw.units import GIB, KIB, MIB, format_bytes
from hw.work import Family, Rate, Work

# The bandwidth of a device is that of the best of these over at least a GiB.
_FORMS: Final = {"copy": jnp.copy, "add": lambda x: x + 1, "negate": lambda x: -x}
_LARGE: Final = 2 * GIB
_SIZES: Final = (64 * KIB, 512 * KIB, 4 * MIB, 32 * MIB, 256 * MIB)
_SMALL: Final = (16 * KIB, 64 * KIB, 256 * KIB, MIB)
_ROW: Final = 1024  # values


def bandwidths(device: Any, small: bool = False) -> dict[str, float]:
    """Bytes read plus written a second of large copies, by form."""
    shape = ((MIB if small else _LARGE) // (2 * _ROW), _ROW)
    with jax.default_device(device):
        source = jax.jit(partial(normal, shape=shape))(jax.random.key(0))
        seconds = {name: median_seconds(partial(jax.jit(form), source)) for name, form in _FORMS.items()}
    return {name: 2 * source.nbytes / taken for name, taken in seconds.items()}


def benches(small: bool = False) -> list[Bench]:
    """Copies that a kernel makes, of small to large arrays."""
    return [_copied(size) for size in (_SMALL if small else _SIZES)]


def _copied(size: int) -> Bench:
    def turn(held: tuple[()], own: jax.Array) -> jax.Array:
        return -own  # a plain copy would be left out

    return Bench(
        name=f"copy of {format_bytes(size)}",
        asks=Work.of([Family.COPY], [Rate.BF16], np.zeros(1), np.array([2.0 * size])),
        turn=turn,
        own=partial(normal, shape=(size // (2 * _ROW), _ROW)),
    )
