"""Which experts a token goes to, and with which weights.

Three ways to score are in use: sigmoid, with a bias that steers the selection and not the weights (DeepSeek-V3, Kimi);
softmax over all experts (Qwen3-MoE); softmax over the chosen ones (gpt-oss). All in float32. Ties go to the lowest
expert.
"""

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from layouts.shapes import ShapeError

Scoring = Literal["sigmoid", "softmax", "softmax_of_chosen"]
_TINY: Final = 1e-20  # added to the sum of the weights before dividing by it (DeepSeek-V3 modelling code)
_BEST_OF_GROUP: Final = 2  # a group counts with the sum of its two best experts


class Routing(NamedTuple):
    """The experts of each row, and how much of each one's output the row takes."""

    experts: Int[Array, "rows topk"]
    weights: Float[Array, "rows topk"]


@dataclass(frozen=True)
class Router:
    """`groups` > 1: only experts of the `group_topk` best groups may be chosen. `scaling` multiplies the weights."""

    topk: int
    scoring: Scoring
    renormalize: bool = True
    scaling: float = 1.0
    groups: int = 1
    group_topk: int = 1

    def __post_init__(self) -> None:
        if self.scoring not in get_args(Scoring):
            raise ShapeError(f"router: scoring = {self.scoring!r} must be one of {', '.join(get_args(Scoring))}")
        if self.topk < 1 or not 1 <= self.group_topk <= self.groups:
            raise ShapeError(
                f"router: topk = {self.topk} must be at least 1, and group_topk = {self.group_topk} at least 1 and at "
                f"most groups = {self.groups}"
            )

    def __call__(
        self, logits: Float[Array, "rows experts"], correction_bias: Float[Array, " experts"] | None = None
    ) -> Routing:
        """Choose; `correction_bias` is added to the scores for choosing only. ShapeError where topk cannot be met."""
        self._check(logits.shape[1])
        logits = logits.astype(jnp.float32)
        if self.scoring == "softmax_of_chosen":
            chosen, experts = lax.top_k(logits, self.topk)
            return Routing(experts, jax.nn.softmax(chosen, axis=-1) * self.scaling)
        scores = jax.nn.sigmoid(logits) if self.scoring == "sigmoid" else jax.nn.softmax(logits, axis=-1)
        wanted = scores if correction_bias is None else scores + correction_bias.astype(jnp.float32)[None, :]
        _, experts = lax.top_k(self._in_best_groups(wanted), self.topk)
        weights = jnp.take_along_axis(scores, experts, axis=1)
        if self.renormalize:
            weights = weights / (weights.sum(axis=1, keepdims=True) + _TINY)
        return Routing(experts, weights * self.scaling)

    def _in_best_groups(self, wanted: Float[Array, "rows experts"]) -> Float[Array, "rows experts"]:
        """Scores with those outside the best groups at -inf."""
        if self.groups == 1:
            return wanted
        by_group = wanted.reshape(wanted.shape[0], self.groups, -1)
        best = lax.top_k(by_group, min(_BEST_OF_GROUP, by_group.shape[2]))[0].sum(axis=-1)
        _, kept = lax.top_k(best, self.group_topk)
        allowed = (kept[:, :, None] == jnp.arange(self.groups)[None, None, :]).any(axis=1)
        return jnp.where(allowed[:, :, None], by_group, -jnp.inf).reshape(wanted.shape)

    def _check(self, experts: int) -> None:
        if experts % self.groups:
            raise ShapeError(f"router: {experts} experts cannot be cut into {self.groups} groups: choose a divisor")
        if self.topk > experts // self.groups * self.group_topk:
            raise ShapeError(
                f"router: topk = {self.topk} exceeds the {experts // self.groups * self.group_topk} experts of "
                f"{self.group_topk} groups: allow more groups"
            )
