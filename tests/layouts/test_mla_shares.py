"""What a batch of latents is priced by, against the pieces that the kernel's own schedule makes of it."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hw.arithmetic import Exact, Smooth
from hw.compat import in_x64, x64
from hw.figures import chip_names
from hw.machine import load_machine
from layouts.mla.hopper.schedule import gang_count, piece_of, schedule, share_of
from layouts.mla.shares import MOST_GANGS, ROWS, TILE, shares_of

# one request over all, few and long, one for each gang, more than gangs, shares that end where requests do (12, 33, 66)
REQUESTS = (1, 3, 8, 12, 33, 64, 66, 132, 256)
TOKENS = (1, 100, 4096, 9000, 32768, 131072)
QUERY_ROWS = (16, 128, 480, 640)


def kernels(requests: int, rows: int, tokens: int, multiprocessors: int) -> tuple[float, ...]:
    """Blocks with a share, tiles of their shares over those that are, pieces of cut requests, cut requests."""
    groups = -(-rows // ROWS)
    gangs = gang_count(groups, multiprocessors)
    share, busy, pieces = (np.asarray(x) for x in _pieces(requests, tokens, gangs))
    passed = int(share * busy) / (requests * max(-(-tokens // TILE), 1))
    cut = pieces > 1
    return groups * int(busy), passed, pieces[cut].sum() / requests, cut.sum() / requests


@functools.partial(jax.jit, static_argnums=0)
def _pieces(requests: int, tokens: Any, gangs: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Length of a share, gangs that have one, and pieces of each request: every gang asks as a block does."""
    begins = schedule(jnp.full((requests, 1), tokens, jnp.int32))
    share = share_of(begins, requests, gangs)
    gang = jnp.arange(MOST_GANGS)[:, None]
    piece = piece_of(begins[None, :-1], begins[None, 1:], gang * share, (gang + 1) * share)
    return share, (gang * share < begins[-1]).sum(), ((piece.tiles > 0) & (gang < gangs)).sum(axis=0)


@in_x64
def priced(requests: int, rows: int, tokens: int, multiprocessors: int) -> tuple[float, ...]:
    sizes = [jnp.asarray(float(size)) for size in (requests, rows, tokens)]
    return tuple(float(x) for x in shares_of(Exact(), sizes[0], sizes[1], sizes[2], multiprocessors))


@pytest.mark.parametrize("multiprocessors", [132, 148])
def test_a_batch_is_priced_as_it_is_cut(multiprocessors: int) -> None:
    seen = []
    for requests, rows, tokens in itertools.product(REQUESTS, QUERY_ROWS, TOKENS):
        expected = kernels(requests, rows, tokens, multiprocessors)
        found = priced(requests, rows, tokens, multiprocessors)
        np.testing.assert_allclose(found, expected, rtol=1e-12, err_msg=f"{requests} x {rows} rows, {tokens} tokens")
        seen.append(found[3])
    assert min(seen) == 0 and max(seen) == 1 and any(0 < cut < 1 for cut in seen)


def test_no_chip_has_more_gangs_than_are_priced() -> None:
    assert all(float(load_machine(name).sms) < MOST_GANGS for name in chip_names())


def test_a_search_has_a_slope_where_requests_are_cut() -> None:
    """Of the tiles that blocks pass: fewer of those that are none as requests grow longer."""
    with x64():
        slope = jax.grad(lambda tokens: shares_of(Smooth(0.1), jnp.asarray(3.0), jnp.asarray(16.0), tokens, 132).passed)
        assert float(slope(jnp.asarray(9000.0))) < 0
