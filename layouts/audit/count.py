"""The dots and the exchanges of a traced program, counted.

A program is walked equation by equation, into the programs that it calls; each of these is walked once for all its
calls, so that a model of many like layers costs one layer. A `scan` counts its length times. Of a `cond` the branch
with the most FLOPs and the branch with the most payload stand for all.

Inside `shard_map` shapes are those of one rank, so FLOPs and bytes are a rank's. Outside there are no collectives, and
a dot counts with the whole of its arrays.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hw.work import CollectiveKind
from layouts.audit.counts import AuditError, Counts, Exchanged, Tally
from layouts.audit.primitives import AXIS_PARAMETERS, CALLS, EXCHANGES, OPAQUE, SILENT
from layouts.audit.sizes import DOTS, array_bytes

MeshSizes = Mapping[str, int]  # of each mesh axis, outermost first; empty outside `shard_map`


def count(program: Any, names: Collection[str] | None = None) -> Counts:
    """FLOPs of dots and exchanges of a traced program (`jax.make_jaxpr(f)(*arguments)`, or `jit(f).trace(...).jaxpr`).

    Labels are the innermost `jax.named_scope` around an equation; with `names`, the innermost of those names (`einsum`
    opens a scope of its own, named after its subscripts). Groups of one rank exchange nothing and are not listed.

    Raises AuditError for a `while` that holds a dot, an exchange or an uncounted kernel (it has no number of turns),
    for an exchange of no known kind, and for a `shard_map` that leaves an axis of the mesh to the compiler.
    """
    return _Walk(names).program(_inner(program), {}).counts()


@dataclass
class _Walk:
    names: Collection[str] | None
    # By the program's identity, which holds while the outermost program keeps all of them alive, and the mesh.
    walked: dict[tuple[int, tuple[tuple[str, int], ...]], Tally] = field(default_factory=dict)

    def program(self, jaxpr: Any, mesh: MeshSizes) -> Tally:
        key = id(jaxpr), tuple(mesh.items())
        if key not in self.walked:
            tally = Tally()
            for equation in jaxpr.eqns:
                self.equation(equation, mesh, tally)
            self.walked[key] = tally
        return self.walked[key]

    def equation(self, equation: Any, mesh: MeshSizes, tally: Tally) -> None:
        name, label = equation.primitive.name, self.label(equation)
        if name in DOTS:
            tally.compute(label, DOTS[name](equation))
        elif name in EXCHANGES:
            _exchange(equation, EXCHANGES[name], mesh, label, tally)
        elif name in OPAQUE:
            tally.left_out[_opaque(equation)] = None
        elif name == "shard_map":
            tally.run(self.program(_inner(equation.params["jaxpr"]), _manual(equation)), label)
        elif name == "scan":
            inner = self.program(_inner(equation.params["jaxpr"]), mesh)
            tally.run(inner, label, equation.params["length"])
        elif name == "cond":
            self.branches(equation, mesh, label, tally)
        elif name in CALLS:
            for inner in _inners(equation):
                tally.run(self.program(inner, mesh), label)
        else:
            self.check_nothing_counts(equation, mesh)

    def label(self, equation: Any) -> str:
        scopes = [s.name for s in equation.source_info.name_stack.stack if type(s).__name__ == "Scope"]
        return next((s for s in reversed(scopes) if self.names is None or s in self.names), "")

    def branches(self, equation: Any, mesh: MeshSizes, label: str, tally: Tally) -> None:
        tallies = [self.program(_inner(branch), mesh) for branch in equation.params["branches"]]
        most = max(tallies, key=lambda t: t.total_payload)
        tally.run_flops(max(tallies, key=lambda t: t.total_flops), label)
        tally.run_exchanges(most, label)
        for branch in tallies:
            tally.left_out |= branch.left_out
            tally.notes |= branch.notes
        if any(branch.exchanges != most.exchanges for branch in tallies):
            payloads = ", ".join(str(branch.total_payload) for branch in tallies)
            tally.notes[f"a cond's branches exchange {payloads} bytes in different ways: counted as the most"] = None

    def check_nothing_counts(self, equation: Any, mesh: MeshSizes) -> None:
        """AuditError where a primitive of no known meaning would hide a dot or an exchange."""
        name = equation.primitive.name
        if _axes(equation) and name not in SILENT:
            raise AuditError(f"{name} over mesh axes {_axes(equation)} is no exchange of the cost model: use another")
        if all(self.program(inner, mesh).idle() for inner in _inners(equation)):
            return
        if name == "while":
            raise AuditError("a while holds dots or exchanges and has no number of turns: write it as a scan")
        raise AuditError(f"{name} holds dots or exchanges and may run them any number of times: take them out of it")


def _exchange(equation: Any, kind: CollectiveKind, mesh: MeshSizes, label: str, tally: Tally) -> None:
    """Tally a collective of a group of two or more."""
    axes, name = _axes(equation), equation.primitive.name
    if missing := [axis for axis in axes if axis not in mesh]:
        raise AuditError(f"{name} names {missing}, and the mesh around it has {list(mesh)}: trace it inside shard_map")
    if equation.params.get("axis_index_groups") is not None:
        raise AuditError(f"{name} over axis_index_groups has no mesh axis for its groups: name the axes of a mesh")
    size = math.prod(mesh[axis] for axis in axes)
    if size > 1:
        order = list(mesh)
        innermost = max(order.index(axis) for axis in axes)
        stride = math.prod(mesh[axis] for axis in order[innermost + 1 :])
        tally.exchange(Exchanged(kind, _payload(equation, kind, size), size, stride, axes, label))


def _payload(equation: Any, kind: CollectiveKind, size: int) -> int:
    """Bytes as `hw.work.Collective` defines them: the operand on a rank, or the gathered result.

    A ragged all-to-all counts its whole operand, which holds what it sends; its other operands are where to write and
    how much.
    """
    operands = equation.invars[:1] if equation.primitive.name.startswith("ragged") else equation.invars
    each = (size if kind is CollectiveKind.ALL_GATHER else 1) if operands else 0
    return sum(array_bytes(v.aval) for v in operands) * each


def _axes(equation: Any) -> tuple[str, ...]:
    """Mesh axes that an equation names; the numbers among them are dimensions of its own arrays."""
    found: list[str] = []
    for parameter in AXIS_PARAMETERS:
        named = equation.params.get(parameter, ())
        found += [named] if isinstance(named, str) else [axis for axis in named if isinstance(axis, str)]
    return tuple(found)


def _manual(equation: Any) -> MeshSizes:
    """Sizes of the mesh axes of a `shard_map`, all of which it must take."""
    mesh = equation.params["mesh"]
    sizes = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    manual = equation.params["newly_manual_axes"]
    if left := [axis for axis, size in sizes.items() if size > 1 and axis not in manual]:
        raise AuditError(f"a shard_map leaves mesh axes {left} to the compiler, who may exchange over them: name all")
    return sizes


def _opaque(equation: Any) -> str:
    name = equation.params.get("name") or equation.params.get("target_name") or ""
    return f"{equation.primitive.name} {name}".strip()


def _inner(program: Any) -> Any:
    """The program inside a closed one, whose identity is that of the trace."""
    return getattr(program, "jaxpr", program)


def _inners(equation: Any) -> Iterator[Any]:
    """Programs that an equation holds."""
    for value in equation.params.values():
        for held in value if isinstance(value, (tuple, list)) else (value,):
            if hasattr(_inner(held), "eqns"):
                yield _inner(held)
