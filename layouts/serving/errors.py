"""The error of a setting that the serving engine would refuse."""

from hw.errors import MeshwrightError


class EngineRuleError(MeshwrightError):
    """A setting that the engine refuses. One line: the setting, the rule it breaks, and the remedy."""


def require_positive(**values: int) -> None:
    """Raise `EngineRuleError` naming the first of the integers that is below 1."""
    for name, value in values.items():
        if value < 1:
            raise EngineRuleError(f"{name} is {value}, but must be at least 1: give a positive {name}")


def require_not_negative(**values: int) -> None:
    """Raise `EngineRuleError` naming the first of the integers that is below 0."""
    for name, value in values.items():
        if value < 0:
            raise EngineRuleError(f"{name} is {value}, but must not be negative: give 0 or more")
