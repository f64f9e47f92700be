"""Latents of one byte a value made those of two, in place, as no product takes fp8 beside weights of two bytes.

A tile of fp8 lies in the front half of the memory of its slot; what it becomes fills all of it. Every value of
float8_e4m3fn is one of float16, so nothing is rounded. Columns are widened from the last on: those that would write
over what is still to be read wait, in registers, until all has been.
"""

from typing import Any, Final

from jax._src.lib.mlir import ir  # pyright: ignore[reportPrivateImportUsage]
from jax._src.lib.mlir.dialects import arith
from jax.experimental.mosaic import gpu as mgpu

from layouts.mla.hopper.block import ATOM, COLUMNS, SCALAR, TILED, Block, Sizes, llvm, plgpu
from layouts.mla.shares import TILE

_THREADS: Final = 128
_CHUNK: Final = 16  # values that a thread widens at once: bytes of the widest load
_LINE: Final = 128  # bytes of a row of a swizzle

Words = list[Any]  # four registers with sixteen values of fp8


def widen(sizes: Sizes, block: Block, slot: Any) -> None:
    """The tile of a slot. Every thread of a warpgroup calls it; what it wrote is to be committed."""

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(TILED), plgpu.RefType(TILED), SCALAR))
    def run(_: Any, latents: Any, ropes: Any, slot: Any) -> None:
        if isinstance(slot, mgpu.FragmentedArray):
            slot = slot.registers.item()
        latent = _Part(latents, slot, sizes.groups, COLUMNS)
        rope = _Part(ropes, slot, 1, sizes.rope)
        for group in range(sizes.groups - 1, sizes.groups // 2 - 1, -1):
            latent.store(group, latent.load(group))
        waiting = [latent.load(group) for group in range(sizes.groups // 2)]
        rotary = rope.load(0)
        mgpu.utils.warpgroup_barrier()
        for group, words in enumerate(waiting):
            latent.store(group, words)
        rope.store(0, rotary)

    run(block.latents, block.ropes, slot)


class _Part:
    """Addresses of a thread in groups of `columns` columns, rows by rows before and in swizzled atoms after."""

    def __init__(self, ref: Any, slot: Any, groups: int, columns: int):
        thread = arith.remui(mgpu.utils.thread_idx(), _number(_THREADS))
        chunks = columns // _CHUNK  # of a row
        self.values = TILE * columns
        self.steps = self.values // (_CHUNK * _THREADS)
        self.rows = _THREADS // chunks  # that all threads widen at once
        self.row_bytes = 2 * columns
        base = arith.addi(_address(ref), arith.muli(slot, _number(2 * groups * self.values)))
        row, chunk = arith.divui(thread, _number(chunks)), arith.remui(thread, _number(chunks))
        self.source = arith.addi(base, arith.muli(thread, _number(_CHUNK)))
        in_atom = arith.remui(row, _number(ATOM))
        atom = arith.addi(
            arith.muli(arith.divui(row, _number(ATOM)), _number(ATOM * self.row_bytes)),
            arith.muli(arith.divui(chunk, _number(4)), _number(ATOM * _LINE)),
        )
        line = arith.addi(arith.addi(base, atom), arith.muli(in_atom, _number(_LINE)))
        first = arith.muli(arith.remui(chunk, _number(4)), _number(2))
        self.targets = [
            arith.addi(line, arith.muli(arith.xori(arith.addi(first, _number(half)), in_atom), _number(16)))
            for half in range(2)
        ]

    def load(self, group: int) -> list[Words]:
        offsets = [group * self.values + step * _CHUNK * _THREADS for step in range(self.steps)]
        return [_load(self.source, offset) for offset in offsets]

    def store(self, group: int, loaded: list[Words]) -> None:
        for step, words in enumerate(loaded):
            _store(self.targets, 2 * group * self.values + step * self.rows * self.row_bytes, words)


def _load(source: Any, offset: int) -> Words:
    integer = ir.IntegerType.get_signless(32)
    four = ir.Type.parse("!llvm.struct<(i32, i32, i32, i32)>")
    text = f"ld.shared.v4.b32 {{$0, $1, $2, $3}}, [$4 + {offset}];"
    read = llvm.inline_asm(four, [source], text, "=r,=r,=r,=r,r", has_side_effects=True)
    return [llvm.extractvalue(integer, read, [n]) for n in range(4)]


def _store(targets: list[Any], offset: int, words: Words) -> None:
    lines = [".reg .b16 low, high;", ".reg .b32 wide<8>;"]
    for n in range(4):
        lines += [f"mov.b32 {{low, high}}, ${n + 2};"]
        lines += [f"cvt.rn.f16x2.e4m3x2 wide{2 * n}, low;", f"cvt.rn.f16x2.e4m3x2 wide{2 * n + 1}, high;"]
    for half in range(2):
        four = ", ".join(f"wide{4 * half + n}" for n in range(4))
        lines += [f"st.shared.v4.b32 [${half} + {offset}], {{{four}}};"]
    text = "{ " + " ".join(lines) + " }"
    llvm.inline_asm(ir.Type.parse("!llvm.void"), [*targets, *words], text, "r,r,r,r,r,r", has_side_effects=True)


def _address(ref: Any) -> Any:
    return llvm.ptrtoint(ir.IntegerType.get_signless(32), mgpu.utils.memref_ptr(ref))


def _number(value: int) -> Any:
    return arith.constant(ir.IntegerType.get_signless(32), value)
