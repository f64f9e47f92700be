"""KDA on a mesh: heads over attn_tp, requests and their state slots over attn_dp. Bodies to run inside `shard_map`.

A head never looks at another and a request never at another's state, so nothing is exchanged here. Each body returns
the sum over a rank's own heads; the caller sums over attn_tp as its layer wants it (all-reduce, or reduce-scatter on
the way to the experts).

States live in slots, numbered within a rank. Slot 0 is the padding sink: rows without a request point at it, and what
it holds means nothing.
"""

from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from layouts.kda import chunked
from layouts.kda import verify as verification
from layouts.kda.chunked import Writes
from layouts.kda.reference import Form, State, Weights
from layouts.kda.shape import KDA
from layouts.kda.verify import Ring
from layouts.mesh import Axes

_HEADS_AT: Final = {"qkv_proj": 1, "conv1d": 1, "o_proj": 1, "f_a_proj": None, "g_a_proj": None, "o_norm": None}


def weight_shapes(kda: KDA) -> Any:
    """Shape of every weight of one layer, whole: Weights with a tuple in place of each array."""
    heads, dim, hidden = kda.heads, kda.head_dim, kda.hidden
    full: Any = {"g_proj": (heads, dim, hidden)}
    low_rank: Any = {"g_a_proj": (dim, hidden), "g_b_proj": (heads, dim, dim)}
    shapes: Any = {
        "qkv_proj": (3, heads, dim, hidden),
        "conv1d": (3, heads, dim, kda.conv_kernel),
        "f_a_proj": (dim, hidden),
        "f_b_proj": (heads, dim, dim),
        "A_log": (heads,),
        "dt_bias": (heads, dim),
        "b_proj": (heads, hidden),
        "o_norm": (dim,),
        "o_proj": (hidden, heads, dim),
        **(full if kda.full_rank_gate else low_rank),
    }
    return Weights(**shapes)


def weight_specs(kda: KDA, axes: Axes) -> Any:
    """A spec for each weight that is there: cut along its heads, or whole where it has none."""

    def spec(path: Any, shape: tuple[int, ...]) -> PartitionSpec:
        heads_at = _HEADS_AT.get(path[0].name, 0)
        return axes.spec(*("attn_tp" if i == heads_at else None for i in range(len(shape))))

    shapes = weight_shapes(kda)
    return jax.tree_util.tree_map_with_path(spec, shapes, is_leaf=lambda x: isinstance(x, tuple))


def state_shapes(kda: KDA, slots: int) -> Any:
    """Shape of a pool of slots: a State with a tuple in place of each array."""
    recurrent: Any = (slots, kda.heads, kda.head_dim, kda.head_dim)
    window: Any = (slots, kda.conv_kernel - 1, 3, kda.heads, kda.head_dim)
    return State(recurrent, window)


def state_specs(axes: Axes) -> Any:
    """Specs of a pool of slots: a State with a spec in place of each array."""
    recurrent: Any = axes.spec("requests", "attn_tp", None, None)
    return State(recurrent, _inputs_spec(axes))


def ring_specs(axes: Axes) -> Any:
    """Specs of a ring, one entry a request of the batch: a Ring with a spec in place of each array."""
    tokens: Any = axes.spec("requests", None, "attn_tp", None)
    return Ring(Writes(tokens, tokens, tokens), _inputs_spec(axes))


def _inputs_spec(axes: Axes) -> Any:
    return axes.spec("requests", None, None, "attn_tp", None)


def read(pool: State, slots: Int[Array, " requests"]) -> State:
    """States of the requests in `slots`, S in float32 whatever the pool keeps."""
    return State(pool.recurrent[slots].astype(jnp.float32), pool.window[slots])


def write(pool: State, slots: Int[Array, " requests"], states: State) -> State:
    """The pool with `states` in `slots`, of which only the sink may be named twice."""
    return jax.tree.map(lambda held, new: held.at[slots].set(new.astype(held.dtype)), pool, states)


def verify(
    x: Float[Array, "requests verify hidden"],
    pool: State,
    slots: Int[Array, " requests"],
    weights: Weights,
    form: Form,
) -> tuple[Float[Array, "requests verify hidden"], Ring]:
    """Partial rows of this rank's heads for tokens that follow the states in `slots`; the pool stays as it is."""
    return verification.verify(x, read(pool, slots), weights, form)


def commit(pool: State, slots: Int[Array, " requests"], ring: Ring, accepted: Int[Array, " requests"]) -> State:
    """The pool with the accepted tokens of each ring in the slot that they were verified from."""
    return write(pool, slots, verification.commit(read(pool, slots), ring, accepted))


def prefill(
    x: Float[Array, "requests tokens hidden"],
    pool: State,
    slots: Int[Array, " requests"],
    begins: Bool[Array, " requests"],
    lengths: Int[Array, " requests"],
    weights: Weights,
    form: Form,
) -> tuple[Float[Array, "requests tokens hidden"], State]:
    """Partial rows of the next `lengths` tokens of each prompt, and the pool after them.

    A prompt that begins here starts from zeros, whatever the slot's last request left there.
    """
    states = jax.tree.map(lambda held: jnp.where(_like(begins, held), 0, held), read(pool, slots))
    rows, states = chunked.prefill(x, states, lengths, weights, form)
    return rows, write(pool, slots, states)


def _like(flags: Bool[Array, " requests"], held: Array) -> Array:
    return flags.reshape(-1, *(1,) * (held.ndim - 1))
