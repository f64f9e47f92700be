"""Shape of attention residuals: the stream is cut into blocks of layers, and layers read a mixture of the blocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from layouts.shapes import ShapeError, check_sizes, vector
from layouts.tensor import Tensor

OUTPUT = "output_attn_res"  # the read before the model's last norm
ATTENTION, FFN = "self_attention_res", "mlp_res"  # the two reads of a layer


@dataclass(frozen=True)
class AttentionResidual:
    """A block opens at every `block_size`-th layer, the first one included (`attn_res_block_size` of a config).

    Layers count from 0. A layer reads twice, before its attention and before its feed-forward part; both norms that
    stand there in any decoder stay, and take the mixture in place of the stream.
    """

    hidden: int
    block_size: int

    def __post_init__(self) -> None:
        check_sizes("attention residual", {"hidden": self.hidden, "block_size": self.block_size})

    def opens(self, layer: int) -> bool:
        """Whether the stream before this layer becomes a block, and starts anew with the layer's attention."""
        return layer % self.block_size == 0

    def blocks_before(self, layer: int) -> int:
        """Blocks that the attention of a layer reads; of `layer` = number of layers: that the output reads."""
        return -(-layer // self.block_size)

    def blocks_after(self, layer: int) -> int:
        """Blocks that the feed-forward part of a layer reads."""
        return layer // self.block_size + 1

    def mean_blocks(self, layers: Sequence[int]) -> tuple[Fraction, Fraction]:
        """Blocks that the attention and the feed-forward part of some layers read, on average over them."""
        if not layers:
            raise ShapeError("attention residual: no layer to average over; name at least one")
        before, after = (sum(count(layer) for layer in layers) for count in (self.blocks_before, self.blocks_after))
        return Fraction(before, len(layers)), Fraction(after, len(layers))

    def layer_tensors(self) -> tuple[Tensor, ...]:
        """Weights that one layer has beside those of its parts, whole on every rank."""
        return (*self._read(ATTENTION), *self._read(FFN))

    def output_tensors(self) -> tuple[Tensor, ...]:
        """Weights of the read before the model's last norm."""
        return self._read(OUTPUT)

    def _read(self, name: str) -> tuple[Tensor, ...]:
        return tuple(vector(f"{name}_{part}", self.hidden, "attention") for part in ("norm", "proj"))
