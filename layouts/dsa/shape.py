"""Shape of the indexer that picks the tokens a sparse attention layer reads."""

from dataclasses import dataclass
from math import ceil

from layouts.shapes import BF16, check_sizes, vector
from layouts.symbols import ROWS
from layouts.tensor import Tensor

_SCALE_BLOCK = 128  # index keys are fp8 with one fp32 scale for each 128 values


@dataclass(frozen=True)
class Indexer:
    """`heads` x `head_dim` index queries against one index key a token; the `topk` best tokens are attended.

    A `shared` indexer reuses the index of the full layer before it: it holds no weights and scores nothing, but the
    engines' pools keep its index keys all the same (GLM-5.3: 78 layers x 788 B, claim G07).
    `q_lora` is the width of the low-rank query that it reads (0: it reads the hidden state).
    """

    hidden: int
    q_lora: int
    heads: int
    head_dim: int
    topk: int
    shared: bool

    def __post_init__(self) -> None:
        sizes = {"hidden": self.hidden, "heads": self.heads, "head_dim": self.head_dim, "topk": self.topk}
        check_sizes("indexer", sizes, {"q_lora": self.q_lora})

    @property
    def key_bytes(self) -> int:
        """Bytes of index key that a rank keeps for a token and layer: fp8 values and their scales (132 at 128)."""
        return self.head_dim + 4 * ceil(self.head_dim / _SCALE_BLOCK)

    def tensors(self) -> tuple[Tensor, ...]:
        """Weights of one layer; every rank computes all index heads, so nothing is cut."""
        if self.shared:
            return ()
        query_width = self.heads * self.head_dim
        return (
            Tensor("index_q_b_proj", query_width, self.q_lora or self.hidden, "attention", ROWS),
            Tensor("index_k_proj", self.head_dim, self.hidden, "attention", ROWS),
            Tensor("index_weights_proj", self.heads, self.hidden, "attention", ROWS, fixed=BF16),
            vector("index_k_norm", 2 * self.head_dim, "attention"),  # a LayerNorm: weight and bias
        )
