"""Weights as data: the one table from which resident bytes, GEMMs and weight gathers all follow."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal, get_args

from layouts.expression import ONE, ZERO, Expr

Component = Literal["attention", "latent", "shared", "dense", "experts", "head", "draft", "kv", "state"]
COMPONENTS: Final[tuple[Component, ...]] = get_args(Component)


@dataclass(frozen=True)
class Format:
    """How a parameter is stored: payload and scale bytes a parameter, the tensor-core rate it computes at, and the
    values that a cut must keep together: kernels of block formats refuse a part of a block, those of fine-grained ones
    pad it."""

    name: str
    payload: Fraction
    scale: Fraction
    rate: Literal["bf16", "fp8", "fp4"]
    block: int = 1


FORMATS: Final[Mapping[str, Format]] = {
    f.name: f
    for f in (
        Format("fp32", Fraction(4), Fraction(0), "bf16"),
        Format("bf16", Fraction(2), Fraction(0), "bf16"),
        # one float32 scale for each 128 x 128 block (DeepSeek-V3 `weight_block_size`)
        Format("fp8", Fraction(1), Fraction(4, 128 * 128), "fp8", 128),
        # a KV cache of one byte a value and no scales, where `fp8` may have them (sparse attention)
        Format("fp8_raw", Fraction(1), Fraction(0), "fp8"),
        # OCP MX: one E8M0 byte for each 32 values; computed with 8-bit activations
        Format("mxfp4", Fraction(1, 2), Fraction(1, 32), "fp8"),
        # one E4M3 byte for each 16 values
        Format("nvfp4", Fraction(1, 2), Fraction(1, 16), "fp4"),
        # compressed-tensors pack-quantized: one bf16 scale for each 32 values; dequantised to bf16
        Format("int4", Fraction(1, 2), Fraction(2, 32), "bf16"),
    )
}


@dataclass(frozen=True)
class Precision:
    """The storage format of each component of a model."""

    formats: Mapping[str, Format]

    def __getitem__(self, component: str) -> Format:
        return self.formats[component]

    def with_formats(self, changes: Mapping[str, Format]) -> "Precision":
        return Precision({**self.formats, **changes})


@dataclass(frozen=True)
class Tensor:
    """One weight (out, in) of one layer.

    `cut` divides it over ranks; `work_cut` is what the step's GEMM is divided by where that differs (replicated Q);
    `shard` is the weight-shard width symbol if its rows may also be sharded. `rows` are the activation rows that it
    multiplies in a step, None for what is no GEMM. `fixed` is a format that re-quantising the component leaves alone.
    `copies` counts like tensors on a rank (experts). A weight is cut along its output unless `cut_input`; one of
    `heads` > 1 is a product a head, each with an input of its own (inp a head), cut by heads.
    """

    name: str
    out: int
    inp: int
    component: Component
    rows: Expr | None
    cut: Expr = ONE
    work_cut: Expr | None = None
    shard: Expr | None = None
    fixed: Format | None = None
    copies: Expr = ONE
    cut_input: bool = False
    heads: int = 1

    def activations(self) -> Expr:
        """Values that one rank's product reads and writes for its rows; zero for what is no GEMM."""
        if self.rows is None:
            return ZERO
        cut = self.work_cut or self.cut
        read, written = self.rows * (self.inp * self.heads), self.rows * self.out
        if self.heads > 1:
            return (read + written) / cut
        return read / cut + written if self.cut_input else read + written / cut

    @property
    def parameters(self) -> int:
        """Of one whole copy, before any cut."""
        return self.out * self.inp

    def format(self, precision: Precision) -> Format:
        return self.fixed or precision[self.component]

    def payload(self, precision: Precision) -> Expr:
        """Bytes of one rank's part before weight sharding, scales left out (they are never sharded)."""
        return self.copies * (self.format(precision).payload * self.parameters) / self.cut

    def scales(self, precision: Precision) -> Expr:
        """Bytes of its quantisation scales on one rank."""
        return self.copies * (self.format(precision).scale * self.parameters) / self.cut

    def resident(self, precision: Precision) -> Expr:
        """Bytes that live on one rank."""
        held = self.payload(precision)
        return (held / self.shard if self.shard is not None else held) + self.scales(precision)
