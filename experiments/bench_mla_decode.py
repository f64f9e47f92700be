"""MLA decode of `layouts/mla/attend.py` on one GPU: right on ragged inputs, and how fast beside XLA and the memory.

    python -m experiments.bench_mla_decode --measure FILE     on a machine with a GPU: check, time, write FILE
    python -m experiments.bench_mla_decode [FILE]             anywhere: what was measured

Checked against float64 on pages in random order, with NaN wherever no token lies, requests of no token among them;
timed with random inputs and full pages, everything from the lengths to the merged output, medians of eleven times 20
calls whose results are dropped as they come. The XLA form that it is held against attends to a contiguous cache without
masks, so it does less. FLOP/s count 2 x (576 + 512) a query row and token, bytes those of the latents once; a copy
counts bytes read plus written. A ragged batch has lengths from 1k to 64k, evenly spread on a logarithmic scale.

Expected on an H200: 510 to 580 TFLOP/s at 128 heads, 16 requests and 32k tokens; 3.3 to 3.5 TB/s at 16 heads. Takes two
minutes, nearly all of it compiling. The stored run ended before eight of the batches; `notes`, which were added by
hand, say what they took with the kernel before.
"""

import pathlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.measured import ROUNDED, Judges, attempted, beyond, draw, keep, measure_or_show, stored, with_copies
from hw.measuring import median_seconds
from layouts.mla.attend import RUN, Pages, compile_pages

RESULTS: Final = pathlib.Path(__file__).parent / "results" / "h200" / "mla_decode.json"
LATENT: Final = 512
WIDTH: Final = 576
SCALE: Final = 0.06
CALLS: Final = 20  # in flight
# of a check; bf16 holds latents of 8 bits as they are, so that theirs are the same
BOUNDS: Final = {"error": ROUNDED["bfloat16"], "lse_error": 5e-5, "empty_rows_right": True}
JUDGES: Final[Judges] = {"checked": lambda row: beyond(row, BOUNDS)}
# verify, heads, tokens that the last row of each request sees, tokens that lie together, format of the latents
RAGGED: Final = (
    (1, 128, (256, 200, 1), RUN, "bfloat16"),
    (1, 128, (512, 0, 65), RUN, "bfloat16"),
    (5, 96, (384, 131, 5), RUN, "bfloat16"),
    (4, 16, (320, 64, 3, 100), RUN, "bfloat16"),
    (8, 16, (1088, 700, 9), RUN, "bfloat16"),
    (2, 64, (1, 2, 3, 448), RUN, "bfloat16"),
    (1, 16, (2560, 2000), RUN, "bfloat16"),
    (3, 100, (190, 0, 2), RUN, "bfloat16"),
    (7, 128, (0, 63, 129, 4000), RUN, "bfloat16"),
    (1, 16, (9000, 1, 1, 700, 64, 64, 128, 5000), RUN, "bfloat16"),
    (4, 16, (320, 64, 3, 100), 16, "bfloat16"),
    (1, 16, (9000, 1, 1, 700, 64, 64, 128, 5000), RUN, "float8_e4m3fn"),
    (5, 96, (0, 63, 129, 4000), 32, "float8_e4m3fn"),
)
LARGEST_XLA: Final = 2**32  # bytes of scores above which the XLA form is not run


