"""CPU time in which a step of our own program is started: hidden while the devices take longer."""

import functools
import pathlib
import tomllib
from typing import Final, NamedTuple

from hw.figures import Provenance, flattened

_FILE: Final = pathlib.Path(__file__).with_suffix(".toml")


class Launch(NamedTuple):
    """Seconds of a call of one compiled stage: likely, and the ends of an 80 % range."""

    seconds: float
    least: float
    most: float


@functools.cache
def program_launch(*, several: bool) -> Launch:
    """As measured, of a stage of one GPU or of several; those were two, and what more layers take was not measured."""
    document = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    sources, kind = document.pop("sources"), "several" if several else "one"
    found = {name: figure.value for name, figure in flattened(document, "", sources, Provenance.ASSUMED, _FILE.name)}
    return Launch(*(found[f"{kind}.{name}"] for name in ("call", "call_least", "call_most")))
