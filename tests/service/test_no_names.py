"""Logic knows no model, no chip and no claim by name: those are data."""

import ast
import csv
import pathlib
import re
from collections.abc import Iterator

import pytest

from hw.figures import chip_names
from layouts.models.presets import draft_names, preset_names

ROOT = pathlib.Path(__file__).parents[2]
SOURCES = sorted([*(ROOT / "explorer" / "service").glob("*.py"), *(ROOT / "hw").rglob("*.py")])
CLAIMS = ROOT / "experiments" / "data" / "seed_claims.csv"


def words(path: pathlib.Path) -> Iterator[str]:
    """Identifiers and texts of a module in lower case, dashes as underscores; docstrings and comments left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    prose = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        texts: list[object] = [getattr(node, part, None) for part in ("id", "attr", "arg", "name", "module")]
        if isinstance(node, ast.Constant) and id(node) not in prose:
            texts.append(node.value)
        yield from (text.lower().replace("-", "_") for text in texts if isinstance(text, str))


def named(kind: str) -> set[str]:
    """Names to look for, as `words` writes them."""
    lists = {"chip": chip_names(), "model": (*preset_names(), *draft_names())}
    return {name.lower().replace("-", "_") for name in lists[kind]}


def found(path: pathlib.Path, names: set[str]) -> set[str]:
    return {name for text in words(path) for name in names if name in text}


def numbers(text: str) -> set[float]:
    """Figures of a text with four digits or more, zeros at either end not counted."""
    found = re.findall(r"\d+(?:\.\d+)?(?:e-?\d+)?", text.replace("_", ""))
    return {float(figure) for figure in found if len(figure.partition("e")[0].replace(".", "").strip("0")) > 3}


@pytest.mark.parametrize("kind", ["chip", "model"])
def test_no_name_is_in_the_logic(kind: str) -> None:
    names = named(kind)
    assert len(names) > 5 and min(map(len, names)) > 2
    assert {str(path.relative_to(ROOT)): hits for path in SOURCES if (hits := found(path, names))} == {}


def test_no_claim_that_checks_is_in_the_logic() -> None:
    """Neither its name nor its figure."""
    with CLAIMS.open(encoding="utf-8", newline="") as file:
        checks = [row for row in csv.DictReader(file) if row["use"] == "check"]
    names = {row["id"].lower() for row in checks}
    values = {value for row in checks for value in numbers(row["value"])}
    assert len(checks) > 20 and len(values) > 10
    for path in SOURCES:
        assert not {part for text in words(path) for part in re.findall(r"\w+", text)} & names, path
        assert not numbers(path.read_text(encoding="utf-8")) & values, path


def test_a_name_would_be_found(tmp_path: pathlib.Path) -> None:
    """In a comparison, in a key, in a variable; not in a docstring, nor in a comment."""
    module = tmp_path / "x.py"
    module.write_text('"""For the h100."""\n# gb200\nif m.name == "Kimi-K3":\n    b200_only = {"a": "h200/x"}\n')
    assert found(module, named("chip")) == {"b200", "h20", "h200"}
    assert found(module, named("model")) == {"kimi_k3"}
    assert numbers("x = 627_048_448 + 3.5 * 1.234e-5 - 8192000 + 0.5") == {627048448.0, 1.234e-5, 8192000.0}
    assert len(SOURCES) > 20
