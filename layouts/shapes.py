"""What the shape of every op needs: checks of sizes, vectors, and the gated MLP."""

from typing import Final

from hw.errors import MeshwrightError
from layouts.expression import ONE, Expr
from layouts.tensor import FORMATS, Component, Format, Tensor

BF16: Final = FORMATS["bf16"]
FP32: Final = FORMATS["fp32"]
KV_FORMATS: Final = ("bf16", "fp8", "fp8_raw")


class ShapeError(MeshwrightError):
    """Sizes that no weight can have."""


def check_sizes(op: str, positive: dict[str, int], optional: dict[str, int] | None = None) -> None:
    """Raise ShapeError unless the first are integers >= 1 and the second integers >= 0 (0 means absent)."""
    for sizes, least in ((positive, 1), (optional or {}, 0)):
        for name, size in sizes.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < least:
                raise ShapeError(f"{op}: {name} = {size!r} must be an integer of at least {least}")


def check_kv_format(op: str, name: str) -> None:
    """Raise ShapeError for a format in which no engine keeps a KV cache."""
    if name not in KV_FORMATS:
        raise ShapeError(f"{op}: no KV cache in {name!r}; choose one of {', '.join(KV_FORMATS)}")


def vector(
    name: str, size: int, component: Component, fixed: Format = BF16, cut: Expr = ONE, copies: Expr = ONE
) -> Tensor:
    """A norm, bias or gate constant: `size` numbers that no GEMM reads and no re-quantisation touches."""
    return Tensor(name, size, 1, component, rows=None, cut=cut, fixed=fixed, copies=copies)


def gated_mlp(
    prefix: str,
    hidden: int,
    intermediate: int,
    component: Component,
    rows: Expr,
    cut: Expr,
    shard: Expr | None = None,
) -> tuple[Tensor, ...]:
    """Gate and up, held as one (2 x intermediate, hidden), and down (hidden, intermediate) of a SwiGLU-like MLP."""
    return (
        Tensor(f"{prefix}gate_up_proj", 2 * intermediate, hidden, component, rows, cut, shard=shard),
        Tensor(f"{prefix}down_proj", hidden, intermediate, component, rows, cut, shard=shard, cut_input=True),
    )
