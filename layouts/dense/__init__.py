"""The dense MLP."""

from layouts.dense.shape import Dense

__all__ = ["Dense"]
