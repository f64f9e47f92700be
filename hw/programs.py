"""Compiled programs kept between processes.

JAX's compilation cache saves a second process the compiler; tracing and lowering thousands of small ops then take most
of its time. `kept` saves those too: the compiled program is written to the cache folder, under a key of everything that
it depends on. Without a cache folder it is an ordinary `filter_jit`.
"""

import functools
import hashlib
import pathlib
import pickle
import platform
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer

from hw.compat import (
    COMPILE_TO_RUN_ONCE,
    compilation_cache_folder,
    outside_compilation_cache,
    pack_executable,
    unpack_executable,
)

F = TypeVar("F", bound=Callable[..., Any])

_SOURCES: Final = ("hw", "layouts", "explorer")
_ROOT: Final = pathlib.Path(__file__).parent.parent
_UNREADABLE: Final = (OSError, ValueError, EOFError, pickle.UnpicklingError, AttributeError, ImportError, RuntimeError)


def compiled(
    function: Callable[..., Any], options: Mapping[str, bool | int] = COMPILE_TO_RUN_ONCE
) -> Callable[..., Any]:
    """`filter_jit` with options of the compiler: a program of one process."""
    # Equinox passes the keywords of jax.jit on, but its overloads do not declare them
    return eqx.filter_jit(function, compiler_options=dict(options))  # pyright: ignore[reportCallIssue]


def kept(compiler_options: Mapping[str, bool | int]) -> Callable[[F], F]:
    """Decorate a function of pytrees: arrays are traced, the rest is static, results are pytrees of arrays.

    A file that cannot be read or written costs time, never the answer.
    """

    def decorate(function: F) -> F:
        ordinary = compiled(function, compiler_options)
        ready: dict[Any, Callable[..., Any]] = {}

        @functools.wraps(function)
        def call(*args: Any) -> Any:
            folder = compilation_cache_folder()
            leaves, structure = jax.tree.flatten(args)
            if folder is None or any(isinstance(leaf, Tracer) for leaf in leaves):
                return ordinary(*args)
            program = _Program(function, leaves, structure, dict(compiler_options))
            if program.signature not in ready:
                path = pathlib.Path(folder) / "programs" / f"{program.key}.bin"
                ready[program.signature] = _load(path, program.arrays) or _compile(program, path)
            return ready[program.signature](program.arrays)

        return call  # pyright: ignore[reportReturnType]

    return decorate


class _Program:
    """A function at certain static values, shapes and types, with the arrays to call it with.

    `signature` tells programs apart within a process, `key` between processes.
    """

    def __init__(self, function: Callable[..., Any], leaves: list[Any], structure: Any, options: dict[str, Any]):
        self.function, self.structure, self.options = function, structure, options
        self.dynamic = tuple(eqx.is_array(leaf) for leaf in leaves)
        self.arrays = [np.asarray(leaf) for leaf, array in zip(leaves, self.dynamic, strict=True) if array]
        self.static = tuple(leaf for leaf, array in zip(leaves, self.dynamic, strict=True) if not array)
        shapes = tuple((array.shape, array.dtype.name) for array in self.arrays)
        self.signature = (structure, self.dynamic, self.static, shapes)

    @property
    def key(self) -> str:
        parts = (_surroundings(), self.function.__qualname__, self.signature, sorted(self.options.items()))
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]

    def run(self, arrays: list[Any]) -> Any:
        """The function itself, its static values put back between the arrays."""
        dynamic, static = iter(arrays), iter(self.static)
        leaves = [next(dynamic) if array else next(static) for array in self.dynamic]
        return self.function(*jax.tree.unflatten(self.structure, leaves))


def _compile(program: _Program, path: pathlib.Path) -> Callable[..., Any]:
    """Compile the function, keep it, and return what calls it."""
    skeletons: list[Any] = []

    def flat(arrays: list[Any]) -> list[Any]:
        result = program.run(arrays)
        skeletons.append(jax.tree.map(lambda leaf: 0, result))
        return jax.tree.leaves(result)

    with outside_compilation_cache():
        executable = jax.jit(flat).lower(program.arrays).compile(compiler_options=program.options)
    try:
        packed = pack_executable(executable)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{id(packed)}")
        draft.write_bytes(pickle.dumps((packed, skeletons[0])))
        draft.replace(path)  # a reader sees the whole file or none
    except _UNREADABLE:
        pass
    return _caller(executable, skeletons[0])


def _load(path: pathlib.Path, arrays: list[Any]) -> Callable[..., Any] | None:
    """What calls a program kept earlier; None where there is none, or none that can be read and runs."""
    try:
        packed, skeleton = pickle.loads(path.read_bytes())
        executable = unpack_executable(packed)
        first = iter([jax.block_until_ready(executable(arrays))])
        # the run that tried it out is also the first answer
        return _caller(lambda again: next(first, None) or executable(again), skeleton)
    except _UNREADABLE:
        return None


def _caller(executable: Callable[..., Any], skeleton: Any) -> Callable[..., Any]:
    structure = jax.tree.structure(skeleton)
    return lambda arrays: jax.tree.unflatten(structure, executable(arrays))


@functools.cache
def _surroundings() -> tuple[str, ...]:
    """What a compiled program depends on beside its arguments: the project's sources, JAX, Python, the processor."""
    digest = hashlib.sha256()
    for package in _SOURCES:
        for path in sorted((_ROOT / package).rglob("*.py")):
            digest.update(path.read_bytes())
    try:
        features = [line for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")]
    except OSError:
        features = []
    processor = (features or [platform.processor()])[0]
    return (digest.hexdigest(), jax.__version__, platform.python_version(), platform.machine(), processor)
