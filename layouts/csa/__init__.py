"""Attention over a window and a compressed context: one KV head, rows of several tokens, a stream of several copies."""

from layouts.csa.shape import CSA

__all__ = ["CSA"]
