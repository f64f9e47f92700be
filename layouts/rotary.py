"""Rotary position embedding of queries and keys, in the two orders that checkpoints use."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float


class Rotation(eqx.Module):
    """Cosine and sine of the angle of each row and pair of values.

    `interleaved` pairs neighbours (0, 1), (2, 3), ...; otherwise value i goes with value i + pairs.
    """

    cos: Float[Array, "rows pairs"]
    sin: Float[Array, "rows pairs"]
    interleaved: bool = eqx.field(static=True, default=False)


def rotate(x: Float[Array, "rows heads dim"], rotation: Rotation | None) -> Float[Array, "rows heads dim"]:
    """The first 2 x pairs values of every head turned by the row's angles, in float32; x itself without a rotation."""
    if rotation is None:
        return x
    pairs = rotation.cos.shape[-1]
    cos, sin = (angle.astype(jnp.float32)[:, None, :] for angle in (rotation.cos, rotation.sin))
    turned, rest = x[..., : 2 * pairs].astype(jnp.float32), x[..., 2 * pairs :]
    split = turned.reshape(*x.shape[:2], pairs, 2) if rotation.interleaved else turned.reshape(*x.shape[:2], 2, pairs)
    axis = -1 if rotation.interleaved else -2
    first, second = split.take(0, axis=axis), split.take(1, axis=axis)
    turned = jnp.stack([first * cos - second * sin, second * cos + first * sin], axis=axis)
    return jnp.concatenate([turned.reshape(*x.shape[:2], 2 * pairs).astype(x.dtype), rest], axis=-1)
