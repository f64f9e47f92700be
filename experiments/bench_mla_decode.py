"""MLA decode of `layouts/mla/attend.py` on one GPU: right on ragged inputs, and how fast beside XLA and the memory.

    python -m experiments.bench_mla_decode --measure FILE     on a machine with a GPU: check, time, write FILE
    python -m experiments.bench_mla_decode [FILE]             anywhere: what was measured

Checked against float64 on pages in random order, with NaN wherever no token lies, requests of no token among them;
timed with random inputs, full pages and the pieces merged, medians of seven times 20 calls. The XLA form that it is
held against attends to a contiguous cache without masks, so it does less. FLOP/s count 2 x (576 + 512) a query row and
token, bytes those of the latents once; a copy counts bytes read plus written.

Expected on an H200: 560 to 600 TFLOP/s at 128 heads, 16 requests and 32k tokens; 3.2 to 3.5 TB/s at 16 heads. Takes two
minutes. `notes` in the stored results were added by hand.
"""

import functools
import json
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from experiments.measured import measure_or_show
from layouts.mla.attend import RUN, Pages, attend_pages, choose

RESULTS: Final = pathlib.Path(__file__).parent / "results" / "h200" / "mla_decode.json"
LATENT: Final = 512
WIDTH: Final = 576
SCALE: Final = 0.06
CALLS: Final = 20
REPEATS: Final = 7
# verify, heads, tokens that the last row of each request sees
RAGGED: Final = (
    (1, 128, (256, 200, 1)),
    (1, 128, (512, 0, 65)),
    (5, 96, (384, 131, 5)),
    (4, 16, (320, 64, 3, 100)),
    (8, 16, (1088, 700, 9)),
    (2, 64, (1, 2, 3, 448)),
    (1, 16, (2560, 2000)),
    (3, 100, (190, 0, 2)),
    (7, 128, (0, 63, 129, 4000)),
)
# requests, verify, heads, tokens
TIMED: Final = (
    (16, 1, 128, 32_768),
    (16, 5, 96, 32_768),
    (16, 1, 16, 32_768),
    (16, 1, 96, 32_768),
    (16, 1, 32, 32_768),
    (16, 1, 64, 32_768),
    (128, 1, 128, 4_096),
    (128, 5, 96, 4_096),
    (64, 1, 16, 8_192),
    (1, 1, 128, 131_072),
)
LARGEST_XLA: Final = 2**32  # bytes of scores above which the XLA form is not run


