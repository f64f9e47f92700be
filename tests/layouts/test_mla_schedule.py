"""Shares of a ragged batch: every tile passed over once, as much a gang as any other; cut requests made whole."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from layouts.mla.hopper.merge import merge
from layouts.mla.hopper.schedule import gang_count, piece_of, request_at, schedule, share_of
from layouts.mla.shares import CUT, START, TILE

LATENT, ROWS = 32, 16
# tokens that requests see, gangs: none among them, more requests than gangs, ends of requests at ends of shares, one
# request over all gangs, more gangs than tiles, many small requests
BATCHES = [
    ((700, 0, 65, 1), 7),
    ((5000, 3, 64, 640, 128, 0, 0, 129), 5),
    ((384, 384), 4),
    ((4096,), 20),
    ((64, 64, 64), 30),
    ((1,), 3),
    ((100,) * 40 + (9000,), 6),
]


def pieces_of(begins, gangs):
    """What each gang does, as the kernel finds it."""
    requests = len(begins) - 1
    share = share_of(begins, requests, gangs)
    for gang in range(gangs):
        mine = (gang * share, (gang + 1) * share)
        for request in range(request_at(begins, requests, mine[0]), request_at(begins, requests, mine[1] - 1) + 1):
            first, tiles, whole = piece_of(begins[request], begins[request + 1], *mine)
            if tiles > 0:
                yield gang, request, int(first), int(tiles), bool(whole)


def planned(lengths):
    return np.asarray(schedule(jnp.asarray(lengths, jnp.int32)[:, None]))


@pytest.mark.parametrize(("lengths", "gangs"), BATCHES)
def test_every_tile_is_passed_over_once(lengths, gangs):
    passed = {(request, tile): 0 for request, n in enumerate(lengths) for tile in range(max(-(-n // TILE), 1))}
    for _, request, first, tiles, whole in pieces_of(planned(lengths), gangs):
        assert whole == (first == 0 and (request, tiles) not in passed)
        for tile in range(first, first + tiles):
            passed[request, tile] += 1
    assert set(passed.values()) == {1}


@pytest.mark.parametrize(("lengths", "gangs"), BATCHES)
def test_no_gang_has_more_than_its_share(lengths, gangs):
    length = sum(max(-(-n // TILE), 1) + START for n in lengths)
    work = np.zeros(gangs, int)
    for gang, _, _, tiles, _ in pieces_of(planned(lengths), gangs):
        work[gang] += tiles
    alike = len(set(lengths)) == 1
    assert work.max() <= -(-length // gangs) + (CUT if alike else 0)


@pytest.mark.parametrize(
    ("requests", "gangs", "whole"),
    [(128, 66, True), (16, 66, False), (70, 66, False), (12, 6, True)],  # 132 of 128, 66 of 16, 132 of 70, 132 of 132
)
def test_requests_of_one_length_are_cut_only_where_it_pays(requests, gangs, whole):
    found = [is_whole for *_, is_whole in pieces_of(planned((64 * TILE,) * requests), gangs)]
    assert all(found) == whole


def test_tokens_of_a_verify_step_count_by_the_row_that_sees_most():
    begins = schedule(jnp.asarray([[60, 64, 65], [0, 0, 1]], jnp.int32))
    np.testing.assert_array_equal(begins, planned((65, 1)))
    np.testing.assert_array_equal(begins, [0, 2 + START, 3 + 2 * START])


@pytest.mark.parametrize(("groups", "multiprocessors", "gangs"), [(1, 132, 132), (2, 132, 66), (8, 132, 16), (9, 4, 1)])
def test_gangs_run_at_once(groups, multiprocessors, gangs):
    assert gang_count(groups, multiprocessors) == gangs


@pytest.mark.smoke
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
@pytest.mark.parametrize(("lengths", "gangs"), BATCHES[:4])
def test_cut_requests_are_made_whole(lengths, gangs):
    """Attention of each piece by itself in float64, everything else in the arrays NaN."""
    random = np.random.default_rng(7)
    scores = [random.normal(size=(ROWS, n)) * 3 for n in lengths]
    values = [random.normal(size=(n, LATENT)) for n in lengths]

    def attend(request, begin, end):
        weights = np.exp(scores[request][:, begin:end])
        total = weights.sum(axis=1)
        if not weights.size:
            return 0.0, -np.inf
        return weights @ values[request][begin:end] / total[:, None], np.log(total)

    whole, whole_lse = np.full((len(lengths), ROWS, LATENT), np.nan), np.full((len(lengths), ROWS), np.nan)
    parts, part_lse = np.full((2 * gangs, ROWS, LATENT), np.nan), np.full((2 * gangs, ROWS), np.nan)
    begins = planned(lengths)
    for gang, request, first, tiles, is_whole in pieces_of(begins, gangs):
        output, lse = (whole, whole_lse) if is_whole else (parts, part_lse)
        at = request if is_whole else gangs + gang if first == 0 else gang
        output[at], lse[at] = attend(request, first * TILE, (first + tiles) * TILE)
    pieces = (jnp.asarray(x.reshape(-1, *x.shape[2:]), jnp.float32) for x in (whole, whole_lse, parts, part_lse))
    output, lse = _merged(*pieces, jnp.asarray(begins), gangs)
    for request, n in enumerate(lengths):
        value, total = attend(request, 0, n)
        rows = slice(request * ROWS, (request + 1) * ROWS)
        np.testing.assert_allclose(output[rows], np.broadcast_to(value, (ROWS, LATENT)), atol=2e-6)
        np.testing.assert_allclose(lse[rows], np.broadcast_to(total, ROWS), atol=2e-6)


def _merged(*arrays: Any) -> Any:
    *pieces, gangs = arrays
    return merge(*pieces, gangs=gangs, interpret=True)
