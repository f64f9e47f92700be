"""Which figures of the engine are free, where they start and how firmly, and what each is fitted to."""

from dataclasses import dataclass
from typing import Final

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from hw.machine import Machine
from hw.work import COLLECTIVES, FAMILIES, RATES, CollectiveKind, Family, Rate


@dataclass(frozen=True)
class Free:
    """One number to be fitted: the factor on the figures `paths` (`owner.field` or `owner.field.rate`), which all start
    at the machine's own value or at `start`. `loose`: standard deviation of the factor's logarithm in the prior."""

    paths: tuple[str, ...]
    claims: str
    why: str
    loose: float
    start: float | None = None


def _both(field: str) -> tuple[str, ...]:
    return f"dispatch.{field}", f"combine.{field}"


_RINGS: Final = ("reduce_scatter", "all_gather")
_LINKS: Final = (*_RINGS, "all_reduce", "all_to_all")

# Kernels that read weights; they come near to the memory's bandwidth, and so lose what copies take of it.
_READERS: Final = ("gemm", "gemm_heads", "grouped_gemm_packed")
_HOSTS: Final = "80 rows and 10 rows a rank over two hosts"

FREE: Final = (
    Free(("gemm.bandwidth_efficiency.fp8",), "S23", "264 MB of weights", 0.1),
    Free(("gemm.latency.fp8",), "S23", "the product alone: the table's rows are quantised in the same figure", 0.3),
    Free(("gemm.flops_efficiency.fp8",), "S23", "640 rows on an eighth of the weights", 0.3),
    Free(tuple(f"{f}.contention" for f in _READERS), "S23, S31 and M10 (given)", "in DP16 and in DP2", 2.0, 0.2),
    Free(("grouped_gemm_packed.bandwidth_efficiency.fp8",), "S31 and M10 (given)", "w13 and w2 of 56 experts", 0.1),
    Free(("grouped_gemm_packed.latency.fp8",), "S31 and M10 (given)", "w2 against half of w13", 0.5),
    Free(("attention.contention.fp8",), "S15 to S17", "one wave wholly beside copies, two for a half", 1.0),
    Free(("attention.sharpness.fp8",), "S15 to S17", "two waves take twice one: memory hides behind arithmetic", 1.0),
    Free(("attention.cta_latency.fp8",), "S15 to S17", "nine waves of short CTAs against one and two of long", 1.0),
    Free(("attention.flops_efficiency.fp8",), "S15 to S17", "one CTA over 100k tokens", 0.5),
    Free(("state.copy_bytes",), "S21 (DP16) and M14", "the verify kernel and the states that it leaves behind", 0.5),
    Free(("state.contention",), "M14", "181.2 us beside copies, 174.6 alone", 1.0),
    Free(
        tuple(f"{kind}.latency" for kind in _RINGS), "S26", "54 us where no copies run: ranks wait for each other", 1.0
    ),
    Free(
        tuple(f"{kind}.contention" for kind in _LINKS), "S26", "86 us inside the window of a gather, 54 behind it", 1.0
    ),
    Free(_both("latency"), "S30 and S04", _HOSTS, 0.5),
    Free(_both("round_latency"), "S30 and S04", "896 experts, where the table has 384 at most", 2.0),
    Free(_both("nic_latency"), "S30 and S04", _HOSTS, 1.0),
    Free(_both("nic_efficiency"), "S30 and S04", _HOSTS, 1.0),
    Free(("copy_gather.link_efficiency",), "S34 and S37", "copies of 22.9 and of 78.4 MB", 0.3),
    Free(("copy_gather.latency",), "S34 and S37", "the same; 3 us of it are the gap after a copy", 0.3),
    Free(("copy_gather.contention",), "M13", "copies beside exchanges and alone", 1.0),
    Free(("elementwise.latency",), "S03 and S04", "what kernels take that the model does not list, a kernel", 1.0),
)
# Figures that a row shows and no slope can find.
SET: Final = {"attention.waves.fp8": (1.0, "S15 and S17: 160 CTAs take twice what 80 take")}


def value(machine: Machine, path: str) -> Float[Array, ""]:
    """The figure of a path."""
    return jnp.ravel(_where(path)(machine)[_index(path)])[0]


def tuned(machine: Machine, values: dict[str, Array]) -> Machine:
    """The machine with other figures at some paths."""
    for path, new in values.items():
        where = _where(path)
        machine = eqx.tree_at(where, machine, where(machine).at[_index(path)].set(new))
    return machine


def values_at(machine: Machine, theta: Float[Array, " free"]) -> dict[str, Array]:
    """The figure at each path for the free numbers, and those that are set."""
    fitted = {
        path: _moved(path, value(machine, path) if free.start is None else jnp.asarray(free.start), t)
        for free, t in zip(FREE, theta, strict=True)
        for path in free.paths
    }
    return {**fitted, **{path: jnp.asarray(number) for path, (number, _) in SET.items()}}


def _moved(path: str, start: Array, by: Array) -> Array:
    """A figure times a factor. Nothing reaches more than all of a datasheet, or overlaps less than not at all."""
    moved, what = start * jnp.exp(by), path.split(".")[1]
    if what.endswith("_efficiency"):
        return jnp.minimum(moved, 1.0)
    return jnp.maximum(moved, 1.0) if what == "sharpness" else moved


def _where(path: str):
    owner, field = path.split(".")[:2]
    if owner in COLLECTIVES:
        return lambda machine: getattr(machine.exchange, field)
    return lambda machine: getattr(machine.curves, field)


def _index(path: str) -> tuple[int | slice, ...]:
    owner, _, *rate = path.split(".")
    if owner in COLLECTIVES:
        return (COLLECTIVES.index(CollectiveKind(owner)),)
    # a figure without a rate is of every rate; all of them start alike
    return (FAMILIES.index(Family(owner)), RATES.index(Rate(rate[0])) if rate else slice(None))
