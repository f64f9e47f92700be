"""Attention over pages, `layouts/paged`, on one GPU: right on ragged inputs, and how fast beside XLA and the memory.

    python -m experiments.bench_paged_attention --measure FILE     on a machine with a GPU: check, time, write FILE
    python -m experiments.bench_paged_attention [FILE]             anywhere: what was measured

Checked against float64 on pages in random order, with NaN wherever no row sees a token, and requests of no token among
them; windows, sinks, short runs and pools of eight bits too. Timed in chains: one program of several calls, each on
pages of its own in a pool that no cache holds, as layer after layer. The XLA form reads the same pages whole and
attends to what it read. FLOP/s count 2 x (key + width) a query row and token, bytes those of keys and values once; a
copy counts bytes read plus written.

Expected on an H200: 3.6 to 4.2 TB/s where a GB is read by few rows, 180 to 200 TFLOP/s where five tokens of 16 heads a
KV head are verified. Takes a minute. The stored run is of a GPU slower than others of its kind; its `merged` and
`packed`, and `notes`, were added by hand.
"""

import functools
import pathlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.measured import ROUNDED, Judges, attempted, beyond, draw, keep, measure_or_show, stored, with_copies
from layouts.paged import RUN, Pages
from layouts.paged.attend import TRIED, attend_pages
from layouts.paged.block import Entry

RESULTS: Final = pathlib.Path(__file__).parent / "results" / "h200" / "paged_attention.json"
PAIR: Final = Entry(128, 128, 128)
LATENT: Final = Entry(576, 0, 512)
SCALE: Final = 0.09
# of a check; bf16 holds what a pool of 8 bits has as it is, so that theirs are the same
BOUNDS: Final = {"error": ROUNDED["bfloat16"], "lse_error": 5e-5, "empty_rows_right": True}
JUDGES: Final[Judges] = {"checked": lambda row: beyond(row, BOUNDS)}
REPEATS: Final = 5
QUEUED: Final = 3  # chains in flight at once
UNCACHED: Final = 2 << 30  # bytes of a pool that no cache holds a notable part of
LARGEST_XLA: Final = 1 << 30  # values of scores, and of what is read, above which the XLA form is not run


class Case(NamedTuple):
    """Attention of `verify` rows of each request over its tokens; `window` of them are seen (0: all)."""

    lengths: tuple[int, ...]
    verify: int
    heads: int
    kv_heads: int
    entry: Entry
    window: int = 0
    run: int = RUN
    dtype: str = "bfloat16"
    sinks: bool = False


RAGGED: Final = (
    Case((256, 200, 1, 0), 1, 64, 4, PAIR),
    Case((700, 131, 5, 0), 5, 10, 2, PAIR),
    Case((2500, 64, 129), 1, 32, 8, PAIR),
    Case((384, 131, 5, 0), 4, 32, 2, PAIR, window=100, sinks=True),
    Case((256, 100, 2, 0), 3, 16, 2, PAIR, run=16),
    Case((256, 200, 1, 0), 1, 64, 4, PAIR, dtype="float8_e4m3fn"),
    Case((256, 200, 1, 0), 1, 64, 8, Entry(64, 64, 64), window=128),
    Case((256, 200, 1, 0), 2, 16, 2, Entry(192, 192, 192)),
    Case((256, 200, 1, 0), 2, 16, 2, Entry(256, 256, 256)),
    Case((256, 200, 1, 0), 1, 128, 1, LATENT),
    Case((256, 200, 2, 0), 3, 16, 1, LATENT),
    Case((256, 200, 1, 0), 4, 16, 1, LATENT, dtype="float8_e4m3fn"),
)
# (heads, KV heads, entry), then (requests, verify, tokens) of each
TIMED: Final = (
    ((64, 4, PAIR), ((1, 1, 131_072), (16, 1, 4_096), (16, 1, 32_768), (64, 1, 8_192))),
    ((64, 4, PAIR), ((256, 1, 4_096), (16, 5, 32_768))),
    ((16, 1, PAIR), ((16, 1, 32_768), (64, 1, 8_192), (256, 5, 4_096))),
    ((32, 8, PAIR), ((1, 1, 32_768), (4, 1, 8_192), (32, 1, 8_192), (16, 5, 16_384))),
    ((8, 2, PAIR), ((16, 1, 8_192), (64, 1, 8_192))),
    ((128, 1, LATENT), ((16, 1, 32_768), (1, 1, 131_072))),
    ((96, 1, LATENT), ((16, 5, 32_768),)),
    ((16, 1, LATENT), ((16, 1, 32_768), (64, 1, 8_192))),
)  # fmt: skip