def problem(
    verify: int, heads: int, lengths: tuple[int, ...], *, holes: bool, run: int = RUN, dtype: str = "bfloat16"
) -> tuple[jax.Array, jax.Array, Pages]:
    """Random queries in bf16 and latents; runs of the pool in random order, NaN where no token is if `holes`."""
    count = np.asarray(lengths)
    used = -(-count // run)
    of_query, of_pool = jax.random.split(jax.random.key(verify * heads + sum(lengths)))
    query = jax.random.normal(of_query, (len(count), verify, heads, WIDTH), jnp.bfloat16)
    places = np.random.default_rng(used.max()).permutation(used.sum() + 1) * run
    pool = jax.random.normal(of_pool, (run * len(places), WIDTH), jnp.bfloat16).astype(dtype)
    starts, ends = np.zeros((len(count), used.max()), int), used.cumsum()
    for request, (end, runs) in enumerate(zip(ends, used, strict=True)):
        starts[request, :runs] = places[end - runs : end]
    limits = np.where(count > 0, np.maximum(count - verify + 1 + np.arange(verify)[:, None], 0), 0).T
    if holes:
        token = np.zeros(len(pool), bool)
        for own, length in zip(starts, lengths, strict=True):
            token[_rows(own, run)[:length]] = True
        pool = jnp.where(token[:, None], pool, jnp.array(jnp.nan, pool.dtype))
    return query, pool, Pages(jnp.asarray(starts, jnp.int32), jnp.asarray(limits, jnp.int32))


def exact(query: jax.Array, pool: jax.Array, pages: Pages, run: int = RUN) -> tuple[np.ndarray, np.ndarray]:
    """Output and log-sum-exp in float64, row by row."""
    q, latents = (np.asarray(x.astype(jnp.float32)).astype(np.float64) for x in (query, pool))
    output, lse = np.zeros((*q.shape[:3], LATENT)), np.full(q.shape[:3], -np.inf)
    limits = np.asarray(pages.limits)
    for request, token in np.argwhere(limits > 0):
        rows = _rows(np.asarray(pages.starts)[request], run)[: limits[request, token]]
        scores = q[request, token] @ latents[rows].T * SCALE
        highest = scores.max(axis=1, keepdims=True)
        weights = np.exp(scores - highest)
        total = weights.sum(axis=1, keepdims=True)
        output[request, token] = weights / total @ latents[rows, :LATENT]
        lse[request, token] = (highest + np.log(total))[:, 0]
    return output, lse


def _rows(starts: np.ndarray, run: int) -> np.ndarray:
    return (starts[:, None] + np.arange(run)).reshape(-1)


def checked(verify: int, heads: int, lengths: tuple[int, ...], run: int, dtype: str) -> dict[str, Any]:
    """Relative error of the output, largest of the log-sum-exp, and whether empty rows are zero and -inf."""
    inputs = problem(verify, heads, lengths, holes=True, run=run, dtype=dtype)
    wanted, wanted_lse = exact(*inputs, run)
    choice, attend = compile_pages(*inputs, scale=SCALE, latent=LATENT, run=run)
    output, lse = attend(*inputs)
    found, found_lse = np.asarray(output.astype(jnp.float32)).astype(np.float64), np.asarray(lse).astype(np.float64)
    seen = np.isfinite(wanted_lse)
    return {
        "verify": verify, "heads": heads, "lengths": lengths, "run": run, "dtype": dtype, "form": choice.form,
        "errors": choice.errors,
        "error": float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted)),
        "lse_error": float(np.abs(found_lse[seen] - wanted_lse[seen]).max()),
        "empty_rows_right": bool(np.isneginf(found_lse[~seen]).all() and not found[~seen].any()),
    }  # fmt: skip


def contiguous(query: jax.Array, cache: jax.Array) -> jax.Array:
    """The XLA form without pages and masks."""
    flat = query.reshape(len(query), -1, WIDTH)
    scores = jnp.einsum("brk,btk->brt", flat, cache, preferred_element_type=jnp.float32)
    weights = jax.nn.softmax(scores * SCALE, axis=-1).astype(flat.dtype)
    return jnp.einsum("brt,btw->brw", weights, cache[..., :LATENT], preferred_element_type=jnp.float32)


class Batch(NamedTuple):
    """A batch that is timed."""

    verify: int
    heads: int
    lengths: tuple[int, ...]
    dtype: str = "bfloat16"

    def problem(self) -> tuple[jax.Array, jax.Array, Pages]:
        """Its inputs, without holes."""
        return problem(self.verify, self.heads, self.lengths, holes=False, dtype=self.dtype)

    @property
    def beside_xla(self) -> bool:
        """Whether the XLA form attends to it: requests of one length, few enough scores."""
        scores = 4 * self.verify * self.heads * sum(self.lengths)
        return len({*self.lengths}) == 1 and self.dtype == "bfloat16" and scores <= LARGEST_XLA

    def cache(self, pool: jax.Array) -> jax.Array:
        """The same number of latents, contiguous."""
        return pool[: sum(self.lengths)].reshape(len(self.lengths), -1, WIDTH)


