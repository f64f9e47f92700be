"""Dense products as the projections of a decoder are, with a weight that comes from memory; and activations."""

from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
from jax import lax

from hw.measuring import Bench, normal, weight
from layouts.benching import BF16, Case, asked, named, values_of
from layouts.dense.activation import SwiGLU
from layouts.dense.shape import Dense
from layouts.dense.work import work
from layouts.linear import linear
from layouts.op import gemm
from layouts.symbols import ROWS
from layouts.tensor import FORMATS, Precision, Tensor

# input width, output width, rows: wide and narrow projections of models of 4k to 8k hidden values
_SHAPES: Final = (
    (7168, 18432, (1, 16, 64, 128, 256, 1024, 4096)),
    (7168, 2112, (1, 16, 64, 256, 1024)),
    (1536, 24576, (1, 32, 128, 512)),
    (16384, 7168, (1, 16, 64, 256, 2048)),
    (4096, 4096, (1, 32, 128, 512, 4096)),
    (2048, 7168, (8, 64, 512)),
    (7168, 384, (16, 128)),
    (7168, 65536, (16, 128)),
)
_FP8_SHAPES: Final = ((7168, 18432, (1, 16, 64, 256, 1024, 4096)), (1536, 24576, (16, 128)), (16384, 7168, (16, 128)))
# intermediate width, rows
_ACTIVATIONS: Final = ((18432, 16), (2048, 64), (18432, 512))
_SMALL_ACTIVATIONS: Final = ((256, 1), (256, 16))
_SMALL: Final = ((256, 512, (1, 16, 64)), (512, 128, (1, 16, 64)))
_FP8: Final = jnp.float8_e4m3fn
_IN_FP8: Final = Precision({"dense": FORMATS["fp8"]})


def benches(multiprocessors: int, small: bool = False) -> list[Bench]:
    """Products, then the activation between two of them."""
    tables = {"bf16": _SMALL if small else _SHAPES, "fp8": () if small else _FP8_SHAPES}
    activations = _SMALL_ACTIVATIONS if small else _ACTIVATIONS
    return [
        *(_product(f, k, n, m, multiprocessors) for f, shapes in tables.items() for k, n, rows in shapes for m in rows),
        *(_activation(width, m, multiprocessors) for width, m in activations),
    ]


def _product(form: str, inner: int, columns: int, rows: int, multiprocessors: int) -> Bench:
    tensor = Tensor("weight", columns, inner, "dense", ROWS)
    fp8 = form == "fp8"
    # scaled operands use the whole range of fp8
    return Bench(
        name=f"{form} {rows} x {inner} by {inner} x {columns}",
        asks=asked([gemm(tensor, _IN_FP8 if fp8 else BF16)], values_of(Case(rows), multiprocessors)),
        turn=_eight_bits if fp8 else linear,
        held=partial(normal, shape=(rows, inner), dtype=_FP8 if fp8 else jnp.bfloat16),
        own=partial(normal, shape=(columns, inner), dtype=_FP8) if fp8 else partial(weight, shape=(columns, inner)),
    )


def _eight_bits(x: jax.Array, weight: jax.Array) -> jax.Array:
    """Both operands in fp8 as they are, their scales left out."""
    return lax.dot_general(x, weight, (((1,), (1,)), ((), ())), preferred_element_type=jnp.bfloat16)


def _activation(width: int, rows: int, multiprocessors: int) -> Bench:
    dense = Dense(width, width)
    return Bench(
        name=f"activation of {rows} x {width}",
        asks=asked(named(work(dense, (), BF16), "mlp_activation"), values_of(Case(rows), multiprocessors)),
        turn=lambda held, own: SwiGLU()(held[:, 0], held[:, 1]),
        held=partial(normal, shape=(rows, 2, width)),
    )