def problem(case: Case, key: int = 0) -> tuple[jax.Array, jax.Array, Pages, jax.Array | None]:
    """Random queries, pool and sinks; runs in random order, NaN where no row sees a token."""
    requests, runs = len(case.lengths), -(-max(case.lengths) // case.run)
    width = max(case.entry.key, case.entry.start + case.entry.width)
    random = np.random.default_rng(key)
    starts = random.permutation(requests * runs + 1)[: requests * runs].reshape(requests, runs) * case.run
    count = np.asarray(case.lengths)[:, None]
    limits = np.where(count > 0, np.maximum(count - case.verify + 1 + np.arange(case.verify), 0), 0)
    lows = np.maximum(limits - case.window, 0) if case.window else np.zeros_like(limits)
    pool = np.full(((requests * runs + 1) * case.run, case.kv_heads, width), np.nan)
    for own, low, limit in zip(starts, lows.min(axis=1), limits.max(axis=1), strict=True):
        rows = (own[:, None] + np.arange(case.run)).reshape(-1)[low:limit]
        pool[rows] = random.normal(size=(len(rows), *pool.shape[1:]))
    query = jnp.asarray(random.normal(size=(requests, case.verify, case.heads, case.entry.key)), jnp.bfloat16)
    sinks = jnp.asarray(random.normal(size=case.heads), jnp.float32) if case.sinks else None
    starts, limits, lows = (jnp.asarray(x, jnp.int32) for x in (starts, limits, lows))
    pages = Pages(starts, limits, lows if case.window else None)
    return query, jnp.asarray(pool, jnp.float32).astype(case.dtype), pages, sinks


def exact(
    case: Case, query: jax.Array, pool: jax.Array, pages: Pages, sinks: jax.Array | None
) -> tuple[np.ndarray, np.ndarray]:
    """Output and log-sum-exp in float64, row by row."""
    q, kept = (np.asarray(x.astype(jnp.float32)).astype(np.float64) for x in (query, pool))
    limits = np.asarray(pages.limits)
    lows = np.zeros_like(limits) if pages.lows is None else np.asarray(pages.lows)
    output, lse = np.zeros((*q.shape[:3], case.entry.width)), np.full(q.shape[:3], -np.inf)
    group, entry = case.heads // case.kv_heads, case.entry
    for request, token, head in np.ndindex(*lse.shape):
        rows = (np.asarray(pages.starts)[request][:, None] + np.arange(case.run)).reshape(-1)
        seen = kept[rows[lows[request, token] : limits[request, token]], head // group]
        scores = seen[:, : entry.key] @ q[request, token, head] * SCALE
        sink = -np.inf if sinks is None else float(sinks[head])
        if not len(scores) and sinks is None:
            continue
        highest = max(scores.max(initial=-np.inf), sink)
        weights = np.exp(scores - highest)
        total = weights.sum() + np.exp(sink - highest)
        output[request, token, head] = weights / total @ seen[:, entry.start : entry.start + entry.width]
        lse[request, token, head] = highest + np.log(total)
    return output, lse


def checked(case: Case) -> dict[str, Any]:
    """Relative error of the output, largest of the log-sum-exp, and whether rows without tokens are as they must be."""
    query, pool, pages, sinks = problem(case)
    wanted, wanted_lse = exact(case, query, pool, pages, sinks)
    run = functools.partial(attend_pages, entry=case.entry, scale=SCALE, run=case.run, form="triton", sinks=sinks)
    output, lse = jax.jit(run)(query, pool, pages)
    found, found_lse = np.asarray(output.astype(jnp.float32)).astype(np.float64), np.asarray(lse).astype(np.float64)
    seen = np.isfinite(wanted_lse)
    return {
        **case._asdict(),
        "error": float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted)),
        "lse_error": float(np.abs(found_lse[seen] - wanted_lse[seen]).max()),
        "empty_rows_right": bool(np.isneginf(found_lse[~seen]).all() and not found[~seen].any()),
    }


class Timed(NamedTuple):
    """A chain to compile: what each of its calls does, in which form, how many there are, and the runs of the pool."""

    row: dict[str, Any]
    form: str
    calls: int
    runs: int
    lowered: Any


def chain(entry: Entry, form: str, query: jax.Array, pool: jax.Array, starts: jax.Array, limits: jax.Array) -> Any:
    """A call on each of several tables of starts. All results are left, so that none is left out."""
    one = jax.jit(functools.partial(attend_pages, entry=entry, scale=SCALE, run=RUN, form=form))
    return [one(query, pool, Pages(table, limits)) for table in starts]


