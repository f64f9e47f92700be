"""Every curve fitted to its public table, with held-out errors; the data files of `hw/fits` are what this writes.

    python -m experiments.refit                 prints all fits
    python -m experiments.refit --write         and writes hw/fits/*.toml and experiments/results/op_curves.json
    python -m experiments.refit --only gemm     those whose name holds a word

Twelve minutes on two cores. No claim of the field articles is among the rows (a test reads the list).
"""

import datetime
import json
import pathlib
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from experiments.op_curves import attention, deepep, gemm, grouped, nccl, state
from experiments.op_curves.fits import Fitted, fitted
from experiments.op_curves.rows import Group
from hw.figures import FITS

RESULTS = pathlib.Path(__file__).parent / "results" / "op_curves.json"
_DIGITS = 4


def groups() -> list[Group]:
    """Every group of rows of the shipped tables."""
    return [g for module in (gemm, grouped, attention, state, nccl, deepep) for g in module.groups()]


def main(
    write: Annotated[bool, typer.Option("--write", help="Write the data files.")] = False,
    only: Annotated[str, typer.Option(help="Fit groups whose name holds this.", metavar="WORD")] = "",
) -> None:
    """Fit every curve to its public table."""
    chosen = [g for g in groups() if only in g.name]
    if not chosen:
        raise typer.BadParameter(f"no group's name holds {only!r}: such as {groups()[0].name!r}", param_hint="--only")
    done: list[Fitted] = []
    known: dict[tuple[str, ...], dict[str, float]] = {}
    for group in track(chosen, description="fitting", console=Console(stderr=True), transient=True):
        curve = (group.chip, group.family, group.rate)
        done.append(fitted(group, known.get(curve)))
        if group.used:
            known.setdefault(curve, {}).update(done[-1].values)
    Console().print(_drawn(done))
    if write:
        _write(done)


def _drawn(fits: Sequence[Fitted]) -> Table:
    table = Table(
        "group", "rows", "left out", "held out %", "80 % within %", "largest tenth % (bias)", title="Op curves"
    )
    for fit in fits:
        q = fit.quality
        beyond = f"{100 * q.extrapolated:.1f} ({100 * q.extrapolated_bias:+.1f})"
        out, p80 = f"{100 * q.held_out:.1f}", f"{100 * q.held_out_p80:.1f}"
        table.add_row(fit.group.name, str(q.rows), str(sum(fit.group.flagged.values())), out, p80, beyond)
    return table


def _write(fits: Sequence[Fitted]) -> None:
    """One file a chip, of the curves that machines use; and the quality of all."""
    for chip in sorted({fit.group.chip for fit in fits}):
        mine = [fit for fit in fits if fit.group.chip == chip and fit.group.used]
        (FITS / f"{chip}.toml").write_text(_file(chip, _joined(mine)), encoding="utf-8")
    RESULTS.write_text(json.dumps([_entry(fit) for fit in fits], indent=1) + "\n", encoding="utf-8")


def _joined(fits: Sequence[Fitted]) -> dict[tuple[str, str | None], dict[str, Any]]:
    """By curve: a second table of one curve (several hosts) adds its parameters to those of the first."""
    joined: dict[tuple[str, str | None], dict[str, Any]] = {}
    for fit in fits:
        entry = joined.setdefault(fit.path, {"fit": fit, "values": {}, "sources": []})
        entry["values"] |= fit.values
        entry["sources"].append(fit.group.source)
    return joined


def _file(chip: str, curves: dict[tuple[str, str | None], dict[str, Any]]) -> str:
    lines = [
        f"# Curves of {chip}, fitted to public tables by `python -m experiments.refit --write`: do not edit.",
        "# Errors are fractions: medians of |predicted / measured - 1|; `spread` holds 80 % of those held out.",
        f"# Fitted on {datetime.date.today().isoformat()}.",
    ]
    for (owner, rate), entry in curves.items():
        q = entry["fit"].quality
        name = owner if rate is None else f"{owner}.{rate}"
        lines += ["", f"[{name}]", f'source = "{", ".join(dict.fromkeys(entry["sources"]))}"', f"rows = {q.rows}"]
        lines += [f"left_out = {sum(entry['fit'].group.flagged.values())}", f"median = {q.median:.3f}"]
        lines += [f"held_out = {q.held_out:.3f}", f"largest_tenth = {_nan(q.extrapolated)}", f"[{name}.values]"]
        values = {**entry["values"], "spread": q.held_out_p80}
        lines += [f"{what} = {value:.{_DIGITS}g}" for what, value in sorted(values.items())]
    return "\n".join(lines) + "\n"


def _nan(value: float) -> str:
    return "nan" if value != value else f"{value:.3f}"


def _entry(fit: Fitted) -> dict[str, Any]:
    group, q = fit.group, fit.quality._asdict()
    figures = {name: None if value != value else round(float(value), _DIGITS) for name, value in q.items()}
    named = {"group": group.name, "chip": group.chip, "curve": group.family, "rate": group.rate, "used": group.used}
    return {**named, **figures, "left_out": dict(group.flagged), "values": dict(fit.values), "source": group.source}


if __name__ == "__main__":
    typer.run(main)
