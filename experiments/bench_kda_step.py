"""A step of linear attention (`layouts/kda/verify.py`) on one GPU: right on ragged requests, and how fast beside XLA
and the memory.

    python -m experiments.bench_kda_step --measure FILE     on a machine with a GPU: check, time, write FILE
    python -m experiments.bench_kda_step [FILE]             anywhere: what was measured

Checked against float64 with any number of accepted tokens, requests that begin and idle ones among them; timed with
random inputs and all tokens of the step before accepted, medians of five times 20 steps in place, five to a program,
in which XLA's form shares what does not depend on the states. The figure of a step is the bytes of its states, read and
written once, over its time, beside a copy, which counts bytes read plus written. A second column adds the tokens and
the ring, each moved once.

Expected on an H200: 3.4 TB/s at one token of 64 requests, 86 % of a copy, and 2.8, 69 %, at five; XLA 1.5 and 0.8.
Takes a minute and a half, most of it compiling. The stored results have all shapes of the bench but the last; `notes`
were added by hand.
"""

import pathlib
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from experiments.measured import ROUNDED, Judges, attempted, beyond, draw, keep, measure_or_show, stored, with_copies
from layouts.kda.chunked import Writes
from layouts.kda.reference import Tokens
from layouts.kda.slots import Standing
from layouts.kda.verify import FORMS, TRIED
from layouts.kernels import PLAIN, first_compiled

RESULTS: Final = pathlib.Path(__file__).parent / "results" / "h200" / "kda_step.json"
DIM: Final = 128
STEPS: Final = 5  # of a program: a host takes as long to call one as a GPU to take a small step
CALLS: Final = 4
REPEATS: Final = 5
BOUNDS: Final[Mapping[str, float]] = {"error": ROUNDED["float32"], "state_error": ROUNDED["float32"]}  # of each form
JUDGES: Final[Judges] = {
    "checked": lambda row: (
        beyond(row, {}) or [f"{form}: {line}" for form in TRIED for line in beyond(row.get(form, {}), BOUNDS)]
    )
}
# heads, tokens of the step, tokens of the ring, accepted tokens of each request (-1: begins, -2: idle)
RAGGED: Final = (
    (3, 1, 1, (0, 1, -1, 1, -2)),
    (2, 3, 5, (5, 0, -2, -1, 2, -2)),
    (4, 5, 5, (5, 4, 3, 2, 1, 0, -1)),
    (2, 8, 8, (8, -1, 0, 7)),
)
# requests, heads, tokens
TIMED: Final = (
    *((64, 96, tokens) for tokens in (1, 3, 5, 8)),
    *((256, 96, tokens) for tokens in (1, 5)),
    *((requests, 96, 1) for requests in (1, 16)),
    *((64, 12, tokens) for tokens in (1, 5)),
)
Inputs = tuple[Tokens, jax.Array, Writes, Standing]


def problem(heads: int, count: int, ring: int, accepted: tuple[int, ...]) -> Inputs:
    """Random tokens, states and rings; requests in slots in random order."""
    requests, slots = len(accepted), len(accepted) + 2
    new, kept = (requests, count, heads, DIM), (slots, ring, heads, DIM)
    keys = iter(jax.random.split(jax.random.key(heads * count + requests), 9))

    def unit(shape: tuple[int, ...]) -> jax.Array:
        x = jax.random.normal(next(keys), shape)
        return x / jnp.linalg.norm(x, axis=-1, keepdims=True)

    def log_decay(shape: tuple[int, ...]) -> jax.Array:
        return -3 * jax.random.uniform(next(keys), shape) ** 3

    tokens = Tokens(
        unit(new) * DIM**-0.5, unit(new), jax.random.normal(next(keys), new), log_decay(new),
        jax.random.uniform(next(keys), new[:3]),
    )  # fmt: skip
    states = jax.random.normal(next(keys), (slots, heads, DIM, DIM))
    writes = Writes(unit(kept), jax.random.normal(next(keys), kept), jnp.exp(log_decay(kept)))
    place, given = np.random.default_rng(requests).permutation(slots - 1)[:requests] + 1, np.array(accepted)
    place = jnp.asarray(np.where(given == -2, 0, place), jnp.int32)
    return (
        tokens,
        states,
        writes,
        Standing(place, jnp.asarray(np.maximum(given, 0), jnp.int32), jnp.asarray(given == -1)),
    )


def exact(inputs: Inputs) -> tuple[np.ndarray, np.ndarray]:
    """Outputs of every request and the states before its tokens, in float64."""
    tokens, states, writes, standing = jax.tree.map(lambda x: np.asarray(x), inputs)
    q, k, v, log_decay, beta = (x.astype(np.float64) for x in jax.tree.leaves(tokens))
    keys, deltas, decay = (x.astype(np.float64) for x in jax.tree.leaves(writes))
    outputs, before = np.zeros(q.shape), np.zeros((len(q), *states.shape[1:]))
    for row, slot in enumerate(standing.slots):
        held = np.where(standing.begins[row], 0.0, states[slot].astype(np.float64))
        for i in range(standing.pending[row]):
            held = held * decay[slot, i][..., None] + keys[slot, i][..., None] * deltas[slot, i][:, None]
        before[row] = held
        for i in range(q.shape[1]):
            held = held * np.exp(log_decay[row, i])[..., None]
            delta = beta[row, i][:, None] * (v[row, i] - np.einsum("hk,hkv->hv", k[row, i], held))
            held = held + k[row, i][..., None] * delta[:, None]
            outputs[row, i] = np.einsum("hk,hkv->hv", q[row, i], held)
    return outputs, before


