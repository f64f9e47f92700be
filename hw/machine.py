"""A machine: datasheet figures and efficiency curves as differentiable leaves, with the source of each beside them."""

import difflib
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hw.compat import in_x64
from hw.curve_files import is_curve_file, read_curve_file
from hw.errors import MeshwrightError
from hw.figures import DataError, Figure, Provenance, chip_names, chip_of, over, read_chip, read_curves
from hw.work import COLLECTIVES, FAMILIES, RATES, CollectiveKind, Family, Rate

# What an entry of a curve file may say of a family, and what it is where nothing says more.
FAMILY_FIELDS: Final = {
    "bandwidth_efficiency": None,
    "flops_efficiency": None,
    "latency": None,
    "cta_latency": 0.0,
    "split_latency": 0.0,
    "step_latency": 0.0,
    "copy_bytes": 0.0,
    "tile_rows": 0.0,
    "waves": 0.0,
    "sharpness": 8.0,
    "contention": 0.0,
}
_PACES: Final = ("latency", "cta_latency", "split_latency", "step_latency", "copy_bytes")
# The same of an exchange.
COLLECTIVE_FIELDS: Final = {
    "link_efficiency": None,
    "nic_efficiency": None,
    "latency": None,
    "nic_latency": None,
    "hop_latency": 0.0,
    "home": 0.0,
    "direct_efficiency": 0.0,
    "middle_latency": 0.0,
    "middle_efficiency": 0.0,
    "bulk_latency": 0.0,
    "fill_latency": 0.0,
    "round_latency": 0.0,
    "row_latency": 0.0,
    "contention": 0.0,
}
CURVE_FIELDS: Final = {
    **{str(family): {**FAMILY_FIELDS, "spread": None} for family in FAMILIES},
    **{str(kind): {**COLLECTIVE_FIELDS, "spread": None} for kind in COLLECTIVES},
}
_EXCHANGE_PACES: Final = (
    *("latency", "nic_latency", "hop_latency", "middle_latency", "bulk_latency", "fill_latency"),
    *("round_latency", "row_latency"),
)
_REACHED: Final = ("link_efficiency", "nic_efficiency", "direct_efficiency", "middle_efficiency")
_BESIDE: Final = "contention"  # says nothing of the time of an op that runs alone
_SCALARS: Final = (
    *("sms", "memory_bytes", "start_bytes", "hbm_bandwidth"),
    *("link_bandwidth", "nic_bandwidth", "domain", "gpus_per_host"),
)


class FamilyCurves(eqx.Module):
    """How near to the datasheet each family comes (fractions), what it takes besides, and an 80 % half-width.

    Seconds: `latency` a launch, `cta_latency` a CTA on its SM, `split_latency` a level of the merge of a split KV,
    `step_latency` a dependent step. `copy_bytes`: through HBM for a value gathered or summed around the kernel.
    `tile_rows`: most rows of a tile (0: none is counted). `waves`: 1 where compute takes whole waves of CTAs.
    `sharpness`: exponent with which memory, compute and chain overlap. `hw.time.compute_seconds` has the formula.
    `contention`: by which fraction longer a kernel takes while copies between cards run (`explorer.schedule`).
    """

    bandwidth_efficiency: Float[Array, "families rates"]
    flops_efficiency: Float[Array, "families rates"]
    latency: Float[Array, "families rates"]
    cta_latency: Float[Array, "families rates"]
    split_latency: Float[Array, "families rates"]
    step_latency: Float[Array, "families rates"]
    copy_bytes: Float[Array, "families rates"]
    tile_rows: Float[Array, "families rates"]
    waves: Float[Array, "families rates"]
    sharpness: Float[Array, "families rates"]
    contention: Float[Array, "families rates"]
    spread: Float[Array, "families rates"]

    def scaled(self, sign: float) -> "FamilyCurves":
        """The curves at one end of the range: every time longer (+1) or shorter (-1) by the spread."""
        return _scaled(self, self.spread, sign, _PACES, ("bandwidth_efficiency", "flops_efficiency"))


