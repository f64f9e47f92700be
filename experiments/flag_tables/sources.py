"""Python sources in a folder or a wheel, and what a name in one of their modules stands for."""

import ast
import functools
import pathlib
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_HOPS: Final = 20


@dataclass(frozen=True)
class Found:
    """What binds a name, in the module where it stands: `value` is what is assigned, or the definition."""

    module: str
    value: ast.AST


class Sources:
    """The modules of one package, parsed as they are asked for."""

    def __init__(self, place: pathlib.Path, package: str) -> None:
        """`place` is a wheel, or the folder that holds the package's own folder."""
        self.package = package
        self._wheel = zipfile.ZipFile(place) if place.is_file() else None
        self._folder = place

    @functools.cache  # noqa: B019 - one reader lives as long as the command
    def tree(self, module: str) -> ast.Module | None:
        """A module parsed; None where the package has none of that name."""
        stem = module.replace(".", "/")
        for name in (f"{stem}.py", f"{stem}/__init__.py"):
            text = self.text(name)
            if text is not None:
                return ast.parse(text)
        return None

    def version(self) -> str:
        """The version that the package's metadata states; empty where it is not beside it."""
        for name in self._metadata():
            for line in (self.text(name) or "").splitlines():
                if line.startswith("Version: "):
                    return line.removeprefix("Version: ").strip()
        found = self.find(f"{self.package}._version", "__version__")
        return str(found.value.value) if found is not None and isinstance(found.value, ast.Constant) else ""

    def find(self, module: str, name: str) -> Found | None:
        """What a module's name stands for, through imports inside the package; None for anything else."""
        for _ in range(_HOPS):
            bound = self._bound(module).get(name)
            if bound is None:
                return None
            if not isinstance(bound, ast.ImportFrom):
                return Found(module, bound)
            alias = next(each for each in bound.names if (each.asname or each.name) == name)
            module, name = self._from(module, bound), alias.name
            if not module.startswith(self.package):
                return None
        return None

    def _from(self, module: str, bound: ast.ImportFrom) -> str:
        """The module that an import names, seen from the one where it stands."""
        if not bound.level:
            return bound.module or ""
        is_package = self.text(f"{module.replace('.', '/')}/__init__.py") is not None
        parents = module.split(".")
        kept = parents[: len(parents) - bound.level + is_package]
        return ".".join([*kept, bound.module] if bound.module else kept)

    @functools.cache  # noqa: B019
    def _bound(self, module: str) -> dict[str, ast.AST]:
        tree = self.tree(module)
        names: dict[str, ast.AST] = {}
        for node in _statements(tree.body if tree else ()):
            if isinstance(node, ast.ImportFrom):
                names.update({each.asname or each.name: node for each in node.names})
            elif isinstance(node, ast.ClassDef | ast.FunctionDef):
                names[node.name] = node
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                # a class that is made again from itself keeps the body that says what it holds
                if not isinstance(names.get(node.targets[0].id), ast.ClassDef):
                    names[node.targets[0].id] = node.value
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                names[node.target.id] = node.value
        return names

    def text(self, name: str) -> str | None:
        if self._wheel is not None:
            return self._wheel.read(name).decode() if name in self._wheel.namelist() else None
        file = self._folder / name
        return file.read_text(encoding="utf-8") if file.is_file() else None

    def _metadata(self) -> Iterable[str]:
        if self._wheel is not None:
            return [name for name in self._wheel.namelist() if name.endswith(".dist-info/METADATA")]
        # a folder of links may have the metadata beside what the link points to
        places = {self._folder, (self._folder / self.package).resolve().parent}
        pattern = f"{self.package}-*.dist-info/METADATA"
        return [str(file) for place in places for file in sorted(place.glob(pattern))]


def _statements(body: Iterable[ast.stmt]) -> Iterable[ast.stmt]:
    """Statements at a module's level in the order in which they bind: what only a type checker runs comes first."""
    for node in body:
        if isinstance(node, ast.If):
            yield from _statements(node.body)
            yield from _statements(node.orelse)
        elif isinstance(node, ast.Try):
            yield from _statements(node.body)
        else:
            yield node
