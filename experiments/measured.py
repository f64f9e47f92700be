"""The command line of an experiment that measures on a machine with GPUs and shows anywhere what was measured."""

import argparse
import contextlib
import datetime
import json
import math
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from hw.errors import MeshwrightError

REFUSED: Final = 2  # exit status, as that of `meshwright`
WRONG: Final = 1  # and where a check failed
# Largest relative error of a product in a dtype, as a norm: a few roundings, and less than a token of a thousand makes.
ROUNDED: Final = {"bfloat16": 2.0**-8, "float32": 2.0**-17}
# What is wrong with a row, a line each; by the name under which rows stand in a document.
Judge = Callable[[Mapping[str, Any]], list[str]]
Judges = Mapping[str, Judge]
_WIDTH: Final = 160  # of what is sent to a file


class TooFewGpusError(MeshwrightError):
    """This machine has fewer GPUs than a measurement needs."""


def measure_or_show(
    doc: str,
    results: pathlib.Path,
    measure: Callable[[pathlib.Path], None],
    show: Callable[[pathlib.Path], None],
    gpus: int = 1,
) -> None:
    """`--measure FILE` writes a file, on a machine that has so many GPUs; FILE (by default the stored `results`) is
    shown. Exits with one line: status 1 where there is no file, 2 for what cannot be done here."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", type=pathlib.Path, metavar="FILE", help="run on this machine's GPUs")
    parser.add_argument("file", nargs="?", type=pathlib.Path, default=results)
    options = parser.parse_args()
    with errors_in_one_line():
        if options.measure is not None:
            need_gpus(gpus)
            measure(options.measure)
        elif not options.file.exists():
            sys.exit(f"error: {options.file} does not exist: measure first, with --measure FILE")
        else:
            show(options.file)


@contextlib.contextmanager
def errors_in_one_line() -> Iterator[None]:
    """What the user can mend ends the program with one line on stderr and status 2."""
    try:
        yield
    except MeshwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(REFUSED)


def need_gpus(count: int, there: int | None = None) -> None:
    """Raises TooFewGpusError where fewer are `there` (by default, those of JAX): to be asked before an array is made,
    as a CPU would take problems of a GPU's size until its memory is full."""
    there = _gpus_of_jax() if there is None else there
    if there < count:
        needed, found = ("a GPU" if number == 1 else f"{number} GPUs" for number in (count, there))
        raise TooFewGpusError(
            f"measuring needs {needed}, and {found if there else 'none'} can be used here: "
            f"measure on a machine with {needed}; what is stored is shown anywhere"
        )


def _gpus_of_jax() -> int:
    import jax

    try:
        return sum(device.platform == "gpu" for device in jax.devices())
    except RuntimeError:  # a platform was asked for that is not here
        return 0


def keep(
    path: pathlib.Path, about: Mapping[str, Any], found: Iterable[tuple[str, Any]], judges: Judges | None = None
) -> None:
    """Write a document of what is found, anew after each: `about`, and under each name the list of its rows.

    What a judge finds wrong is said with its row, and again at the end, which then is status 1.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    document, judges = dict(about), judges or {}
    for name, row in found:
        document.setdefault(name, []).append(row)
        print(name, json.dumps(row), *_wrong(name, len(document[name]), row, judges), flush=True)
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    end_if_wrong(document, judges)


def attempted(check: Callable[..., dict[str, Any]], *case: Any) -> dict[str, Any]:
    """The row of a check; of one that ends with an error, what that says. The other cases are still measured."""
    try:
        return check(*case)
    except Exception as error:  # whatever a compiler or a device raises: it is a failure of this case
        reason = (str(error).splitlines() or [""])[0]
        return {"case": repr(case), "failed": f"{type(error).__name__}: {reason[:300]}"}


def beyond(figures: Mapping[str, Any], bounds: Mapping[str, float]) -> list[str]:
    """Figures of a check that are above their bounds, no numbers, or not there; a bound of `True` is what must be."""
    if "failed" in figures:
        return [f"{figures['case']} failed, {figures['failed']}"]
    return [
        f"{name} is {figures.get(name)}, {'not true' if bound is True else f'not within {bound:.1e}'}"
        for name, bound in bounds.items()
        if not (figures.get(name) is True if bound is True else figures.get(name, math.nan) <= bound)
    ]


def failures(document: Mapping[str, Any], judges: Judges) -> list[str]:
    """What is wrong with a document's rows, a line each; that there is no row to judge, too."""
    found: list[str] = []
    for name in judges:
        rows = document.get(name, ())
        found += [line for number, row in enumerate(rows, 1) for line in _wrong(name, number, row, judges)]
        found += [] if rows else [f"WRONG: {name} has no row, so that nothing was checked"]
    return found


def stored(path: pathlib.Path, judges: Judges | None = None) -> dict[str, Any]:
    """A document whose checks held. Ends with status 1, a line for each failure and no times, where one did not."""
    document = json.loads(path.read_text(encoding="utf-8"))
    end_if_wrong(document, judges or {})
    return document


def end_if_wrong(document: Mapping[str, Any], judges: Judges) -> None:
    """Ends with status 1 and a line for each failure, if there is one."""
    if lines := failures(document, judges):
        print("\n".join(lines), file=sys.stderr)
        sys.exit(WRONG)


def _wrong(name: str, number: int, row: Mapping[str, Any], judges: Judges) -> list[str]:
    return [f"WRONG: {name} {number}: {line}" for line in (judges[name](row) if name in judges else ())]


def here() -> dict[str, Any]:
    """The GPU, the JAX and the day of a measurement."""
    import jax

    today = datetime.date.today().isoformat()
    return {"device": jax.devices()[0].device_kind, "jax": jax.__version__, "date": today}


def with_copies() -> dict[str, Any]:
    """`here`, and bytes read plus written a second of large copies by form, against which kernels are held."""
    import jax

    from hw.measuring.copies import bandwidths

    return {**here(), "copy_bytes_per_s": bandwidths(jax.devices()[0])}


def console() -> Any:
    """Where tables are printed: as wide as a terminal, or wide enough for them in a file."""
    from rich.console import Console

    there = Console()
    return there if there.is_terminal else Console(width=_WIDTH)


def draw(document: Mapping[str, Any], *tables: Any) -> None:
    """Print tables, and the notes that were added to a document by hand."""
    out = console()
    out.print(*tables)
    for note in document.get("notes", ()):
        out.print(f"- {note}", highlight=False)
