"""Grouped GEMM of `layouts/moe/grouped.py` on one GPU: right on ragged rows, and how fast beside XLA and the memory.

    python -m experiments.bench_grouped_gemm --measure FILE     on a machine with a GPU: check, time, write FILE
    python -m experiments.bench_grouped_gemm [FILE]             anywhere: what was measured

Checked against float64 with experts that nobody chose and rows without a choice here, which hold NaN, weights in bf16
and in blocks of fp8. Timed with random inputs and a router that spreads evenly, medians of eleven times 20 calls: what
a rank does for its rows, from their choices to the sum of its experts' outputs. Bytes are those of the weights of
experts that were chosen, once; a copy counts bytes read plus written. XLA's form multiplies every row with every
expert, so it is run on the smaller problems only. Dense products beside it: XLA's in bf16 and with fp8 operands, whose
scales are one a tensor, and weights in blocks of fp8, spread out by XLA or read by the kernel as one expert.

Expected on an H200 in bf16: at least 83 % of the copy bandwidth up to 30 rows an expert, 320 to 410 TFLOP/s from 128.
Takes three minutes. `notes` and `tiles` in the stored results were added by hand.
"""

import functools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench_mla_decode import CALLS
from experiments.measured import ROUNDED, Judges, attempted, beyond, draw, keep, measure_or_show, stored, with_copies
from hw.measuring import median_seconds
from layouts.dense.activation import SwiGLU
from layouts.kernels import PLAIN, Choice, first_form
from layouts.moe.dispatch import weighted
from layouts.moe.grouped import NOWHERE, TRIED, compile_form, grouped
from layouts.moe.kernel import Ends, Operand, factor_of, order_by_expert, product, tile_of
from layouts.moe.reference import Experts
from layouts.stored import Stored, quantise
from layouts.tensor import FORMATS

RESULTS: Final = pathlib.Path(__file__).parent / "results" / "h200" / "grouped_gemm.json"
# of a check: two products one behind the other, with what is between them rounded
BOUNDS: Final = {"error": 2 * ROUNDED["bfloat16"]}
JUDGES: Final[Judges] = {"checked": lambda row: beyond(row, BOUNDS)}


class Layer(NamedTuple):
    """Routed experts of a layer, of which a rank holds the first `held`."""

    experts: int
    topk: int
    width: int
    intermediate: int
    held: int


# layer and tokens; of those that are checked, the format of the weights too
CHECKED: Final = (
    (Layer(12, 4, 512, 256, 8), 300, "bf16"),
    (Layer(16, 2, 256, 384, 16), 5, "bf16"),
    (Layer(64, 8, 1024, 512, 4), 640, "bf16"),
    (Layer(4, 2, 256, 256, 4), 4096, "bf16"),
    (Layer(12, 4, 512, 256, 8), 300, "fp8"),
    (Layer(4, 2, 256, 256, 4), 4096, "fp8"),
)
TIMED: Final = (
    *((Layer(256, 8, 7168, 2048, 256), tokens) for tokens in (16, 64, 256, 1024)),
    *((Layer(256, 8, 7168, 2048, 32), tokens) for tokens in (64, 256, 1024, 4096, 16384)),
    *((Layer(256, 8, 7168, 2048, 16), tokens) for tokens in (256, 1024, 4096)),
    *((Layer(896, 16, 3584, 3072, 56), tokens) for tokens in (64, 256, 1024, 4096)),
    *((Layer(128, 8, 4096, 1536, 128), tokens) for tokens in (16, 64, 256, 4096)),
)
TIMED_FP8: Final = (
    *((Layer(256, 8, 7168, 2048, 32), tokens) for tokens in (64, 256, 1024, 4096)),
    *((Layer(896, 16, 3584, 3072, 56), tokens) for tokens in (64, 256, 1024, 4096)),
)
MOST_XLA: Final = 2**42  # FLOPs of XLA's form
# columns and inputs of a dense product, and its rows
DENSE: Final = ((7168, 16384), (12288, 7168), (36864, 7168))
ROWS: Final = (1, 16, 128, 640)
WAYS: Final = ("bf16", "fp8 operands", "fp8 blocks, XLA", "fp8 blocks, kernel")


