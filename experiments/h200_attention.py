"""One full-width MLA layer of Kimi K3 on one and on two GPUs: right under every way to cut it, and how long it takes.

    python -m experiments.h200_attention --measure FILE     on a machine with GPUs: run, check, time, write FILE
    python -m experiments.h200_attention [FILE]             anywhere: what was measured beside what the tool predicts

The layer decodes in bf16 through the programs of `layouts/mla` in their plain form, which XLA compiles without a kernel
of ours (`bench_mla_decode` has that), for 16 requests of 8k and 32k tokens that verify 1 or 5. Every layout is checked
against one GPU in float32. The prediction is that of engines' kernels on an H200, so the ratio says how far the XLA
program is from them.

Expected: errors under 2 %, ratios well above one. Measuring takes about two minutes.
"""

import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

import layouts.mla.sharded as sharded
from experiments.measured import Judges, beyond, draw, here, keep, measure_or_show, stored
from layouts.cache import Batch, KVPool
from layouts.collectives import psum
from layouts.layout import Layout
from layouts.mesh import axes_of, mesh_of
from layouts.mla import MLA

RESULTS: Final = pathlib.Path(__file__).parent / "results" / "h200" / "attention.json"
SHAPE: Final = MLA(
    hidden=7168, heads=96, q_lora=1536, kv_lora=512, nope=128, rope=64, v=128, output_gate=True, indexer=None
)
JUDGES: Final[Judges] = {"rows": lambda row: beyond(row, {"error": 0.02})}  # a whole layer in bf16
REQUESTS: Final = 16
CONTEXTS: Final = (8_192, 32_768)
VERIFIED: Final = (1, 5)
REPEATS: Final = 20
PAGE: Final = 64
LAYOUTS: Final[Mapping[str, Layout]] = {
    "attn_tp=1": Layout(),
    "attn_dp=2": Layout(attn_dp=2, expert_tp=2),
    "attn_tp=2": Layout(attn_tp=2, expert_tp=2),
    "dcp=2,dcp_backend=a2a": Layout(attn_tp=2, dcp=2, expert_tp=2),
    "dcp=2,dcp_backend=ag_rs": Layout(attn_tp=2, dcp=2, expert_tp=2, dcp_backend="ag_rs"),
}


def weights(dtype: jnp.dtype) -> dict[str, jax.Array]:
    """Random weights whose products keep the size of their input."""
    shapes = {t.name: (t.out, t.inp) for t in SHAPE.tensors() if t.rows is not None and t.heads == 1}
    shapes |= {"w_kc": (SHAPE.heads, SHAPE.kv_lora, SHAPE.nope), "w_vc": (SHAPE.heads, SHAPE.v, SHAPE.kv_lora)}
    keys = jax.random.split(jax.random.key(0), len(shapes))
    made = {
        n: jax.random.normal(k, s, jnp.float32) / s[-1] ** 0.5 for (n, s), k in zip(shapes.items(), keys, strict=True)
    }
    norms = {"q_a_norm": jnp.ones(SHAPE.q_lora), "kv_a_norm": jnp.ones(SHAPE.kv_lora)}
    return {name: value.astype(dtype) for name, value in {**made, **norms}.items()}


