"""KV pools of a rank against start-up logs that were published, and by hand against SGLang's rules."""

import pytest

from layouts.serving.errors import EngineRuleError
from layouts.serving.pools import (
    WindowPools,
    kv_tokens,
    least_mem_fraction,
    pools_beside_window,
    rest_for_pools,
    token_bytes,
    window_pools,
    window_tokens_needed,
)

GIB = 2**30


@pytest.mark.parametrize(
    ("tokens", "page", "cell", "gib"),
    [
        (161_488, 1, 61 * 1152, "10.57"),  # A1: MLA in bf16
        (524_288, 64, 61 * 576, "17.16"),  # A16: MLA in fp8
        (975_424, 64, 61 * (656 + 132), "43.67"),  # A6: sparse attention in fp8, index keys beside it
        (367_404, 1, 94 * 128 * 2, "8.23"),  # A22: one KV head a rank in bf16; as much again for V
    ],
)
def test_the_tokens_that_a_log_prints(tokens: int, page: int, cell: int, gib: str) -> None:
    assert f"{tokens * cell / GIB:.2f}" == gib
    assert kv_tokens(tokens * cell, cell, page) == tokens
    assert kv_tokens(tokens * cell - 1, cell, page) == tokens - page
    assert kv_tokens((tokens + page) * cell - 1, cell, page) == tokens


def test_a_log_from_free_memory_to_its_pools() -> None:
    """A15: 50.01 GiB free, 28.47 of weights, fraction 0.85, 100 MiB for images: 38.14 GiB, and the pools take 38.08."""
    rest = rest_for_pools(50.01 * GIB, (50.01 + 28.47) * GIB, 0.85, 100 * 2**20)
    pools = 125 * 153_944_064 + 330_323 * 65_536
    assert rest / GIB == pytest.approx(38.14, abs=0.005)
    assert pools / rest == pytest.approx(1, abs=0.002)


def test_weights_beyond_their_share() -> None:
    # 180 GiB before and 30 after the weights: fraction 0.8 asks 36 GiB free, 1 - 30 / 180 = 0.8333 rounds up
    assert rest_for_pools(30 * GIB, 180 * GIB, 0.8) == pytest.approx(-6 * GIB)
    assert least_mem_fraction(30 * GIB, 180 * GIB) == 0.834
    assert least_mem_fraction(0, 180) == 1.0
    for free_now, free_before in ((30, 20), (-1, 20), (0, 0)):
        with pytest.raises(EngineRuleError, match="between 0"):
            least_mem_fraction(free_now, free_before)


def test_limits_and_pages() -> None:
    assert kv_tokens(1000, 2, page=64) == 448
    assert kv_tokens(1000, 2, page=64, max_total_tokens=300) == 256
    assert kv_tokens(1000, 2, page=64, max_total_tokens=10**6) == 448
    assert kv_tokens(1000, 2, scratch_bytes=300) == 350
    assert kv_tokens(2, 2) == 1
    with pytest.raises(EngineRuleError, match="hold no page"):
        kv_tokens(127, 2, page=64)
    with pytest.raises(EngineRuleError, match="hold no page"):
        kv_tokens(1000, 2, page=64, max_total_tokens=63)
    with pytest.raises(EngineRuleError, match="hold no page"):
        kv_tokens(-5.0, 2)


def test_a_draft_of_the_models_own_layers() -> None:
    assert token_bytes(61 * 1152, 61) == 61 * 1152
    assert token_bytes(61 * 1152, 61, draft_layers=1) == 62 * 1152
    # the engine counts a draft under DCP once, although its pool spans all of the group's tokens
    assert token_bytes(61 * 1152, 61, draft_layers=1, dcp=8) == 62 * 1152
    # 7 / 3 of a layer rounds down
    assert token_bytes(7, 3, draft_layers=1) == 9


def test_index_keys_and_the_draft_are_whole_on_every_rank_under_dcp() -> None:
    sparse = {"index_bytes": 78 * 132, "draft_layers": 1, "draft_index_bytes": 132}
    assert token_bytes(78 * 656, 78, **sparse) == 79 * (656 + 132)
    assert token_bytes(78 * 656, 78, **sparse, dcp=4) == 78 * 656 + 4 * (78 * 132 + 656 + 132)


# gpt-oss-120b, one GPU, bf16: 18 layers of each kind, 8 KV heads of 64, K and V; window 128
GPT_OSS = 18 * 8 * 64 * 2 * 2


def test_full_and_sliding_layers_by_hand() -> None:
    # 36,864 B x 1.8 a token: 20 GiB hold 323,634; 0.8 x of them for the window
    assert window_pools(20 * GIB, GPT_OSS, GPT_OSS, 128) == WindowPools(323_634, 258_907)
    # pages of 64: 5,056 whole ones of 323,634; then 4,044 of 258,867.2
    assert window_pools(20 * GIB, GPT_OSS, GPT_OSS, 128, page=64) == WindowPools(323_584, 258_816)
    # ratio 0.1: 21,474,836,480 / (1.1 x 36,864) = 529,583.8
    assert window_pools(20 * GIB, GPT_OSS, GPT_OSS, 128, ratio=0.1) == WindowPools(529_583, 52_958)
    limited = window_pools(20 * GIB, GPT_OSS, GPT_OSS, 128, max_total_tokens=1000)
    assert limited == WindowPools(1000, 800)
    # a draft layer that keeps every token: 100 / (4 + 1 + 0.5 x 10)
    assert window_pools(10_000, 4, 10, 8, ratio=0.5, whole_draft_bytes=1) == WindowPools(1000, 500)


def test_only_sliding_layers() -> None:
    pools = window_pools(1000, 0, 2, 100)
    assert pools == WindowPools(0, 500)
    assert pools.total == 500
    # a draft that keeps every token of the window's pool
    assert window_pools(1200, 0, 2, 100, whole_draft_bytes=1) == WindowPools(0, 400)
    assert WindowPools(7, 5).total == 7


def test_a_window_that_admits_nothing_is_refused() -> None:
    # the window's pool must exceed window + page: 0.8 x 162 = 129 slots do not
    with pytest.raises(EngineRuleError, match="swa-full-tokens-ratio"):
        window_pools(162 * 18, 10, 10, 128)
    assert window_pools(163 * 18, 10, 10, 128).window == 130
    assert window_pools(20_000, 10, 10, 128, ratio=1) == WindowPools(1000, 1000)
    for ratio in (0, 1.5):
        with pytest.raises(EngineRuleError, match="in \\(0, 1\\]"):
            window_pools(1e9, 10, 10, 128, ratio=ratio)


def test_a_window_pool_for_the_requests_alone() -> None:
    # each 128 + 128 + 1 + 1; two chunks of 100 and a page
    assert window_tokens_needed(4, 128, chunk=100) == 4 * 258 + 201
    assert window_tokens_needed(4, 128, chunk=100, overlap=False) == 4 * 258 + 101
    # decode, 4 rows verified, 2 x 4 allocated a step, 8 arriving: 4 x (128 + 512 + 1 + 8) + 8 x 129
    assert window_tokens_needed(4, 128, verify_width=4, step_tokens=8, extra_slots=8) == 3628
    # whole pages: 1 x (128 + 128 + 64 + 64) + 10 + 64 = 458 -> 512
    assert window_tokens_needed(1, 128, page=64, chunk=5) == 512
    assert pools_beside_window(10_000, 4, 2, 1000) == WindowPools(2000, 1000)
    with pytest.raises(EngineRuleError, match="hold no page"):
        pools_beside_window(2000, 4, 2, 1000)
