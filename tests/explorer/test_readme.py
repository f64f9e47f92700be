"""What the README names exists: commands and their options, layout keys, make targets, experiments, files."""

import importlib.util
import pathlib
import re
import shlex

import pytest
import typer

import explorer
from explorer.cli.app import app
from layouts.layout import KEYS, Key

ROOT = pathlib.Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
COMMANDS = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]
FENCED = re.findall(r"^```\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def the_load() -> list[str]:
    """The arguments that the examples share."""
    (text,) = re.findall(r"^LOAD=\((.*)\)$", README, re.MULTILINE)
    return shlex.split(text)


def examples() -> list[str]:
    """Every command line of `meshwright` in the code blocks, joined where it goes on, without prompt and pipe."""
    joined = (re.sub(r"\\\n\s*", "", block) for block in FENCED)
    lines = (line.removeprefix("$ ") for block in joined for line in block.splitlines())
    return [line.split(" | ")[0] for line in lines if line.startswith("meshwright ")]


def cells(key: Key) -> tuple[str, str, str]:
    return f"`{key.name}`", key.derivation, key.rule


def test_every_command_has_an_example_or_is_named():
    named = set(re.findall(r"meshwright ([a-z]+)", README))
    assert named == set(COMMANDS)


@pytest.mark.parametrize("line", examples())
def test_an_example_uses_options_that_its_command_has(line):
    _, name, *arguments = shlex.split(line.replace('"${LOAD[@]}"', shlex.join(the_load())))
    known = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    given = {argument for argument in arguments if argument.startswith("--")}
    assert given <= known


def test_options_of_the_text_exist():
    known = {option for command in COMMANDS.values() for p in command.params for option in p.opts}
    mentioned = set(re.findall(r"`(--[a-z-]+)", README))
    assert mentioned
    assert mentioned <= known


def test_make_plan_asks_what_the_readme_says():
    (asked,) = re.findall(r"\$\(BIN\)/meshwright plan (.*)$", MAKEFILE, re.MULTILINE)
    assert shlex.split(asked) == the_load()


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))
    assert {"plan", "test"} <= set(re.findall(r"^make ([a-z]+)", README, re.MULTILINE)) <= targets


def test_the_key_table_is_that_of_the_layout():
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in README.splitlines() if "|" in line]
    found = {row[0]: row for row in rows if len(row) == 4}
    for key in KEYS:
        row = found[f"`{key.name}`"]
        assert (row[0], *row[2:]) == cells(key)
        assert all(f"`{choice}`" in row[1] for choice in key.choices)
    listed = [row[0] for row in rows if len(row) == 4 and row[0].startswith("`") and "python" not in row[0]]
    assert listed == [f"`{key.name}`" for key in KEYS]


def test_experiments_and_functions_exist():
    experiments = set(re.findall(r"python -m (experiments\.[a-z0-9_]+)", README))
    shipped = {p.stem for p in (ROOT / "experiments").glob("*.py") if "__main__" in p.read_text()}
    shipped |= {p.parent.name for p in (ROOT / "experiments").glob("*/__main__.py")}
    assert experiments == {f"experiments.{name}" for name in shipped}
    assert all(importlib.util.find_spec(name) for name in experiments)
    functions = set(re.findall(r"explorer\.([a-z]+)\(", README))
    assert functions <= set(explorer.__all__)


def test_the_python_example_is_python():
    (code,) = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    compile(code, "README.md", "exec")


def test_linked_files_exist_and_pictures_are_small():
    files = [ROOT / target for target in re.findall(r"\]\(([^)#:]+)\)", README)]
    assert len(files) >= 4
    assert all(file.is_file() for file in files)
    assert all(file.stat().st_size < 200_000 for file in files if file.suffix == ".png")
