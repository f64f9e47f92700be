"""How long a machine takes: roofline with efficiency and waves for ops, alpha-beta over two fabrics for collectives.

Everything is written once over an `Arithmetic`, on whole arrays of ops, and differentiates by every input and by
every figure of the machine.
"""

from typing import Final, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hw.arithmetic import Arithmetic
from hw.compat import in_x64
from hw.machine import Machine
from hw.work import COLLECTIVES, FAMILIES, RATES, Collective, CollectiveKind, Work, sent_bytes

# Added to both operands of a maximum and taken off again: both may be 0, where a smoothed maximum has no slope.
_FLOOR: Final = 1e-15

_RINGS: Final = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)


class ComputeTerms(NamedTuple):
    """Seconds of each op: fixed part, and what memory and the tensor cores would take alone (waves included)."""

    latency: Float[Array, "ops"]
    memory: Float[Array, "ops"]
    compute: Float[Array, "ops"]


class CollectiveTerms(NamedTuple):
    """Seconds of each collective: fixed part, and what the scale-up link and the NIC would take alone."""

    latency: Float[Array, "collectives"]
    link: Float[Array, "collectives"]
    nic: Float[Array, "collectives"]


def compute_terms(ar: Arithmetic, machine: Machine, work: Work) -> ComputeTerms:
    """The three parts of an op's time, in seconds.

    A kernel of c CTAs on s SMs runs ceil(c / s) waves, each as long as a full one: its roofline time is stretched by
    ceil(c / s) x s / c, on a chip whose kernels run so (`split_waves`). Without CTAs (0) there is one wave that fits.
    """
    family = np.array([FAMILIES.index(f) for f in work.family], dtype=int)
    rate = np.array([RATES.index(r) for r in work.rate], dtype=int)
    curves = machine.curves
    load = jnp.where(work.ctas > 0, work.ctas, machine.sms) / machine.sms
    waves = ar.ceil(load)
    stretch = 1.0 + machine.split_waves * (waves / load - 1.0)
    present = jnp.where(work.flops + work.bytes > 0, 1.0, 0.0).astype(work.bytes.dtype)
    return ComputeTerms(
        latency=present * (curves.latency[family, rate] + curves.cta_latency[family, rate] * waves),
        memory=stretch * work.bytes / (machine.hbm_bandwidth * curves.bandwidth_efficiency[family, rate]),
        compute=stretch * work.flops / (machine.peak[rate] * curves.flops_efficiency[family, rate]),
    )


def compute_seconds(ar: Arithmetic, machine: Machine, work: Work) -> Float[Array, "ops"]:
    """Seconds of each op: launch and CTA latency, plus the slower of memory and tensor cores.

    An op without work (0 FLOPs, 0 bytes) costs nothing, not even its latency.
    """
    terms = compute_terms(ar, machine, work)
    return terms.latency + _slower(ar, terms.memory, terms.compute)


def collective_terms(machine: Machine, collective: Collective) -> CollectiveTerms:
    """The three parts of a collective's time, in seconds.

    Of a group of n ranks, m = clip(domain / stride, 1, n) sit in one scale-up domain. A ring sends all its bytes over
    the link of each rank, and where it leaves the domain its m rings share the m NICs. The exchanges (all-to-all,
    dispatch, combine, copy_gather) send (m - 1) / n of the payload over the link and (n - m) / n over the NIC. The
    fixed part is one alpha (copy_gather: one for each of its n - 1 copies), plus an alpha of the NIC for the share
    (n - m) / n of peers behind it. All of it fades to 0 as n goes to 1.
    """
    kind = np.array([COLLECTIVES.index(k) for k in collective.kind], dtype=int)
    ring = np.array([k in _RINGS for k in collective.kind])
    send = np.array([k is CollectiveKind.SEND for k in collective.kind])
    engine = _by_engine(collective)
    curves = machine.exchange
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
    return CollectiveTerms(
        latency=present * (curves.latency[kind] * launches + curves.nic_latency[kind] * outside),
        link=link / (machine.link_bandwidth * curves.link_efficiency[kind]),
        nic=nic / (machine.nic_bandwidth * curves.nic_efficiency[kind]),
    )


def collective_seconds(ar: Arithmetic, machine: Machine, collective: Collective) -> Float[Array, "collectives"]:
    """Seconds of each collective: its fixed part, plus the slower of link and NIC (their sum for sequential copies).

    A group of one rank and an empty payload cost nothing.
    """
    terms = collective_terms(machine, collective)
    together = _slower(ar, terms.link, terms.nic)
    return terms.latency + jnp.where(_by_engine(collective), terms.link + terms.nic, together)


@in_x64
def _inside(payload: Array, m: Array, n: Array) -> Array:
    return payload * (m - 1.0) / n


def _by_engine(collective: Collective) -> np.ndarray:
    return np.array([k is CollectiveKind.COPY_GATHER for k in collective.kind])


def _slower(ar: Arithmetic, a: Array, b: Array) -> Array:
    return ar.maximum(a + _FLOOR, b + _FLOOR) - _FLOOR
