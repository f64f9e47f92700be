"""Attention over keys and values that lie in pages of a pool: GQA and absorbed MLA, decode and verify."""

from layouts.paged.pages import RUN, Pages

__all__ = ["RUN", "Pages"]
