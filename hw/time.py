"""How long a machine takes: roofline with efficiency and waves for ops, alpha-beta over two fabrics for collectives.

Everything is written once over an `Arithmetic`, on whole arrays of ops, and differentiates by every input and by
every figure of the machine.
"""

from typing import Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hw.arithmetic import Arithmetic
from hw.compat import in_x64
from hw.machine import CollectiveCurves, FamilyCurves, Machine
from hw.work import COLLECTIVES, FAMILIES, RATES, Collective, CollectiveKind, Work, sent_bytes

# Added to the parts of a sum of powers and taken off again: all may be 0, where it has no slope.
_FLOOR: Final = 1e-15
_OVERLAP: Final = 6  # exponent, whole so that it is cheap, with which link, NIC and rows of an exchange overlap
_KNEE: Final = 8  # and with which its protocols take over from one another

_TILE_COLUMNS: Final = 128  # of a grouped GEMM's weight, to a CTA
_LEAST_TILE: Final = 8  # rows

_RINGS: Final = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)


class ComputeTerms(NamedTuple):
    """Seconds of each op: its fixed part, and what memory, tensor cores, and the longest chain of dependent steps would
    take alone (waves and tiles included)."""

    latency: Float[Array, "ops"]
    memory: Float[Array, "ops"]
    compute: Float[Array, "ops"]
    chain: Float[Array, "ops"]


class CollectiveTerms(NamedTuple):
    """Seconds of each exchange: fixed part, and what the scale-up link, the NIC and the kernel's own rows would take
    alone. `link` holds the fixed parts of the protocol that is fastest."""

    latency: Float[Array, "collectives"]
    link: Float[Array, "collectives"]
    nic: Float[Array, "collectives"]
    chain: Float[Array, "collectives"]


def compute_terms(ar: Arithmetic, machine: Machine, work: Work) -> ComputeTerms:
    """The parts of an op's time, in seconds.

    Each of an op's launches takes `latency`. CTAs start one after the other on an SM (`cta_latency`), parts of a split
    KV are merged in a tree (`split_latency` a level), values that are gathered and summed around a kernel pass through
    HBM (`copy_bytes`), and dependent steps follow each other (`step_latency`, or the start of their CTAs where that
    takes longer). Where `waves` is 1, the tensor cores take whole waves of CTAs.
    """
    c, peak = _of_op(machine, work)
    tiles, padding = _tiles(ar, c, work)
    load = (work.ctas + tiles * work.columns / _TILE_COLUMNS) / machine.sms
    stretch = 1.0 + c.waves * jnp.where(load > 0, ar.ceil(load) / jnp.where(load > 0, load, 1.0) - 1.0, 0.0)
    present = jnp.where(work.flops + work.bytes > 0, 1.0, 0.0).astype(work.bytes.dtype)
    started = c.cta_latency * load
    alone = jnp.where(work.steps > 0, 0.0, started)
    merged = c.split_latency * jnp.log2(jnp.maximum(work.splits, 1.0))
    copied = c.copy_bytes * work.copied / machine.hbm_bandwidth
    return ComputeTerms(
        latency=present * (c.latency * work.launches + alone + merged + copied),
        memory=work.bytes / (machine.hbm_bandwidth * c.bandwidth_efficiency),
        compute=stretch * padding * work.flops / (peak * c.flops_efficiency),
        chain=work.steps * ar.maximum(c.step_latency, jnp.where(work.steps > 0, started, 0.0)),
    )


def compute_seconds(ar: Arithmetic, machine: Machine, work: Work) -> Float[Array, "ops"]:
    """Seconds of each op: its fixed part, and memory, tensor cores and chain beside each other.

    These overlap as well as `sharpness` says: (m^p + c^p + s^p)^(1/p), the longest of them as p grows, their sum at 1.
    An op without work (0 FLOPs, 0 bytes) costs nothing, not even its latency.
    """
    terms = compute_terms(ar, machine, work)
    together = _joined(jnp.stack(terms[1:]), _of_op(machine, work)[0].sharpness[None])
    return terms.latency + jnp.where(terms.memory + terms.compute > 0, together, 0.0)


