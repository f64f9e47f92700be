"""The paged kernel in interpret mode against attention over tokens that were read, and lowered for a GPU."""

import contextlib
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hw.compat import COMPILE_TO_RUN_ONCE
from layouts.combine.partial import attend
from layouts.paged import Pages
from layouts.paged.attend import attend_pages, attend_tiled
from layouts.paged.block import Entry, Tiling, powers
from layouts.paged.kernel import UnsupportedPoolError
from layouts.paged.merge import merge_parts
from layouts.paged.splits import split_count
from layouts.paged.steps import steps_of
from layouts.paged.tiling import tiling_of

SCALE, RUNS = 0.3, 3
PAIR, LATENT = Entry(16, 16, 16), Entry(24, 0, 16)


def compiled(function):
    return jax.jit(function, compiler_options=COMPILE_TO_RUN_ONCE)


def problem(run, kv_heads, heads, verify, entry, window=0, dtype=jnp.float32):
    """Requests whose runs lie anywhere in a pool with NaN wherever no row sees a token, and what each row sees.

    Lengths: whole runs, a part of one, fewer than rows, none.
    """
    random = np.random.default_rng(run + heads)
    lengths = np.array([RUNS * run, 2 * run + 2, verify - 1, 0])
    width = max(entry.key, entry.start + entry.width)
    query = random.normal(size=(4, verify, heads, entry.key))
    starts = random.permutation(4 * RUNS + 1)[: 4 * RUNS].reshape(4, RUNS) * run
    limits = np.maximum(lengths[:, None] - verify + 1 + np.arange(verify), 0)
    lows = np.maximum(limits - window, 0) if window else np.zeros_like(limits)
    token = np.arange(RUNS * run)
    seen = (token < limits[:, :, None]) & (token >= lows[:, :, None])
    rows = (starts[:, :, None] + np.arange(run)).reshape(4, -1)
    pool = np.full(((4 * RUNS + 1) * run, kv_heads, width), np.nan)
    for own, used in zip(rows, seen.any(axis=1), strict=True):
        pool[own[used]] = random.normal(size=(used.sum(), kv_heads, width))
    starts, limits, lows = (jnp.asarray(x, jnp.int32) for x in (starts, limits, lows))
    pages = Pages(starts, limits, lows if window else None)
    return jnp.asarray(query, jnp.float32), jnp.asarray(pool).astype(dtype), pages, jnp.asarray(rows), jnp.asarray(seen)


def expected(query, pool, rows, seen, entry, sinks=None):
    read = pool[rows]
    return attend(query, read[..., : entry.key], read[..., entry.start : entry.start + entry.width], seen, SCALE, sinks)


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("run", "kv_heads", "heads", "verify", "entry", "window", "tiling"),
    [
        (64, 2, 10, 3, PAIR, 0, Tiling(16, 32, 1, 4, 3)),
        (64, 2, 10, 3, PAIR, 0, Tiling(16, 64, 4, 4, 3)),  # more pieces than tiles: some see nothing
        (64, 1, 40, 1, LATENT, 0, Tiling(32, 32, 3, 4, 3)),  # rows in two blocks, the last not full
        (16, 1, 3, 2, LATENT, 0, Tiling(16, 32, 2, 4, 3)),  # two runs a tile
        (64, 2, 8, 3, PAIR, 37, Tiling(16, 32, 2, 4, 3)),
    ],
)
def test_the_kernel_is_attention_over_what_each_row_sees(run, kv_heads, heads, verify, entry, window, tiling):
    query, pool, pages, rows, seen = problem(run, kv_heads, heads, verify, entry, window)
    form = functools.partial(attend_tiled, entry=entry, scale=SCALE, run=run, tiling=tiling, interpret=True)
    output, lse = compiled(form)(query, pool, pages)
    wanted, wanted_lse = expected(query, pool, rows, seen, entry)
    np.testing.assert_allclose(output, wanted, atol=3e-6)
    np.testing.assert_allclose(lse, wanted_lse, atol=3e-6)
    assert np.isneginf(np.asarray(lse)[3]).all() and not np.asarray(output)[3].any()


