"""Flags of an engine's parser, read from the sources in its wheel: an oracle for versions of which there is no table.

What is looked for is plain: words with dashes in `add_argument`, and annotated fields of the engines' classes.
"""

import ast
import pathlib
import zipfile
from collections.abc import Iterator, Mapping

Choices = tuple[object, ...] | None
_FILES = {
    "sglang": ("sglang/srt/server_args.py",),
    "vllm": ("vllm/engine/arg_utils.py", "vllm/entrypoints/openai/cli_args.py"),
}


def wheel_of(folder: str, engine: str, version: str) -> pathlib.Path | None:
    """The wheel of a version in a folder or in one inside it."""
    return next(pathlib.Path(folder).rglob(f"{engine}-{version}-*.whl"), None) if folder else None


def flags_of(wheel: pathlib.Path, engine: str) -> Mapping[str, Choices]:
    """Every flag by its spelling, with its choices where the sources list them."""
    with zipfile.ZipFile(wheel) as held:
        trees = [ast.parse(held.read(name)) for name in _FILES[engine]]
        literals = dict(_literals(held)) if engine == "vllm" else {}
    found: dict[str, Choices] = {}
    for tree in trees:
        found |= dict(_served(tree))
        lists = {t.id: v for node in ast.walk(tree) for t, v in _assigned(node)}
        for node in ast.walk(tree):
            found |= dict(_argument(node, lists) or _field(node, lists))
    return {flag: choices or literals.get(flag) for flag, choices in found.items()}


def _assigned(node: ast.AST) -> Iterator[tuple[ast.Name, ast.expr]]:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        yield node.targets[0], node.value


def _argument(node: ast.AST, lists: Mapping[str, ast.expr]) -> list[tuple[str, Choices]]:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"):
        return []
    names = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    return [(name, _choices(node, lists)) for name in names]


def _field(node: ast.AST, lists: Mapping[str, ast.expr]) -> list[tuple[str, Choices]]:
    """`name: A[type, Arg(...), ...]` of SGLang's ServerArgs."""
    if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
        return []
    if not (isinstance(node.annotation, ast.Subscript) and isinstance(node.annotation.value, ast.Name)):
        return []
    if node.annotation.value.id != "A":
        return []
    calls = [n for n in ast.walk(node.annotation) if isinstance(n, ast.Call)]
    choices = next((c for c in (_choices(call, lists) for call in calls) if c), None)
    return [(_flag(node.target.id), choices)]


def _served(tree: ast.Module) -> list[tuple[str, Choices]]:
    """Every field of the class that vLLM's server adds to its engine's."""
    classes = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "FrontendArgs"]
    fields = [n for each in classes for n in each.body if isinstance(n, ast.AnnAssign)]
    return [(_flag(field.target.id), None) for field in fields if isinstance(field.target, ast.Name)]


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _choices(call: ast.Call, lists: Mapping[str, ast.expr]) -> Choices:
    for keyword in call.keywords:
        if keyword.arg == "choices":
            value = lists.get(keyword.value.id, keyword.value) if isinstance(keyword.value, ast.Name) else keyword.value
            try:
                return tuple(ast.literal_eval(value))
            except ValueError:
                return None
    return None


def _literals(held: zipfile.ZipFile) -> Iterator[tuple[str, Choices]]:
    """Fields of vLLM's configurations whose type is a Literal of the same module."""
    for name in held.namelist():
        if not (name.startswith("vllm/config/") and name.endswith(".py")):
            continue
        tree = ast.parse(held.read(name))
        kinds = {t.id: v for node in ast.walk(tree) for t, v in _assigned(node) if isinstance(v, ast.Subscript)}
        for node in ast.walk(tree):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                kind = kinds.get(node.annotation.id) if isinstance(node.annotation, ast.Name) else None
                if kind is not None:
                    words = [n.value for n in ast.walk(kind.slice) if isinstance(n, ast.Constant)]
                    flag = {"cache_dtype": "kv_cache_dtype"}.get(node.target.id, node.target.id)
                    yield _flag(flag), tuple(words)
