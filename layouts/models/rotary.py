"""Rotary frequencies as configs state them, plain or stretched to longer contexts.

Sources of the formulas: RoPE, arXiv 2104.09864; YaRN, arXiv 2309.00071, section 3.2 and 3.4, with the two `mscale` of
DeepSeek-V3's modelling code; the Llama 3.1 blend of its published modelling code.
"""

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from layouts.models.config import LARGEST_CONTEXT, Config
from layouts.rotary import Rotation


@dataclass(frozen=True)
class Rotary:
    """Angles a token for each pair of values, and the factor that cosine and sine carry."""

    frequencies: tuple[float, ...]
    factor: float = 1.0
    interleaved: bool = False

    def at(self, positions: Int[Array, " rows"]) -> Rotation:
        """Rotation of rows at these positions, float32."""
        angles = positions.astype(jnp.float32)[:, None] * jnp.asarray(self.frequencies, jnp.float32)[None, :]
        return Rotation(jnp.cos(angles) * self.factor, jnp.sin(angles) * self.factor, self.interleaved)


def read_rotary(config: Config, dim: int, interleaved: bool = False) -> Rotary:
    """The rotation of `dim` values a head; raises ModelError for a kind of stretching that has no program."""
    scaling = scaling_of(config)
    theta = _above(1.0, scaling if scaling.has("rope_theta") else config, "rope_theta")
    plain = theta ** (-np.arange(0, dim, 2) / dim)
    kind = kind_of(scaling)
    if kind == "default":
        return Rotary(tuple(map(float, plain)), 1.0, interleaved)
    if kind == "yarn":
        return Rotary(_yarn(scaling, plain, theta, dim), _yarn_factor(scaling), interleaved)
    if kind == "llama3":
        return Rotary(_llama3(scaling, plain), 1.0, interleaved)
    raise scaling.error(f"rope_type = {kind!r} has no program; supported: default, yarn, llama3")


def scaling_of(config: Config) -> Config:
    """The section on rotation: `rope_parameters` of newer configs, `rope_scaling` of older ones, or nothing."""
    for key in ("rope_parameters", "rope_scaling"):
        if config.has(key):
            return config.section(key)
    return Config(config.source, {})


def kind_of(scaling: Config) -> str:
    """Kind of stretching, by its newer or older key."""
    return scaling.text("rope_type", scaling.text("type", "default"))


def mscale(factor: float, weight: float) -> float:
    """Growth of attention's temperature with the stretching (YaRN, equation 22)."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _yarn_factor(scaling: Config) -> float:
    if scaling.has("attention_factor"):
        return scaling.number("attention_factor")
    factor = _above(0.0, scaling, "factor")
    if scaling.number("mscale", 0.0) and scaling.number("mscale_all_dim", 0.0):
        return mscale(factor, scaling.number("mscale")) / mscale(factor, scaling.number("mscale_all_dim"))
    return mscale(factor, 1.0)


def _yarn(scaling: Config, plain: Float[np.ndarray, " pairs"], theta: float, dim: int) -> tuple[float, ...]:
    """Slow pairs are stretched, fast ones left alone, with a ramp between the two numbers of turns in a context."""
    original = scaling.size("original_max_position_embeddings", most=LARGEST_CONTEXT)

    def pair_that_turns(times: float) -> float:
        return dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(theta))

    low = pair_that_turns(_above(0.0, scaling, "beta_fast", 32.0))
    high = pair_that_turns(_above(0.0, scaling, "beta_slow", 1.0))
    if scaling.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = high - low or 0.001
    stretched = np.clip((np.arange(dim // 2) - low) / width, 0, 1)
    return tuple(map(float, plain * (1 - stretched) + plain / _above(0.0, scaling, "factor") * stretched))


def _llama3(scaling: Config, plain: Float[np.ndarray, " pairs"]) -> tuple[float, ...]:
    """Waves longer than the original context over `low_freq_factor` are stretched, shorter than over
    `high_freq_factor` left alone, those between blended."""
    original = scaling.size("original_max_position_embeddings", most=LARGEST_CONTEXT)
    low = scaling.number("low_freq_factor")
    high = _above(low, scaling, "high_freq_factor")
    turns = original * plain / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return tuple(map(float, plain * kept + plain / _above(0.0, scaling, "factor") * (1 - kept)))


def _above(least: float, config: Config, key: str, default: float | None = None) -> float:
    """A number greater than `least`: the formulas divide by it, or take its logarithm."""
    value = config.number(key, default)
    if value <= least:
        raise config.error(f"{key} = {value:g} must be above {least:g}")
    return value