def problem(layer: Layer, tokens: int, form: str, *, holes: bool) -> tuple[jax.Array, jax.Array, Experts]:
    """Random rows, choices evenly spread, and weights; NaN in rows without a choice here if `holes`."""
    random = np.random.default_rng(tokens)
    chosen = random.random((tokens, layer.experts)).argsort(axis=1)[:, : layer.topk]
    if holes:  # an expert that nobody chooses
        chosen = np.where(chosen == 1, layer.experts, chosen)
    local = np.where(chosen < layer.held, chosen, NOWHERE).astype(np.int32)
    keys = jax.random.split(jax.random.key(tokens), 3)
    x = jax.random.normal(keys[0], (tokens, layer.width), jnp.bfloat16)
    if holes:
        x = jnp.where((local == NOWHERE).all(axis=1)[:, None], jnp.nan, x)
    w13 = drawn(keys[1], (layer.held, 2, layer.intermediate, layer.width), form)
    return x, jnp.asarray(local), Experts(w13, drawn(keys[2], (layer.held, layer.width, layer.intermediate), form))


@functools.partial(jax.jit, static_argnums=(1, 2))
def drawn(key: jax.Array, shape: tuple[int, ...], form: str) -> Any:
    """Random weights whose products with rows of variance one have about that, in a format."""
    weight = jax.random.normal(key, shape, jnp.bfloat16) * shape[-1] ** -0.5
    return quantise(weight, FORMATS[form]) if FORMATS[form].scale else weight


@functools.cache
def chosen_form(layer: Layer, weights: str) -> Choice:
    """The first form that compiles for a layer, as for 64 tokens."""
    x, local, experts = jax.eval_shape(functools.partial(problem, layer, 64, weights, holes=False))
    return first_form("grouped GEMM", TRIED, lambda form: compile_form(form, x, local, experts, SwiGLU()))


def exact(x: jax.Array, local: jax.Array, experts: Experts) -> np.ndarray:
    """(choices here, width): the output of each in float64."""
    wide: Any = [np.asarray(a.astype(jnp.float32), np.float64) for a in (x, experts.w13, experts.w2)]
    rows, choices = np.nonzero(np.asarray(local) != NOWHERE)
    number = np.asarray(local)[rows, choices]
    output = np.zeros((len(rows), wide[0].shape[1]))
    for expert in np.unique(number):
        mine = number == expert
        gate, up = wide[1][expert] @ wide[0][rows[mine]].T
        output[mine] = (wide[2][expert] @ (gate / (1 + np.exp(-gate)) * up)).T
    return output


def checked(layer: Layer, tokens: int, weights: str) -> dict[str, Any]:
    """Relative error of the outputs of the choices that are here."""
    x, local, experts = problem(layer, tokens, weights, holes=True)
    wanted, choice = exact(x, local, experts), chosen_form(layer, weights)
    run = jax.jit(functools.partial(grouped, activation=SwiGLU(), with_bias=jnp.bool_(True), form=choice.form))
    found = np.asarray(run(x, local, experts).astype(jnp.float32), np.float64)[np.asarray(local) != NOWHERE]
    return {
        **layer._asdict(), "tokens": tokens, "weights": weights, "form": choice.form, "errors": choice.errors,
        "error": float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted)),
    }  # fmt: skip


def layer_of(form: str, mean: float) -> Callable[..., jax.Array]:
    """The rank's part of the sum over each row's experts."""

    def run(x: jax.Array, local: jax.Array, weights: jax.Array, experts: Experts) -> jax.Array:
        parts = grouped(x, local, experts, SwiGLU(), jnp.bool_(True), form=form, mean=mean)
        return weighted(jnp.where((local == NOWHERE)[:, :, None], 0.0, parts), weights).astype(x.dtype)

    return jax.jit(run)


def timed(layer: Layer, tokens: int, weights: str) -> dict[str, Any]:
    """Seconds of a call, of the chosen form and, where it is not too much, of XLA's, and what they come to."""
    x, local, experts = problem(layer, tokens, weights, holes=False)
    each = jax.random.uniform(jax.random.key(1), local.shape)
    choice, mean = chosen_form(layer, weights), tokens * layer.topk / layer.experts
    run = layer_of(choice.form, mean)
    seconds = median_seconds(lambda: run(x, local, each, experts), CALLS)
    number = np.asarray(local)[np.asarray(local) != NOWHERE]
    touched, flops = len(np.unique(number)), 6 * layer.width * layer.intermediate
    read = touched / layer.held * sum(leaf.nbytes for leaf in jax.tree.leaves(experts))
    row = {
        **layer._asdict(), "tokens": tokens, "weights": weights, "form": choice.form, "errors": choice.errors,
        "rows": len(number), "touched": touched, "seconds": seconds,
        "tb_per_s": read / seconds / 1e12, "tflops": len(number) * flops / seconds / 1e12,
    }  # fmt: skip
    if choice.form != PLAIN and tokens * layer.topk * layer.held * flops <= MOST_XLA:
        plain = layer_of(PLAIN, mean)
        row["xla_seconds"] = median_seconds(lambda: plain(x, local, each, experts), 1)
    return row