class CollectiveCurves(eqx.Module):
    """The same for exchanges: `latency` is alpha between two ranks of a domain, `hop_latency` what each further one
    adds, `nic_latency` what leaving the domain adds.

    Three protocols, of which the fastest runs: `direct_efficiency` of the link's bandwidth at once; after
    `middle_latency` more `middle_efficiency`; after `bulk_latency` more `link_efficiency`, but `fill_latency` a rank at
    least. An efficiency of 0 is a protocol that there is not. `home`: how much the copy of a rank's own part weighs
    beside what it sends. `round_latency` an expert's warps that share an SM, `row_latency` a row on an SM.
    `hw.time.collective_seconds` has the formula.
    """

    link_efficiency: Float[Array, "kinds"]
    nic_efficiency: Float[Array, "kinds"]
    latency: Float[Array, "kinds"]
    nic_latency: Float[Array, "kinds"]
    hop_latency: Float[Array, "kinds"]
    home: Float[Array, "kinds"]
    direct_efficiency: Float[Array, "kinds"]
    middle_latency: Float[Array, "kinds"]
    middle_efficiency: Float[Array, "kinds"]
    bulk_latency: Float[Array, "kinds"]
    fill_latency: Float[Array, "kinds"]
    round_latency: Float[Array, "kinds"]
    row_latency: Float[Array, "kinds"]
    contention: Float[Array, "kinds"]
    spread: Float[Array, "kinds"]

    def scaled(self, sign: float) -> "CollectiveCurves":
        """As `FamilyCurves.scaled`."""
        return _scaled(self, self.spread, sign, _EXCHANGE_PACES, _REACHED)


Curves = TypeVar("Curves", FamilyCurves, CollectiveCurves)


def _scaled(curves: Curves, spread: Array, sign: float, paces: Sequence[str], reached: Sequence[str]) -> Curves:
    """Paces longer and what is reached less, or the other way round; nothing beyond the datasheet."""
    factor = 1.0 + spread if sign > 0 else 1.0 / (1.0 + spread)
    changed = {name: getattr(curves, name) * factor for name in paces}
    changed |= {name: jnp.minimum(getattr(curves, name) / factor, 1.0) for name in reached}
    return replace(curves, **changed, spread=jnp.zeros_like(spread))


@dataclass(frozen=True)
class Sources:
    """Figures by path, for reports. Equal for equal chips, so that it never causes a second compilation."""

    chip: str
    figures: Mapping[str, Figure] = field(compare=False, repr=False)


class Machine(eqx.Module):
    """GPUs of one kind and the fabric between them. Bytes, bytes/s, FLOP/s, seconds; bandwidths are one way, a GPU."""

    name: str = eqx.field(static=True)
    sources: Sources = eqx.field(static=True)
    sms: Float[Array, ""]
    memory_bytes: Float[Array, ""]
    start_bytes: Float[Array, ""]
    hbm_bandwidth: Float[Array, ""]
    peak: Float[Array, "rates"]
    link_bandwidth: Float[Array, ""]
    nic_bandwidth: Float[Array, ""]
    domain: Float[Array, ""]
    gpus_per_host: Float[Array, ""]
    curves: FamilyCurves
    exchange: CollectiveCurves

    @property
    @in_x64
    def free_bytes(self) -> Float[Array, ""]:
        """Memory of a GPU that is free once the driver and the context have taken theirs."""
        return self.memory_bytes - self.start_bytes

    def anonymous(self) -> "Machine":
        """The numbers alone: without name and sources, machines of all chips share compiled programs."""
        return replace(self, name="", sources=Sources("", {}))

    def slower(self) -> "Machine":
        """The machine at the slow end of the 80 % range of every curve."""
        return self._at(1.0)

    def faster(self) -> "Machine":
        """The machine at the fast end of the 80 % range, nowhere beyond the datasheet."""
        return self._at(-1.0)

    @in_x64
    def _at(self, sign: float) -> "Machine":
        ends = (self.curves.scaled(sign), self.exchange.scaled(sign))
        return eqx.tree_at(lambda m: (m.curves, m.exchange), self, ends)

    def figure(self, path: str) -> Figure:
        """The figure as loaded, e.g. `hbm_bandwidth`, `peak.fp8`, `gemm.latency.fp8`, `all_gather.spread`."""
        return _lookup(self.sources.figures, path, self.name)

    def family_provenance(self, family: Family, rate: Rate) -> Provenance:
        """The weakest provenance among the curve figures that price this family at this rate (a 0 prices nothing)."""
        names = [name for name in FAMILY_FIELDS if name != _BESIDE]
        figures = (_lookup(self.sources.figures, f"{family}.{what}.{rate}", self.name) for what in names)
        return _weakest(figure for figure in figures if figure.value)

    def collective_provenance(self, kind: CollectiveKind, crosses: bool = False) -> Provenance:
        """The same for an exchange; what only matters outside the domain counts where `crosses`."""
        names = [n for n in COLLECTIVE_FIELDS if n != _BESIDE and (crosses or not n.startswith("nic_"))]
        figures = (_lookup(self.sources.figures, f"{kind}.{name}", self.name) for name in names)
        return _weakest(figure for figure in figures if figure.value)


