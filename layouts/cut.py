"""A layout as numbers: the form that formulas are evaluated over, valid or relaxed, one or thousands at once."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from layouts.layout import DCP_BACKENDS, DISPATCHES, PADDINGS, Layout

# NumPy in a cut of valid layouts, JAX in one that a program traces; a batch has a leading axis on every leaf.
Scalar = Float[Array | np.ndarray, ""]


class Cut(eqx.Module):
    """Degrees as real numbers and alternatives as weights that sum to one.

    A valid layout has whole degrees and one-hot weights; between them lies what gradient descent walks through.
    `sharded_first` and `sharded_last` bound the weight-sharded layers, `sharded_draft` is the share of the draft.
    """

    replicas: Scalar
    pp: Scalar
    attn_dp: Scalar
    attn_tp: Scalar
    attn_cp: Scalar
    dcp: Scalar
    ep: Scalar
    expert_tp: Scalar
    moe_dp: Scalar
    weight_shard: Scalar
    vocab_tp: Scalar
    sharded_first: Scalar
    sharded_last: Scalar
    sharded_draft: Scalar
    dcp_backend: Float[Array | np.ndarray, " backends"]
    dispatch: Float[Array | np.ndarray, " dispatches"]
    padding: Float[Array | np.ndarray, " paddings"]

    @property
    def tp(self) -> Scalar:
        return self.attn_dp * self.attn_tp * self.attn_cp

    def weight(self, alternative: str) -> Scalar:
        """Weight of an alternative named as in the text form, `dcp_backend=a2a`."""
        key, _, choice = alternative.partition("=")
        choices = {"dcp_backend": DCP_BACKENDS, "dispatch": DISPATCHES, "padding": PADDINGS}[key]
        return getattr(self, key)[choices.index(choice)]


DEGREES = (
    "replicas", "pp", "attn_dp", "attn_tp", "attn_cp", "dcp", "ep", "expert_tp", "moe_dp", "weight_shard", "vocab_tp",
)  # fmt: skip


def cut_of(layout: Layout) -> Cut:
    """The exact cut of a layout, as NumPy float64."""
    layers = layout.weight_shard_layers
    return Cut(
        **{name: np.asarray(getattr(layout, name), np.float64) for name in DEGREES},
        sharded_first=np.asarray(layers.first, np.float64),
        sharded_last=np.asarray(layers.last, np.float64),
        sharded_draft=np.asarray(layers.draft, np.float64),
        dcp_backend=_one_hot(layout.dcp_backend, DCP_BACKENDS),
        dispatch=_one_hot(layout.dispatch, DISPATCHES),
        padding=_one_hot(layout.padding, PADDINGS),
    )


def cuts_of(layouts: Sequence[Layout]) -> Cut:
    """Many layouts as one batch: every leaf gains a leading axis."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *map(cut_of, layouts))


def window(first: Scalar, last: Scalar, layers: int) -> Float[Array, " layers"]:
    """Membership of each layer in `first`..`last`: 0 or 1 at whole bounds, a ramp of one layer between them."""
    index = jnp.arange(layers, dtype=jnp.float64)
    return jnp.clip(index - first + 1, 0, 1) * jnp.clip(last - index + 1, 0, 1)


def _one_hot(choice: str, choices: Sequence[str]) -> Float[np.ndarray, " choices"]:
    return np.array([float(c == choice) for c in choices])