def checked(heads: int, count: int, ring: int, accepted: tuple[int, ...]) -> dict[str, Any]:
    """Largest error of outputs and states over the largest value, by form."""
    inputs, live = problem(heads, count, ring, accepted), np.array(accepted) != -2
    outputs, before = exact(inputs)
    row: dict[str, Any] = {"heads": heads, "tokens": count, "ring": ring, "accepted": accepted}
    for form in TRIED:
        found, states, _ = jax.jit(FORMS[form])(*inputs)
        row[form] = {
            "error": _error(np.asarray(found)[live], outputs[live]),
            "state_error": _error(np.asarray(states)[np.asarray(inputs[3].slots)][live], before[live]),
        }
    return row


def _error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found.astype(np.float64) - expected).max() / np.abs(expected).max())


def _steps_of(
    form: str, states: jax.Array, writes: Writes, tokens: Tokens, standing: Standing
) -> tuple[jax.Array, Writes, jax.Array]:
    """`STEPS` steps in place, one after the other, and the outputs of the last."""
    output = tokens.q
    for _ in range(STEPS):
        output, states, writes = FORMS[form](tokens, states, writes, standing)
    return states, writes, output


def timed(requests: int, heads: int, count: int) -> dict[str, Any]:
    """Seconds of a step in the first form that compiles, what they come to, and those of the plain one."""
    inputs = problem(heads, count, count, (count,) * requests)
    tokens, states, writes, standing = inputs

    def compile_steps(form: str) -> Any:
        run = jax.jit(partial(_steps_of, form), donate_argnums=(0, 1))
        return run.lower(states, writes, tokens, standing).compile()

    choice, first = first_compiled("linear attention", TRIED, compile_steps)
    seconds = _seconds(first, inputs)
    moved = 2 * requests * heads * DIM * DIM * 4
    # of each token: query, key, value, decay in, output out; key, delta and decay into the ring and out of it
    vectors = (5 + 6) * requests * count * heads * DIM * 4
    return {
        "requests": requests, "heads": heads, "tokens": count, **choice._asdict(), "seconds": seconds,
        "xla_seconds": _seconds(compile_steps(PLAIN), inputs), "tb_per_s": moved / seconds / 1e12,
        "all_tb_per_s": (moved + vectors) / seconds / 1e12,
    }  # fmt: skip


def _seconds(steps: Any, inputs: Inputs) -> float:
    tokens, states, writes, standing = inputs
    held = jax.tree.map(jnp.copy, (states, writes))
    times = []
    for _ in range(REPEATS + 1):  # the first one warms up
        started = time.perf_counter()
        for _ in range(CALLS):
            *held, _ = steps(*held, tokens, standing)
        jax.block_until_ready(held)
        times.append((time.perf_counter() - started) / CALLS / STEPS)
    return float(np.median(times[1:]))


def measure(path: pathlib.Path) -> None:
    """Check, time, and keep what is done after each step."""
    keep(path, with_copies(), _steps(), JUDGES)


def _steps() -> Iterator[tuple[str, Any]]:
    for case in RAGGED:
        yield "checked", attempted(checked, *case)
    for shape in TIMED:
        yield "timed", timed(*shape)


def show(path: pathlib.Path) -> None:
    """Checks and times, beside XLA and the best copy."""
    from rich.table import Table

    document = stored(path, JUDGES)
    best = max(document["copy_bytes_per_s"].values()) / 1e12
    worst = max(row[form][kind] for row in document["checked"] for form in TRIED for kind in ("error", "state_error"))
    errors = f"worst error {worst:.1e}, bound {BOUNDS['error']:.1e}"
    title = f"KDA step, float32: {document['device']}, jax {document['jax']}; {errors}"
    rates = ("states TB/s", f"of {best:.2f}", "with tokens and ring", f"of {best:.2f}", "XLA us")
    table = Table("requests", "heads", "tokens", "form", "us", *rates, title=title)
    for row in document["timed"]:
        rate, whole = row["tb_per_s"], row["all_tb_per_s"]
        table.add_row(
            f"{row['requests']}", f"{row['heads']}", f"{row['tokens']}", row["form"], f"{1e6 * row['seconds']:,.0f}",
            f"{rate:.2f}", f"{rate / best:.0%}", f"{whole:.2f}", f"{whole / best:.0%}",
            f"{1e6 * row['xla_seconds']:,.0f}",
        )  # fmt: skip
    draw(document, table)


if __name__ == "__main__":
    measure_or_show(__doc__ or "", RESULTS, measure, show)
