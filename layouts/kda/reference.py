"""Kimi Delta Attention on one device, token by token: the equations that every other form must equal.

A head keeps a state S of keys by values. With decay a = exp(log_decay) (one for each key channel), key k and query q of
length one, value v and write strength beta, a token does
    S <- diag(a) S;    delta = beta (v - k S);    S <- S + k delta;    output = q S / sqrt(dim).
(Kimi Linear, arXiv 2510.26692, equation 1.) Before it stand a causal convolution with SiLU over the projections of
q, k and v, behind it an RMSNorm a head and a sigmoid gate. Everything between the projections is float32.
"""

import functools
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from hw.errors import MeshwrightError
from layouts.linear import contract

# A state is a long sum: a GPU's default, which rounds float32 operands to ten bits, would show in the text.
precise = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32)


@dataclass(frozen=True)
class Form:
    """What a config says beyond shapes: epsilon of the output norm, and the least log_decay where there is one."""

    norm_eps: float = 1e-5
    gate_lower_bound: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.norm_eps < 1:
            raise MeshwrightError(f"KDA: norm_eps={self.norm_eps} must lie between 0 and 1; take rms_norm_eps")
        if self.gate_lower_bound is not None and not -float("inf") < self.gate_lower_bound < 0:
            raise MeshwrightError(
                f"KDA: gate_lower_bound={self.gate_lower_bound} must be negative and finite; leave it out for softplus"
            )


class Weights(eqx.Module):
    """One layer's tensors, heads apart so that a rank's heads are a slice. The norm before the layer is not here.

    The output gate is `g_proj` alone (full rank) or the pair `g_a_proj`, `g_b_proj` (low rank).
    """

    qkv_proj: Float[Array, "3 heads dim hidden"]
    conv1d: Float[Array, "3 heads dim kernel"]
    f_a_proj: Float[Array, "rank hidden"]
    f_b_proj: Float[Array, "heads dim rank"]
    A_log: Float[Array, " heads"]
    dt_bias: Float[Array, "heads dim"]
    b_proj: Float[Array, "heads hidden"]
    o_norm: Float[Array, " dim"]
    o_proj: Float[Array, "hidden heads dim"]
    g_proj: Float[Array, "heads dim hidden"] | None = None
    g_a_proj: Float[Array, "rank hidden"] | None = None
    g_b_proj: Float[Array, "heads dim rank"] | None = None

    def __check_init__(self) -> None:
        low_rank = self.g_a_proj is not None and self.g_b_proj is not None
        if (self.g_proj is not None) == low_rank or (self.g_a_proj is None) != (self.g_b_proj is None):
            raise MeshwrightError("KDA: give g_proj, or both g_a_proj and g_b_proj, as use_full_rank_gate says")


class State(eqx.Module):
    """What a request carries from token to token: S of each head, and the last inputs of the convolution."""

    recurrent: Float[Array, "requests heads dim dim"]
    window: Float[Array, "requests taps 3 heads dim"]


class Tokens(eqx.Module):
    """Inputs of the delta rule, float32: unit q (scaled) and k, v, log_decay <= 0 and beta in (0, 1)."""

    q: Float[Array, "requests tokens heads dim"]
    k: Float[Array, "requests tokens heads dim"]
    v: Float[Array, "requests tokens heads dim"]
    log_decay: Float[Array, "requests tokens heads dim"]
    beta: Float[Array, "requests tokens heads"]


def empty_state(weights: Weights, requests: int, dtype: jnp.dtype) -> State:
    """State before the first token: zeros, S in float32 and the window in the activations' dtype."""
    _, heads, dim, kernel = weights.conv1d.shape
    return State(
        jnp.zeros((requests, heads, dim, dim), jnp.float32), jnp.zeros((requests, kernel - 1, 3, heads, dim), dtype)
    )


def attention(
    x: Float[Array, "requests tokens hidden"], state: State, weights: Weights, form: Form
) -> tuple[Float[Array, "requests tokens hidden"], State]:
    """A KDA layer over new tokens of requests that stand at `state`; normed rows in, rows to add to the stream out."""
    tokens, inputs = prepare(x, state.window, weights, form)
    output, recurrent = recurrence(tokens, state.recurrent)
    every = jnp.full(x.shape[:1], x.shape[1], jnp.int32)
    return finish(output, x, weights, form), State(recurrent, window_after(inputs, every, state.window.shape[1]))