def lowered(heads: int, kv_heads: int, entry: Entry, load: tuple[int, int, int], form: str) -> Timed:
    """The chain of a shape, to be compiled by another thread."""
    requests, verify, tokens = load
    width = max(entry.key, entry.start + entry.width)
    size = requests * tokens * kv_heads * width * 2
    row = {
        "heads": heads, "kv_heads": kv_heads, "key": entry.key, "width": entry.width, "requests": requests,
        "verify": verify, "tokens": tokens, "bytes": size,
        "flops": 2 * requests * verify * heads * tokens * (entry.key + entry.width),
    }  # fmt: skip
    calls = int(np.clip(UNCACHED // size, 4, 32)) if form == "triton" else 4
    rows = max(requests * tokens, min(calls * requests * tokens, UNCACHED // (kv_heads * width * 2)))
    described: Any = jax.ShapeDtypeStruct
    shapes = (
        described((requests, verify, heads, entry.key), jnp.bfloat16),
        described((rows // RUN * RUN, kv_heads, width), jnp.bfloat16),
        described((calls, requests, tokens // RUN), jnp.int32),
        described((requests, verify), jnp.int32),
    )
    return Timed(row, form, calls, rows // RUN, jax.jit(functools.partial(chain, entry, form)).lower(*shapes))


def seconds(timed: Timed, compiled: Any) -> float:
    """Of one call: the median of several runs of the chain."""
    row, random = timed.row, np.random.default_rng(0)
    requests, verify, tokens = (row[name] for name in ("requests", "verify", "tokens"))
    of_query, of_pool = jax.random.split(jax.random.key(0))
    width = row["key"] + (row["width"] if row["key"] == row["width"] else 0)
    query = jax.random.normal(of_query, (requests, verify, row["heads"], row["key"]), jnp.bfloat16)
    pool = jax.random.normal(of_pool, (timed.runs * RUN, row["kv_heads"], width), jnp.bfloat16)
    own = [random.permutation(timed.runs)[: requests * tokens // RUN] for _ in range(timed.calls)]
    starts = np.stack(own).reshape(timed.calls, requests, -1) * RUN
    limits = np.broadcast_to(tokens - verify + 1 + np.arange(verify), (requests, verify))
    arguments = (query, pool, jnp.asarray(starts, jnp.int32), jnp.asarray(limits, jnp.int32))
    jax.block_until_ready(compiled(*arguments))
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        jax.block_until_ready([compiled(*arguments) for _ in range(QUEUED)])
        times.append((time.perf_counter() - started) / (QUEUED * timed.calls))
    return float(np.median(times))


def timings() -> Iterator[dict[str, Any]]:
    """A row for each shape, all chains compiled before one is timed."""
    with ThreadPoolExecutor(12) as pool:
        chains = []
        for (heads, kv_heads, entry), loads in TIMED:
            for load in loads:
                both = [lowered(heads, kv_heads, entry, load, form) for form in TRIED]
                fitting = both if _fits_xla(both[0].row) else both[:1]
                chains.append([(one, pool.submit(one.lowered.compile)) for one in fitting])
        wait([future for own in chains for _, future in own])  # tuning of what compiles runs on the device, too
        for own in chains:
            found = {one.form: seconds(one, future.result()) for one, future in own}
            row, best = own[0][0].row, found["triton"]
            yield {
                **row, "form": "triton", "seconds": best, "tflops": row["flops"] / best / 1e12,
                "tb_per_s": row["bytes"] / best / 1e12,
                **({"xla_seconds": found["xla"]} if "xla" in found else {}),
            }  # fmt: skip


def _fits_xla(row: dict[str, Any]) -> bool:
    scores = row["requests"] * row["verify"] * row["heads"] * row["tokens"]
    return max(scores, row["bytes"]) <= LARGEST_XLA


def measure(path: pathlib.Path) -> None:
    """Check, time, and keep what is done after each step."""
    keep(path, with_copies(), _found(), JUDGES)


def _found() -> Iterator[tuple[str, Any]]:
    with ThreadPoolExecutor(8) as pool:
        for row in pool.map(functools.partial(attempted, checked), RAGGED):
            yield "checked", row
    for row in timings():
        yield "timed", row


def show(path: pathlib.Path) -> None:
    """Checks and times, beside XLA and the best copy."""
    from rich.table import Table

    document = stored(path, JUDGES)
    best = max(document["copy_bytes_per_s"].values()) / 1e12
    worst = max(row["error"] for row in document["checked"])
    errors = f"worst error {worst:.1e}, bound {BOUNDS['error']:.1e}"
    title = f"Attention over pages, bf16: {document['device']}, jax {document['jax']}; {errors}"
    rates = ("us", "TFLOP/s", "TB/s", f"of {best:.2f}", "XLA us")
    table = Table("heads", "KV heads", "key", "requests", "verify", "tokens", *rates, title=title)
    for row in document["timed"]:
        other = f"{1e6 * row['xla_seconds']:,.0f}" if "xla_seconds" in row else "-"
        table.add_row(
            f"{row['heads']}", f"{row['kv_heads']}", f"{row['key']}", f"{row['requests']}", f"{row['verify']}",
            f"{row['tokens']:,}", f"{1e6 * row['seconds']:,.0f}", f"{row['tflops']:.0f}", f"{row['tb_per_s']:.2f}",
            f"{row['tb_per_s'] / best:.0%}", other,
        )  # fmt: skip
    draw(document, table)


if __name__ == "__main__":
    measure_or_show(__doc__ or "", RESULTS, measure, show)