def timed(batch: Batch) -> dict[str, Any]:
    """Seconds of a call of the chosen form, what they come to, and those of XLA's form on a contiguous cache."""
    query, pool, pages = batch.problem()
    choice, run = compile_pages(query, pool, pages, scale=SCALE, latent=LATENT)
    verify, heads, lengths, dtype = batch
    seconds, tokens = median_seconds(lambda: run(query, pool, pages), CALLS), sum(lengths)
    row = {
        "requests": len(lengths), "verify": verify, "heads": heads, "tokens": tokens / len(lengths),
        "longest": max(lengths), "dtype": dtype, **choice._asdict(), "seconds": seconds,
        "tflops": 2 * verify * heads * tokens * (WIDTH + LATENT) / seconds / 1e12,
        "tb_per_s": tokens * WIDTH * pool.dtype.itemsize / seconds / 1e12,
    }  # fmt: skip
    if not batch.beside_xla:
        return row
    cache, plain = batch.cache(pool), jax.jit(contiguous)
    return {**row, "xla_seconds": median_seconds(lambda: plain(query, cache), CALLS)}


def ragged(requests: int) -> tuple[int, ...]:
    """Lengths of a batch."""
    lengths = np.exp(np.random.default_rng(requests).uniform(np.log(1024), np.log(65536), requests))
    return tuple(int(x) for x in lengths)


TIMED: Final = (
    Batch(1, 128, (32_768,) * 16),
    Batch(5, 96, (32_768,) * 16),
    *(Batch(1, heads, (32_768,) * 16) for heads in (16, 96, 32, 64)),
    Batch(1, 128, (4_096,) * 128),
    Batch(5, 96, (4_096,) * 128),
    Batch(1, 16, (8_192,) * 64),
    Batch(1, 128, (131_072,)),
    *(Batch(verify, heads, ragged(requests)) for verify, heads, requests in ((1, 16, 64), (1, 128, 32), (5, 96, 32))),
    *(Batch(1, heads, (32_768,) * 16, "float8_e4m3fn") for heads in (16, 128)),
)


def measure(path: pathlib.Path) -> None:
    """Check, time, and keep what is done after each step."""
    keep(path, with_copies(), _steps(), JUDGES)


def _steps() -> Iterator[tuple[str, Any]]:
    # one after the other: tracing a kernel is Python's, and XLA's compiler times products on the device
    for case in RAGGED:
        yield "checked", attempted(checked, *case)
    for batch in TIMED:
        yield "timed", timed(batch)


def show(path: pathlib.Path) -> None:
    """Checks and times, beside XLA and the best copy."""
    from rich.table import Table

    document = stored(path, JUDGES)
    best = max(document["copy_bytes_per_s"].values()) / 1e12
    worst = max(row["error"] for row in document["checked"])
    title = (
        f"MLA decode: {document['device']}, jax {document['jax']}; worst error {worst:.1e}, bound {BOUNDS['error']:.1e}"
    )
    rates = ("TFLOP/s", "TB/s", f"of {best:.2f}", "XLA us")
    table = Table("requests", "verify", "heads", "tokens", "longest", "latents", "form", "us", *rates, title=title)
    for row in document["timed"]:
        other = f"{1e6 * row['xla_seconds']:,.0f}" if "xla_seconds" in row else "-"
        table.add_row(
            f"{row['requests']}", f"{row['verify']}", f"{row['heads']}", f"{row['tokens']:,.0f}",
            f"{row['longest']:,}", row["dtype"], row["form"],
            f"{1e6 * row['seconds']:,.0f}", f"{row['tflops']:.0f}", f"{row['tb_per_s']:.2f}",
            f"{row['tb_per_s'] / best:.0%}", other,
        )  # fmt: skip
    draw(document, table)


if __name__ == "__main__":
    measure_or_show(__doc__ or "", RESULTS, measure, show)
