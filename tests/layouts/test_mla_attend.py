"""Attention over pages: the XLA form against float64, pieces merged against the whole, the kernel lowered for a GPU."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from layouts.combine.reference import merge
from layouts.mla.attend import Pages, attend_pages, compile_pages
from layouts.mla.hopper import attend_runs
from layouts.mla.hopper.kernel import UnsupportedShapeError
from layouts.paged.splits import split_count

VERIFY, HEADS, LATENT, WIDTH, RUNS, SCALE = 3, 5, 16, 24, 3, 0.3
# tokens that the last row of each request sees: whole runs, a part of one, fewer than rows, none
LENGTHS = (192, 130, 2, 0)


def problem(dtype=jnp.float32):
    """Requests whose runs lie anywhere in a pool with NaN wherever no token is."""
    random = np.random.default_rng(3)
    query = random.normal(size=(len(LENGTHS), VERIFY, HEADS, WIDTH))
    starts = random.permutation(len(LENGTHS) * RUNS + 1)[: len(LENGTHS) * RUNS].reshape(-1, RUNS) * 64
    pool = np.full(((len(LENGTHS) * RUNS + 1) * 64, WIDTH), np.nan)
    limits = np.maximum(np.array(LENGTHS)[:, None] - VERIFY + 1 + np.arange(VERIFY), 0)
    rows = [(start[:, None] + np.arange(64)).reshape(-1)[:n] for start, n in zip(starts, LENGTHS, strict=True)]
    for own in rows:
        pool[own] = random.normal(size=(len(own), WIDTH))
    pages = Pages(jnp.asarray(starts, jnp.int32), jnp.asarray(limits, jnp.int32))
    return jnp.asarray(query, dtype), jnp.asarray(pool, dtype), pages, (query, pool, rows, limits)


def expected(query, pool, rows, limits):
    """Each row by itself, in float64."""
    output, lse = np.zeros((*query.shape[:3], LATENT)), np.full(query.shape[:3], -np.inf)
    for request, token in np.argwhere(limits > 0):
        seen = pool[rows[request][: limits[request, token]]]
        scores = query[request, token] @ seen.T * SCALE
        weights = np.exp(scores)
        lse[request, token] = np.log(weights.sum(axis=1))
        output[request, token] = weights @ seen[:, :LATENT] / weights.sum(axis=1, keepdims=True)
    return output, lse


@pytest.mark.smoke
@pytest.mark.parametrize("form", ["xla", "interpreted"])
def test_a_form_is_attention_over_what_each_row_sees(form):
    query, pool, pages, oracle = problem()
    attend = jax.jit(functools.partial(attend_pages, scale=SCALE, latent=LATENT, form=form))
    output, lse = attend(query, pool, pages)
    wanted, wanted_lse = expected(*oracle)
    np.testing.assert_allclose(output, wanted, atol=2e-6)
    np.testing.assert_allclose(lse, wanted_lse, atol=2e-6)
    assert np.isneginf(np.asarray(lse)[3]).all() and not np.asarray(output)[3].any()


def test_pieces_merge_to_the_whole():
    random = np.random.default_rng(5)
    scores, latents = random.normal(size=(2, 7, 40)) * 3, random.normal(size=(2, 40, LATENT))
    cuts = [(0, 11), (11, 11), (11, 40)]  # one of them empty
    parts = np.zeros((2, 3, 7, LATENT), np.float32)
    lse = np.full((2, 3, 7), -np.inf, np.float32)
    for n, (begin, end) in enumerate(cuts):
        if begin < end:
            weights = np.exp(scores[:, :, begin:end])
            parts[:, n] = weights @ latents[:, begin:end] / weights.sum(axis=2, keepdims=True)
            lse[:, n] = np.log(weights.sum(axis=2))
    output, total = merge(jnp.asarray(parts), jnp.asarray(lse), axis=1)
    weights = np.exp(scores)
    np.testing.assert_allclose(output, weights @ latents / weights.sum(axis=2, keepdims=True), atol=2e-6)
    np.testing.assert_allclose(total, np.log(weights.sum(axis=2)), atol=2e-6)


def test_pieces_that_see_nothing_merge_to_zero():
    output, lse = merge(jnp.zeros((1, 2, 4, LATENT)), jnp.full((1, 2, 4), -math.inf), axis=1)
    assert not np.asarray(output).any() and np.isneginf(np.asarray(lse)).all()


@pytest.mark.parametrize(
    ("blocks", "tiles", "expected"),
    [
        (32, 512, 4),  # 128 of 132 at once, 128 tiles each; 5 pieces would need a second wave
        (128, 512, 1),  # 2 pieces: 2 waves of 256 tiles, and twice the start
        (16, 512, 8),  # 128 blocks of 64 tiles
        (1, 2, 2),  # no more pieces than tiles
        (200, 512, 9),  # 1,800 blocks: 14 waves of 57 + 3; uncut 2 waves of 512 + 3
    ],
)
def test_pieces_fill_whole_waves(blocks, tiles, expected):
    assert split_count(blocks, tiles, 132) == expected


def test_without_such_a_gpu_the_xla_form_is_chosen_and_the_reason_kept():
    query, pool, pages, _ = problem()
    found, compiled = compile_pages(query, pool, pages, scale=SCALE, latent=LATENT)
    assert found.form == "xla"
    assert [x.shape for x in compiled(query, pool, pages)] == [(*query.shape[:3], LATENT), query.shape[:3]]
    mosaic, triton = found.errors
    assert mosaic in (
        "mosaic_gpu: cpu: the kernel is for compute capability 9.0; use another form",
        f"mosaic_gpu: jax {jax.__version__}: the kernel needs 0.11 or newer; use another form",
    )
    assert triton == "triton: Only interpret mode is supported on CPU backend."


@pytest.mark.parametrize(
    ("width", "dtype", "run", "error"),
    [
        (24, jnp.bfloat16, 64, r"-40 \+ 64 values in bfloat16.*another form"),
        (576, jnp.float32, 64, r"512 \+ 64 values in float32.*another form"),
        (576, jnp.bfloat16, 4, "runs of 4 tokens"),
        (576, jnp.bfloat16, 48, "runs of 48 tokens"),
    ],
)
def test_the_kernel_refuses_other_latents_and_runs(width, dtype, run, error):
    query, pool = jnp.zeros((1, 1, 16, width), jnp.bfloat16), jnp.zeros((128, width), dtype)
    starts, limits = jnp.zeros((1, 2), jnp.int32), jnp.ones((1, 1), jnp.int32)
    with pytest.raises(UnsupportedShapeError, match=error):
        attend_runs(query, pool, starts, limits, scale=SCALE, run=run, multiprocessors=132)


@pytest.mark.smoke
@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="the kernel is written for Mosaic GPU of JAX 0.11")
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("requests", "verify", "heads", "run", "dtype"),
    [(16, 1, 128, 64, jnp.bfloat16), (3, 8, 16, 16, jnp.bfloat16), (4, 5, 96, 64, jnp.float8_e4m3fn)],
)
def test_the_kernel_lowers_for_a_gpu(requests, verify, heads, run, dtype):
    """No CPU can run it (the interpreter has no warpgroup products in loops), but it is traced and lowered whole."""
    described: Any = jax.ShapeDtypeStruct
    query = described((requests, verify, heads, 576), jnp.bfloat16)
    pool, starts = described((requests * 1024, 576), dtype), described((requests, 1024 // run), jnp.int32)
    shapes = (query, pool, starts, described((requests, verify), jnp.int32))
    attend = jax.jit(functools.partial(attend_runs, scale=0.06, run=run, multiprocessors=132))
    device = jax.sharding.AbstractDevice(device_kind="NVIDIA H200", num_cores=None, platform="gpu")
    mesh = jax.sharding.AbstractMesh((1,), ("x",), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        output, lse = jax.eval_shape(attend, *shapes)
        text = attend.trace(*shapes).lower(lowering_platforms=("cuda",)).as_text()
    assert output.shape == (requests, verify, heads, 512) and output.dtype == jnp.bfloat16
    assert lse.shape == (requests, verify, heads) and lse.dtype == jnp.float32
    assert "mosaic_gpu" in text and "xla.gpu.triton" in text