def test_sinks_take_weight_in_every_form():
    """A sink of -inf is one that another rank counts."""
    query, pool, pages, rows, seen = problem(16, 2, 4, 2, PAIR)
    sinks = jnp.array([0.5, -jnp.inf, 2.0, -1.0])
    wanted = expected(query, pool, rows, seen, PAIR, sinks)
    for form in ("xla", "interpreted"):
        run = functools.partial(attend_pages, entry=PAIR, scale=SCALE, run=16, form=form, sinks=sinks)
        for found, right in zip(compiled(run)(query, pool, pages), wanted, strict=True):
            np.testing.assert_allclose(found, right, atol=3e-6)


def test_a_pool_of_eight_bits_is_read_as_it_is():
    query, pool, pages, rows, seen = problem(16, 2, 4, 2, PAIR, dtype=jnp.float8_e4m3fn)
    run = functools.partial(attend_pages, entry=PAIR, scale=SCALE, run=16, form="interpreted")
    output, _ = compiled(run)(query, pool, pages)
    np.testing.assert_allclose(output, expected(query, pool, rows, seen, PAIR)[0], atol=3e-6)


@pytest.mark.parametrize(("rows", "fits"), [(2**22, True), (2**22 + 1, False), (2**23, False), (2**23 + 1, True)])
def test_a_pool_whose_addresses_would_overflow_is_an_error(rows, fits):
    described: Any = jax.ShapeDtypeStruct
    pages = Pages(described((1, 4), jnp.int32), described((1, 1), jnp.int32))
    pool = described((rows, 2, 256), jnp.float8_e4m3fn)
    run = functools.partial(attend_pages, entry=Entry(128, 128, 128), scale=0.1, run=64, form="interpreted")
    with contextlib.nullcontext() if fits else pytest.raises(UnsupportedPoolError, match="change the pages"):
        jax.eval_shape(run, described((1, 1, 16, 128), jnp.bfloat16), pool, pages)


def test_sizes_in_powers_of_two():
    assert powers(0, 576) == ((0, 512), (512, 64))
    assert powers(128, 128) == ((128, 128),)
    assert powers(8, 7) == ((8, 4), (12, 2), (14, 1))


def test_no_block_has_more_than_the_shared_memory():
    """Values of 256 and of four bytes take steps of fewer tokens."""
    query, pool = (16, 8, 64, 256), jax.ShapeDtypeStruct((1 << 16, 4, 512), jnp.bfloat16)
    wide, pair = Entry(256, 256, 256), Entry(128, 128, 128)
    assert tiling_of(query, pool, wide, 1 << 14, 132).tokens == 32  # 2 x 64 KiB of queries and 2 x 32 KiB, not 2 x 128
    latents = jax.ShapeDtypeStruct((1 << 16, 1, 576), jnp.float8_e4m3fn)
    # 2 x 72 KiB of queries, 36 of tokens and 72 more where they are converted
    assert tiling_of((16, 4, 16, 576), latents, Entry(576, 0, 512), 1 << 14, 132).tokens == 32
    four = jax.ShapeDtypeStruct((1 << 16, 4, 256), jnp.float32)
    assert tiling_of((16, 1, 64, 128), four, pair, 1 << 14, 132).tokens == 64


@pytest.mark.parametrize(
    ("rows", "width", "item", "at_once"),
    [
        (16, 128, 2, 1),  # 8 KiB of queries and 2 x 64 KiB of tokens, of 227
        (64, 128, 2, 2),  # 32 KiB and 2 x 32
        (16, 64, 2, 3),  # 4 KiB and 2 x 32
        (16, 32, 1, 4),  # 2 KiB and 2 x 8: more than four would fit
    ],
)
def test_a_multiprocessor_runs_as_many_blocks_as_its_shared_memory_holds(rows, width, item, at_once):
    assert steps_of(width, 2 * width, item)[rows].at_once == at_once


def test_requests_are_cut_for_all_blocks_that_run_at_once():
    """16 x 8 blocks of 64 rows over 32 tiles, two on each of 132 multiprocessors: uncut 35 tiles in turn, in two pieces
    one wave of 19; in a wave of 132 there would be room for one piece only."""
    pool = jax.ShapeDtypeStruct((1 << 16, 8, 256), jnp.bfloat16)
    assert tiling_of((16, 5, 64, 128), pool, Entry(128, 128, 128), 2048, 132).splits == 2
    assert (split_count(128, 32, 132), split_count(128, 32, 264)) == (1, 2)