def _of_op(machine: Machine, work: Work) -> tuple[FamilyCurves, Float[Array, "ops"]]:
    """The curve of each op's family and rate, and the peak of its rate."""
    family = np.array([FAMILIES.index(f) for f in work.family], dtype=int)
    rate = np.array([RATES.index(r) for r in work.rate], dtype=int)
    return jax.tree.map(lambda column: column[family, rate], machine.curves), machine.peak[rate]


def _tiles(ar: Arithmetic, c: FamilyCurves, work: Work) -> tuple[Array, Array]:
    """Row tiles of a grouped GEMM, and rows with the padding over rows.

    The tile is the power of two below the rows that the engine plans for, from 8 to `tile_rows`; a group of mean m
    rows fills m / tile + 1/2 of them. Without `tile_rows` a group is one tile and nothing is padded.
    """
    tiled = (c.tile_rows > 0) & (work.groups > 0)
    planned = jnp.log2(jnp.maximum(work.planned, 1.0))
    largest = jnp.log2(jnp.maximum(c.tile_rows, _LEAST_TILE))
    tile = 2.0 ** jnp.clip(ar.floor(planned), np.log2(_LEAST_TILE), largest)
    mean = work.rows / jnp.where(work.groups > 0, work.groups, 1.0)
    tiles = work.groups * jnp.where(tiled, jnp.maximum(1.0, mean / tile + 0.5), 1.0)
    padding = jnp.where(tiled, tiles * tile / jnp.where(work.rows > 0, work.rows, 1.0), 1.0)
    return tiles, padding


def collective_terms(ar: Arithmetic, machine: Machine, collective: Collective) -> CollectiveTerms:
    """The parts of a collective's time, in seconds.

    Of a group of n ranks, m = clip(domain / stride, 1, n) sit in one scale-up domain. A ring sends all its bytes over
    the link of each rank, and where it leaves the domain its m rings share the m NICs. The exchanges (all-to-all,
    dispatch, combine, copy_gather) send (m - 1) / n of the payload over the link and (n - m) / n over the NIC. The
    fixed part is one alpha (copy_gather: one for each of its n - 1 copies), a hop for each rank beyond two, plus an
    alpha of the NIC for the share (n - m) / n of peers behind it, for each message. All fades to 0 as n goes to 1.
    """
    kind = np.array([COLLECTIVES.index(k) for k in collective.kind], dtype=int)
    ring = np.array([k in _RINGS for k in collective.kind])
    send = np.array([k is CollectiveKind.SEND for k in collective.kind])
    engine = _by_engine(collective)
    c = jax.tree.map(lambda column: column[kind], machine.exchange)
    payload = collective.payload
    n = jnp.maximum(collective.size, 1.0)
    m = jnp.minimum(jnp.maximum(machine.domain / collective.stride, 1.0), n)
    sent = sent_bytes(collective.kind, payload, n)
    outside = (n - m) / n
    crosses = jnp.minimum(n / m - 1.0, 1.0)  # 0 or 1 in a valid layout

    link = jnp.where(
        ring, sent * jnp.minimum(m - 1.0, 1.0), jnp.where(send, sent * (1.0 - crosses), _inside(payload, m, n))
    )
    nic = jnp.where(ring, sent / m * crosses, jnp.where(send, sent * crosses, payload * outside))
    launches = jnp.where(engine | send, n - 1.0, jnp.minimum(jnp.log2(n), 1.0))
    present = jnp.where(payload > 0, 1.0, 0.0).astype(payload.dtype)
    rounds, working = _warps(ar, machine, collective)
    fixed = c.latency * launches + c.hop_latency * jnp.maximum(n - 2.0, 0.0) + c.nic_latency * outside
    return CollectiveTerms(
        latency=present * (fixed * collective.launches + c.round_latency * rounds * jnp.minimum(n - 1.0, 1.0)),
        link=_fastest(machine, c, collective, link, n),
        nic=nic / (machine.nic_bandwidth * c.nic_efficiency),
        chain=present * jnp.minimum(n - 1.0, 1.0) * c.row_latency * collective.rows / working,
    )


