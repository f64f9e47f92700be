"""Layouts between the valid ones: parameters without bounds, mapped so that every product comes out by construction."""

import math
from typing import Final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from explorer.evaluate import Case
from explorer.request import MOST_REQUESTS, Request
from explorer.residents.budget import LEAST_FRACTION, MOST_FRACTION
from layouts.cut import Cut, Scalar
from layouts.enumerate import divisors
from layouts.layout import DCP_BACKENDS, DISPATCHES, PADDINGS, default_sharded_layers
from layouts.rules import Site

_CLOSED: Final = -30.0  # a logit that shuts an axis


class Relaxed(eqx.Module):
    """Unbounded parameters of one relaxed layout and its budget.

    Logits of shares: `attention` over log2(GPUs) to replicas, pp, attn_dp, attn_tp, attn_cp; `experts` over log2(tp) to
    ep, expert_tp, moe_dp. Sigmoids: `dcp` of log2(attn_tp), `vocab` of log2(tp), `shard` of the widest weight shard,
    `sharded` of the layers it covers, `draft` whether it covers the draft, `fraction` of memory. `concurrency` is a
    sigmoid of the most requests, `extra` the slots beyond those that run, in doublings.
    """

    attention: Float[Array | np.ndarray, "5"]
    experts: Float[Array | np.ndarray, "3"]
    dcp: Scalar
    vocab: Scalar
    shard: Scalar
    sharded: Scalar
    draft: Scalar
    dcp_backend: Float[Array | np.ndarray, " backends"]
    dispatch: Float[Array | np.ndarray, " dispatches"]
    padding: Float[Array | np.ndarray, " paddings"]
    fraction: Scalar
    concurrency: Scalar
    extra: Scalar


_NAMES: Final = tuple(Relaxed.__dataclass_fields__)


class Bounds(eqx.Module):
    """What a site allows: logarithms of the largest degrees, and where the sharded layers begin and end."""

    gpus: Float[np.ndarray, ""]
    closed: Float[np.ndarray, "5"]
    most_attn_tp: Float[np.ndarray, ""]
    most_ep: Float[np.ndarray, ""]
    most_pp: Float[np.ndarray, ""]
    kv_heads: Float[np.ndarray, ""]
    most_shard: Float[np.ndarray, ""]
    first: Float[np.ndarray, ""]
    last: Float[np.ndarray, ""]
    draft: Float[np.ndarray, ""]
    prefill: bool = eqx.field(static=True)
    experts: bool = eqx.field(static=True)
    fused: bool = eqx.field(static=True)


def bounds_of(site: Site) -> Bounds:
    """The bounds of a site; degrees that no rule lets grow are closed."""
    model, whole = site.model, divisors(site.gpus)
    layers = default_sharded_layers(model)
    attn_tp = max(d for d in whole if all(h % d == 0 for h in site.heads))
    ep = max(d for d in whole if all(m.experts % d == 0 for m in site.moes)) if site.moes else 1
    return Bounds(
        gpus=np.asarray(math.log2(site.gpus)),
        closed=np.array([0.0, 0.0, 0.0, 0.0, 0.0 if site.prefill else _CLOSED]),
        most_attn_tp=np.asarray(math.log2(attn_tp)),
        most_ep=np.asarray(math.log2(ep)),
        most_pp=np.asarray(math.log2(len(model.layers))),
        kv_heads=np.asarray(math.log2(max(site.kv_heads, default=1))),
        most_shard=np.asarray(math.log2(math.gcd(site.gpus_per_host, site.gpus))),
        first=np.asarray(layers.first, np.float64),
        last=np.asarray(layers.last, np.float64),
        draft=np.asarray(model.draft is not None, np.float64),
        prefill=site.prefill,
        experts=bool(site.moes),
        fused=site.domain > site.gpus_per_host,
    )


def random_starts(seed: int, starts: int) -> Relaxed:
    """Independent starts all over the space: each leaf normal, wide enough to reach the corners.

    Loads start small and memory mostly given out, so that a descent grows into its limits from inside.
    """
    random = np.random.default_rng(seed)
    shapes = {"attention": (5,), "experts": (3,)}
    shapes |= {"dcp_backend": (len(DCP_BACKENDS),), "dispatch": (len(DISPATCHES),), "padding": (len(PADDINGS),)}
    middle = {"concurrency": (-1.5, 0.3), "fraction": (1.5, 0.3), "extra": (-2.0, 0.3)}
    drawn = {name: random.normal(*middle.get(name, (0.0, 2.5)), (starts, *shapes.get(name, ()))) for name in _NAMES}
    return Relaxed(**drawn)


