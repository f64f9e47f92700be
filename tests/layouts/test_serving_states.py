"""State pools against start-up logs that were published, and by hand against SGLang's rule.

A log gives slots and tokens, not the bytes they were sized from. Those follow within one token from what it printed, so
that the split in two pools is what is tested: the cases A8, A11, A13 and A15 of the practitioners' list.
"""

import pytest

from layouts.serving.errors import EngineRuleError
from layouts.serving.pools import kv_tokens
from layouts.serving.requests import Clamp, Running, admitted_requests
from layouts.serving.states import (
    StateCache,
    StateDemand,
    StatePool,
    balanced_ratio,
    decode_state_slots,
    state_pool,
    state_slots_a_request,
)

GIB = 2**30


def _slot(layers: int, heads: int, conv_channels: int) -> tuple[int, int]:
    """(convolution in bf16 over 3 past tokens, 128 x 128 recurrent state in fp32) of a slot, in bytes."""
    return layers * conv_channels * 3 * 2, layers * heads * 128 * 128 * 4


# conv and recurrent bytes a slot, slots, tokens, bytes a token, and what the log printed of them in GiB
LOGS = {
    # SGLang's compute-mamba-ratio, TP8: 69 KDA layers of 96 heads, 24 MLA layers in fp8
    "A8": (_slot(69, 12, 3 * 12 * 128), 257, 1_167_552, 24 * 576, ("0.46", "13.04", "15.03")),
    # SGLang's hybrid_model_memory, TP2: 34 KDA layers; 5,995 B a token is the log's 32.89 GiB over its tokens
    "A11": (_slot(34, 32, 3 * 32 * 128), 429, 5_890_560, 5995, ("1.00", "28.55", "32.89")),
    # Ling-3.0-tiny, one GPU: 18 KDA layers of 16 heads, 6 MLA layers in bf16. The command beside the log gives
    # max-mamba-cache-size 64 and pages of 64; the log has neither, so it belongs to another run.
    "A13": (_slot(18, 16, 3 * 16 * 128), 614, 1_933_682, 6 * 1152, ("0.38", "10.81", "12.45")),
    # Qwen3.8-27B-FP8, one H100: 48 GDN layers (2 x 16 x 128 + 48 x 128 channels), 16 layers of 4 KV heads of 256
    "A15": (_slot(48, 48, 10_240), 124, 330_323, 16 * 2 * 4 * 256 * 2, ("0.34", "17.58", "20.16")),
}


@pytest.mark.smoke
@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
def test_a_log_is_split_in_two_pools(log: tuple[tuple[int, int], int, int, int, tuple[str, str, str]]) -> None:
    (conv, recurrent), slots, tokens, token_bytes, printed = log
    whole = (slots + 1) * (conv + recurrent) + tokens * token_bytes
    pool = state_pool(whole, StateDemand(conv + recurrent))
    assert pool == StatePool(slots, (slots + 1) * (conv + recurrent), 0)
    assert kv_tokens(whole - pool.deducted, token_bytes) == tokens
    parts = ((slots + 1) * conv, (slots + 1) * recurrent, tokens * token_bytes)
    assert tuple(f"{part / GIB:.2f}" for part in parts) == printed


@pytest.mark.parametrize(
    ("slots", "cap"),
    [(257, 51), (451, 90), (474, 94), (429, 85), (124, 24), (40, 8)],  # A8 (three logs), A11, A15, A36
)
def test_the_cap_that_logs_print(slots: int, cap: int) -> None:
    held = state_slots_a_request(StateCache.EXTRA_BUFFER)
    assert admitted_requests(2048, 1, 300_000, 262_144, slots, held) == Running(cap, Clamp.STATE)


def test_a_pool_of_two_million_tokens_admits_33() -> None:
    # A35: 33 requests at 2,086,558 tokens; 5 slots a request make that 165 to 169 slots
    for slots in (165, 169):
        assert admitted_requests(None, 1, 2_086_558, 256_000, slots, 5) == Running(33, Clamp.STATE)


@pytest.mark.parametrize(
    ("cache", "overlap", "skip", "slots"),
    [
        # the table of SGLang's compute-mamba-ratio
        (StateCache.OFF, True, False, 1),
        (StateCache.OFF, True, True, 1),
        (StateCache.NO_BUFFER, False, False, 3),
        (StateCache.NO_BUFFER, False, True, 3),
        (StateCache.EXTRA_BUFFER, True, False, 5),
        (StateCache.EXTRA_BUFFER, True, True, 4),
        (StateCache.EXTRA_BUFFER, False, False, 4),
        (StateCache.EXTRA_BUFFER, False, True, 3),
        (StateCache.EXTRA_BUFFER_LAZY, True, False, 4),
        (StateCache.EXTRA_BUFFER_LAZY, True, True, 3),
    ],
)
def test_slots_a_request(cache: StateCache, overlap: bool, skip: bool, slots: int) -> None:
    assert state_slots_a_request(cache, overlap=overlap, skip_decode_lock=skip) == slots


def test_lazy_slots_need_overlap() -> None:
    with pytest.raises(EngineRuleError, match="take extra_buffer"):
        state_slots_a_request(StateCache.EXTRA_BUFFER_LAZY, overlap=False)


K3_SLOT = sum(_slot(69, 12, 3 * 12 * 128))
K3_TOKEN = 24 * 576


