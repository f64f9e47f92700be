"""Absorbed MLA decode on GPUs with asynchronous warpgroup products, in Pallas (Mosaic GPU)."""

from layouts.mla.hopper.kernel import attend_parts, require_supported
from layouts.mla.hopper.splits import merge, split_count

__all__ = ["attend_parts", "merge", "require_supported", "split_count"]
