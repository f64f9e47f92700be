"""Cases run: every figure with what this project predicts for it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from explorer.cases.case import Case, CaseError, Figure, Kind, Server, Value
from explorer.cases.quantities import QUANTITIES, RATES, Quantity
from explorer.cases.subject import Subject
from explorer.documents import Document
from hw.errors import MeshwrightError

PREFERRED: Final = "preferred"
"""A quantity of its own: the server, among several, of which another quantity is best."""
HELD: Final = (Kind.MEMORY, Kind.CAPACITY, Kind.FITS)
"""Kinds of which a share must pass."""


@dataclass(frozen=True)
class Result:
    """One figure. `error` is relative, in units where the tolerance is (`unit`), None for words and where nothing is
    predicted; `margin`: of a preferred server, how much worse the next one is, relative to it; `passed` None where
    inputs are missing; `reason` says why nothing is predicted, or which are missing."""

    id: str
    kind: Kind
    quantity: str
    unit: str
    reported: Value
    predicted: Value | None
    error: float | None
    margin: float | None
    tolerance: float
    passed: bool | None
    reason: str | None
    source: str
    title: str

    def document(self) -> Document:
        """The entry of a list as `--json` prints it."""
        found = asdict(self) | {"kind": str(self.kind)}
        return {("pass" if key == "passed" else key): value for key, value in found.items()}


def run_cases(cases: Sequence[Case]) -> tuple[Result, ...]:
    """Every figure of every case, in order; what cannot be predicted says why."""
    return tuple(result for case in cases for result in run_case(case))


def run_case(case: Case) -> tuple[Result, ...]:
    """Every figure of a case."""
    held: dict[object, Subject] = {}
    return tuple(_run(case, figure, held) for figure in case.figures)


def passes(results: Sequence[Result]) -> Mapping[str, bool | None]:
    """By case: whether all of its figures pass, None where inputs of every one are missing."""
    found: dict[str, bool | None] = {}
    for result in results:
        before = found.get(result.id)
        found[result.id] = before if result.passed is None else result.passed and before is not False
    return found


def _run(case: Case, figure: Figure, held: dict[object, Subject]) -> Result:
    asked = figure.by if figure.quantity == PREFERRED else figure.quantity
    quantity = _quantity(case, figure, asked)
    predicted, margin, reason = None, None, None
    try:
        predicted, margin = _predicted(case, figure, quantity, held)
    except MeshwrightError as error:
        reason = str(error)
    error = _error(figure, quantity, predicted)
    passed = predicted is not None and _near(figure, quantity, predicted, error)
    if figure.missing is not None:
        reason = f"inputs unknown: {figure.missing}"
    return Result(
        id=case.id,
        kind=case.kind,
        quantity=_name(figure),
        unit="" if figure.quantity == PREFERRED or figure.over else quantity.unit,
        reported=figure.reported,
        predicted=predicted,
        error=error,
        margin=margin,
        tolerance=quantity.tolerance,
        passed=None if figure.missing is not None else passed,
        reason=reason or figure.note,
        source=case.source,
        title=case.title,
    )


def _quantity(case: Case, figure: Figure, name: str | None) -> Quantity:
    if name is None or name not in QUANTITIES:
        raise CaseError(f"case {case.id}: quantity {name!r} is unknown: choose one of {', '.join(QUANTITIES)}")
    if figure.quantity == PREFERRED and len(figure.among) < 2:
        raise CaseError(f"case {case.id}: a preferred server needs two or more names in `among`")
    return QUANTITIES[name]


def _name(figure: Figure) -> str:
    if figure.quantity == PREFERRED:
        return f"{PREFERRED} by {figure.by}"
    server = f" of {figure.of}" if figure.of else ""
    return f"{figure.quantity}{server}" + (f" over {figure.over}" if figure.over else "")


def _predicted(
    case: Case, figure: Figure, quantity: Quantity, held: dict[object, Subject]
) -> tuple[Value, float | None]:
    """What is predicted, and the margin of a preference."""

    def ask(name: str | None) -> Value:
        return quantity.predict(_subject(case, figure, name, held))

    if figure.quantity == PREFERRED:
        found = {name: float(ask(name)) for name in figure.among}
        best, second = sorted(found, key=lambda name: found[name], reverse=figure.by in RATES)[:2]
        return best, abs(found[second] - found[best]) / abs(found[best]) if found[best] else None
    own = figure.of or next(iter(case.servers), None)
    if figure.over is None:
        return ask(own), None
    return float(ask(own)) / float(ask(figure.over)), None


def _subject(case: Case, figure: Figure, name: str | None, held: dict[object, Subject]) -> Subject:
    """One subject for each server and set of readings: figures share what it has worked out."""
    key = name, tuple(sorted(figure.given.items()))
    if key not in held:
        server: Server | None = case.servers[name] if name is not None else None
        held[key] = Subject(server, figure.given)
    return held[key]


def _error(figure: Figure, quantity: Quantity, predicted: Value | None) -> float | None:
    reported = figure.reported
    if predicted is None or isinstance(predicted, bool | str) or isinstance(reported, bool | str):
        return None
    apart = predicted - reported
    return float(apart) if quantity.absolute or not reported else apart / abs(reported)


def _near(figure: Figure, quantity: Quantity, predicted: Value, error: float | None) -> bool:
    """Within the tolerance, and half of the last place that the report prints."""
    if error is None or isinstance(predicted, bool | str) or isinstance(figure.reported, bool | str):
        return predicted == figure.reported
    scale = 1.0 if quantity.absolute else abs(figure.reported)
    allowed = quantity.tolerance * scale + figure.printed_to / 2
    return abs(predicted - figure.reported) <= allowed * (1 + 1e-9)
