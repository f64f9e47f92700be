"""Mixture of experts, with or without a latent width."""

from layouts.moe.shape import MoE

__all__ = ["MoE"]
