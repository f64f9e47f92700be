"""The dense gated MLP, cut over the attention group.

Under attention DP that is SGLang 0.5.23 with `--enable-dense-mlp-attn-tp` (models/kimi_k3.py:
`_dense_mlp_parallel_group`); without it, the rows of all groups are gathered and the MLP is cut over the whole stage.
"""

from collections.abc import Sequence

from layouts.dense.shape import Dense
from layouts.op import Op, elementwise, gemms
from layouts.symbols import DENSE_ROWS, DENSE_TP
from layouts.tensor import Precision, Tensor

_BF16 = 2


def work(dense: Dense, tensors: Sequence[Tensor], precision: Precision) -> tuple[Op, ...]:
    """Two GEMMs and the gated activation between them (two values read, one written)."""
    return (
        *gemms(tensors, precision),
        elementwise("mlp_activation", DENSE_ROWS * (3 * _BF16 * dense.intermediate) / DENSE_TP),
    )