@in_x64
def load_machine(
    name: str, gpus_per_host: int | None = None, domain: int | None = None, curves: str | None = None
) -> Machine:
    """The machine of a chip's data files, in 64 bits; `curves` names others than the chip's own (`b200@article`).

    `gpus_per_host` and `domain` (GPUs of one scale-up domain) override the files; where the domain of the chip is its
    host, it follows an overridden host. Raises MeshwrightError for an unknown chip and for sizes that are no positive
    integers.
    """
    plain = all(size is None or type(size) is int for size in (gpus_per_host, domain))
    shipped = plain and name in chip_names() and (curves is None or "@" in curves)
    return (_load_once if shipped else _load)(name, gpus_per_host, domain, curves)


def _load(name: str, gpus_per_host: int | None, domain: int | None, curves: str | None) -> Machine:
    chip, reached = _data(name, curves)
    figures = {**chip, **reached}
    if gpus_per_host is not None:
        if domain is None and chip["domain"].value == chip["gpus_per_host"].value:
            domain = gpus_per_host
        figures["gpus_per_host"] = _override("gpus_per_host", gpus_per_host)
    if domain is not None:
        figures["domain"] = _override("domain", domain)

    def array(*paths: str) -> np.ndarray:
        return np.array([_lookup(figures, path, name).value for path in paths])

    def scalar(path: str) -> Array:
        return jax.device_put(array(path)[0])

    def by_rate(what: str) -> Array:
        return jax.device_put(np.stack([array(*(f"{family}.{what}.{rate}" for rate in RATES)) for family in FAMILIES]))

    def by_kind(what: str) -> Array:
        return jax.device_put(array(*(f"{kind}.{what}" for kind in COLLECTIVES)))

    return Machine(
        name=name,
        sources=Sources(curves or name, figures),
        **{what: scalar(what) for what in _SCALARS},
        peak=jax.device_put(array(*(f"peak.{rate}" for rate in RATES))),
        curves=FamilyCurves(
            **{what: by_rate(what) for what in (*FAMILY_FIELDS, "spread")},
        ),
        exchange=CollectiveCurves(**{what: by_kind(what) for what in (*COLLECTIVE_FIELDS, "spread")}),
    )


_load_once = functools.lru_cache(maxsize=64)(_load)  # what ships does not change while a program runs


def _data(name: str, curves: str | None) -> tuple[dict[str, Figure], dict[str, Figure]]:
    """Datasheet and curves of a chip, or those that a curve file of the user's inherits with the file's own on top."""
    known = chip_names()
    if name in known:
        return read_chip(name), read_curves(curves or name)
    if is_curve_file(name):
        inherits, own = read_curve_file(name, CURVE_FIELDS, RATES)
        return read_chip(chip_of(inherits)), over(read_curves(curves or inherits), own)
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.0)
    raise MeshwrightError(f"unknown hardware {name!r}: nearest is {near[0]!r}; known are {', '.join(known)}")


def _lookup(figures: Mapping[str, Figure], path: str, name: str) -> Figure:
    """A figure by path; one that is not given by rate holds for every rate."""
    figure = figures.get(path) or figures.get(path.rsplit(".", 1)[0])
    if figure is None and (default := _default(path)) is not None:
        return Figure(default, "", "not counted", Provenance.ASSUMED)
    if figure is None:
        raise DataError(f"{name}: no figure {path!r}; known are {', '.join(sorted(figures))}")
    return figure


def _default(path: str) -> float | None:
    """What a curve's field is where no file states it."""
    owner, _, what = path.partition(".")
    return (COLLECTIVE_FIELDS if owner in COLLECTIVES else FAMILY_FIELDS).get(what.partition(".")[0])


def _override(what: str, value: int) -> Figure:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise MeshwrightError(f"{what}={value!r}: must be a positive integer number of GPUs, such as 8")
    return Figure(float(value), "GPUs", "given with the request", Provenance.DATASHEET)


def _weakest(figures: Iterable[Figure]) -> Provenance:
    order = list(Provenance)
    return max((figure.provenance for figure in figures), key=order.index)
