"""Claims in, rows out: a prediction where a topic has one, and whether it holds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from experiments.seed_claims import exchanges, kernels, pools, prefill, rules, steps, weights
from experiments.seed_claims.answer import Topic
from experiments.seed_claims.claims import Claim
from experiments.seed_claims.values import ClaimError, judge

_TOPICS: Final[tuple[Topic, ...]] = tuple(
    module.CLAIMS for module in (weights, pools, steps, kernels, exchanges, rules, prefill)
)
PREDICTORS: Final[Topic] = {id: predictor for topic in _TOPICS for id, predictor in topic.items()}


@dataclass(frozen=True)
class Row:
    """One claim and what became of it; None where it is not reached (or, for `passed`, has nothing to pass)."""

    claim: Claim
    predicted: float | str | None
    error: float | None
    passed: bool | None
    note: str

    def document(self) -> dict[str, float | str | bool | None]:
        """The row of the JSON list."""
        return {
            "id": self.claim.id,
            "kind": self.claim.kind,
            "use": self.claim.use,
            "expected": self.claim.parsed.stated,
            "predicted": self.predicted,
            "error": self.error,
            "tolerance": self.claim.tolerance,
            "pass": self.passed,
        }


def evaluate(claim: Claim) -> Row:
    """Predict one claim and hold the prediction against it. A `given` row is context: it neither passes nor fails."""
    predictor = PREDICTORS.get(claim.id)
    if predictor is None:
        return Row(claim, None, None, None, "")
    answer = predictor()
    try:
        verdict = judge(claim.parsed, answer.parts, claim.tolerance)
    except ClaimError as error:
        raise ClaimError(f"{claim.id}: {error}") from None
    passed = None if claim.use == "given" else verdict.passed
    return Row(claim, claim.parsed.write(answer.parts), verdict.error, passed, answer.note)


def evaluate_all(claims: Sequence[Claim], progress: Callable[[Claim], None] = lambda _: None) -> tuple[Row, ...]:
    """Every row, in order; `progress` is told of each claim before it is evaluated."""
    rows = []
    for claim in claims:
        progress(claim)
        rows.append(evaluate(claim))
    return tuple(rows)
