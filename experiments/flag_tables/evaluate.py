"""Values of expressions in sources that are read, not run."""

import ast
import builtins
from collections.abc import Mapping
from typing import Any, Final

from experiments.flag_tables.sources import Found, Sources


class Unknown(Exception):
    """An expression whose value only the running program knows."""


_TYPES: Final = {
    name: getattr(builtins, name) for name in ("int", "float", "str", "bool", "list", "dict", "set", "tuple")
}
_DEPTH: Final = 40


def evaluate(
    sources: Sources, module: str, node: ast.AST, names: Mapping[str, Any] | None = None, depth: int = 0
) -> Any:
    """The value of an expression, built-in types by themselves; Unknown where it cannot be told without running."""
    if depth > _DEPTH:
        raise Unknown(ast.dump(node)[:80])

    def of(inner: ast.AST) -> Any:
        return evaluate(sources, module, inner, names, depth + 1)

    match node:
        case ast.Constant(value=value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -of(operand)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return of(left) + of(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return of(left) * of(right)
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [of(part) for part in parts]
        case ast.Set(elts=parts):
            return sorted(of(part) for part in parts)
        case ast.Dict(keys=keys, values=values):
            return _mapping(of, keys, values)
        case ast.Name(id=name):
            return _named(sources, module, name, names or {}, depth)
        case ast.Attribute(value=ast.Name(id=owner), attr=attr):
            return _attribute(sources, module, owner, attr, depth)
        case ast.Subscript(value=value, slice=key):
            return of(value)[of(key)]
        case ast.Call(func=ast.Name(id="list" | "set" | "frozenset" | "sorted" | "tuple"), args=[only]):
            return list(of(only))
        case ast.Call(func=ast.Name(id="int"), args=[only]):
            return int(of(only))
        case _:
            raise Unknown(ast.dump(node)[:80])


def _mapping(of: Any, keys: list[ast.expr | None], values: list[ast.expr]) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    for key, value in zip(keys, values, strict=True):
        if key is None:
            made.update(of(value))
        else:
            made[of(key)] = of(value)
    return made


def _named(sources: Sources, module: str, name: str, names: Mapping[str, Any], depth: int) -> Any:
    if name in names:
        return names[name]
    found = sources.find(module, name)
    if found is None:
        if name in _TYPES:
            return _TYPES[name]
        raise Unknown(name)
    if isinstance(found.value, ast.ClassDef | ast.FunctionDef):
        return found
    return evaluate(sources, found.module, found.value, None, depth + 1)


def _attribute(sources: Sources, module: str, owner: str, attr: str, depth: int) -> Any:
    """What a class of the package assigns to a name in its body; a field's default included."""
    found = sources.find(module, owner)
    if found is None or not isinstance(found.value, ast.ClassDef):
        raise Unknown(f"{owner}.{attr}")
    value = assigned(found.value).get(attr)
    if value is None:
        raise Unknown(f"{owner}.{attr}")
    local = {}
    for name, node in assigned(found.value).items():
        if isinstance(node, ast.Constant):
            local[name] = node.value
    return evaluate(sources, found.module, value, local, depth + 1)


def assigned(owner: ast.ClassDef) -> dict[str, ast.expr]:
    """What a class's body assigns, by name."""
    made: dict[str, ast.expr] = {}
    for node in owner.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            made[node.targets[0].id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            made[node.target.id] = node.value
    return made


def fields(sources: Sources, found: Found) -> dict[str, tuple[str, ast.AnnAssign]]:
    """Annotated names of a class and its bases, base first, each with the module where it stands."""
    made: dict[str, tuple[str, ast.AnnAssign]] = {}
    assert isinstance(found.value, ast.ClassDef)
    for base in reversed(found.value.bases):
        parent = sources.find(found.module, base.id) if isinstance(base, ast.Name) else None
        if parent is not None and isinstance(parent.value, ast.ClassDef):
            made |= fields(sources, parent)
    for node in found.value.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            made[node.target.id] = (found.module, node)
    return made
