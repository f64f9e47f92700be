"""Which cut is best: the question, the step, the ledger, the search, and what they say.

`explorer.plan`, `cost`, `memory`, `compare`, `sensitivity`, `serve`, `audit`, `trace`, `calibrate`, `check` and `log`
answer from Python; JAX is imported with the first of them, so that the command line's help stays instant.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from explorer.api import audit, calibrate, check, compare, cost, log, memory, plan, sensitivity, serve, trace

__all__ = ["audit", "calibrate", "check", "compare", "cost", "log", "memory", "plan", "sensitivity", "serve", "trace"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'explorer' has no attribute {name!r}")
    from explorer import api

    return getattr(api, name)
