"""What a step's kernels move through HBM, told apart by what it is: a request's, a weight, an activation.

The bytes of an op are a sum of products, and each product says by its quantities what it counts: KV tokens and
requests are state that goes with requests wherever they run, rows are activations, the rest is weights.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Final

from explorer.priced import Priced
from layouts.blocks import step_blocks
from layouts.expression import Expr, Powers
from layouts.op import Op, Stream
from layouts.symbols import MEANING, REQUESTS


class Matter(StrEnum):
    """What bytes are of."""

    KV = "KV read"
    STATE = "state read and written"
    WEIGHTS = "weights read"
    STAGING = "local copies into staging"
    ACTIVATIONS = "activations read and written"


# by the ending of a quantity's name, so that a new count of rows or of cached tokens is told apart without a line here
_OF: Final = (
    (Matter.KV, frozenset(name for name in MEANING if name.endswith("_tokens"))),
    (Matter.ACTIVATIONS, frozenset(name for name in MEANING if name.endswith("rows"))),
    (Matter.STATE, REQUESTS.names),
)


@dataclass(frozen=True)
class Moved:
    """Bytes of a step on one card that the ops of one name move, of one matter; `depends` on these quantities."""

    op: str
    family: str
    matter: Matter
    bytes: float
    depends: frozenset[str]


def moved(found: Priced, numbers: Mapping[str, Fraction]) -> Iterator[Moved]:
    """Every kernel's bytes, a step and card, in the order of the step's blocks. `numbers`: the layout's quantities."""
    step = step_blocks(found.request.model, found.request.prefill, found.request.program)
    kernels = [op for block in step.blocks for op in block.ops if op.family is not None]
    for op, count in zip(kernels, found.counts, strict=False):
        times = Fraction(float(count)) * op.share.evaluate(numbers)
        for term in op.bytes.terms:
            size = Expr((term,)).evaluate(numbers) * times
            if size:
                names = frozenset(name for name, _ in term[0])
                yield Moved(op.name, str(op.family), matter_of(op, term[0]), float(size), names | op.share.names)


def matter_of(op: Op, powers: Powers) -> Matter:
    """What one product of a kernel's bytes is of."""
    if op.stream is Stream.GATHER:
        return Matter.STAGING
    counted = {name for name, power in powers if power > 0}
    return next((matter for matter, names in _OF if names & counted), Matter.WEIGHTS)
