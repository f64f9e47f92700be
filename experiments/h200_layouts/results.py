"""What was measured, point by point, each with the run that it is of."""

import datetime
import hashlib
import json
import pathlib
from collections.abc import Mapping
from functools import cache
from typing import Any

import jax

import layouts
from experiments.h200_layouts.points import Point, Shape
from explorer.documents import versions


class Results:
    """Rows by the keys of points, in a file that is rewritten with every one of them.

    A file that is there is gone on with: `runs` has a heading for each set of machine, versions, programs and day that
    measured some of its rows, and a row says which (`run`, its number). What else is in the file stays.
    """

    def __init__(self, path: pathlib.Path):
        self.path = path
        self._document: dict[str, Any] = {"runs": [], "points": {}}
        if path.exists():
            self._document |= json.loads(path.read_text(encoding="utf-8"))

    @property
    def rows(self) -> dict[str, Any]:
        return self._document["points"]

    def put(self, key: str, row: Mapping[str, Any]) -> None:
        """Keep a row of this run, in memory and in the file."""
        self.rows[key] = {**row, "run": self._run()}
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(self._document, indent=1) + "\n", encoding="utf-8")
        partial.replace(self.path)

    def missing(self, shape: Shape) -> tuple[int, ...]:
        """Contexts of a shape that were not measured."""
        return tuple(c for c in shape.contexts if "flight" not in self.rows.get(Point(shape, c).key, {}))

    def _run(self) -> int:
        """The number of this run's heading, which is added where there is none like it."""
        runs, own = self._document["runs"], heading()
        if own not in runs:
            runs.append(own)
        return runs.index(own)


def heading() -> dict[str, Any]:
    """What rows of one run have in common."""
    devices = jax.devices()
    return {
        "date": datetime.date.today().isoformat(), "device": devices[0].device_kind, "gpus": len(devices),
        "versions": versions(), "programs": programs(),
    }  # fmt: skip


@cache
def programs() -> str:
    """A digest of all that programs are made of: rows of a kernel that was replaced are told from those of another."""
    root, digest = pathlib.Path(layouts.__path__[0]), hashlib.sha256()
    for path in sorted(p for p in root.rglob("*") if p.suffix in (".py", ".toml")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