def program(layout: Layout, context: int, verify: int, dtype: jnp.dtype) -> Callable[[], jax.Array]:
    """A compiled step of the layer under a layout, with its arguments placed on the mesh."""
    mesh, axes = mesh_of(layout), axes_of(layout)
    each = REQUESTS // layout.attn_dp
    host = KVPool(each * (context // (PAGE * layout.dcp) + 1) + 1, PAGE, layout.dcp, each, context)
    for request in range(each):
        host.admit()
        host.extend(request, context)
    batch = host.batch(list(range(each)), verify)
    together = Batch(
        jnp.tile(batch.slots, (layout.attn_dp, 1)), jnp.tile(batch.lengths, layout.attn_dp), batch.interleave
    )
    specs = sharded.weight_specs(SHAPE, axes, layout.dcp_backend)
    by_rank, by_group = axes.spec(("attn_dp", "attn_tp"), None), axes.spec("attn_dp")

    def body(w: Any, hidden: jax.Array, pool: jax.Array, batch: Batch) -> jax.Array:
        form = {"backend": layout.dcp_backend, "scale": 0.07, "eps": 1e-5}
        partial, _ = sharded.decode(SHAPE, w, hidden, pool, batch, axes, **form)
        return psum(partial, axes["attn_tp"])

    run = jax.jit(
        jax.shard_map(
            body,
            mesh=mesh,
            in_specs=(specs, axes.spec("attn_dp", None), by_rank, by_group),
            out_specs=axes.spec("attn_dp", None),
        )
    )
    hidden = jax.random.normal(jax.random.key(1), (REQUESTS * verify, SHAPE.hidden), jnp.float32).astype(dtype)

    def place(x: jax.Array, spec: jax.sharding.PartitionSpec) -> jax.Array:
        return jax.device_put(x, jax.NamedSharding(mesh, spec))

    args = (
        {n: place(v, specs[n]) for n, v in weights(dtype).items()},
        place(hidden, axes.spec("attn_dp", None)),
        place(_pools(layout, host, context, each, dtype), by_rank),
        jax.tree.map(lambda leaf: place(leaf, axes.spec("attn_dp", *[None] * (leaf.ndim - 1))), together),
    )
    return lambda: run(*args)


def _pools(layout: Layout, host: KVPool, context: int, each: int, dtype: jnp.dtype) -> jax.Array:
    """Every rank's pool: the latent of token t of request r is the same under each layout."""
    tokens = jax.random.normal(jax.random.key(2), (REQUESTS, context, SHAPE.kv_values), jnp.float32).astype(dtype)
    pools = np.zeros((layout.gpus, host.rows_a_rank, SHAPE.kv_values), tokens.dtype)
    table = np.asarray(host.table)[:each]
    for rank in range(layout.gpus):
        group, mine = divmod(rank, layout.attn_tp)
        kept = table % layout.dcp == mine % layout.dcp
        own = np.asarray(tokens[group * each : (group + 1) * each])
        pools[rank][table[kept] // layout.dcp] = own[kept]
    return jnp.asarray(pools.reshape(-1, SHAPE.kv_values))


def measure(path: pathlib.Path) -> None:
    """Run and check every layout that the GPUs hold; medians of several runs."""
    keep(path, here(), _rows(), JUDGES)


def _rows() -> Iterator[tuple[str, Any]]:
    for context in CONTEXTS:
        for verify in VERIFIED:
            exact = np.asarray(program(LAYOUTS["attn_tp=1"], context, verify, jnp.float32)())
            for name, layout in LAYOUTS.items():
                if layout.gpus > len(jax.devices()):
                    continue
                run = program(layout, context, verify, jnp.bfloat16)
                found = np.asarray(run().astype(jnp.float32))
                error = float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
                row = {"layout": name, "gpus": layout.gpus, "context": context, "verify": verify, "error": error}
                yield "rows", {**row, "seconds": _median(run)}


def _median(run: Callable[[], jax.Array]) -> float:
    times = []
    for _ in range(REPEATS + 3):
        started = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - started)
    return float(np.median(times[3:]))


def predicted(row: Mapping[str, Any]) -> float:
    """Seconds that the tool gives for the same ops of one layer on H200s, in bf16."""
    from explorer.priced import priced
    from explorer.request import make_request

    layout = LAYOUTS[row["layout"]]
    request = make_request(
        "kimi-k3", "h200", layout.gpus, draft="none", context=row["context"], concurrency=REQUESTS,
        verify_width=row["verify"],
    )  # fmt: skip
    found = priced(request, layout)
    mine = {t.name for t in SHAPE.tensors()} | {"mla_prepare", "mla_decode", "dcp_pack_merge", "dcp_scale"}
    mine |= {"dcp_exchange", "q_all_gather", "lse_all_gather", "output_reduce_scatter", "attention_all_reduce"}
    table = found.table
    return sum(
        float(found.parts.seconds[op])
        for op, name in enumerate(table.names)
        if table.block_names[table.block[op]].startswith("MLA") and name in mine
    )


def show(path: pathlib.Path) -> None:
    """Measured beside predicted."""
    from rich.table import Table

    document = stored(path, JUDGES)
    title = f"one MLA layer of Kimi K3, {REQUESTS} requests, bf16, XLA: {document['device']}, jax {document['jax']}"
    table = Table("layout", "context", "verify", "error", "measured us", "predicted us", "ratio", title=title)
    for row in document["rows"]:
        guess = predicted(row)
        table.add_row(
            row["layout"], f"{row['context']:,}", str(row["verify"]), f"{row['error']:.1e}",
            f"{1e6 * row['seconds']:,.0f}", f"{1e6 * guess:,.0f}", f"{row['seconds'] / guess:.2f}",
        )  # fmt: skip
    draw(document, table)


if __name__ == "__main__":
    measure_or_show(__doc__ or "", RESULTS, measure, show)
