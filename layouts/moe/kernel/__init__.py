"""Grouped GEMM of few rows an expert for NVIDIA GPUs, in Pallas with the Triton backend.

A rank's choices are ordered by expert in one kernel. A product then goes over tiles of the rows of one expert and some
of its columns: programs as many as the multiprocessors hold share out the tiles that there are, so that experts without
rows are not read and room behind the last row costs nothing, and the weights of the others pass through once.
"""

from layouts.moe.kernel.factor import Factor, factor_of
from layouts.moe.kernel.operand import Operand
from layouts.moe.kernel.order import Order, order_by_expert
from layouts.moe.kernel.product import Ends, product
from layouts.moe.kernel.tile import Tile, tile_of

__all__ = ["Ends", "Factor", "Operand", "Order", "Tile", "factor_of", "order_by_expert", "product", "tile_of"]
