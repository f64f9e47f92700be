"""SGLang's flags: annotated fields under sglang/srt/arg_groups/fields, and what ServerArgs.add_cli_args adds."""

import ast
from collections.abc import Iterable
from typing import Any, Final

from experiments.flag_tables.evaluate import Unknown, evaluate
from experiments.flag_tables.flag import HUMAN, JSON, flag
from experiments.flag_tables.sources import Found, Sources

PACKAGE: Final = "sglang"
_ARGS: Final = "sglang.srt.server_args"
_PARSERS: Final = {
    "human_readable_int": HUMAN,
    "json_list_type": JSON,
    "parse_cuda_graph_config_arg": JSON,
}


def read(sources: Sources) -> dict[str, dict[str, Any]]:
    """Every flag by its canonical name: that of the spelling to write, with underscores."""
    rows: dict[str, dict[str, Any]] = {}
    for module, owner in _namespaces(sources):
        for node in owner.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                row = _field(sources, module, node)
                if row is not None:
                    rows[_name(row)] = row
    defaults = _defaults(sources)
    for row in _added(sources, defaults):
        rows.setdefault(_name(row), row)
    for row in _taken_first(sources):
        rows.setdefault(_name(row), row)
    return rows


def _taken_first(sources: Sources) -> Iterable[dict[str, Any]]:
    """Flags that `sglang serve` takes from the words before its parser sees them: those it compares a word with."""
    found = sources.find("sglang.cli.serve", "_extract_model_type_override")
    for node in ast.walk(found.value) if found is not None else ():
        match node:
            case ast.Compare(left=ast.Name(), ops=[ast.Eq()], comparators=[ast.Constant(value=str() as word)]):
                yield flag([word], {})
            case _:
                continue


def _name(row: dict[str, Any]) -> str:
    return row["spellings"][0].lstrip("-").replace("-", "_")


def _namespaces(sources: Sources) -> Iterable[tuple[str, ast.ClassDef]]:
    """Classes of fields, in the order in which the parser's module imports them."""
    tree = sources.tree(_ARGS)
    for node in tree.body if tree else ():
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sglang.srt.arg_groups.fields."):
            for alias in node.names:
                found = sources.find(node.module or "", alias.name)
                if found is not None and isinstance(found.value, ast.ClassDef):
                    yield found.module, found.value


def _field(sources: Sources, module: str, node: ast.AnnAssign) -> dict[str, Any] | None:
    """The row of an `A[type, help or Arg(...)]`; None for one that has no flag."""
    hint = node.annotation
    if not (isinstance(hint, ast.Subscript) and isinstance(hint.slice, ast.Tuple)):
        return None
    if not (isinstance(hint.value, ast.Name) and hint.value.id in ("A", "Annotated")):
        return None
    kind, said = hint.slice.elts[0], hint.slice.elts[1]
    told = {word.arg: word.value for word in said.keywords if word.arg} if isinstance(said, ast.Call) else {}
    if isinstance(said, ast.Call) and not (isinstance(said.func, ast.Name) and said.func.id == "Arg"):
        return None
    if "no_cli" in told:
        return None
    assert isinstance(node.target, ast.Name)
    first = (
        evaluate(sources, module, told["cli_name"]) if "cli_name" in told else "--" + node.target.id.replace("_", "-")
    )
    others = evaluate(sources, module, told["aliases"]) if "aliases" in told else []
    row = flag([first, *others], _keywords(sources, module, kind, told, node.value))
    if _name(row) != node.target.id:
        row["field"] = node.target.id
    if "fallback" in told:
        row["fallback"] = evaluate(sources, module, told["fallback"])
    return row


