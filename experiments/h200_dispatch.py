"""Rows to their experts and back on two GPUs: only those that are wanted, against every row to every rank.

    python -m experiments.h200_dispatch --measure FILE     on a machine with two GPUs: run, check, time, write FILE
    python -m experiments.h200_dispatch [FILE]             anywhere: what was measured

The routed experts of a layer of DeepSeek-V3 (width 7168, 8 experts a row, each 2048 wide) with 32 of its 256 experts,
so that XLA's grouped products fit, for 16 to 512 rows a GPU, every row a token. `layer` is the whole of
`by_ragged_all_to_all` or of `by_all_to_all`; `round trip` the two exchanges of its rows alone, without the sorting,
the numbers and the products. The ragged form sends a row once for each of its experts, the other once to each rank and
takes one sum back. The two are held against each other in float32; times are medians in bfloat16.

Expected: an error under 1e-5, and on two H200s the ragged exchange slower, not faster: 0.8 to 23 ms for the rows of a
round trip where the other takes 0.15 to 0.25 (results/h200/dispatch.json; `notes` there were added by hand): XLA's
ragged all-to-all is no way to serve there yet.
"""

import functools
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from experiments.measured import Judges, beyond, draw, here, keep, measure_or_show, stored
from layouts.collectives import all_gather, all_to_all, axis_index, ragged_all_to_all
from layouts.dense.activation import SwiGLU
from layouts.layout import Layout
from layouts.mesh import axes_of, mesh_of
from layouts.moe.dispatch import by_all_to_all
from layouts.moe.ragged import by_ragged_all_to_all, slices, worst_case
from layouts.moe.reference import Experts
from layouts.moe.router import Routing

RESULTS: Final = pathlib.Path(__file__).parent / "results" / "h200" / "dispatch.json"
LAYOUT: Final = Layout(attn_dp=2, ep=2, dispatch="all_to_all")
HIDDEN, INTERMEDIATE, EXPERTS, TOPK = 7168, 2048, 32, 8
ROWS: Final = (16, 128, 512)
CHECKED: Final = 128
JUDGES: Final[Judges] = {"checked": lambda row: beyond(row, {"error": 1e-5})}  # float32
REPEATS: Final = 20
FORMS: Final[Mapping[str, Callable[..., jax.Array]]] = {"once to each": by_all_to_all, "ragged": by_ragged_all_to_all}
Run = Callable[[], jax.Array]


def normal(shape: tuple[int, ...], dtype: Any, seed: int) -> jax.Array:
    """Random values, the first dimension over the GPUs, whose products keep the size of their input."""
    axes, mesh = axes_of(LAYOUT), mesh_of(LAYOUT)

    def values(key: jax.Array) -> jax.Array:
        return (jax.random.normal(key, shape, jnp.float32) / shape[-1] ** 0.5).astype(dtype)

    return jax.jit(values, out_shardings=jax.NamedSharding(mesh, axes.spec("ep")))(jax.random.key(seed))


def experts_of(dtype: Any) -> Experts:
    """The experts of both GPUs."""
    return Experts(
        normal((EXPERTS, 2, INTERMEDIATE, HIDDEN), dtype, 1), normal((EXPERTS, HIDDEN, INTERMEDIATE), dtype, 2)
    )


def routing_of(rows: int) -> Routing:
    """Every row's experts, each as likely as another."""
    random = np.random.default_rng(0)
    chosen = random.random((2 * rows, EXPERTS)).argsort(axis=1)[:, :TOPK]
    return Routing(jnp.asarray(chosen, jnp.int32), jnp.asarray(random.dirichlet(np.ones(TOPK), 2 * rows), jnp.float32))


def layer(form: str, rows: int, experts: Experts) -> Run:
    """A compiled step of the routed experts, with its arguments."""
    axes, dtype = axes_of(LAYOUT), experts.w13.dtype

    def body(x: jax.Array, chosen: jax.Array, weights: jax.Array, experts: Experts) -> jax.Array:
        return FORMS[form](x, Routing(chosen, weights), jnp.ones(len(x), bool), experts, SwiGLU(), axes)

    return _program(body, normal((2 * rows, HIDDEN), dtype, 3), *routing_of(rows), experts)


