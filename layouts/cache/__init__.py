"""Paged KV cache: which slot a token gets (host), and where a rank finds it (device)."""

from layouts.cache.batch import Batch, Held
from layouts.cache.pool import KVPool, PoolError

__all__ = ["Batch", "Held", "KVPool", "PoolError"]
