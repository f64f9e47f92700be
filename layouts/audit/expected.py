"""What the cost side says that the program of a step does: its ops' program side, as exact integers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from hw.arithmetic import Exact
from hw.compat import x64
from hw.work import CollectiveKind
from layouts.blocks import Block, step_blocks
from layouts.cut import cut_of
from layouts.layout import Layout
from layouts.load import Load
from layouts.models.model import Model
from layouts.op import Op, Stream
from layouts.program_side import AS_PROGRAM
from layouts.quantities import quantities
from layouts.stages import stage_bounds
from layouts.traits import traits_of

Values = Mapping[str, Fraction]
# A gather of weights is traced in its plain form; on GPUs copy engines make it in the program, too.
_AS_TRACED = {**AS_PROGRAM, CollectiveKind.COPY_GATHER: CollectiveKind.ALL_GATHER}


@dataclass(frozen=True)
class Line:
    """One op as the program does it, `count` times a step: FLOPs of a kernel, or payload and group of an exchange, of
    each of its messages if it is several."""

    block: str
    name: str
    count: int
    flops: Fraction = Fraction(0)
    kind: CollectiveKind | None = None
    payload: Fraction = Fraction(0)
    size: int = 1


@dataclass(frozen=True)
class Expected:
    """Every op that the program has, and by block the names of those that are priced only (none where all are)."""

    lines: tuple[Line, ...]
    priced_only: Mapping[str, tuple[str, ...]]

    @property
    def flops(self) -> Fraction:
        """FLOPs of all dots of a rank."""
        return sum((line.flops * line.count for line in self.lines), Fraction(0))


def expected(model: Model, layout: Layout, values: Values) -> Expected:
    """The program's side of every op of a decode step of one replica, drafts left out."""
    blocks = step_blocks(model)
    kept = layout.weight_shard_layers
    lines: list[Line] = []
    priced: dict[str, tuple[str, ...]] = {}
    for index, block in enumerate(blocks.blocks):
        places = [place for place, b in enumerate(blocks.sequence) if b == index]
        if any(place in blocks.draft for place in places) or "draft" in block.name:
            priced[block.name] = ()
            continue
        layers = [place - blocks.target.start for place in places if place in blocks.target]
        sharded = sum(kept.first <= layer <= kept.last for layer in layers)
        found, left = _lines(block, len(places), sharded, values)
        lines += found
        priced |= {block.name: left} if left else {}
    return Expected(tuple(lines), priced)


def _lines(block: Block, count: int, sharded: int, values: Values) -> tuple[list[Line], tuple[str, ...]]:
    """The ops of one block that run in this layout, and the names of those among them that are priced only."""
    # the program's attention computes rows of requests only, not those that pad its group to equal parts
    requested = {**values, "rows": values["batch"] * values["verify"]}
    lines, priced = [], dict[str, None]()
    for place, op in enumerate(block.ops):
        times = (sharded if op.stream is Stream.GATHER else count) if op.share.evaluate(values) else 0
        if not times or _idle(op, values):
            continue
        if not op.program or (op.collective is None and not op.audited_flops):
            priced[op.name] = None
        else:
            lines += _lines_of(block.name, op, times, requested if place in block.attention else values)
    return lines, tuple(priced)


def _idle(op: Op, values: Values) -> bool:
    """An exchange in a group of one rank; anything where nothing moves, as none of the weights is cut by rows."""
    if op.collective is None:
        return not op.bytes.evaluate(values)
    return op.size.evaluate(values) < 2 or not op.audited_payload.evaluate(values)


def _lines_of(block: str, op: Op, times: int, values: Values) -> list[Line]:
    """One for a kernel, and one for each message of an exchange that holds anything."""
    if op.collective is None:
        return [Line(block, op.name, times, flops=op.audited_flops.evaluate(values))]
    kind, size = _AS_TRACED.get(op.collective, op.collective), int(op.size.evaluate(values))
    payloads = [message.evaluate(values) for message in op.audited_messages]
    return [Line(block, op.name, times, kind=kind, payload=payload, size=size) for payload in payloads if payload]


def step_values(model: Model, layout: Layout, load: Load) -> dict[str, Fraction]:
    """Every quantity of a decode step as an exact number, those that only the program depends on included."""
    traits = traits_of(model)
    with x64():
        found = quantities(Exact(), cut_of(layout), load, traits, 1)
    values = {name: Fraction(float(np.asarray(value))) for name, value in found.items()}
    batch, context, verify = (int(values[name]) for name in ("batch", "context", "verify"))
    span = min(traits.window + verify - 1, context) if traits.window else context
    return values | {
        "choices": Fraction(min(traits.topk, int(values["experts_rank"]))),
        "table_tokens": Fraction(batch * -(-context // layout.dcp)),
        "window_table_tokens": Fraction(batch * -(-span // layout.dcp)),
        "index_table_tokens": Fraction(batch * context),
        "chosen_tokens": Fraction(min(traits.index_topk or context, context)),
        "handed_blocks": Fraction(_handed_blocks(model, layout)),
        "inverse_levels": Fraction(math.ceil(math.log2(verify))),
    }


def _handed_blocks(model: Model, layout: Layout) -> int:
    """Blocks that a mixing stream has at the cuts between stages, added up."""
    if model.residual is None:
        return 0
    starts = [stage_bounds(len(model.layers), stage, layout.pp)[0] for stage in range(1, layout.pp)]
    return sum(map(model.residual.blocks_before, starts))
