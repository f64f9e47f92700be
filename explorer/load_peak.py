"""Memory while the weights of a model load: FP8 weights load whole, are requantised, and only then cut by rows."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from layouts.expression import Expr
from layouts.mla import MLA
from layouts.models.model import Model
from layouts.serving.requantise import RequantisedWeight, load_peak
from layouts.tensor import Tensor

_REQUANTISED = "fp8"
Numbers = Mapping[str, Fraction]


@dataclass(frozen=True)
class Loading:
    """Bytes that a GPU holds above its resident weights at the end of loading, by cause; all go afterwards.

    `whole`: rows of sharded weights that other ranks will keep; `temporaries`: of requantising the largest weight;
    `absorbed`: projections of the checkpoint that live on in another form and are released.
    """

    whole: int
    temporaries: int
    absorbed: int

    @property
    def released(self) -> int:
        return self.whole + self.temporaries + self.absorbed


def loading(model: Model, values: Numbers) -> Loading:
    """What loading a layout takes beside the weights. `values` are the layout's quantities.

    Sources: `layouts.serving.requantise`; article 000 (requant-then-shard, kv_b_proj released once absorbed). An upper
    bound where the engine keeps the scales of the checkpoint and requantises nothing.
    """
    peak = load_peak(_weights(model, values))
    absorbed = sum(
        ceil(values[f"layers_{k}"] * layer.attention.kv_b.payload(model.precision).evaluate(values))
        for k, layer in enumerate(model.kinds)
        if isinstance(layer.attention, MLA) and model.defaults.get("kv_b_released", False)
    )
    return Loading(peak.whole, peak.temporaries, absorbed)


def _weights(model: Model, values: Numbers) -> Iterator[RequantisedWeight]:
    for kind, layer in enumerate(model.kinds):
        held, sharded = int(values[f"layers_{kind}"]), int(values[f"sharded_{kind}"])
        yield from _of_layers(layer.tensors(), model, values, sharded, held - sharded)
    if model.draft is not None:
        for layer in model.draft.layers:
            yield from _of_layers(layer.tensors(), model, values, 1, 0)


def _of_layers(
    tensors: Iterable[Tensor], model: Model, values: Numbers, sharded: int, whole: int
) -> Iterator[RequantisedWeight]:
    """A kind's FP8 weights, in the layers that will share their rows and in those that will not."""
    for tensor in tensors:
        if tensor.rows is None or tensor.format(model.precision).name != _REQUANTISED:
            continue
        rows = ceil((tensor.copies * tensor.out / tensor.cut).evaluate(values))
        width = _shard(tensor.shard, values)
        if sharded:
            yield RequantisedWeight(tensor.name, rows, tensor.inp, sharded, width)
        if whole:
            yield RequantisedWeight(tensor.name, rows, tensor.inp, whole)


def _shard(width: Expr | None, values: Numbers) -> int:
    return 1 if width is None else int(width.evaluate(values))