@pytest.mark.parametrize(
    ("gb", "ratio", "dcp", "state_cap", "kv_cap"),
    [
        # A10: the document gives caps and no bytes. One figure for each of its two set-ups meets all six.
        (31.0, 1.8, 1, 88, 87),
        (30.37, 14.0, 8, 125, 129),
        (30.37, 1.8, 8, 86, 683),
    ],
)
def test_caps_at_the_balanced_ratio(gb: float, ratio: float, dcp: int, state_cap: int, kv_cap: int) -> None:
    demand = StateDemand(K3_SLOT, slots_a_request=state_slots_a_request(StateCache.EXTRA_BUFFER_LAZY))
    pool = state_pool(gb * 1e9, demand, ratio=ratio)
    assert pool.slots // 4 == state_cap
    assert kv_tokens(gb * 1e9 - pool.deducted, K3_TOKEN) * dcp // 9216 == kv_cap


def test_balanced_ratio() -> None:
    """A10 rounds a slot to 4,080 tokens, which gives 1.8 and 14; the exact 4,063.3 gives 1.764 and 14.1."""
    demand = StateDemand(K3_SLOT, slots_a_request=4)
    assert balanced_ratio(demand, K3_TOKEN, 9216) == pytest.approx(4 * 4063.33 / 9216, rel=1e-5)
    assert balanced_ratio(demand, K3_TOKEN, 9216, dcp=8) == pytest.approx(14.1, abs=0.01)
    assert balanced_ratio(demand, K3_TOKEN, 9216) == pytest.approx(4 * 4080 / 9216, rel=0.005)
    # 4 slots and 4 intermediate states of 10 B, 2 B a token, 20 tokens: 8 x 5 / 20
    assert balanced_ratio(StateDemand(10, verify_width=4, slots_a_request=4), 2, 20) == 2.0
    with pytest.raises(EngineRuleError, match="tokens_a_request"):
        balanced_ratio(demand, K3_TOKEN, 0)


def test_slots_given_are_shared_by_the_groups() -> None:
    # 40 slots over 2 groups, 21 allocated of 10 + 3 B
    assert state_pool(1e6, StateDemand(10, ring_bytes_a_slot=3), max_slots=40, attn_dp=2) == StatePool(20, 273, 0)
    # min(8 / 2 requests, 20 slots / 5) = 4, and a sink: 5 x 10 B x 4 rows
    speculative = StateDemand(10, verify_width=4, slots_a_request=5)
    assert state_pool(1e6, speculative, max_slots=40, attn_dp=2, max_running=8) == StatePool(20, 210, 200)
    assert state_pool(1e6, speculative, max_slots=40, attn_dp=2, max_running=6).intermediate_bytes == 160
    # without a prefix cache too, slots given come first
    assert state_pool(1e6, speculative, max_slots=40, max_running=6, prefix_cache=False).slots == 40


def test_without_a_prefix_cache_each_request_has_a_slot() -> None:
    assert state_pool(1e6, StateDemand(10), max_running=9, attn_dp=2, prefix_cache=False) == StatePool(4, 50, 0)
    assert state_pool(1e6, StateDemand(10), max_running=1, attn_dp=2, prefix_cache=False) == StatePool(1, 20, 0)
    speculative = StateDemand(10, verify_width=4, slots_a_request=5)
    assert state_pool(1e6, speculative, max_running=9, attn_dp=2, prefix_cache=False) == StatePool(4, 50, 200)


def test_intermediate_states_share_the_ratio() -> None:
    """Half of 2,000 B: (1000 - 10 x 5 - 2) // (10 x (1 + 4 / 5) + 2) = 948 // 20 = 47 slots."""
    demand = StateDemand(10, ring_bytes_a_slot=2, verify_width=4, slots_a_request=5)
    pool = state_pool(2000, demand, ratio=1, max_running=100)
    assert pool == StatePool(47, 48 * 12, 10 * (47 // 5 + 1) * 4)
    assert pool.deducted == 48 * 12 + 400 <= 1000
    # a lower limit on requests deducts less than was reckoned with
    assert state_pool(2000, demand, ratio=1, max_running=3) == StatePool(47, 48 * 12, 160)


def test_replay_scratch_comes_off_the_share() -> None:
    # half of 2,000 B: (1000 - 100 - 10) // 10
    assert state_pool(2000, StateDemand(10, fixed_bytes=100), ratio=1) == StatePool(89, 1000, 0)
    # a ring in each slot: (1000 - 10 - 2) // 12, and a limit on requests changes nothing
    ring = StateDemand(10, ring_bytes_a_slot=2)
    assert state_pool(2000, ring, ratio=1, max_running=8) == StatePool(82, 996, 0)
    with pytest.raises(EngineRuleError, match="ReplaySSM"):
        StateDemand(10, fixed_bytes=100, verify_width=4)


def test_a_pool_without_a_slot_is_refused() -> None:
    with pytest.raises(EngineRuleError, match="no state slot"):
        state_pool(2 * K3_SLOT, StateDemand(K3_SLOT))
    with pytest.raises(EngineRuleError, match="max_running"):
        state_pool(1e9, StateDemand(10, verify_width=4))
    with pytest.raises(EngineRuleError, match="above 0"):
        state_pool(1e9, StateDemand(10), ratio=0)


def test_a_decode_server_holds_a_slot_for_every_request_that_may_come() -> None:
    assert decode_state_slots(16, 16, 32) == 48
    assert decode_state_slots(100, 16, 32) == 100
    assert decode_state_slots(100, 16, 32, tracking=2) == 144
