"""What a serving engine adds to the steps of the GPU: read from a data file, fitted to public runs."""

import difflib
import functools
import pathlib
import tomllib
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final

import equinox as eqx
import numpy as np
from jaxtyping import ArrayLike, Float

from hw.errors import MeshwrightError
from hw.figures import Figure, Provenance, flattened

ENGINES: Final = pathlib.Path(__file__).with_name("engines.toml")
ANY: Final = "other"
_SOURCES: Final = "sources"


class Policy(StrEnum):
    """Which work an engine does first when prompts wait while others decode."""

    PREFILL_FIRST = "prefill_first"  # all prompts that wait, then everybody's next token
    MIXED = "mixed"  # a chunk of the oldest prompt rides along with every decode step


class Engine(eqx.Module):
    """Parameters of an engine, common to all models and machines. Seconds, shares and tokens.

    `fixed_share`: part of the fixed time of kernels and exchanges that is left when they follow each other in a
    captured graph. `step`, `request`: what a step takes besides, and for each request in it. `prefill_stretch`: a
    prefill step over what its kernels take alone. `launch`: a launch outside of a graph. `arrival`: a request before
    and after the GPU (HTTP, tokenising, scheduling). `chunk`: tokens of one prefill step, of each attention group where
    `chunk_by_group`. `spread_tpot`, `spread_ttft`: half-widths of the 80 % ranges, as logarithms.
    """

    name: str = eqx.field(static=True)
    policy: Policy = eqx.field(static=True)
    chunk: int = eqx.field(static=True)
    chunk_by_group: bool = eqx.field(static=True)
    fixed_share: Float[ArrayLike, ""]
    step: Float[ArrayLike, ""]
    request: Float[ArrayLike, ""]
    prefill_stretch: Float[ArrayLike, ""]
    launch: Float[ArrayLike, ""]
    arrival: Float[ArrayLike, ""]
    spread_tpot: Float[ArrayLike, ""]
    spread_ttft: Float[ArrayLike, ""]

    def anonymous(self) -> "Engine":
        """The numbers and the policy: without a name, engines of one policy share compiled programs."""
        return replace(self, name="")


FITTED: Final = ("fixed_share", "step", "request", "prefill_stretch", "launch", "arrival")
UNITS: Final = {
    "fixed_share": "fraction", "step": "s", "request": "s", "prefill_stretch": "ratio", "launch": "s", "arrival": "s",
    "spread_tpot": "logarithm", "spread_ttft": "logarithm",
}  # fmt: skip


def engine_names() -> tuple[str, ...]:
    """Engines with parameters of their own; any other is priced as `other`, the mean of them."""
    return tuple(name for name in _document() if name != _SOURCES)


def load_engine(name: str) -> Engine:
    """The engine of this name; raises MeshwrightError for one that the data file does not know."""
    entry, figures = _entry(name), engine_figures(name)
    return Engine(
        name=name,
        policy=Policy(entry["policy"]),
        chunk=int(entry["chunk"]),
        chunk_by_group=bool(entry["chunk_by_group"]),
        **{what: np.float64(figures[what].value) for what in UNITS},
    )


def engine_figures(name: str) -> dict[str, Figure]:
    """The parameters of an engine with unit, provenance and source; raises MeshwrightError as `load_engine` does."""
    parts = {key: value for key, value in _entry(name).items() if isinstance(value, dict)}
    return dict(flattened(parts, "", _document()["sources"], Provenance.ASSUMED, ENGINES.name))


def engine_for(name: str) -> Engine:
    """The engine of a measured run; one that has no parameters of its own runs as `other`."""
    return load_engine(name if name in engine_names() else ANY)


def _entry(name: str) -> dict[str, Any]:
    known = engine_names()
    if name not in known:
        near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.0)
        raise MeshwrightError(f"unknown engine {name!r}: nearest is {near[0]!r}; known are {', '.join(known)}")
    return _document()[name]


@functools.cache
def _document() -> dict[str, Any]:
    return tomllib.loads(ENGINES.read_text(encoding="utf-8"))
