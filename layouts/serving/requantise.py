"""Memory while weights load: block-FP8 parameters that are requantised whole, and sharded only afterwards.

The engine rounds each 128 x 128 block scale up to a power of two, which means dequantising the parameter and
quantising it anew. Its eager temporaries, in bytes a parameter (SGLang 0.5.23, `requant_weight_ue8m0`):

| moment | held at once |
|---|---|
| dequantise: multiply | scales repeated to the weight's shape (fp32) 4, weight cast to fp32 4, their product 4 |
| dequantise: cast | repeated scales 4, product 4, its bf16 copy 2 |
| quantise: block maximum | bf16 weight 2, its zero-padded copy 2, magnitudes in bf16 2 and in fp32 4 |
| quantise: scale | bf16 weight 2, padded copy 2, scaled product (fp32) 4 |
| quantise: cast | the same 8, and the new fp8 weight 1 |

The product of scale and weight is the highest. One parameter goes at a time, and the caching allocator keeps what the
largest needed until its cache is emptied.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from layouts.serving.errors import EngineRuleError, require_positive

# Bytes a parameter held at once, by moment: the rows of the table above.
REQUANTISE_MOMENTS: Final = {
    "dequantise: multiply": 4 + 4 + 4,
    "dequantise: cast": 4 + 4 + 2,
    "quantise: block maximum": 2 + 2 + 2 + 4,
    "quantise: scale": 2 + 2 + 4,
    "quantise: cast": 2 + 2 + 4 + 1,
}
BYTES_A_PARAMETER: Final = max(REQUANTISE_MOMENTS.values())


@dataclass(frozen=True)
class RequantisedWeight:
    """One FP8 weight (out, in) of `count` layers, as loaded on a rank; `shard` ranks will share its rows."""

    name: str
    out: int
    inp: int
    count: int = 1
    shard: int = 1

    def __post_init__(self) -> None:
        require_positive(out=self.out, inp=self.inp, count=self.count, shard=self.shard)
        if self.out % self.shard:
            raise EngineRuleError(
                f"{self.out} rows of {self.name} do not divide over {self.shard} ranks: change the shard"
            )

    @property
    def parameters(self) -> int:
        """Of one layer's whole weight; as many payload bytes."""
        return self.out * self.inp

    @property
    def cut_later(self) -> int:
        """Payload bytes of all layers that go when the rows are sharded."""
        return self.count * (self.parameters - self.parameters // self.shard)


@dataclass(frozen=True)
class LoadPeak:
    """Bytes above the resident weights at the end of loading, all released afterwards."""

    whole: int
    temporaries: int

    @property
    def released(self) -> int:
        """Rows that other ranks keep, and the temporaries of the largest parameter."""
        return self.whole + self.temporaries


def requantise_temporaries(out: int, inp: int) -> int:
    """Bytes that requantising one (out, in) weight needs beside the weight itself."""
    require_positive(out=out, inp=inp)
    return BYTES_A_PARAMETER * out * inp


def load_peak(weights: Iterable[RequantisedWeight]) -> LoadPeak:
    """What loading holds above the resident weights, if every requantised weight loads whole and is cut at the end."""
    weights = tuple(weights)
    return LoadPeak(
        whole=sum(weight.cut_later for weight in weights),
        temporaries=max((requantise_temporaries(weight.out, weight.inp) for weight in weights), default=0),
    )