def _keywords(
    sources: Sources, module: str, kind: ast.expr, told: dict[str, ast.expr], default: ast.expr | None
) -> dict[str, Any]:
    """argparse's keywords, by the rules of add_cli_args_from_dataclass (arg_groups/arg_utils.py)."""
    said: dict[str, Any] = {"default": _known(sources, module, default), "choices": None}
    inner = _without_none(kind)
    items = _items(inner)
    if "choices" in told:
        said["choices"] = _known(sources, module, told["choices"])
    elif isinstance(inner, ast.Subscript) and _id(inner.value) == "Literal":
        listed = inner.slice.elts if isinstance(inner.slice, ast.Tuple) else [inner.slice]
        said["choices"] = [evaluate(sources, module, each) for each in listed]
        inner = ast.Name(type(said["choices"][0]).__name__)
    if "action" in told:
        said |= _action(told["action"])
    elif items is not None and "type_parser" not in told:
        said |= {"nargs": _known(sources, module, told.get("nargs")) or "+", "type": _plain(items)}
    elif _id(inner) == "bool":
        said["action"] = "switch"
    else:
        said["type"] = _parser(told["type_parser"]) if "type_parser" in told else _plain(inner)
        said["nargs"] = _known(sources, module, told.get("nargs"))
    return said


def _action(node: ast.expr) -> dict[str, Any]:
    text = ast.unparse(node)
    if text.endswith("BooleanOptionalAction"):
        return {"action": "optional-bool"}
    if text.endswith(("StoreTrueAction", "'store_true'")):
        return {"action": "switch"}
    if text.endswith("LoRAPathAction"):
        return {"nargs": "*"}
    return {}


def _parser(node: ast.expr) -> Any:
    text = ast.unparse(node)
    return JSON if text == "json.loads" else _PARSERS.get(text, str)


def _without_none(kind: ast.expr) -> ast.expr:
    if isinstance(kind, ast.Subscript) and _id(kind.value) == "Optional":
        return kind.slice
    if isinstance(kind, ast.BinOp):
        sides = [side for side in (kind.left, kind.right) if ast.unparse(side) != "None"]
        return sides[0] if len(sides) == 1 else kind
    return kind


def _items(kind: ast.expr) -> ast.expr | None:
    if _id(kind) in ("list", "List"):
        return ast.Name("str")
    if isinstance(kind, ast.Subscript) and _id(kind.value) in ("list", "List"):
        return kind.slice
    return None


def _id(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _plain(node: ast.AST) -> Any:
    return {"int": int, "float": float}.get(_id(node), str)


def _known(sources: Sources, module: str, node: ast.AST | None) -> Any:
    """The value of an expression; None where there is none or only the running parser has it."""
    try:
        return None if node is None else evaluate(sources, module, node)
    except Unknown:
        return None


def _defaults(sources: Sources) -> dict[str, Any]:
    return {
        node.target.id: _known(sources, module, node.value)
        for module, owner in _namespaces(sources)
        for node in owner.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def _added(sources: Sources, defaults: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """Flags that add_cli_args adds by hand."""
    found = sources.find(_ARGS, "ServerArgs")
    assert isinstance(found, Found) and isinstance(found.value, ast.ClassDef)
    body = next(each for each in found.value.body if getattr(each, "name", "") == "add_cli_args")
    # what it first puts into names of its own; what the environment adds to them later is no part of the table
    local = {
        node.targets[0].id: _known(sources, _ARGS, node.value)
        for node in ast.walk(body)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for call in ast.walk(body):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
            yield _by_hand(sources, call, defaults, local)


def _by_hand(sources: Sources, call: ast.Call, defaults: dict[str, Any], local: dict[str, Any]) -> dict[str, Any]:
    names = [evaluate(sources, _ARGS, each) for each in call.args]
    told = {word.arg: word.value for word in call.keywords if word.arg}
    default = told.get("default")
    said: dict[str, Any] = {
        "choices": local.get(_id(told["choices"]), _known(sources, _ARGS, told["choices"]))
        if "choices" in told
        else None,
        "default": _known(sources, _ARGS, default),
        "type": _plain(told["type"]) if "type" in told else str,
    }
    if isinstance(default, ast.Call) and _id(default.func) == "_declared_default":
        said["default"] = defaults.get(evaluate(sources, _ARGS, default.args[0]))
    if "action" in told:
        said |= _action(told["action"])
    return flag(names, said)
