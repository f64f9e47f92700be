"""Grouped-query attention."""

from layouts.gqa.shape import GQA

__all__ = ["GQA"]
