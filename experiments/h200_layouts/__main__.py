"""Predicted against measured: slices of three models on one H200 and, under seven ways to cut them, on two.

    python -m experiments.h200_layouts --measure [--seconds S]     on a machine with GPUs: measure what is missing
    python -m experiments.h200_layouts                             anywhere: tables and a picture of what was measured

Slices at full width, so few layers and experts that they fit (`points.toml`), decode in bfloat16 with random weights
and full random caches. A step is one program; its seconds are those of many in flight. What is predicted is that
program (`layouts.program_side`), by the curves of our kernels that ship (`h200@program`), with their factors fitted to
a third of the points, chosen before anything was measured; errors are those of the other two thirds.

Stored: 27 points of one H200 and 153 of two, 30 more were not reached. Of 121 held out the median error is 1.9 %, 121
are within the bar of 8 %, and the largest error is 7.8 %. Where one of two layouts, both held out, takes 5 % longer, it
is named in 67 of 67 pairs; the best layout is 5 % ahead of the next in one question, and named. By the curves alone,
which no bar is of: 5.4 % and 11.7 %. Repeated steps differ by 3 %.

Nothing held out was fitted to, but it told us what to look for, here and in the program. Three steps out of a profile:
which small kernels to count, that rows were written by compare-and-swap, and that copies of weights started late (notes
of layouts.json). And the experts: before a predicted step waited for the rank that reads most of them, which follows
from chance alone (`layouts.program_side`), experts by EP were said to be up to 5 % too fast for few tokens, those by TP
9 % too slow; 119 of the 121 were within 8 %, and the largest error was 9.1 %.

A file that is there is gone on with, and each of its rows keeps the heading of its own run: day, machine, versions and
a digest of the programs. `notes` in the stored results were added by hand.
"""

import argparse
import pathlib
import sys
from typing import Final

from experiments.measured import errors_in_one_line, need_gpus

RESULTS: Final = pathlib.Path(__file__).parents[1] / "results" / "h200" / "layouts.json"


def main() -> int:
    """Measure, or show what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="time what is missing on this machine's GPUs")
    parser.add_argument("--seconds", type=float, default=3600.0, help="start no more once they are over")
    parser.add_argument("--file", type=pathlib.Path, default=RESULTS, help="results (default: the stored ones)")
    options = parser.parse_args()
    if options.measure:
        with errors_in_one_line():
            need_gpus(1)
            from experiments.h200_layouts.measure import measure
            from experiments.h200_layouts.points import shapes

            measure(shapes(), options.file, options.seconds)
        return 0
    if not options.file.exists():
        sys.exit(f"error: {options.file} does not exist: measure first, with --measure")
    from experiments.h200_layouts.show import show

    show(options.file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