def cut_from(relaxed: Relaxed, bounds: Bounds) -> Cut:
    """The relaxed layout: its degrees multiply to the GPUs, its expert degrees to tp, its weights to one."""
    shares = jax.nn.softmax(relaxed.attention + bounds.closed) * bounds.gpus
    replicas, pp, attn_dp, attn_tp, attn_cp = shares
    tp = attn_dp + attn_tp + attn_cp
    ep, expert_tp, moe_dp = jax.nn.softmax(relaxed.experts) * tp if bounds.experts else (0.0 * tp, tp, 0.0 * tp)
    dcp = 0.0 * attn_tp if bounds.prefill else jax.nn.sigmoid(relaxed.dcp) * attn_tp
    shard = jax.nn.sigmoid(relaxed.shard) * jnp.minimum(bounds.most_shard, tp)
    layers = bounds.last + 1.0 - bounds.first
    backends = relaxed.dcp_backend + (0.0 if bounds.fused else np.array([0.0, 0.0, _CLOSED]))
    return Cut(
        replicas=jnp.exp2(replicas),
        pp=jnp.exp2(pp),
        attn_dp=jnp.exp2(attn_dp),
        attn_tp=jnp.exp2(attn_tp),
        attn_cp=jnp.exp2(attn_cp),
        dcp=jnp.exp2(dcp),
        ep=jnp.exp2(ep),
        expert_tp=jnp.exp2(expert_tp),
        moe_dp=jnp.exp2(moe_dp),
        weight_shard=jnp.exp2(shard),
        vocab_tp=jnp.exp2(jax.nn.sigmoid(relaxed.vocab) * tp),
        sharded_first=bounds.first,
        sharded_last=bounds.first - 1.0 + jax.nn.sigmoid(relaxed.sharded) * layers,
        sharded_draft=jax.nn.sigmoid(relaxed.draft) * bounds.draft,
        dcp_backend=jax.nn.softmax(backends),
        dispatch=jax.nn.softmax(relaxed.dispatch),
        padding=jax.nn.softmax(relaxed.padding),
    )


def case_from(relaxed: Relaxed, case: Case, free: "Free") -> Case:
    """The question with the parameters that the planner may choose put in."""
    fraction = LEAST_FRACTION + jax.nn.sigmoid(relaxed.fraction) * (MOST_FRACTION - LEAST_FRACTION)
    most = math.log2(MOST_REQUESTS)
    requests = jnp.exp2(jax.nn.sigmoid(relaxed.concurrency) * most)
    places, values = [], []
    for wanted, place, value in (
        (free.fraction, lambda c: c.budget.mem_fraction, fraction),
        (free.concurrency, lambda c: c.load.concurrency, requests),
        (free.extra_slots, lambda c: c.budget.extra_slots, jax.nn.softplus(relaxed.extra)),
    ):
        if wanted:
            places.append(place)
            values.append(value)
    return eqx.tree_at(lambda c: [place(c) for place in places], case, values) if places else case


class Free(eqx.Module):
    """Which parameters besides the layout the planner may choose."""

    fraction: bool = eqx.field(static=True)
    concurrency: bool = eqx.field(static=True)
    extra_slots: bool = eqx.field(static=True)

    @classmethod
    def of(cls, request: Request) -> "Free":
        """What the request left open; prefill holds no decode slots to trade."""
        return cls(request.mem_fraction is None, request.concurrency is None, request.extra_slots is None)


def rule_excess(cut: Cut, bounds: Bounds) -> Float[Array, " rules"]:
    """How far a relaxed layout lies beyond the rules that are not met by construction, in doublings (0 inside)."""
    beyond = [
        jnp.log2(cut.attn_tp) - bounds.most_attn_tp,
        jnp.log2(cut.ep) - bounds.most_ep,
        jnp.log2(cut.pp) - bounds.most_pp,
        jnp.log2(cut.dcp) - jnp.maximum(jnp.log2(cut.attn_tp) - bounds.kv_heads, 0.0),
    ]
    # tokens travel to the experts only where every rank holds experts of its own
    apart = cut.weight("dispatch=all_to_all") * (jnp.log2(cut.tp) - jnp.log2(cut.ep))
    return jnp.maximum(jnp.stack([*beyond, apart]), 0.0)
