"""Every preset as a program on one and on two H200s: right at tiny scale, and how long a full-width slice takes.

    python -m experiments.h200_run --measure tiny|slices     on a machine with GPUs: run, write results/h200/run_*.json
    python -m experiments.h200_run                           anywhere: what was measured beside what the tool predicts

Tiny: each preset in float32 under the first two layouts below that it can have, held against one device (one GPU:
against a CPU). Slices: the first layers of Kimi K3 and DeepSeek-V3 at full width in bfloat16, with as many experts as
fit, 32 requests of 8k tokens a group.

The stored results are older than our kernels: their programs are what XLA makes of them, and the prediction in them is
of engines' kernels, so the ratio says how far apart those are. Measured today, a program runs our kernels and the
prediction is of that program.

Expected of what is stored: errors under 1e-4, the same text, ratios well above one. Measuring takes up to seven minutes
a part, tiny with XLA's autotuning off. The stored results lack Kimi K3 under dcp=2 (it had not ended after three
minutes) and DeepSeek-V3 on one GPU (not started within the time of the other).
"""

import argparse
import json
import pathlib
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, Final

import jax

from experiments.measured import Judges, beyond, end_if_wrong, errors_in_one_line, need_gpus, stored
from explorer.running import make_run_request, run
from layouts.models import load_model, preset_names
from layouts.models.load import has_program
from layouts.rules import Site, broken
from layouts.text import parse

RESULTS: Final = pathlib.Path(__file__).parent / "results" / "h200"
TINY_LAYOUTS: Final[Mapping[int, tuple[str, ...]]] = {
    1: ("attn_dp=1",),
    2: ("attn_dp=2,ep=2", "dcp=2,dcp_backend=ag_rs,ep=2,dispatch=all_gather", "attn_tp=2", "attn_dp=2"),
}
SLICE: Final = {"requests": 32, "context": 8192, "tokens": 1, "dtype": "bfloat16", "hardware": "h200"}
JUDGES: Final[Judges] = {
    "runs": lambda row: [] if row["check"] is None else beyond(row["check"], {"error": 1e-4, "same_text": True})
}
# XLA widens a grouped matrix product to rows x local experts, and on two GPUs that of a longer prefill does not fit;
# the timed step is at full tables whatever the prompts were.
SHORT: Final = {"prompt_tokens": 4}
SLICES: Final[Mapping[int, tuple[tuple[str, str, dict[str, int]], ...]]] = {
    1: (
        ("kimi-k3", "attn_dp=1", {"layers": 4, "experts": 384, "verify_width": 5}),
        ("deepseek-v3", "attn_dp=1", {"layers": 6, "experts": 256}),
    ),
    2: (
        ("kimi-k3", "attn_dp=2,ep=2", SHORT | {"layers": 4, "experts": 768, "verify_width": 5}),
        (
            "kimi-k3",
            "attn_tp=2,dcp=2,ep=2,dispatch=all_gather",
            SHORT | {"layers": 4, "experts": 768, "verify_width": 5},
        ),
        ("deepseek-v3", "attn_dp=2,ep=2", SHORT | {"layers": 9, "experts": 256}),
        ("deepseek-v3", "attn_tp=2,ep=2,dispatch=all_gather", SHORT | {"layers": 9, "experts": 256}),
    ),
}


def tiny(gpus: int) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every preset once a layout; builds differ from their base in stored formats alone."""
    for name in preset_names():
        if "@" in name or not has_program(name):
            continue
        model = load_model(name)
        site = Site(model, gpus, gpus, gpus)
        valid = [text for text in TINY_LAYOUTS[gpus] if not broken(parse(text, gpus, model), site)]
        for layout in valid[:2]:
            yield name, layout, {"scale": "tiny", "tokens": 8, "verify_width": 3, "dtype": "float32"}


def measured(part: str, gpus: int) -> Iterator[dict[str, Any]]:
    """The documents of all runs of a part."""
    cases = tiny(gpus) if part == "tiny" else ((n, la, {**SLICE, **more}) for n, la, more in SLICES[gpus])
    for name, layout, options in cases:
        with tempfile.TemporaryDirectory() as folder:
            request = make_run_request(name, layout, pathlib.Path(folder), gpus=gpus, **options)
            document = run(request, check=part == "tiny").document()
        print(line(document), flush=True)
        yield document


def line(document: Mapping[str, Any]) -> str:
    """One run in one line."""
    step, said, check = document["step_ms"]["median"], document["predicted_ms"], document["check"]
    asked = document["request"]
    parts = [
        f"{asked['model']:<20} {document['devices']['count']} x {document['devices']['kind']:<12}",
        f"{document['layout_text']:<52} {asked['layers']:>2} layers  {step:9.3f} ms",
        f"predicted {said['likely']:8.3f} ms  ratio {step / said['likely']:.2f}" if said else "",
        f"error {check['error']:.1e} {'same' if check['same_text'] else 'other'} text" if check else "",
    ]
    return "  ".join(part for part in parts if part)


def main() -> int:
    """Measure, or print what was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", choices=("tiny", "slices"))
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.measure is None:
        for path in sorted(RESULTS.glob("run_*.json")):
            print(path.name)
            for document in stored(path, JUDGES)["runs"]:
                print("  " + line(document))
        return 0
    with errors_in_one_line():
        need_gpus(1)
        measure(arguments.measure, arguments.out)
    return 0


def measure(part: str, out: pathlib.Path) -> None:
    """Run a part on two GPUs, or on one where there is no other, and keep what is done."""
    gpus = min(len(jax.devices()), max(SLICES))
    runs: list[dict[str, Any]] = []
    path = out / f"run_{part}_{gpus}.json"
    for document in measured(part, gpus):
        runs.append(document)
        path.write_text(json.dumps({"runs": runs}, indent=1) + "\n", encoding="utf-8")
    end_if_wrong({"runs": runs}, JUDGES)


if __name__ == "__main__":
    sys.exit(main())
