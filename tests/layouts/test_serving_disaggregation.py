"""Prefill pools, layer and page shards, bounded packing; DCP extend. Figures by hand or from article 004."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layouts.serving.disaggregation import (
    extra_request_slots,
    packs_in_rounds,
    page_shard_gain,
    pool_fits,
    served_tokens_a_gpu,
    split_layers,
)
from layouts.serving.errors import EngineRuleError
from layouts.serving.extend import attended_tokens, gathered_order, received_tokens


def test_layers_go_to_the_first_ranks_first():
    assert split_layers(78, 4) == (20, 20, 19, 19)


@given(layers=st.integers(1, 200), ranks=st.integers(1, 64))
def test_every_layer_has_one_owner(layers, ranks):
    kept = split_layers(layers, ranks)
    assert sum(kept) == layers
    assert max(kept) - min(kept) <= 1


@pytest.mark.parametrize(
    ("max_running", "ranks", "extra"),
    [(32, 1, 64), (33, 1, 0), (512, 16, 64), (528, 16, 0), (8, 16, 2), (None, 1, 0)],
)
def test_slots_for_requests_that_arrive(max_running, ranks, extra):
    """B20: the extra slots are twice the running ones (and come beside them) up to 32 on a rank."""
    assert extra_request_slots(max_running, ranks) == extra


def test_a_shared_prefix_is_held_once():
    """73728 + 4 x 8192 = 106496 and + 5 x 8192 = 114688, against 110464."""
    assert pool_fits(110_464, [73_728], [8_192] * 4)
    assert not pool_fits(110_464, [73_728], [8_192] * 5)
    assert not pool_fits(110_464, [], [81_920] * 2)
    assert pool_fits(100, [40], [60])


def test_page_shards_gain_less_than_their_number():
    assert page_shard_gain(80, 4, 0) == 4.0
    assert page_shard_gain(80, 4, 20) == 2.0  # 80 / (20 + 20)


def test_packing_starts_above_the_buffer():
    assert not packs_in_rounds(10, [3, 2], 50)
    assert packs_in_rounds(10, [3, 2], 49)
    with pytest.raises(EngineRuleError, match="item lengths"):
        packs_in_rounds(10, [], 50)


def test_served_tokens():
    assert served_tokens_a_gpu(3.40, 81_920, 600, 40) == pytest.approx(7014.2)


@given(prefix=st.integers(0, 300), ranks=st.integers(1, 9))
def test_a_gathered_prefix_is_put_in_order(prefix, ranks):
    """Build each rank's part by the owner rule in plain Python, pad, join, and reorder."""
    parts = [[p for p in range(prefix) if p % ranks == rank] for rank in range(ranks)]
    longest = max(map(len, parts))
    buffer = np.array([part + [-1] * (longest - len(part)) for part in parts]).ravel()
    assert buffer[gathered_order(prefix, ranks)].tolist() == list(range(prefix))
    assert attended_tokens(prefix, ranks) == (prefix,) * ranks
    assert [received_tokens(prefix, rank, ranks) for rank in range(ranks)] == [prefix - len(part) for part in parts]
