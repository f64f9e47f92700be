"""How far off the predictions are: public runs held against what the tool says of them.

    python -m experiments.fidelity [--data FILE.csv] [--json] [--write-docs]

Without --data the two tables that ship with the project; FILE has the columns of either (docs/fidelity.md describes
both, and the scores). --write-docs puts the tables into docs/fidelity.md. Expected figures: docs/fidelity.md.
"""

import argparse
import functools
import operator
import pathlib
import sys
from collections.abc import Sequence
from typing import Final

from explorer.cli.output import emit, note, watching
from explorer.fidelity.document import document
from explorer.fidelity.drawing import draw, markdown
from explorer.fidelity.files import load_runs
from explorer.fidelity.generated import replace_block
from explorer.fidelity.score import Predictor, score
from hw.errors import MeshwrightError

_ROOT: Final = pathlib.Path(__file__).parent
SHIPPED: Final = tuple(
    _ROOT / "data" / "measurements" / name for name in ("silicon_sample_fit.csv.gz", "layout_points.csv")
)
DOCS: Final = _ROOT.parent / "docs" / "fidelity.md"


def main(arguments: Sequence[str] | None = None, predictor: Predictor | None = None) -> int:
    """Score and print; 0 however well it went, 2 for a file that cannot be read or an option that cannot be."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.fidelity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", metavar="FILE", action="append", help="score this file; may be given again")
    parser.add_argument("--json", action="store_true", help="print one document instead of tables")
    parser.add_argument("--write-docs", action="store_true", help="refresh the tables of docs/fidelity.md as well")
    options = parser.parse_args(arguments)
    if options.write_docs and options.data:
        parser.error("--write-docs is about the shipped tables: leave --data out")
    try:
        loaded = functools.reduce(operator.add, map(load_runs, options.data or SHIPPED))
        with watching("fidelity") as report:
            found = document(score(loaded, predictor or _predictor(), report))
        if options.write_docs:
            replace_block(DOCS, "scoreboard", markdown(found))
    except MeshwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for column in loaded.unread:
        note(f"note: nothing reads column {column!r}")
    emit(found, draw, options.json)
    return 0


def _predictor() -> Predictor:
    from explorer.service.predict import predict
    from hw.compat import use_compilation_cache

    use_compilation_cache()
    return predict


if __name__ == "__main__":
    sys.exit(main())
