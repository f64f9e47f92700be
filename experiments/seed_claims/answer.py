"""What a claim's function returns: figures in the order of the claim's parts, and perhaps a remark."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from experiments.seed_claims.values import Predicted


@dataclass(frozen=True)
class Answer:
    """A prediction in the unit of its claim."""

    parts: tuple[Predicted, ...]
    note: str = ""


Predictor = Callable[[], Answer]
Topic = Mapping[str, Predictor]


def answer(*parts: Predicted, note: str = "") -> Answer:
    """A prediction of one part or several."""
    return Answer(tuple(p if isinstance(p, str | tuple) else float(p) for p in parts), note)


def holds(*conditions: bool, note: str = "") -> Answer:
    """1 where every condition of a rule holds, else 0."""
    return answer(float(all(conditions)), note=note)


def named(formulas: Mapping[str, object], actual: object) -> Answer:
    """The name of the formula that gives what the tool gives; the formulas must differ on the values tried."""
    matching = [name for name, value in formulas.items() if value == actual]
    return answer(matching[0] if len(matching) == 1 else "none of the formulas")
