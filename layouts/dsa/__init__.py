"""The index of sparse attention."""

from layouts.dsa.shape import Indexer

__all__ = ["Indexer"]
