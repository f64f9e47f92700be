"""The command line of an experiment that measures on a machine with GPUs and shows anywhere what was measured."""

import argparse
import pathlib
import sys
from collections.abc import Callable


def measure_or_show(
    doc: str, results: pathlib.Path, measure: Callable[[pathlib.Path], None], show: Callable[[pathlib.Path], None]
) -> None:
    """`--measure FILE` writes a file, FILE (by default the stored `results`) is shown; exits with one line and status 1
    where there is none."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", type=pathlib.Path, metavar="FILE", help="run on this machine's GPUs")
    parser.add_argument("file", nargs="?", type=pathlib.Path, default=results)
    options = parser.parse_args()
    if options.measure is not None:
        measure(options.measure)
    elif not options.file.exists():
        sys.exit(f"error: {options.file} does not exist: measure first, with --measure FILE")
    else:
        show(options.file)
