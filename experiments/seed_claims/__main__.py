"""Command line of the claims."""

import argparse
import json
import sys
from collections.abc import Sequence

from experiments.seed_claims.claims import read_claims
from experiments.seed_claims.evaluation import evaluate_all
from experiments.seed_claims.reasons import DOCS, markdown
from experiments.seed_claims.report import show
from explorer.fidelity.generated import replace_block
from hw.compat import use_compilation_cache


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate and print; 0 whatever passes, 2 (by argparse) for an option that cannot be."""
    claims = read_claims()
    parser = argparse.ArgumentParser(prog="python -m experiments.seed_claims", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print a list of rows instead of tables")
    parser.add_argument("--seed", choices=sorted({c.seed for c in claims}), help="claims of one article")
    parser.add_argument("--kind", choices=sorted({c.kind for c in claims}), help="claims of one kind")
    parser.add_argument("--write-docs", action="store_true", help="refresh the table of docs/fidelity.md as well")
    options = parser.parse_args(arguments)
    if options.write_docs and (options.seed or options.kind):
        parser.error("--write-docs is about all claims: leave --seed and --kind out")
    chosen = [c for c in claims if options.seed in (None, c.seed) and options.kind in (None, c.kind)]
    if not chosen:
        parser.error(f"no claim of article {options.seed} is of kind {options.kind}: leave one of them out")
    use_compilation_cache()
    rows = evaluate_all(chosen)
    if options.write_docs:
        replace_block(DOCS, "claims", markdown(rows))
    if options.json:
        json.dump([row.document() for row in rows], sys.stdout, indent=1)
        print()
    else:
        show(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
