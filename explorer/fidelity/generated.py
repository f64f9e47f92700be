"""The part of a document that a command writes, between two comments."""

import pathlib

from hw.errors import MeshwrightError


def replace_block(path: pathlib.Path, name: str, text: str) -> None:
    """Put `text` between `<!-- name -->` and `<!-- /name -->`; raises MeshwrightError where they are not there once."""
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    try:
        old = path.read_text(encoding="utf-8")
    except OSError as error:
        raise MeshwrightError(f"{path}: cannot be read ({error.strerror}); run from a checkout") from None
    if old.count(start) != 1 or old.count(end) != 1 or old.index(start) > old.index(end):
        raise MeshwrightError(f"{path}: must have {start} and, after it, {end}, each once")
    before, after = old[: old.index(start) + len(start)], old[old.index(end) :]
    path.write_text(f"{before}\n{text}\n{after}", encoding="utf-8")
