"""Kimi Delta Attention, linear attention with a recurrent state."""

from layouts.kda.shape import KDA

__all__ = ["KDA"]
