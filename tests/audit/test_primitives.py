"""The table of primitives against the JAX that is installed: what it adds must be given a meaning here."""

from types import ModuleType

from jax._src.lax import parallel
from jax.extend.core import Primitive
from jax.lax import linalg

from layouts.audit.primitives import EXCHANGES, OPAQUE, SILENT

# From one rank to all: the cost model has no such kind, and the count refuses it by name.
REFUSED = {"pbroadcast", "pbroadcast_start"}


def primitives(module: ModuleType) -> set[str]:
    found = (getattr(module, name) for name in dir(module) if name.endswith("_p"))
    return {primitive.name for primitive in found if isinstance(primitive, Primitive)}


def test_every_collective_of_jax_is_an_exchange_silent_or_refused():
    assert {"psum_invariant", "all_gather_reduced"} <= primitives(parallel)
    assert primitives(parallel) <= set(EXCHANGES) | SILENT | REFUSED
    assert not set(EXCHANGES) & SILENT and not REFUSED & (set(EXCHANGES) | SILENT)


def test_every_factorisation_of_jax_is_left_out():
    assert "triangular_solve" in primitives(linalg)
    assert primitives(linalg) <= OPAQUE | {"lu_pivots_to_permutation"}  # the last is bookkeeping
