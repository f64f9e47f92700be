"""Public tables of dense GEMMs as rows for the time model, the absorbed products of MLA (one a head) among them.

FLOPs and bytes are those of the layouts' own GEMM op. `rows` x `inner` by `inner` x `columns`, in each of `groups`.
"""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool

from experiments.op_curves.columns import Column, evaluate, numbers, read, shapes
from experiments.op_curves.rows import Group
from layouts.expression import Expr
from layouts.op import gemm
from layouts.symbols import ROWS
from layouts.tensor import FORMATS, Precision, Tensor

# A row is left out that took longer by this than a problem at least as large in every direction.
OVERTAKEN = 0.15
_REASON = f"took {100 * OVERTAKEN:.0f} % longer than a problem as large or larger: kernel badly chosen, or disturbed"
_RATES = {"bfloat16": "bf16", "fp8_block": "fp8", "fp8": "fp8"}
_LATENT, _HEAD = 512, 128  # of the model whose absorbed products are tabled


def groups() -> list[Group]:
    """Every dense group of the shipped tables, one for each chip and format."""
    served = [_served(chip, dtype) for chip in ("b200", "h200") for dtype in ("bfloat16", "fp8_block")]
    absorbed = [_absorbed(chip, dtype) for chip in ("b200", "h200") for dtype in ("bfloat16", "fp8")]
    return [*served, _h800(), *absorbed]


def overtaken(seconds: Column, *sizes: Column) -> Bool[np.ndarray, " rows"]:
    """Whether a row with no size smaller took less time by more than `OVERTAKEN`.

    Any problem can be padded to a larger one, so what it takes beyond the larger one's time is no property of its
    shape.
    """
    best = [seconds[np.all([s >= s[i] for s in sizes], axis=0)].min() for i in range(len(seconds))]
    return seconds > (1.0 + OVERTAKEN) * np.array(best)


def screened(
    name: str, chip: str, family: str, rate: str, work: dict[str, Column], seconds: Column, bad: np.ndarray, source: str
) -> Group:
    """The group without its bad rows, which are counted."""
    kept = {n: column[~bad] for n, column in work.items()}
    problem = shapes(*kept.values())
    flagged = {_REASON: int(bad.sum())} if bad.any() else {}
    return Group(name, chip, family, rate, kept, seconds[~bad], problem, source, flagged)


def product(form: str, rows: Column, columns: Column, inner: Column, heads: Column) -> dict[str, Column]:
    """Features of products of (rows, inner) with a weight (columns, inner), one for each head."""
    precision = Precision({"dense": FORMATS[form]})
    work = {"flops": np.zeros(len(rows)), "bytes": np.zeros(len(rows))}
    for n, k, h in {*zip(columns, inner, heads, strict=True)}:
        here = (columns == n) & (inner == k) & (heads == h)
        weight = Tensor("weight", int(n * h), int(k), "dense", ROWS, heads=int(h))
        op = gemm(weight, precision)
        for what, expression in (("flops", op.flops), ("bytes", op.bytes)):
            work[what] = np.where(here, evaluate(Expr.of(expression), {"rows": rows}), work[what])
    return work | {"steps": inner}


def size(
    rows: Column, columns: Column, groups: Column, planned: Column, copied: Column | None = None
) -> dict[str, Column]:
    """The features of a grouped GEMM beside FLOPs and bytes.

    `rows`: of all groups; `columns`: of the weights of all kernels that are timed together; `planned`: rows a group
    that the engine chooses its tile for; `copied`: values that are gathered before and summed after; `launches`: GEMMs.
    """
    one = np.ones(len(rows))
    return {
        "rows": rows,
        "columns": columns,
        "groups": groups,
        "planned": planned,
        "copied": 0.0 * one if copied is None else copied,
        "launches": one,
    }


def _served(chip: str, dtype: str) -> Group:
    source = f"gemm_{chip}_sxm_k7168_m_le1024_sglang0514"
    rate = _RATES[dtype]
    table = [r for r in read(source) if r["gemm_dtype"] == dtype]
    return _dense(f"gemm {chip} {rate}", chip, rate, table, lambda r: numbers(r, "latency") * 1e-3, source)


def _h800() -> Group:
    source = "gemm__h800__data"
    return _dense("gemm h800 fp8", "h800", "fp8", read(source), lambda r: numbers(r, "latency_us") * 1e-6, source)


def _dense(
    name: str,
    chip: str,
    rate: str,
    table: Sequence[dict[str, str]],
    time: Callable[[Sequence[dict[str, str]]], Column],
    source: str,
) -> Group:
    m, n, k = (numbers(table, what) for what in ("m", "n", "k"))
    seconds = time(table)
    work = product(rate, m, n, k, np.ones(len(m)))
    return screened(name, chip, "gemm", rate, work, seconds, overtaken(seconds, m, n, k), source)


def _absorbed(chip: str, dtype: str) -> Group:
    """Both products of absorbed MLA decode: queries into the latent width, and latent sums out of it."""
    source = "mla_bmm_b200_h200_sglang0514"
    rate = _RATES[dtype]
    table = [r for r in read(source) if r["system"] == f"{chip}_sxm" and r["bmm_dtype"] == dtype]
    into = np.array([r["op_name"] == "mla_gen_pre" for r in table])
    tokens, heads, seconds = (numbers(table, what) for what in ("num_tokens", "num_heads", "latency"))
    columns, inner = np.where(into, _LATENT, _HEAD).astype(float), np.where(into, _HEAD, _LATENT).astype(float)
    work = product(rate, tokens, columns, inner, heads)
    bad = overtaken(seconds, tokens, heads, columns, inner)
    return screened(f"gemm_heads {chip} {rate}", chip, "gemm_heads", rate, work, seconds * 1e-3, bad, source)
