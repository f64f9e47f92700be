"""The owner rule of DCP and page shards against claims D03, D06 and the facts, by enumeration."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layouts.serving.errors import EngineRuleError
from layouts.serving.owner import (
    group_capacity,
    kv_copies,
    local_length,
    owner,
    row,
    slot_of,
    virtual_page,
)

RANKS = st.integers(1, 9)
INTERLEAVE = st.sampled_from([1, 2, 16])


def test_rank_1_of_4_holds_1_5_9() -> None:
    assert np.flatnonzero(owner(np.arange(12), 4) == 1).tolist() == [1, 5, 9]


@given(RANKS, INTERLEAVE, st.integers(1, 300))
def test_every_slot_has_one_row_on_one_rank(ranks: int, interleave: int, slots: int) -> None:
    slot = np.arange(slots)
    places = set(zip(owner(slot, ranks, interleave).tolist(), row(slot, ranks, interleave).tolist(), strict=True))
    assert len(places) == slots
    np.testing.assert_array_equal(
        slot_of(owner(slot, ranks, interleave), row(slot, ranks, interleave), ranks, interleave), slot
    )


@given(RANKS, INTERLEAVE, st.integers(0, 200), st.integers(0, 200))
def test_local_lengths_count_the_owned_positions(ranks: int, interleave: int, start: int, length: int) -> None:
    held = owner(np.arange(start, start + length), ranks, interleave)
    expected = [int(np.sum(held == rank)) for rank in range(ranks)]
    assert local_length(length, np.arange(ranks), ranks, start, interleave).tolist() == expected


@given(RANKS, st.integers(0, 200), st.integers(0, 200), st.data())
def test_local_length_follows_the_closed_forms_of_the_facts(
    ranks: int, start: int, length: int, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, ranks - 1))
    assert local_length(length, rank, ranks) == length // ranks + (rank < length % ranks)
    first = start + (rank - start) % ranks
    assert local_length(length, rank, ranks, start) == max(0, -((first - start - length) // ranks))


def test_a_virtual_page_is_one_physical_page_on_every_rank() -> None:
    page, ranks = 64, 8
    assert virtual_page(page, ranks) == 512
    slots = np.arange(3 * virtual_page(page, ranks), 4 * virtual_page(page, ranks))
    assert set((row(slots, ranks) // page).tolist()) == {3}


def test_page_shards_follow_the_facts_formula() -> None:
    shards, page = 4, 16
    loc = np.arange(1000)
    np.testing.assert_array_equal(owner(loc, shards, page), loc % (shards * page) // page)
    np.testing.assert_array_equal(row(loc, shards, page), loc // (shards * page) * page + loc % page)


def test_group_capacity_of_article_000() -> None:
    assert group_capacity(2_687_000, 8) == 21_496_000


@pytest.mark.parametrize(("attn_tp", "dcp", "copies"), [(1, 1, 1), (4, 1, 4), (16, 8, 2), (8, 8, 1)])
def test_copies_of_a_request(attn_tp: int, dcp: int, copies: int) -> None:
    assert kv_copies(attn_tp, dcp) == copies


def test_errors_name_the_remedy() -> None:
    with pytest.raises(EngineRuleError, match="no multiple"):
        kv_copies(8, 3)
    with pytest.raises(EngineRuleError, match="masked"):
        owner([-1, 3], 4)
