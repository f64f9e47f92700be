"""vLLM's flags: what EngineArgs.add_cli_args and make_arg_parser add, from the configuration classes that they name."""

import ast
import contextlib
from collections.abc import Iterable
from typing import Any, Final

from experiments.flag_tables.evaluate import Unknown, evaluate
from experiments.flag_tables.flag import flag
from experiments.flag_tables.sources import Found, Sources
from experiments.flag_tables.vllm_fields import class_keywords

PACKAGE: Final = "vllm"
_ENGINE: Final = "vllm.engine.arg_utils"
_SERVER: Final = "vllm.entrypoints.common.cli_args"


def read(sources: Sources) -> dict[str, dict[str, Any]]:
    """Every flag of `vllm serve` by its canonical name: that of the first long spelling, with underscores."""
    rows: dict[str, dict[str, Any]] = {}
    for row in _all(sources):
        rows.setdefault(row["spellings"][0].lstrip("-").replace("-", "_"), row)
    return rows


def _all(sources: Sources) -> Iterable[dict[str, Any]]:
    yield from _Body(sources, _SERVER).added(_function(sources, _SERVER, "make_arg_parser"))
    yield from _frontend(sources)
    for owner in ("EngineArgs", "AsyncEngineArgs"):
        yield from _Body(sources, _ENGINE).added(_method(sources, _ENGINE, owner, "add_cli_args"))


def _function(sources: Sources, module: str, name: str) -> ast.FunctionDef:
    found = sources.find(module, name)
    assert found is not None and isinstance(found.value, ast.FunctionDef)
    return found.value


def _method(sources: Sources, module: str, owner: str, name: str) -> ast.FunctionDef:
    found = sources.find(module, owner)
    assert found is not None and isinstance(found.value, ast.ClassDef)
    return next(each for each in found.value.body if isinstance(each, ast.FunctionDef) and each.name == name)


def _frontend(sources: Sources) -> Iterable[dict[str, Any]]:
    """Flags of the server: every field of FrontendArgs, as _customize_cli_kwargs of it and its base leave them."""
    found = sources.find(_SERVER, "FrontendArgs")
    assert isinstance(found, Found)
    keywords = class_keywords(sources, found)
    for owner in ("BaseFrontendArgs", "FrontendArgs"):
        body = _Body(sources, _SERVER, {"frontend_kwargs": keywords})
        list(body.added(_method(sources, _SERVER, owner, "_customize_cli_kwargs")))
    for name, told in keywords.items():
        yield flag(["--" + name.replace("_", "-")], told)


class _Body:
    """The statements of a function that fills a parser, followed one by one."""

    def __init__(self, sources: Sources, module: str, names: dict[str, Any] | None = None) -> None:
        self._sources = sources
        self._module = module
        self._names: dict[str, Any] = names if names is not None else {}

    def added(self, function: ast.FunctionDef) -> Iterable[dict[str, Any]]:
        """The flags in the order in which they are added."""
        for node in _flat(function.body):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._bind(name, value)
                case ast.Assign(targets=[ast.Subscript(value=owner, slice=key)], value=value):
                    self._set(owner, key, value)
                case ast.Delete(targets=[ast.Subscript(value=owner, slice=key)]):
                    self._of(owner).pop(self._of(key), None)
                case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr="remove"), args=[only])):
                    self._of(owner).remove(self._of(only))
                case ast.Expr(value=ast.Call(func=ast.Attribute(attr="add_argument")) as call):
                    row = self._row(call)
                    if row is not None:
                        yield row
                case _:
                    continue

    def _bind(self, name: str, value: ast.expr) -> None:
        # what cannot be told leaves the name as it is: a call of a base's method hands back what it was given
        with contextlib.suppress(Unknown):
            self._names[name] = self._of(value)

    def _set(self, owner: ast.expr, key: ast.expr, value: ast.expr) -> None:
        word = self._of(key)
        try:
            target = self._of(owner)
        except Unknown:
            return
        if word == "type":
            target["type"] = _type(value)
        elif word == "action":
            target |= _action(value)
        else:
            target[word] = self._known(value)

    def _row(self, call: ast.Call) -> dict[str, Any] | None:
        names = [self._of(each) for each in call.args if not isinstance(each, ast.Starred)]
        if len(names) < len(call.args) or not names[0].startswith("-"):
            return None
        told: dict[str, Any] = {}
        for word in call.keywords:
            if word.arg is None:
                told |= self._of(word.value)
            elif word.arg == "type":
                told["type"] = _type(word.value)
            elif word.arg == "action":
                told |= _action(word.value)
            else:
                told[word.arg] = self._known(word.value)
        return flag(sorted(names, key=lambda name: not name.startswith("--")), told)

    def _known(self, node: ast.expr) -> Any:
        try:
            return self._of(node)
        except Unknown:
            return None

    def _of(self, node: ast.expr) -> Any:
        match node:
            case ast.Call(func=ast.Name(id="get_kwargs"), args=[ast.Name(id=name)]):
                found = self._sources.find(self._module, name)
                return class_keywords(self._sources, found) if found is not None else {}
            case ast.Subscript(value=ast.Call() as call, slice=key):
                return self._of(call)[self._of(key)]
            case ast.Call(func=ast.Name(id="get_args"), args=[ast.Name(id=name)]):
                return self._options(name)
            case _:
                return evaluate(self._sources, self._module, node, self._names)

    def _options(self, name: str) -> list[Any]:
        found = self._sources.find(self._module, name)
        if found is None or not (isinstance(found.value, ast.Subscript) and isinstance(found.value.slice, ast.Tuple)):
            raise Unknown(name)
        return [evaluate(self._sources, found.module, each) for each in found.value.slice.elts]


def _flat(body: list[ast.stmt]) -> Iterable[ast.stmt]:
    for node in body:
        if isinstance(node, ast.If):
            yield from _flat(node.body)
        else:
            yield node


def _type(node: ast.expr) -> Any:
    text = ast.unparse(node)
    if "json.loads" in text:
        return "json"
    return {"int": int, "float": float}.get(text, str)


def _action(node: ast.expr) -> dict[str, Any]:
    text = ast.unparse(node)
    if text.endswith("BooleanOptionalAction"):
        return {"action": "optional-bool"}
    if text == "'store_true'":
        return {"action": "switch"}
    return {"repeated": True} if text == "'append'" else {}