def prepare(
    x: Float[Array, "requests tokens hidden"],
    window: Float[Array, "requests taps 3 heads dim"],
    weights: Weights,
    form: Form,
) -> tuple[Tokens, Float[Array, "requests inputs 3 heads dim"]]:
    """Inputs of the delta rule, and those of the convolution: the window with the new tokens behind it."""
    inputs = jnp.concatenate([window, project("bth,cndh->btcnd", x, weights.qkv_proj).astype(window.dtype)], axis=1)
    q, k, v = jnp.moveaxis(short_convolution(inputs, weights.conv1d), 2, 0)
    raw = project("btr,ndr->btnd", project("bth,rh->btr", x, weights.f_a_proj), weights.f_b_proj)
    beta = jax.nn.sigmoid(project("bth,nh->btn", x, weights.b_proj).astype(jnp.float32))
    unit_q = unit(q) * q.shape[-1] ** -0.5
    return Tokens(unit_q, unit(k), v, log_decay(raw, weights, form), beta), inputs


def project(equation: str, x: Array, weight: Array) -> Array:
    """A linear map, summed in float32 and rounded to the activations' dtype."""
    return contract(equation, x, weight)


def short_convolution(
    inputs: Float[Array, "requests inputs 3 heads dim"], conv1d: Float[Array, "3 heads dim kernel"]
) -> Float[Array, "requests tokens 3 heads dim"]:
    """SiLU of each channel's sum over its last `kernel` inputs; the first kernel - 1 inputs have no output."""
    kernel = conv1d.shape[-1]
    tokens = inputs.shape[1] - kernel + 1
    taps = jnp.stack([inputs[:, i : i + tokens].astype(jnp.float32) for i in range(kernel)], axis=-1)
    return jax.nn.silu((taps * conv1d[None, None].astype(jnp.float32)).sum(axis=-1))


def window_after(
    inputs: Float[Array, "requests inputs 3 heads dim"], count: Int[Array, " requests"], taps: int
) -> Float[Array, "requests taps 3 heads dim"]:
    """The convolution's window when only the first `count` of a request's new tokens have happened."""
    rows = count[:, None] + jnp.arange(taps, dtype=count.dtype)[None, :]
    return jnp.take_along_axis(inputs, rows[:, :, None, None, None], axis=1)


def unit(x: Float[Array, "*rows dim"]) -> Float[Array, "*rows dim"]:
    """x / sqrt(|x|^2 + 1e-6), the epsilon of flash-linear-attention."""
    return x * jax.lax.rsqrt(jnp.square(x).sum(axis=-1, keepdims=True) + 1e-6)


def log_decay(
    raw: Float[Array, "requests tokens heads dim"], weights: Weights, form: Form
) -> Float[Array, "requests tokens heads dim"]:
    """-exp(A_log) softplus(raw + dt_bias); with a lower bound, that bound times sigmoid(exp(A_log) (raw + dt_bias))."""
    shifted = raw.astype(jnp.float32) + weights.dt_bias[None, None].astype(jnp.float32)
    rate = jnp.exp(weights.A_log.astype(jnp.float32))[None, None, :, None]
    if form.gate_lower_bound is None:
        return -rate * jax.nn.softplus(shifted)
    return form.gate_lower_bound * jax.nn.sigmoid(rate * shifted)


def recurrence(
    tokens: Tokens, recurrent: Float[Array, "requests heads dim dim"]
) -> tuple[Float[Array, "requests tokens heads dim"], Float[Array, "requests heads dim dim"]]:
    """The delta rule of the module's docstring, one token after another."""

    def step(before: Array, token: Tokens) -> tuple[Array, Array]:
        decayed = before * jnp.exp(token.log_decay)[..., None]
        delta = token.beta[..., None] * (token.v - precise("bnk,bnkv->bnv", token.k, decayed))
        after = decayed + token.k[..., None] * delta[..., None, :]
        return after, precise("bnk,bnkv->bnv", token.q, after)

    by_time = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), tokens)
    last, outputs = jax.lax.scan(step, recurrent, by_time)
    return jnp.moveaxis(outputs, 0, 1), last


def finish(
    output: Float[Array, "requests tokens heads dim"],
    x: Float[Array, "requests tokens hidden"],
    weights: Weights,
    form: Form,
) -> Float[Array, "requests tokens hidden"]:
    """RMSNorm a head, sigmoid gate, output projection over the heads that are here."""
    if weights.g_proj is not None:
        gate = project("bth,ndh->btnd", x, weights.g_proj)
    else:
        assert weights.g_a_proj is not None and weights.g_b_proj is not None  # __check_init__
        gate = project("btr,ndr->btnd", project("bth,rh->btr", x, weights.g_a_proj), weights.g_b_proj)
    scale = jax.lax.rsqrt(jnp.square(output).mean(axis=-1, keepdims=True) + form.norm_eps)
    normed = output * scale * weights.o_norm.astype(jnp.float32)[None, None, None]
    gated = (normed * jax.nn.sigmoid(gate.astype(jnp.float32))).astype(x.dtype)
    return project("btnd,hnd->bth", gated, weights.o_proj)
