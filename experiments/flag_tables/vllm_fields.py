"""argparse's keywords of a configuration class of vLLM, by the rules of its get_kwargs (engine/arg_utils.py)."""

import ast
import copy
from typing import Any, Final

from experiments.flag_tables.evaluate import Unknown, evaluate, fields
from experiments.flag_tables.flag import HUMAN, JSON
from experiments.flag_tables.sources import Found, Sources

_HUMAN_FIELDS: Final = {
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_scheduled_tokens",
    "kv_cache_memory_bytes",
    "safetensors_prefetch_block_size",
    "max_num_queued_tokens",
}
_SEQUENCES: Final = ("list", "tuple", "set", "List", "Tuple", "Set")
_PLAIN: Final = {"bool": bool, "int": int, "float": float, "str": str, "dict": dict, "None": None}


def class_keywords(sources: Sources, found: Found) -> dict[str, dict[str, Any]]:
    """argparse's keywords of each field of a class."""
    return {name: _keywords(sources, module, node, name) for name, (module, node) in fields(sources, found).items()}


def _keywords(sources: Sources, module: str, node: ast.AnnAssign, name: str) -> dict[str, Any]:
    told: dict[str, Any] = {"default": _default(sources, module, node.value)}
    kinds: list[Any] = []
    _hints(sources, module, node.annotation, kinds)
    words = [kind for kind in kinds if isinstance(kind, tuple)]
    literal = next((options for tag, options in words if tag == "literal"), None)
    items = next((options for tag, options in words if tag == "items"), None)
    if ("class", None) in words:
        told["type"] = JSON
    elif set(map(str, kinds)) == {str(bool), str(str), str(None)}:
        told |= {"type": str, "nargs": "?"}
    elif bool in kinds:
        told["action"] = "optional-bool"
    elif literal is not None:
        told["type"] = type(literal[0])
        told |= {"choices": sorted(literal), "open": str in kinds}
    elif items is not None:
        told |= _listed(items)
    elif int in kinds:
        told["type"] = HUMAN if name in _HUMAN_FIELDS else int
    elif float in kinds:
        told["type"] = float
    elif dict in kinds:
        told |= {"type": JSON, "open": str in kinds or ("other", None) in kinds}
    return copy.deepcopy(told)


def _listed(items: list[Any]) -> dict[str, Any]:
    options = next((each[1] for each in items if isinstance(each, tuple) and each[0] == "literal"), None)
    if options is not None:
        return {"nargs": "+", "type": type(options[0]), "choices": sorted(options)}
    plain = [each for each in items if each in (int, float)]
    return {"nargs": "+", "type": plain[0] if len(items) == 1 and plain else str}


def _default(sources: Sources, module: str, node: ast.expr | None) -> Any:
    """A field's default: written, or that of a Field(default=...); None for one that is made."""
    if isinstance(node, ast.Call):
        given = next((word.value for word in node.keywords if word.arg == "default"), None)
        node = given if given is not None else next(iter(node.args), None)
    try:
        return None if node is None else evaluate(sources, module, node)
    except Unknown:
        return None


def _hints(sources: Sources, module: str, node: ast.expr, kinds: list[Any]) -> None:
    """The alternatives of an annotation: built-in types, None, and pairs for literals, sequences and classes."""
    match node:
        case ast.Constant(value=None):
            kinds.append(None)
        case ast.Constant(value=str() as text):
            _hints(sources, module, ast.parse(text, mode="eval").body, kinds)
        case ast.BinOp(left=left, right=right):
            _hints(sources, module, left, kinds)
            _hints(sources, module, right, kinds)
        case ast.Subscript(value=ast.Name(id="Literal")):
            kinds.append(("literal", _options(sources, module, node)))
        case ast.Subscript(value=ast.Name(id="Annotated" | "SkipValidation"), slice=inner):
            _hints(sources, module, inner.elts[0] if isinstance(inner, ast.Tuple) else inner, kinds)
        case ast.Subscript(value=ast.Name(id="Union" | "Optional" as name), slice=inner):
            for each in inner.elts if isinstance(inner, ast.Tuple) else [inner]:
                _hints(sources, module, each, kinds)
            kinds.extend([None] if name == "Optional" else [])
        case ast.Subscript(value=ast.Name(id=name), slice=inner) if name in _SEQUENCES:
            items: list[Any] = []
            for each in inner.elts if isinstance(inner, ast.Tuple) else [inner]:
                if not (isinstance(each, ast.Constant) and each.value is Ellipsis):
                    _hints(sources, module, each, items)
            kinds.append(("items", items))
        case ast.Subscript(value=ast.Name(id="dict")):
            kinds.append(dict)
        case ast.Name(id=name):
            _named(sources, module, name, kinds)
        case _:
            kinds.append(("other", None))


def _named(sources: Sources, module: str, name: str, kinds: list[Any]) -> None:
    found = sources.find(module, name)
    if found is None:
        kinds.append(_PLAIN.get(name, ("other", None)))
    elif isinstance(found.value, ast.ClassDef):
        kinds.append(_class(found.value))
    elif isinstance(found.value, ast.expr):
        _hints(sources, found.module, found.value, kinds)
    else:
        kinds.append(("other", None))


def _class(owner: ast.ClassDef) -> Any:
    if any("dict" in ast.unparse(base).lower() and "typed" not in ast.unparse(base).lower() for base in owner.bases):
        return dict
    if "IntEnum" in map(ast.unparse, owner.bases):
        return int
    made = {ast.unparse(each).split("(")[0].split(".")[-1] for each in owner.decorator_list}
    return ("class", None) if made & {"config", "dataclass"} else ("other", None)


def _options(sources: Sources, module: str, node: ast.Subscript) -> list[Any]:
    """The words of a Literal, those of literals inside it included."""
    made: list[Any] = []
    for each in node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]:
        if isinstance(each, ast.Name):
            found = sources.find(module, each.id)
            if found is not None and isinstance(found.value, ast.Subscript):
                made += _options(sources, found.module, found.value)
        else:
            made.append(evaluate(sources, module, each))
    return made
