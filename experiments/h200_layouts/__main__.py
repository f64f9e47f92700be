"""Predicted against measured: slices of three models on one H200 and, under two ways to cut them, on two.

    python -m experiments.h200_layouts --measure [--seconds S]     on a machine with GPUs: measure what is missing
    python -m experiments.h200_layouts                             anywhere: tables and a picture of what was measured

Slices at full width, so few layers and experts that they fit (`points.toml`), decode in bfloat16 with random weights
and full random caches. A step is one program; its seconds are those of many in flight. What is predicted is that
program (`layouts.program_side`), by the curves of our kernels that ship (`h200@program`), with their factors fitted to
a third of the points, chosen before anything was measured; errors are those of the other two thirds.

Stored: 27 points of one H200, of the programs of today, and 39 of attention DP and TP with EP on two, of earlier ones;
device time ended before the others, whose programs all compile. Of 44 held out the median error is 1.7 %, 40 are within
the bar of 8 %, and the largest error is 10.4 %; the best layout is named in all of 11 questions whose answers differ by
more than 5 %. By the curves alone, which no bar is of: 4.1 % and 14.0 %; it was 2.9 % and 12.8 % on two GPUs before the
curves had a third run of `measure`: on its rows the chip's curve of matrix products does better than a fit, and stays.
Repeated steps differ by 3 %.

On one GPU the median is 0.9 %, and one of 18 misses: one request of Qwen3, whose kernels take a few microseconds each,
is predicted 8.2 % too long. The two other points of that shape were among those fitted to, and are 7.9 and 7.6 % off.

The points of two GPUs are to be measured again. Their rounds of steps paid 1.3 to 1.7 ms each for beginning and end,
which made a step up to 5 % longer (profiles of four shapes show it; the clock leaves it out now), and latent and linear
attention were kernels that have been replaced: predicted are the programs of today. Three of 26 miss, all of DP over
4096. Five tokens of Kimi K3 and DeepSeek-V3 are predicted 10 and 9 % too short. The rounds explain a third of that, the
kernel of linear attention 1 to 2 %, kernels between the large ones that nobody counts and the experts' second product
more; on one GPU, as measured now, the same loads are within 4 %. One token of DeepSeek-V3 is predicted 8.5 % too short,
and was measured longer than over 16384.

Nothing held out was fitted to, but profiles of four of the points, and which points missed, told us what kernels to
count.

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
