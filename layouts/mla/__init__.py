"""Multi-head latent attention."""

from layouts.mla.shape import MLA

__all__ = ["MLA"]