def round_trip(form: str, rows: int) -> Run:
    """The rows of such a step on their way to the experts and back, alone."""
    axes, held = axes_of(LAYOUT), EXPERTS // LAYOUT.ep
    ep, most = axes["ep"], LAYOUT.ep * worst_case(rows, TOPK, held)
    chosen = np.asarray(routing_of(rows).experts).reshape(2, -1) // held
    between = np.stack([(chosen == rank).sum(axis=1) for rank in range(2)], axis=1).astype(np.int32)

    def once(x: jax.Array) -> jax.Array:
        return all_to_all(all_gather(x, ep, 0), ep, 0, 0)

    def ragged(x: jax.Array) -> jax.Array:
        out = slices(jnp.asarray(between), axis_index(ep))
        back = slices(jnp.asarray(between.T), axis_index(ep))
        room = jnp.zeros((most, HIDDEN), x.dtype)
        return ragged_all_to_all(ragged_all_to_all(x, room, out, ep), jnp.zeros_like(x), back, ep)

    body, message = (ragged, rows * TOPK) if form == "ragged" else (once, rows)
    return _program(body, normal((2 * message, HIDDEN), jnp.bfloat16, 4))


def _program(body: Callable[..., jax.Array], *args: Any) -> Run:
    """The body compiled over the two GPUs, every argument cut along its first dimension and placed."""
    mesh, cut = mesh_of(LAYOUT), axes_of(LAYOUT).spec("ep")
    placed = jax.tree.map(lambda leaf: jax.device_put(leaf, jax.NamedSharding(mesh, cut)), args)
    run = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=cut, out_specs=cut))
    return functools.partial(run, *placed)


def error() -> float:
    """Largest difference between the two forms over the largest value, in float32."""
    experts = experts_of(jnp.float32)
    with jax.default_matmul_precision("highest"):
        once, ragged = (np.asarray(layer(form, CHECKED, experts)()) for form in FORMS)
    return float(np.abs(ragged - once).max() / np.abs(once).max())


def measure(path: pathlib.Path) -> None:
    """Check and time both forms; what is done is kept."""
    keep(path, {**here(), "xla_flags": os.environ.get("XLA_FLAGS", "")}, _rows(), JUDGES)


def _rows() -> Iterator[tuple[str, Any]]:
    yield "checked", {"rows": CHECKED, "error": error()}
    experts = experts_of(jnp.bfloat16)
    for rows in ROWS:
        for form in FORMS:
            for what, run in (("round trip", round_trip(form, rows)), ("layer", layer(form, rows, experts))):
                yield "rows", {"what": what, "form": form, "rows": rows, "seconds": _median(run)}


def _median(run: Run) -> float:
    times = []
    for _ in range(REPEATS + 3):
        started = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - started)
    return float(np.median(times[3:]))


def show(path: pathlib.Path) -> None:
    """The two forms side by side."""
    from rich.table import Table

    document = stored(path, JUDGES)
    seconds = {(row["what"], row["rows"], row["form"]): row["seconds"] for row in document["rows"]}
    title = f"{TOPK} of {EXPERTS} experts, width {HIDDEN}, bf16: 2 x {document['device']}, jax {document['jax']}"
    table = Table("what", "rows a GPU", "once to each us", "ragged us", "ragged / once to each", title=title)
    for what, rows in dict.fromkeys((what, rows) for what, rows, _ in seconds):
        once, ragged = (seconds[what, rows, form] for form in FORMS)
        table.add_row(what, str(rows), f"{1e6 * once:,.0f}", f"{1e6 * ragged:,.0f}", f"{ragged / once:.2f}")
    largest = max(row["error"] for row in document["checked"])
    draw(document, table, f"largest difference of the two forms in float32: {largest:.1e}")


if __name__ == "__main__":
    measure_or_show(__doc__ or "", RESULTS, measure, show, gpus=2)
