"""Values as the articles print them: one figure, several, a range, a bound or words; and their tolerances.

`3.50 / 2.92`, `145.2 / 109.9; 47.7 / 14.6`, `1440.734 -> 1364.046`, `1.54-1.62 / 6.33`, `4 to 5 / below 2`,
`1.5 GiB / 2.5 ms`, `tp x pp`. A prediction has the same parts and is written back in the same shape.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hw.errors import MeshwrightError

Predicted = float | tuple[float, float] | str

_SEPARATOR: Final = re.compile(r" / |; | -> ")
_NUMBER: Final = r"-?\d+(?:\.\d+)?"
_FIGURE: Final = re.compile(rf"({_NUMBER})((?: [A-Za-z%]+)?)")
_RANGE: Final = re.compile(rf"({_NUMBER})(-| to )({_NUMBER})")
_BOUND: Final = re.compile(rf"(below )({_NUMBER})")
_PERCENT: Final = re.compile(rf"({_NUMBER})%")
_ABSOLUTE: Final = re.compile(r"(\d[\d.]*(?:e-?\d+)?)([A-Za-z]*)")


class ClaimError(MeshwrightError):
    """A value or tolerance that cannot be read, or a prediction of another shape."""


@dataclass(frozen=True)
class Part:
    """One part of a value: `{}` stands for a number in `template`; without one the part is words."""

    template: str
    numbers: tuple[float, ...] = ()
    decimals: int = 0
    bound: bool = False

    def fill(self, predicted: Predicted) -> str:
        """The part with the prediction in the place of its figures."""
        numbers = predicted if isinstance(predicted, tuple) else () if isinstance(predicted, str) else (predicted,)
        if isinstance(predicted, str) != (not self.numbers) or len(numbers) != len(self.numbers):
            raise ClaimError(f"prediction {predicted!r} has not the shape of {self.template!r}: give as many figures")
        return predicted if isinstance(predicted, str) else self.template.format(*map(_figure, numbers))


@dataclass(frozen=True)
class Value:
    """Parts and what stands between them."""

    parts: tuple[Part, ...]
    separators: tuple[str, ...]
    text: str

    def write(self, predicted: Sequence[Predicted]) -> float | str:
        """The prediction in the shape of the value: a plain number where the value is one."""
        if len(predicted) != len(self.parts):
            raise ClaimError(
                f"a prediction of {len(predicted)} parts for a value of {len(self.parts)}: give one a part"
            )
        written = [part.fill(p) for part, p in zip(self.parts, predicted, strict=True)]
        if self.parts[0].template == "{}" and len(written) == 1 and isinstance(predicted[0], int | float):
            return float(predicted[0])
        return "".join(text + gap for text, gap in zip(written, (*self.separators, ""), strict=True))

    @property
    def stated(self) -> float | str:
        """The value itself: a number where it is one, else as it is printed."""
        (first, *others) = self.parts
        return first.numbers[0] if first.template == "{}" and not others else self.text


def parse_value(text: str) -> Value:
    """Read a value; words are kept as they are."""
    return Value(tuple(map(_part, _SEPARATOR.split(text))), tuple(_SEPARATOR.findall(text)), text)


def _part(text: str) -> Part:
    if match := _FIGURE.fullmatch(text):
        return Part("{}" + match[2], (float(match[1]),), _decimals(match[1]))
    if match := _RANGE.fullmatch(text):
        return Part(f"{{}}{match[2]}{{}}", (float(match[1]), float(match[3])), _decimals(match[1]))
    if match := _BOUND.fullmatch(text):
        return Part("below {}", (float(match[2]),), _decimals(match[2]), bound=True)
    return Part(text)


def _decimals(number: str) -> int:
    return len(number.partition(".")[2])


def _figure(number: float) -> str:
    """Whole numbers in full, others with four significant digits."""
    if float(number).is_integer():
        return f"{number:.0f}"
    return f"{number:.{max(0, 3 - math.floor(math.log10(abs(number))))}f}"


@dataclass(frozen=True)
class Verdict:
    """Deviation of the worst figure, relative unless the tolerance is absolute; and whether it is within."""

    error: float | None
    passed: bool | None


def judge(value: Value, predicted: Sequence[Predicted], tolerance: str) -> Verdict:
    """Hold a prediction against a value. Without a tolerance (`given`) nothing passes or fails."""
    value.write(predicted)  # same shape, or ClaimError
    pairs = [
        (part, want, got)
        for part, p in zip(value.parts, predicted, strict=True)
        for want, got in zip(part.numbers, p if isinstance(p, tuple) else (p,), strict=False)
        if not isinstance(got, str)
    ]
    words = [(part.template, p) for part, p in zip(value.parts, predicted, strict=True) if isinstance(p, str)]
    if not pairs:
        same = all(want == got for want, got in words)
        return Verdict(0.0 if same else None, same)
    absolute = _absolute(tolerance)
    errors = [(got - want) if absolute is not None or want == 0 else got / want - 1.0 for _, want, got in pairs]
    worst = max(errors, key=abs)
    if tolerance == "given":
        return Verdict(worst, None)
    within = all(_within(part, want, got, tolerance, absolute) for part, want, got in pairs)
    ranged = tolerance != "range" or all(map(_inside, value.parts, predicted))
    return Verdict(worst, within and ranged and all(want == got for want, got in words))


def _absolute(tolerance: str) -> float | None:
    match = _ABSOLUTE.fullmatch(tolerance)
    return float(match[1]) if match and tolerance != "0" else None


def _within(part: Part, want: float, got: float, tolerance: str, absolute: float | None) -> bool:
    if tolerance == "range":
        return True  # ends are compared with ends by `_inside`
    if absolute is not None:
        return abs(got - want) <= absolute
    if tolerance == "0":
        return got == want
    if match := _PERCENT.fullmatch(tolerance):
        return abs(got - want) <= abs(want) * float(match[1]) / 100.0
    if tolerance == "print precision":
        return abs(got - want) <= 0.5 * 10.0**-part.decimals
    if tolerance == "upper bound":
        return got <= want
    if tolerance.startswith("upper bound x"):
        return got <= want * float(tolerance.removeprefix("upper bound x"))
    raise ClaimError(f"tolerance {tolerance!r} is unknown: correct the table of claims")


def _inside(part: Part, predicted: Predicted) -> bool:
    """Whether a predicted range lies in the stated one, or a figure under its bound."""
    if isinstance(predicted, str) or not part.numbers:
        return predicted == part.template
    numbers = predicted if isinstance(predicted, tuple) else (predicted,)
    if part.bound:
        return max(numbers) < part.numbers[0]
    return min(part.numbers) <= min(numbers) and max(numbers) <= max(part.numbers)