def dense(columns: int, inputs: int, rows: int) -> dict[str, Any]:
    """Seconds of a product of `rows` with a weight in several ways."""
    of_x, of_weight = jax.random.split(jax.random.key(rows))
    x, weight = jax.random.normal(of_x, (rows, inputs), jnp.bfloat16), drawn(of_weight, (columns, inputs), "bf16")
    stored: Stored = drawn(of_weight, (1, columns, inputs), "fp8")
    spread = lambda x, w: _dense(x, w.astype(x.dtype)[0])  # noqa: E731
    runs = ((_dense, weight), (_dense_fp8, stored.payload[0]), (spread, stored), (_dense_kernel, stored))
    row: dict[str, Any] = {"rows": rows, "columns": columns, "inputs": inputs}
    for name, (way, operand) in zip(WAYS, runs, strict=True):
        row[name] = median_seconds(functools.partial(jax.jit(way), x, operand), CALLS)
    return row


def _dense(x: jax.Array, weight: jax.Array) -> jax.Array:
    return jnp.einsum("mk,nk->mn", x, weight, preferred_element_type=jnp.float32).astype(x.dtype)


def _dense_fp8(x: jax.Array, weight: jax.Array) -> jax.Array:
    return (_dense(x.astype(weight.dtype), weight).astype(jnp.float32) * 0.5).astype(x.dtype)


def _dense_kernel(x: jax.Array, weight: Stored) -> jax.Array:
    factor, device = factor_of(weight, None, x.dtype), jax.devices()[0]
    order = order_by_expert(jnp.zeros(len(x), jnp.int32), 1)
    return product(
        factor.operand(x.dtype).of(x), factor, order=order, room=len(x), ends=Ends(), finish=lambda sums: sums,
        result=Operand(x.dtype), tile=tile_of(factor.kind, len(x)), multiprocessors=device.core_count,
    )  # fmt: skip


def measure(path: pathlib.Path) -> None:
    """Check, time, and keep what is done after each step."""
    keep(path, with_copies(), _steps(), JUDGES)


def _steps() -> Iterator[tuple[str, Any]]:
    for case in CHECKED:
        yield "checked", attempted(checked, *case)
    for weights, cases in (("bf16", TIMED), ("fp8", TIMED_FP8)):
        for case in cases:
            yield "timed", timed(*case, weights)
    for shape in DENSE:
        for rows in ROWS:
            yield "dense", dense(*shape, rows)


def show(path: pathlib.Path) -> None:
    """Checks and times, beside XLA and the best copy."""
    from rich.table import Table

    document = stored(path, JUDGES)
    best = max(document["copy_bytes_per_s"].values()) / 1e12
    worst = max(row["error"] for row in document["checked"])
    errors = f"worst error {worst:.1e}, bound {BOUNDS['error']:.1e}"
    title = f"Grouped GEMM: {document['device']}, jax {document['jax']}; {errors}"
    columns = ("width", "inner", "held", "of", "weights", "tokens", "rows", "form", "us", "TB/s", f"of {best:.2f}")
    table = Table(*columns, "TFLOP/s", "XLA us", title=title)
    for row in document["timed"]:
        other = f"{1e6 * row['xla_seconds']:,.0f}" if "xla_seconds" in row else "-"
        sizes = (row[name] for name in ("width", "intermediate", "held", "experts"))
        table.add_row(
            *map(str, sizes), row["weights"], f"{row['tokens']:,}", f"{row['rows']:,}", row["form"],
            f"{1e6 * row['seconds']:,.0f}", f"{row['tb_per_s']:.2f}", f"{row['tb_per_s'] / best:.0%}",
            f"{row['tflops']:.0f}", other,
        )  # fmt: skip
    products = Table("rows", "columns", "inputs", *WAYS, title="Dense products, us")
    for row in document["dense"]:
        sizes = (str(row[name]) for name in ("rows", "columns", "inputs"))
        products.add_row(*sizes, *(f"{1e6 * row[way]:,.0f}" if way in row else "-" for way in WAYS))
    draw(document, table, products)


if __name__ == "__main__":
    measure_or_show(__doc__ or "", RESULTS, measure, show)
