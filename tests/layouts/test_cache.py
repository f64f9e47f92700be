"""The paged pool: every token in one place of one rank, found again by its addresses; errors change nothing."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from layouts.cache import Batch, KVPool, PoolError
from layouts.cache.batch import local_row, most_held, read, write
from layouts.serving.owner import local_length, owner, row

RANKS = st.sampled_from([1, 2, 3, 8])


@given(slots=st.lists(st.integers(0, 5000), min_size=20, max_size=20), ranks=RANKS, interleave=st.sampled_from([1, 4]))
def test_rows_follow_the_owner_rule(slots, ranks, interleave):
    """The traced rule is the one of the engines, apart from what is row 0: slot 0 and what others own."""
    table = jnp.asarray(slots, jnp.int32)
    for rank in range(ranks):
        mine = (owner(slots, ranks, interleave) == rank) & (np.array(slots) > 0)
        expected = np.where(mine, row(slots, ranks, interleave), 0)
        np.testing.assert_array_equal(local_row(table, jnp.int32(rank), ranks, interleave), expected)


@given(span=st.integers(0, 60), ranks=RANKS, interleave=st.sampled_from([1, 4]))
def test_the_most_that_a_rank_can_hold(span, ranks, interleave):
    starts = np.arange(ranks * interleave)
    held = local_length(span, np.arange(ranks)[:, None], ranks, starts, interleave)
    assert most_held(span, ranks, interleave) == held.max()


@st.composite
def filled(draw):
    """A pool with requests of any length and a step that verifies some tokens of each, in any order, one row idle."""
    ranks, page, verify = draw(RANKS), draw(st.sampled_from([1, 4])), draw(st.sampled_from([1, 3]))
    pool = KVPool(pages=60, page=page, ranks=ranks, requests=4, context=30, page_interleave=draw(st.booleans()))
    lengths = draw(st.lists(st.integers(verify, 30 if page * ranks > 2 else 15), min_size=3, max_size=3))
    requests = [pool.admit() for _ in lengths]
    # growing in turns makes pages of different requests neighbours
    for request, length in zip(requests, lengths, strict=True):
        pool.extend(request, length // 2)
    for request, length in zip(requests, lengths, strict=True):
        pool.extend(request, length - length // 2)
    rows = draw(st.permutations([*requests, None]))
    return pool, ranks, verify, rows


@functools.partial(jax.jit, static_argnums=(4, 5, 6))
def step(memory, tokens, batch, rank, verify, ranks, window):
    """What one rank does in a step: its pool after the write, and what it reads of it. The rank is traced."""
    memory = write(memory, batch.new_rows(verify, rank, ranks), tokens)
    held = batch.held(verify, rank, ranks, window)
    return memory, held, read(memory, held.rows)


@given(case=filled(), window=st.sampled_from([0, 1, 7, 100]))
@settings(max_examples=30)
def test_what_is_written_is_found_where_it_belongs(case, window):
    """Each token holds its request and position; NaN elsewhere shows whether anything else would be read."""
    pool, ranks, verify, requests = case
    batch = pool.batch(requests, verify)
    lengths = [0 if r is None else int(pool.lengths[r]) for r in requests]
    found = [[] for _ in requests]
    for rank in range(ranks):
        memory = np.full((pool.rows_a_rank, 2), np.nan, np.float32)
        for index, request in enumerate(requests):
            if request is not None:
                slots = pool.table[request, : lengths[index] - verify]
                mine = owner(slots, ranks, pool.interleave) == rank
                memory[row(slots[mine], ranks, pool.interleave), 0] = index
                memory[row(slots[mine], ranks, pool.interleave), 1] = np.flatnonzero(mine)
        tokens = np.stack(
            [np.repeat(np.arange(len(requests)), verify), np.asarray(batch.positions(verify)).reshape(-1)], axis=1
        )
        before = memory.copy()
        after, held, values = step(memory, tokens.astype(np.float32), batch, rank, verify, ranks, window)
        real = np.asarray(held.real)
        kept = ~np.isnan(before[:, 0])
        np.testing.assert_array_equal(np.asarray(after)[kept], before[kept])
        for index in range(len(requests)):
            seen = values[index][real[index]]
            np.testing.assert_array_equal(seen[:, 0], np.full(len(seen), index))
            np.testing.assert_array_equal(seen[:, 1], np.asarray(held.positions)[index][real[index]])
            found[index] += seen[:, 1].tolist()
    for index, length in enumerate(lengths):
        first = max(0, length - verify - window + 1) if window else 0
        assert sorted(found[index]) == list(range(first, length))


@functools.partial(jax.jit, static_argnums=(2, 3, 4, 5))
def found_in_pages(batch, rank, verify, ranks, run, window):
    return batch.pages(verify, rank, ranks, run, window), batch.held(verify, rank, ranks, window)


@given(case=filled(), window=st.sampled_from([0, 1, 7, 100]))
@settings(max_examples=15)
def test_pages_show_each_row_what_it_sees_in_order(case, window):
    """Runs as long as the pages of the pool, against the tokens one by one and the positions of the rows."""
    pool, ranks, verify, requests = case
    batch, run = pool.batch(requests, verify), pool.page // ranks
    for rank in range(ranks):
        pages, held = jax.tree.map(np.asarray, found_in_pages(batch, rank, verify, ranks, run, window))
        lows = np.zeros_like(pages.limits) if pages.lows is None else pages.lows
        for index, position in np.ndenumerate(np.asarray(batch.positions(verify))):
            request = index[0]
            rows = (pages.starts[request][:, None] + np.arange(run)).reshape(-1)[lows[index] : pages.limits[index]]
            seen = held.real[request] & (held.positions[request] <= position)
            seen &= (position - held.positions[request] < window) | (window == 0)
            np.testing.assert_array_equal(rows, held.rows[request][seen])


def test_a_window_that_begins_within_a_run_ends_in_another():
    """Of 11 tokens in pages of 4, rows 4 to 15, the last 7 fill a page and a part of the next; the last 6 and the last
    4 begin in the middle of the first of these two."""
    pool = KVPool(pages=4, page=4, ranks=1, requests=1, context=16)
    request = pool.admit()
    pool.extend(request, 11)
    batch = pool.batch([request], 1)
    for window, low in ((7, 0), (6, 1), (4, 3)):
        pages = batch.pages(1, 0, 1, 4, window)
        assert pages.starts[0, :2].tolist() == [8, 12]
        assert pages.lows is not None
        assert (pages.lows.tolist(), pages.limits.tolist()) == ([[low]], [[7]])


def test_rows_past_the_table_see_what_the_table_holds():
    batch = Batch(jnp.asarray([[4, 5, 6, 7]], jnp.int32), jnp.asarray([3], jnp.int32))
    pages = batch.pages(3, 0, 1, 4)
    assert pages.starts.tolist() == [[4]]
    assert pages.limits.tolist() == [[4, 4, 4]]


def test_past_the_table_is_row_0():
    batch = Batch(jnp.asarray([[4, 5, 6, 7]], jnp.int32), jnp.asarray([3], jnp.int32))
    np.testing.assert_array_equal(batch.new_rows(3, 0, 1), [[7, 0, 0]])


def test_a_full_pool_is_an_error_and_overwrites_nothing():
    """Two pages of 2 x 4 slots: 16 tokens fit, a 17th does not."""
    pool = KVPool(pages=2, page=4, ranks=2, requests=2, context=100)
    assert pool.capacity == 16
    first, second = pool.admit(), pool.admit()
    slots = pool.extend(first, 9)
    assert slots.tolist() == list(range(8, 17))  # the sink page is 0 .. 7
    table, lengths = pool.table.copy(), pool.lengths.copy()
    with pytest.raises(PoolError, match="needs 1 pages of 8 slots and 0 are free"):
        pool.extend(second, 1)
    with pytest.raises(PoolError, match="101 tokens and the table holds 100"):
        pool.extend(first, 92)
    with pytest.raises(PoolError, match="all 2 lines"):
        pool.admit()
    np.testing.assert_array_equal(pool.table, table)
    np.testing.assert_array_equal(pool.lengths, lengths)
    pool.release(first)
    assert pool.free_slots == 16
    with pytest.raises(PoolError, match="not admitted"):
        pool.extend(first, 1)
    with pytest.raises(PoolError, match="not admitted"):
        pool.release(-1)
    assert pool.extend(second, 16).tolist() == list(range(8, 24))


def test_a_roll_back_keeps_the_page_of_the_last_token():
    pool = KVPool(pages=4, page=4, ranks=1, requests=1, context=16)
    request = pool.admit()
    pool.extend(request, 11)
    pool.truncate(request, 5)
    assert pool.free_slots == 8
    assert pool.extend(request, 1).tolist() == [9]  # the second page is 8 .. 11 and held position 4 before
    with pytest.raises(PoolError, match="has 6 tokens"):
        pool.truncate(request, 7)
    with pytest.raises(PoolError, match="fewer than 7"):
        pool.batch([request], 7)


class Pool(RuleBasedStateMachine):
    """Any sequence of calls against a model that only counts tokens."""

    def __init__(self):
        super().__init__()
        self.pool = KVPool(pages=5, page=2, ranks=2, requests=3, context=13)
        self.tokens: dict[int, int] = {}

    @precondition(lambda self: len(self.tokens) < 3)
    @rule()
    def admit(self):
        request = self.pool.admit()
        assert request not in self.tokens
        self.tokens[request] = 0

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), more=st.integers(0, 9))
    def extend(self, data, more):
        request = data.draw(st.sampled_from(sorted(self.tokens)))
        wanted = {**self.tokens, request: self.tokens[request] + more}
        fits = wanted[request] <= 13 and sum(-(-n // 4) for n in wanted.values()) <= 5
        if fits:
            assert len(self.pool.extend(request, more)) == more
            self.tokens = wanted
        else:
            with pytest.raises(PoolError):
                self.pool.extend(request, more)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def truncate(self, data):
        request = data.draw(st.sampled_from(sorted(self.tokens)))
        self.tokens[request] = data.draw(st.integers(0, self.tokens[request]))
        self.pool.truncate(request, self.tokens[request])

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def release(self, data):
        request = data.draw(st.sampled_from(sorted(self.tokens)))
        self.pool.release(request)
        del self.tokens[request]

    @invariant()
    def every_token_has_a_slot_of_its_own(self):
        slots = [self.pool.table[r, :n] for r, n in self.tokens.items()]
        every = np.concatenate([*slots, np.array([], np.int32)])
        assert len(set(every.tolist())) == len(every)
        assert not every.size or (every.min() >= 4 and every.max() < 24)  # page 0 is the sink
        assert self.pool.free_slots == 4 * (5 - sum(-(-n // 4) for n in self.tokens.values()))
        for line in slots:  # the position gives the owner
            np.testing.assert_array_equal(owner(line, 2), np.arange(len(line)) % 2)


TestPool = Pool.TestCase