def collective_seconds(ar: Arithmetic, machine: Machine, collective: Collective) -> Float[Array, "collectives"]:
    """Seconds of each collective: its fixed part, plus the slowest of link, NIC and the kernel's rows, softly (for
    sequential copies the sum of link and NIC).

    A group of one rank and an empty payload cost nothing.
    """
    terms = collective_terms(ar, machine, collective)
    parts = jnp.stack(terms[1:])
    together = jnp.where(parts.sum(axis=0) > 0, _joined(parts, _OVERLAP), 0.0)
    return terms.latency + jnp.where(_by_engine(collective), terms.link + terms.nic, together)


def _fastest(machine: Machine, c: CollectiveCurves, collective: Collective, link: Array, n: Array) -> Array:
    """Seconds over the link by the protocol that is fastest, the fixed parts of that protocol included.

    At once (low latency, or one shot), in the middle (or two shots), in bulk. An all-reduce at once hands the whole
    buffer to every peer. The knee between two protocols is as soft as measured ones are.
    """
    reduces = np.array([k is CollectiveKind.ALL_REDUCE for k in collective.kind])
    copies_home = np.array([float(k in _RINGS or k is CollectiveKind.ALL_TO_ALL) for k in collective.kind])
    own = link + c.home * copies_home * jnp.where(reduces, 2.0, 1.0) * collective.payload / n * jnp.minimum(
        n - 1.0, 1.0
    )
    at_once = jnp.where(reduces, link * n / 2.0, link)  # of 2 (n - 1) / n of the buffer: n - 1 buffers
    bandwidth = machine.link_bandwidth
    bulk_start = c.middle_latency + c.bulk_latency
    filled = _joined(jnp.stack([c.fill_latency * (n - 1.0), own / (bandwidth * c.link_efficiency)]), _OVERLAP)
    paces = [
        c.direct_efficiency / (at_once / bandwidth + _FLOOR),
        c.middle_efficiency / (c.middle_efficiency * c.middle_latency + own / bandwidth + _FLOOR),
        1.0 / (bulk_start + filled + _FLOOR),
    ]
    most = jnp.maximum(jnp.maximum(paces[0], paces[1]), paces[2])
    seconds = 1.0 / (most * jnp.sum(jnp.stack([(p / most) ** _KNEE for p in paces]), axis=0) ** (1.0 / _KNEE))
    return jnp.where(link > 0, seconds, 0.0)


def _warps(ar: Arithmetic, machine: Machine, collective: Collective) -> tuple[Array, Array]:
    """Groups of warps that share an SM of a dispatch or combine, one an expert; and the SMs that work."""
    experts = collective.experts
    rounds = ar.ceil(experts / machine.sms)
    return rounds, jnp.where(experts > 0, ar.ceil(experts / jnp.maximum(rounds, 1.0)), 1.0)


@in_x64
def _inside(payload: Array, m: Array, n: Array) -> Array:
    return payload * (m - 1.0) / n


def _by_engine(collective: Collective) -> np.ndarray:
    return np.array([k is CollectiveKind.COPY_GATHER for k in collective.kind])


def _joined(parts: Float[Array, "parts ops"], sharpness: int | Float[Array, "1 ops"]) -> Float[Array, "ops"]:
    """(a^p + b^p + ...)^(1/p): the longest part as p grows, their sum at 1. All may be 0, where a root has no slope."""
    longest = jnp.max(parts, axis=0, keepdims=True) + _FLOOR
    powers = jnp.sum(((parts + _FLOOR) / longest) ** sharpness, axis=0, keepdims=True)
    return (longest * powers ** (1.0 / sharpness))[0] - _FLOOR
