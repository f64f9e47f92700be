"""One op of a step: what it computes, reads and sends on one rank, as expressions over the layout's quantities."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from hw.tables import Kind
from hw.work import EXCHANGE_SHAPES, LAUNCHES, SHAPES, CollectiveKind, Family, Rate
from layouts.expression import ONE, ZERO, Expr, Number
from layouts.tensor import Precision, Tensor

_BF16 = 2  # bytes of an activation


class Stream(StrEnum):
    """Where an op runs. Ops of one stream follow each other; streams run beside each other."""

    MAIN = "main"
    GATHER = "gather"
    HOST = "host"


@dataclass(frozen=True)
class Problem:
    """What a kernel is asked, in the words in which measured tables are (`hw.tables.forms`); the time model does not
    read it. `form` is the format of its weights, KV cache or state."""

    kind: Kind
    form: str
    sizes: Mapping[str, Expr]

    def substitute(self, replacements: Mapping[str, Expr]) -> "Problem":
        """The same problem with some quantities replaced."""
        return replace(self, sizes={name: size.substitute(replacements) for name, size in self.sizes.items()})


@dataclass(frozen=True)
class Op:
    """A kernel or an exchange. Either `family` or `collective` is set.

    flops, bytes (HBM, read plus written) and `shape` (by the names of `hw.work.SHAPES`, of an exchange those of
    `EXCHANGE_SHAPES`) are those of one rank; `payload`, `size`, `stride` follow
    `hw.work.Collective`. `share` is the part that it takes in the step: one, or the weight of the alternative that it
    belongs to (0 or 1 in a valid layout). `problem` is set where public tables of measured kernels have the like.

    `beside`: the exchange of its block that an engine may run it under, where the two wait for nothing of each other.

    These are what engines do and the time model prices: a payload is *wire* bytes, what the load really sends. The JAX
    program here may do other than that: its shapes are fixed before a step. `program_flops` and `program_payload`
    (*program* bytes, of static operands) are then the program's, and `program` is False for what it does not do at
    all; `program_messages` are the payloads of exchanges that it makes one by one in place of a single one. The audit
    reads these four, through `audited_flops` and `audited_messages`. A step that is priced as the
    program (`layouts.program_side`) has its payloads too, and `program_bytes` through HBM and what `program_shape` says
    otherwise than `shape`; FLOPs are then those of `flops`, as our kernels skip what holds nothing, times
    `program_padding`, as they fill their blocks with rows that do not count. They may name the
    quantities of `symbols.PROGRAM_MEANING` besides the usual ones.
    """

    name: str
    family: Family | None = None
    rate: Rate = Rate.BF16
    flops: Expr = ZERO
    bytes: Expr = ZERO
    shape: Mapping[str, Expr] = field(default_factory=dict)
    collective: CollectiveKind | None = None
    payload: Expr = ZERO
    size: Expr = ONE
    stride: Expr = ONE
    stream: Stream = Stream.MAIN
    beside: CollectiveKind | None = None
    share: Expr = ONE
    problem: Problem | None = None
    program: bool = True
    program_flops: Expr | None = None
    program_payload: Expr | None = None
    program_messages: tuple[Expr, ...] = ()
    program_bytes: Expr | None = None
    program_padding: Expr = ONE
    program_shape: Mapping[str, Expr] = field(default_factory=dict)

    @property
    def audited_flops(self) -> Expr:
        """FLOPs of the program's dots on one rank."""
        return self.flops if self.program_flops is None else self.program_flops

    @property
    def audited_payload(self) -> Expr:
        """Program bytes of an exchange, by kind as `hw.work.Collective` counts a payload."""
        return self.payload if self.program_payload is None else self.program_payload

    @property
    def audited_messages(self) -> tuple[Expr, ...]:
        """Program bytes of each exchange that the program makes for this one."""
        return self.program_messages or (self.audited_payload,)

    def substitute(self, replacements: Mapping[str, Expr]) -> "Op":
        """The same op of another part of the step, with some quantities replaced. The program's side stays as it is:
        parts that are made so, drafts, are priced only."""
        fields = ("flops", "bytes", "payload", "size", "share")
        changed = {f: getattr(self, f).substitute(replacements) for f in fields}
        shape = {name: value.substitute(replacements) for name, value in self.shape.items()}
        problem = None if self.problem is None else self.problem.substitute(replacements)
        return replace(self, **changed, shape=shape, problem=problem)

    def __post_init__(self) -> None:
        if (self.family is None) == (self.collective is None):
            raise ValueError(f"op {self.name!r} must be a kernel or an exchange, and not both")
        known = SHAPES if self.collective is None else EXCHANGE_SHAPES
        if unknown := (self.shape.keys() | self.program_shape.keys()) - set(known):
            raise ValueError(f"op {self.name!r} states {', '.join(sorted(unknown))}: shapes are {', '.join(known)}")


