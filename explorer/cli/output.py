"""Where things go: the result to stdout, all else to stderr; progress only where somebody watches."""

import contextlib
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from hw.errors import MeshwrightError

Document = Mapping[str, Any]
Report = Callable[[str, float], None]

_PIPE_WIDTH: Final = 120  # columns of a table that no terminal bounds


class OutputError(MeshwrightError):
    """A folder or file that cannot be written to."""


def stdout_console() -> Console:
    """Tables on stdout: as wide as the terminal, without colour codes in a pipe."""
    console = Console(file=sys.stdout, highlight=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in console._environ:
        console.width = _PIPE_WIDTH
    return console


def emit(document: Document, draw: Callable[[Document], RenderableType], as_json: bool) -> None:
    """Print the result, and what its reader should know beside it."""
    if as_json:
        sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
    else:
        stdout_console().print(draw(document))
    sys.stdout.flush()
    for line in document.get("notes", ()):
        note(f"note: {line}")


def emit_all(documents: Sequence[Document], draw: Callable[[Document], RenderableType], as_json: bool) -> None:
    """The same of several results: one document as it is, more of them as a list or one after the other."""
    if as_json and len(documents) > 1:
        sys.stdout.write(json.dumps(documents, indent=2, allow_nan=False) + "\n")
        return
    for document in documents:
        emit(document, draw, as_json)


def note(line: str) -> None:
    """One line on stderr, dim on a terminal."""
    Console(file=sys.stderr, highlight=False, emoji=False, soft_wrap=True).print(line, style="dim", markup=False)


@contextlib.contextmanager
def watching(label: str) -> Iterator[Report]:
    """A progress bar on stderr while the block runs, where stderr is a terminal; yields what to report to.

    A stage without a fraction (below zero) is shown as running.
    """
    console = Console(file=sys.stderr)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=None)

        def report(stage: str, fraction: float) -> None:
            bar.update(task, description=f"{label}: {stage}", total=1.0, completed=min(max(fraction, 0.0), 1.0))

        yield report


def plot_folder(path: str | None) -> pathlib.Path | None:
    """The folder for pictures, made if absent and known to be writable before any work is done."""
    if path is None:
        return None
    folder = pathlib.Path(os.path.expanduser(path))
    _make_writable(folder, f"plot {path!r}")
    return folder


def trace_file(path: str | None) -> pathlib.Path | None:
    """The file for a trace, its folder made if absent and known to be writable before any work is done."""
    return out_file(path, "trace", (".json", ".json.gz"))


def out_file(path: str | None, option: str, endings: tuple[str, ...]) -> pathlib.Path | None:
    """The same of any file that an option names, which must end in one of `endings`."""
    if path is None:
        return None
    file = pathlib.Path(os.path.expanduser(path))
    if not file.name.endswith(endings):
        raise OutputError(f"{option} {path!r} is no name of such a file: let it end in {' or '.join(endings)}")
    _make_writable(file.parent, f"{option} {path!r}")
    if file.is_dir():
        raise OutputError(f"{option} {path!r} is a folder: give the name of a file in it")
    return file


def _make_writable(folder: pathlib.Path, option: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OutputError(f"{option}: cannot write there ({reason}); give a folder that you may write to") from None


def save_pictures(document: Document, folder: pathlib.Path | None) -> None:
    """Draw what there is to draw of a document into the folder, and say what was written."""
    if folder is None:
        return
    with watching("drawing"):
        from explorer.report.pictures import save

        paths = save(document, folder)
    for path in paths:
        note(f"wrote {path}")