def problem(verify: int, heads: int, lengths: tuple[int, ...], *, holes: bool) -> tuple[jax.Array, jax.Array, Pages]:
    """Random queries and latents in bf16; runs of the pool in random order, NaN where no token is if `holes`."""
    runs, requests = -(-max(lengths) // RUN), len(lengths)
    of_query, of_pool = jax.random.split(jax.random.key(verify * heads + sum(lengths)))
    query = jax.random.normal(of_query, (requests, verify, heads, WIDTH), jnp.bfloat16)
    pool = jax.random.normal(of_pool, ((requests * runs + 1) * RUN, WIDTH), jnp.bfloat16)
    starts = np.random.default_rng(runs).permutation(requests * runs + 1)[: requests * runs] * RUN
    starts, count = starts.reshape(requests, runs), np.asarray(lengths)[:, None]
    limits = np.where(count > 0, np.maximum(count - verify + 1 + np.arange(verify), 0), 0)
    if holes:
        token = np.zeros(len(pool), bool)
        for own, length in zip(starts, lengths, strict=True):
            token[(own[:, None] + np.arange(RUN)).reshape(-1)[:length]] = True
        pool = jnp.where(token[:, None], pool, jnp.nan)
    return query, pool, Pages(jnp.asarray(starts, jnp.int32), jnp.asarray(limits, jnp.int32))


def exact(query: jax.Array, pool: jax.Array, pages: Pages) -> tuple[np.ndarray, np.ndarray]:
    """Output and log-sum-exp in float64, row by row."""
    q, latents = (np.asarray(x.astype(jnp.float32)).astype(np.float64) for x in (query, pool))
    output, lse = np.zeros((*q.shape[:3], LATENT)), np.full(q.shape[:3], -np.inf)
    limits = np.asarray(pages.limits)
    for request, token in np.argwhere(limits > 0):
        rows = (np.asarray(pages.starts)[request][:, None] + np.arange(RUN)).reshape(-1)[: limits[request, token]]
        scores = q[request, token] @ latents[rows].T * SCALE
        highest = scores.max(axis=1, keepdims=True)
        weights = np.exp(scores - highest)
        total = weights.sum(axis=1, keepdims=True)
        output[request, token] = weights / total @ latents[rows, :LATENT]
        lse[request, token] = (highest + np.log(total))[:, 0]
    return output, lse


def checked(verify: int, heads: int, lengths: tuple[int, ...]) -> dict[str, Any]:
    """Relative error of the output, largest of the log-sum-exp, and whether empty rows are zero and -inf."""
    inputs = problem(verify, heads, lengths, holes=True)
    wanted, wanted_lse = exact(*inputs)
    choice = choose(*inputs, scale=SCALE, latent=LATENT)
    output, lse = jax.jit(functools.partial(attend_pages, scale=SCALE, latent=LATENT, form=choice.form))(*inputs)
    found, found_lse = np.asarray(output.astype(jnp.float32)).astype(np.float64), np.asarray(lse).astype(np.float64)
    seen = np.isfinite(wanted_lse)
    return {
        "verify": verify, "heads": heads, "lengths": lengths, "form": choice.form, "errors": choice.errors,
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


def timed(requests: int, verify: int, heads: int, tokens: int) -> dict[str, Any]:
    """Seconds of a call, of the chosen form and of XLA's on a contiguous cache, and what they come to."""
    query, pool, pages = problem(verify, heads, (tokens,) * requests, holes=False)
    choice = choose(query, pool, pages, scale=SCALE, latent=LATENT)
    run = jax.jit(functools.partial(attend_pages, scale=SCALE, latent=LATENT, form=choice.form))
    seconds = median(lambda: run(query, pool, pages))
    row = {
        "requests": requests, "verify": verify, "heads": heads, "tokens": tokens, "form": choice.form,
        "errors": choice.errors, "seconds": seconds,
        "tflops": 2 * requests * verify * heads * tokens * (WIDTH + LATENT) / seconds / 1e12,
        "tb_per_s": requests * tokens * WIDTH * 2 / seconds / 1e12,
    }  # fmt: skip
    if 4 * requests * verify * heads * tokens <= LARGEST_XLA:
        plain, cache = jax.jit(contiguous), pool[: requests * tokens].reshape(requests, tokens, WIDTH)
        row["xla_seconds"] = median(lambda: plain(query, cache))
    return row


def median(run: Callable[[], Any], calls: int = CALLS, repeats: int = REPEATS) -> float:
    """Seconds of a call, of several in flight at once."""
    jax.block_until_ready([run() for _ in range(2)])
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        jax.block_until_ready([run() for _ in range(calls)])
        times.append((time.perf_counter() - started) / calls)
    return float(np.median(times))


def copies() -> dict[str, float]:
    """Bytes read plus written a second of device copies of 2 GiB."""
    source = jax.random.normal(jax.random.key(0), (2**30,), jnp.bfloat16)
    forms = {"copy": jnp.copy, "add": lambda x: x + 1, "negate": lambda x: -x}
    return {name: 2 * source.nbytes / _one_copy(jax.jit(form), source) for name, form in forms.items()}


def _one_copy(form: Callable[[jax.Array], jax.Array], source: jax.Array) -> float:
    jax.block_until_ready(form(source))
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        held = source
        for _ in range(CALLS):
            held = form(held)
        jax.block_until_ready(held)
        times.append((time.perf_counter() - started) / CALLS)
    return float(np.median(times))


def measure(path: pathlib.Path) -> None:
    """Check, time, and keep what is done after each step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {"device": jax.devices()[0].device_kind, "jax": jax.__version__}
    for name, rows in _steps():
        document[name] = rows if name == "copy_bytes_per_s" else [*document.get(name, []), rows]
        print(name, json.dumps(rows), flush=True)
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _steps() -> Iterator[tuple[str, Any]]:
    for case in RAGGED:
        yield "checked", checked(*case)
    yield "copy_bytes_per_s", copies()
    for shape in TIMED:
        yield "timed", timed(*shape)


def show(path: pathlib.Path) -> None:
    """Checks and times, beside XLA and the best copy."""
    from rich.console import Console
    from rich.table import Table

    document = json.loads(path.read_text(encoding="utf-8"))
    best = max(document["copy_bytes_per_s"].values()) / 1e12
    worst = max(row["error"] for row in document["checked"])
    title = f"MLA decode, bf16: {document['device']}, jax {document['jax']}; worst error {worst:.1e}"
    rates = ("TFLOP/s", "TB/s", f"of {best:.2f}", "XLA us")
    table = Table("requests", "verify", "heads", "tokens", "form", "us", *rates, title=title)
    for row in document["timed"]:
        other = f"{1e6 * row['xla_seconds']:,.0f}" if "xla_seconds" in row else "-"
        table.add_row(
            f"{row['requests']}", f"{row['verify']}", f"{row['heads']}", f"{row['tokens']:,}", row["form"],
            f"{1e6 * row['seconds']:,.0f}", f"{row['tflops']:.0f}", f"{row['tb_per_s']:.2f}",
            f"{row['tb_per_s'] / best:.0%}", other,
        )  # fmt: skip
    console = Console()
    console.print(table)
    for note in document.get("notes", ()):
        console.print(f"- {note}", highlight=False)


if __name__ == "__main__":
    measure_or_show(__doc__ or "", RESULTS, measure, show)
