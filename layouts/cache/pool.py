"""The KV pool of an attention group on the host: pages, request table, and errors before anything is overwritten."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from hw.errors import MeshwrightError
from layouts.cache.batch import Batch
from layouts.serving.errors import require_not_negative, require_positive
from layouts.serving.owner import group_capacity, virtual_page

Slots = NDArray[np.int32]


class PoolError(MeshwrightError):
    """A request that the pool has no room for, or that it does not know. The pool is as it was."""


class KVPool:
    """Virtual slots of a DCP group: a page of the pool is one physical page on every rank.

    `pages` may be given out; page 0 comes on top and is the padding sink. `requests` lines of the table hold up to
    `context` slots each. `page_interleave` gives whole physical pages to the ranks in turn, otherwise single tokens.
    """

    def __init__(
        self, pages: int, page: int, ranks: int, requests: int, context: int, page_interleave: bool = False
    ) -> None:
        require_positive(pages=pages, page=page, ranks=ranks, requests=requests, context=context)
        self.page = virtual_page(page, ranks)
        self.rows_a_rank = (pages + 1) * page
        self.interleave = page if page_interleave else 1
        self.capacity = group_capacity(pages * page, ranks)
        self.table: Slots = np.zeros((requests, context), np.int32)
        self.lengths: Slots = np.zeros(requests, np.int32)
        self._free = list(range(pages, 0, -1))  # the lowest page is given out first
        self._idle = list(range(requests - 1, -1, -1))

    @property
    def free_slots(self) -> int:
        """Slots of pages that no request holds."""
        return len(self._free) * self.page

    @property
    def idle_lines(self) -> int:
        """Lines of the table that no request has."""
        return len(self._idle)

    def admit(self) -> int:
        """A line of the table for a new request, without tokens; PoolError where every line is taken."""
        if not self._idle:
            raise PoolError(f"all {len(self.table)} lines of the request table are taken: release a request first")
        return self._idle.pop()

    def extend(self, request: int, tokens: int) -> Slots:
        """Slots for the next `tokens` of a request; PoolError, and no slot given, where pool or table is too small."""
        length = self._length(request)
        require_not_negative(tokens=tokens)
        end = length + tokens
        if end > self.table.shape[1]:
            raise PoolError(
                f"request {request} would have {end} tokens and the table holds {self.table.shape[1]}: "
                "shorten it or widen the table"
            )
        wanted = self._pages(end) - self._pages(length)
        if wanted > len(self._free):
            raise PoolError(
                f"request {request} needs {wanted} pages of {self.page} slots and {len(self._free)} are free: "
                "release a request or give the pool more pages"
            )
        for index in range(self._pages(length), self._pages(end)):
            begin = index * self.page
            line = self.table[request, begin : begin + self.page]
            line[:] = self._free.pop() * self.page + np.arange(len(line), dtype=np.int32)
        self.lengths[request] = end
        return self.table[request, length:end].copy()

    def truncate(self, request: int, length: int) -> None:
        """Roll a request back to its first `length` tokens; pages that hold none of them are free again."""
        before = self._length(request)
        if not 0 <= length <= before:
            raise PoolError(f"request {request} has {before} tokens: it cannot be cut to {length}")
        kept = self._pages(length) * self.page
        held = self.table[request, kept : self._pages(before) * self.page : self.page]
        self._free.extend(int(slot) // self.page for slot in held[::-1])
        self.table[request, kept:] = 0
        self.lengths[request] = length

    def release(self, request: int) -> None:
        """Free a request's pages and its line of the table."""
        self.truncate(request, 0)
        self._idle.append(request)

    def batch(self, requests: Sequence[int | None], verify: int) -> Batch:
        """Addresses of a step that verifies the last `verify` tokens of each request; None is an idle row."""
        short = [r for r in requests if r is not None and self._length(r) < verify]
        if short:
            raise PoolError(f"request {short[0]} has fewer than {verify} tokens: extend it first")
        lines = [np.zeros_like(self.table[0]) if r is None else self.table[r] for r in requests]
        lengths = [0 if r is None else int(self.lengths[r]) - verify for r in requests]
        return Batch(jnp.asarray(np.stack(lines)), jnp.asarray(lengths, jnp.int32), self.interleave)

    def _length(self, request: int) -> int:
        if request in self._idle or not 0 <= request < len(self.table):
            raise PoolError(f"request {request} was not admitted: admit it first")
        return int(self.lengths[request])

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self.page)