def test_a_piece_costs_three_tiles_besides_its_own():
    """100 blocks of 32 tiles on 132: uncut 35 in turn, in five pieces four waves of 7 + 3."""
    assert split_count(100, 32, 132) == 1
    assert split_count(100, 64, 132) == 5  # four waves of 13 + 3 against 67


@pytest.mark.parametrize(
    ("lse", "weights"),
    [((0.0, 0.0, -np.inf), (0.5, 0.5, 0.0)), ((-np.inf, 2.0, -np.inf), (0.0, 1.0, 0.0)), ((-np.inf,) * 3, (0.0,) * 3)],
)
def test_pieces_merge_by_their_weight_and_those_that_saw_nothing_are_not_read(lse, weights):
    parts = np.random.default_rng(0).normal(size=(2, 3, 5, 24)).astype(np.float32)
    parts[:, np.isneginf(lse)] = np.nan
    every = jnp.broadcast_to(jnp.asarray(lse, jnp.float32)[None, :, None], (2, 3, 5))
    output, total = compiled(functools.partial(merge_parts, dtype=jnp.float32, interpret=True))(parts, every)
    np.testing.assert_allclose(output, np.einsum("s,bsrw->brw", weights, np.nan_to_num(parts)), atol=1e-6)
    np.testing.assert_allclose(total, np.full((2, 5), np.logaddexp.reduce(lse)), atol=1e-6)


@pytest.mark.parametrize(
    ("query", "kv_heads", "entry", "rows"),
    [
        ((16, 1, 64, 128), 4, Entry(128, 128, 128), 16),
        ((16, 5, 64, 128), 4, Entry(128, 128, 128), 128),  # 80 rows in one block
        ((16, 64, 64, 128), 4, Entry(128, 128, 128), 128),  # 1,024 rows in eight
        ((4, 1, 4, 64), 2, Entry(64, 64, 64), 16),  # two rows in one of 16
        ((8, 1, 128, 576), 1, Entry(576, 0, 512), 64),
    ],
)
def test_a_cut_has_rows_for_the_tensor_cores_and_fills_the_device(query, kv_heads, entry, rows):
    pool = jax.ShapeDtypeStruct((1 << 16, kv_heads, 576), jnp.bfloat16)
    tiling = tiling_of(query, pool, entry, 1 << 14, 132)
    assert tiling.rows == rows
    group = query[1] * query[2] // kv_heads
    assert query[0] * kv_heads * -(-group // rows) * tiling.splits > 100


LOWERED = [
    ((16, 1, 64, 128), 4, Entry(128, 128, 128), jnp.bfloat16),
    ((4, 5, 24, 192), 2, Entry(192, 192, 192), jnp.bfloat16),
    ((3, 8, 16, 576), 1, Entry(576, 0, 512), jnp.bfloat16),
    ((3, 8, 16, 576), 1, Entry(576, 0, 512), jnp.float8_e4m3fn),
]


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
@pytest.mark.parametrize(("shape", "kv_heads", "entry", "dtype"), LOWERED)
def test_the_kernel_lowers_for_a_gpu(shape, kv_heads, entry, dtype):
    """Traced and lowered whole by the backend, which no CPU can run."""
    device = jax.sharding.AbstractDevice(device_kind="NVIDIA H200", num_cores=None, platform="gpu")
    mesh = jax.sharding.AbstractMesh((1,), ("x",), abstract_device=device)
    width = max(entry.key, entry.start + entry.width)
    described: Any = jax.ShapeDtypeStruct
    limits = described(shape[:2], jnp.int32)
    pages = Pages(described((shape[0], 16), jnp.int32), limits, limits)
    form = jax.jit(functools.partial(attend_pages, entry=entry, scale=0.1, run=64, form="triton"))
    with jax.sharding.use_abstract_mesh(mesh):
        traced = form.trace(described(shape, jnp.bfloat16), described((4096, kv_heads, width), dtype), pages)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "xla.gpu.triton" in text