def gemm(
    tensor: Tensor,
    precision: Precision,
    family: Family | None = None,
    read: Expr | None = None,
    program_rows: Expr | None = None,
    shape: Mapping[str, Expr] | None = None,
) -> Op:
    """The product of a weight with its activation rows: 2 x out x in x rows FLOPs; weight, input and output bytes.

    `read` replaces the weight bytes where only part of the resident weight is touched (experts). `program_rows`: rows
    that the JAX program multiplies, where shapes must be fixed beforehand. A dense product walks over its input width
    step by step; what else is known of a kernel's `shape` replaces that.
    """
    if tensor.rows is None:
        raise ValueError(f"{tensor.name} multiplies nothing")
    stored = tensor.format(precision)
    cut = tensor.work_cut or tensor.cut
    if read is None:
        read = (stored.payload + stored.scale) * tensor.parameters * ONE / cut
    return Op(
        tensor.name,
        family=family or (Family.GEMM_HEADS if tensor.heads > 1 else Family.GEMM),
        rate=Rate(stored.rate),
        flops=tensor.rows * (2 * tensor.parameters) / cut,
        bytes=read + tensor.activations() * _BF16,
        shape=shape if shape is not None else {"steps": tensor.inp * ONE / (cut if tensor.cut_input else ONE)},
        problem=None if family else _product(tensor, stored.name),
        program_flops=None if program_rows is None else program_rows * (2 * tensor.parameters) / cut,
        # a weight that has come in blocks is multiplied block by block
        program_shape={} if tensor.shard is None else {LAUNCHES: tensor.shard},
    )


def _product(tensor: Tensor, form: str) -> Problem:
    """A rank's part of a dense product, or of one product a head."""
    cut, rows = tensor.work_cut or tensor.cut, Expr.of(tensor.rows or ZERO)
    if tensor.heads > 1:
        of_a_head = {"inner": Expr.of(tensor.inp), "columns": Expr.of(tensor.out // tensor.heads)}
        return Problem(Kind.ABSORBED, form, {"rows": rows, "heads": tensor.heads * ONE / cut, **of_a_head})
    inner, columns = (cut, ONE) if tensor.cut_input else (ONE, cut)
    return Problem(Kind.GEMM, form, {"rows": rows, "inner": tensor.inp / inner, "columns": tensor.out / columns})


def gemms(tensors: Iterable[Tensor], precision: Precision) -> tuple[Op, ...]:
    """One GEMM for each tensor that multiplies activations."""
    return tuple(gemm(t, precision) for t in tensors if t.rows is not None)


def elementwise(
    name: str,
    moved: Expr | Number,
    share: Expr = ONE,
    *,
    program_moved: Expr | None = None,
    program_launches: Expr | Number = 1,
) -> Op:
    """A memory-bound kernel that moves `moved` bytes through HBM; the program does the same in `program_launches`
    kernels, which together move `program_moved` where that is another figure."""
    return Op(
        name,
        family=Family.ELEMENTWISE,
        bytes=Expr.of(moved),
        share=share,
        program_bytes=program_moved,
        program_shape={LAUNCHES: Expr.of(program_launches)},
    )


def passes(name: str, moved: Expr | Number, launches: Expr | Number, share: Expr = ONE) -> Op:
    """Small kernels that only the program launches, and that together move `moved` bytes; an engine has them inside of
    others. They cost an engine nothing."""
    return elementwise(name, ZERO, share, program_moved=Expr.of(moved), program_launches=launches)


def exchange(
    name: str,
    kind: CollectiveKind,
    payload: Expr,
    size: Expr,
    *,
    stride: Expr = ONE,
    share: Expr = ONE,
    program_payload: Expr | None = None,
    shape: Mapping[str, Expr] | None = None,
) -> Op:
    """A collective on the main stream, where the next kernel needs its result. `payload`: wire bytes;
    `program_payload`: program bytes, where the program's operands are of another size."""
    return Op(
        name,
        collective=kind,
        payload=payload,
        size=size,
        stride=stride,
        share=share,
        program_payload=program_payload,
        shape=shape or {},
    )
