"""Smooth arithmetic becomes exact at every valid layout, and its gradient is the slope of what it computes."""

import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from explorer.evaluate import Case, Evaluation, Tables, evaluate, evaluate_batch
from hw.arithmetic import Smooth
from hw.compat import COMPILE_TO_RUN_ONCE, x64
from hw.programs import kept
from layouts.cut import DEGREES, Cut, Scalar
from tests.explorer.settings import ARTICLE, QWEN, V3, setting

SHARPEST = 1e-6
CHUNK = 1024

_compiled = functools.partial(jax.jit, compiler_options=COMPILE_TO_RUN_ONCE)


@kept(COMPILE_TO_RUN_ONCE)
def _smooth(tau: Array, tables: Tables, cuts: Cut, case: Case) -> Evaluation:
    return jax.vmap(lambda cut: evaluate(Smooth(tau), tables, cut, case))(cuts)


def smooth(tables: Tables, cuts: Cut, case: Case, tau: float) -> Evaluation:
    """In chunks of one size, as NumPy arrays."""
    count = len(cuts.pp)
    rows = np.minimum(np.arange(-(-count // CHUNK) * CHUNK), count - 1)
    with x64():
        parts = [
            _smooth(jnp.asarray(tau), tables, jax.tree.map(lambda leaf, part=part: leaf[part], cuts), case)
            for part in np.split(rows, len(rows) // CHUNK)
        ]
    return jax.tree.map(lambda *leaves: np.concatenate([np.asarray(leaf) for leaf in leaves])[:count], *parts)


@pytest.mark.parametrize(
    ("model", "hardware", "options"),
    [
        (ARTICLE, "b200", {"context": 100_000, "concurrency": 64}),
        (ARTICLE, "gb200", {"context": 30_000, "concurrency": 320}),
        (V3, "b200", {"context": 8192, "concurrency": 256}),
        (QWEN, "h200", {"context": 16_384, "concurrency": 50}),
        (V3, "h200", {"context": 30_000, "phase": "prefill"}),
    ],
)
def test_every_valid_layout(model: str, hardware: str, options: dict[str, float | str]) -> None:
    """All of 16 GPUs: step, tokens in the pool, memory left and remainder, relative to what they are differences of."""
    asked = setting(model, hardware, 16, **options)
    cuts = asked.space.cuts()
    near = smooth(asked.tables, cuts, asked.case, SHARPEST)
    exact = evaluate_batch(asked.tables, cuts, asked.case)
    np.testing.assert_allclose(near.step, exact.step, rtol=1e-3)
    np.testing.assert_allclose(near.tokens_per_second, exact.tokens_per_second, rtol=1e-3)
    np.testing.assert_allclose(near.kv_tokens, exact.kv_tokens, rtol=1e-3, atol=1.0)
    np.testing.assert_allclose(near.running, exact.running, rtol=1e-3, atol=1e-3)
    memory = float(asked.request.machine.free_bytes)
    np.testing.assert_allclose(near.slack, exact.slack, rtol=0, atol=1e-4 * memory)
    np.testing.assert_allclose(near.remainder, exact.remainder, rtol=0, atol=1e-4 * memory)
    assert len(asked.space) > 1000


WEIGHTS = {"dcp_backend": 3, "dispatch": 2, "padding": 2}
NAMES = (
    *DEGREES,
    *(f"{key}[{i}]" for key, count in WEIGHTS.items() for i in range(count)),
    "sharded_draft", "sharded_last", "context", "concurrency",
)  # fmt: skip
Point = Float[Array, " coordinates"]


def interior(rng: np.random.Generator, context: float, concurrency: float) -> np.ndarray:
    """A point between layouts: 16 GPUs shared out over the degrees in doublings, every alternative in part."""
    replicas, pp, attn_dp, attn_tp = 4 * rng.dirichlet([1, 1, 3, 3])
    tp = attn_dp + attn_tp
    ep, expert_tp, moe_dp = tp * rng.dirichlet([3, 2, 1])
    dcp, shard, vocab = rng.uniform(0.1, 0.9, 3) * (attn_tp, min(tp, 3), tp)
    degrees = dict(replicas=replicas, pp=pp, attn_dp=attn_dp, attn_tp=attn_tp, attn_cp=0.0, dcp=dcp, ep=ep)
    degrees |= dict(expert_tp=expert_tp, moe_dp=moe_dp, weight_shard=shard, vocab_tp=vocab)
    weights = [w for count in WEIGHTS.values() for w in rng.dirichlet([2] * count)]
    load = np.log2([context, concurrency]) + rng.uniform(-1, 1, 2)
    return np.array([*(degrees[name] for name in DEGREES), *weights, rng.uniform(), rng.uniform(30, 60), *load])


def step_at(tables: Tables, case: Case) -> Callable[[Array, Point], Scalar]:
    """Step as a function of tau and of a point: degrees, context and concurrency in doublings, weights as they are."""

    def step(tau: Array, point: Point) -> Scalar:
        at = dict(zip(NAMES, point, strict=True))
        cut = Cut(
            **{name: jnp.exp2(at[name]) for name in DEGREES},
            **{key: jnp.stack([at[f"{key}[{i}]"] for i in range(n)]) for key, n in WEIGHTS.items()},
            sharded_first=jnp.asarray(1.0),
            sharded_last=at["sharded_last"],
            sharded_draft=at["sharded_draft"],
        )
        asked = eqx.tree_at(
            lambda c: (c.load.context, c.load.concurrency),
            case,
            (jnp.exp2(at["context"]), jnp.exp2(at["concurrency"])),
        )
        return evaluate(Smooth(tau), tables, cut, asked).step

    return step


@functools.cache
def slopes(model: str) -> Callable[[float], tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """For a tau: steps, gradients and central differences at some interior points, one row a point."""
    asked = setting(model)
    rng = np.random.default_rng(0)
    points = np.stack([interior(rng, 30_000, 96) for _ in range(8)])
    with x64():
        step = step_at(asked.tables, asked.case)
    values = _compiled(jax.vmap(jax.vmap(step, (None, 0)), (None, 0)))
    gradients = _compiled(jax.vmap(jax.value_and_grad(step, 1), (None, 0)))

    def at(tau: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        size = 1e-4 * tau
        with x64():
            aside = points[:, None] + size * np.concatenate([np.eye(len(NAMES)), -np.eye(len(NAMES))])
            found = np.asarray(values(tau, aside))
            steps, gradient = map(np.asarray, gradients(tau, points))
        up, down = np.split(found, 2, axis=1)
        return steps, gradient, (up - down) / (2 * size)

    return at


@pytest.mark.parametrize("tau", [0.25, 0.1, 0.03, 1e-2])
@pytest.mark.parametrize("model", [ARTICLE, QWEN])
def test_gradients_are_slopes(model: str, tau: float) -> None:
    """Central differences at the same tau, with steps a ten-thousandth of it."""
    steps, gradient, difference = slopes(model)(tau)
    assert np.all(np.isfinite(gradient))
    np.testing.assert_allclose(gradient, difference, rtol=1e-3, atol=1e-6 * float(steps.max()))
    # no coordinate is without effect at every point, but the draft where there is none
    idle = set() if model == ARTICLE else {"sharded_draft"}
    assert {n for n, g in zip(NAMES, np.abs(gradient).max(axis=0), strict=True) if g == 0} <= idle
