"""Absorbed MLA decode on GPUs with asynchronous warpgroup products, in Pallas (Mosaic GPU)."""

from layouts.mla.hopper.attend import attend_runs
from layouts.mla.hopper.kernel import require_supported

__all__ = ["attend_runs", "require_supported"]
