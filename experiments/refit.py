"""Every curve fitted to its public table, with held-out errors; the data files of `hw/fits` are what this writes.

    python -m experiments.refit                 prints all fits
    python -m experiments.refit --write         and writes hw/fits/*.toml and experiments/results/op_curves.json
    python -m experiments.refit --only gemm     those whose name holds a word; --write keeps the others as they are

Twelve minutes on two cores. No claim of the field articles is among the rows (a test reads the list).
"""

import datetime
import json
import pathlib
from collections.abc import Mapping, Sequence
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
    """The results of all groups, those not fitted now as they were; and a file a chip of the curves that machines
    use, made of these."""
    before = {e["group"]: e for e in json.loads(RESULTS.read_text(encoding="utf-8"))} if RESULTS.exists() else {}
    known = {**before, **{fit.group.name: _entry(fit) for fit in fits}}
    entries = [known[group.name] for group in groups() if group.name in known]
    RESULTS.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    for chip in sorted({entry["chip"] for entry in entries}):
        text = curve_file(chip, [e for e in entries if e["chip"] == chip and e["used"]])
        (FITS / f"{chip}.toml").write_text(text, encoding="utf-8")


def curve_file(chip: str, entries: Sequence[Mapping[str, Any]]) -> str:
    """The curves of a chip as TOML. A second table of one curve (several hosts) adds its parameters to the first's."""
    curves: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        curves.setdefault(".".join(filter(None, (entry["curve"], entry["rate"]))), []).append(entry)
    lines = [
        f"# Curves of {chip}, fitted to public tables by `python -m experiments.refit --write`: do not edit.",
        "# Errors are fractions: medians of |predicted / measured - 1|; `spread` holds 80 % of those held out.",
    ]
    for name, (first, *others) in curves.items():
        sources = ", ".join(dict.fromkeys(entry["source"] for entry in (first, *others)))
        beyond = "nan" if first["extrapolated"] is None else first["extrapolated"]
        values = {**first["values"], "spread": first["held_out_p80"]}
        for other in others:
            values |= other["values"]
        lines += ["", f"[{name}]", f'source = "{sources}"', f'date = "{first["date"]}"', f"rows = {int(first['rows'])}"]
        lines += [f"left_out = {sum(first['left_out'].values())}", f"median = {first['median']}"]
        lines += [f"held_out = {first['held_out']}", f"largest_tenth = {beyond}", f"[{name}.values]"]
        lines += [f"{what} = {value:.{_DIGITS}g}" for what, value in sorted(values.items())]
    return "\n".join(lines) + "\n"


def _entry(fit: Fitted) -> dict[str, Any]:
    group, q = fit.group, fit.quality._asdict()
    figures = {name: None if value != value else round(float(value), _DIGITS) for name, value in q.items()}
    named = {"group": group.name, "chip": group.chip, "curve": group.family, "rate": group.rate, "used": group.used}
    found = {"left_out": dict(group.flagged), "values": dict(fit.values), "source": group.source}
    return {**named, "date": datetime.date.today().isoformat(), **figures, **found}


if __name__ == "__main__":
    typer.run(main)
