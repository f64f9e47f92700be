"""Blocks, capacity and the logged figures of vLLM's pool, against start-up logs."""

import pytest

from layouts.serving.errors import EngineRuleError
from layouts.serving.vllm_capacity import (
    Capacity,
    Pool,
    capacity,
    logged_tokens,
    logged_tokens_by_groups,
    longest_request,
    max_concurrency,
    pool,
    require_one_request,
)
from layouts.serving.vllm_groups import Group, Request, groups
from layouts.serving.vllm_pages import Cache, Kind
from tests.layouts.vllm_pages_oracle import attention_token_bytes, state_bytes

GIB = 2**30


def attention(layers: int, kv_heads: int, tp: int, *, block: int = 16) -> tuple[Group, ...]:
    """Attention with heads of 128 in two bytes."""
    return groups([Cache(Kind.FULL, layers, block, block * attention_token_bytes(kv_heads, tp, 128, 2))])


def test_dense_model_of_two_logs() -> None:
    # vllm#10517: 3.81 GiB are 1,952 blocks and 1.56x at 20,000 tokens; 2.89 GiB 1,478 blocks and 0.82x at 29,000
    planned = attention(32, 8, 1)
    for gib, blocks, length, concurrency in ((3.81, 1952, 20_000, 1.56), (2.89, 1478, 29_000, 0.82)):
        low, high = (pool(planned, int((gib + step) * GIB)).blocks for step in (-0.005, 0.005))
        assert low <= blocks <= high
        assert round(max_concurrency(Pool(planned, blocks), Request(length)), 2) == concurrency
    require_one_request(Pool(planned, 1952), Request(20_000))
    # the log of that version says 23,648 tokens; 0.33.0 holds one block back
    with pytest.raises(EngineRuleError, match=f"set --max-model-len to {23_648 - 16} or less"):
        require_one_request(Pool(planned, 1478), Request(29_000))


@pytest.mark.parametrize(("gib", "estimate"), [(48.66, 205_728), (55.65, 235_296)])
def test_estimated_maximum_length_is_one_block_below_earlier_versions(gib: float, estimate: int) -> None:
    # recipes#12 (0.10.1): 62.00 GiB are needed for 262,144 tokens of 62 layers with 8 KV heads
    planned, request = attention(62, 8, 1), Request(262_144)
    low, high = (pool(planned, int((gib + step) * GIB)).blocks for step in (-0.005, 0.005))
    assert low <= estimate // 16 <= high
    with pytest.raises(EngineRuleError, match=f"262144 tokens needs 62.00 GiB.* --max-model-len to {estimate - 16} or"):
        require_one_request(Pool(planned, estimate // 16), request)


def test_the_log_of_one_rank_beside_the_blocks_of_another() -> None:
    # vllm#21348: 8.11 GiB and 178,880 tokens, 48,128 B a token: 1.15 % more than the tokens take
    planned = attention(94, 4, 4)
    reported = 178_880 // 16
    assert reported * 16 == 178_880
    # neither the rounding to 0.01 GiB nor that to blocks explains 120 blocks
    assert pool(planned, int(8.105 * GIB)).blocks - reported > 120
    # every rank gets the blocks of the one with the least memory, 8.018 GiB here
    assert pool(planned, int(8.0182 * GIB)).blocks == reported


def test_context_parallelism_multiplies_tokens() -> None:
    # recipes#115: 46.80 GiB of latent KV in blocks of 64 are 715,072 tokens at TP 8, eight times that with DCP 8
    planned = groups([Cache(Kind.FULL, 61, 64, 64 * 1152, latent=True)])
    whole = pool(planned, int(46.80 * GIB))
    assert whole.blocks * 64 == 715_072
    assert logged_tokens_by_groups(whole) == 715_072
    assert logged_tokens_by_groups(whole, dcp=8) == 8 * 715_072
    # the longest request is a multiple of the block on every rank
    assert logged_tokens(whole, Request(64 * 8 * 100, dcp=8)) == 8 * 715_072


def test_hybrid_model_logs_concurrency_times_length() -> None:
    # talos-argocd-proxmox#1995: 302,921 tokens, 2.31x at 131,072, 4.99 GiB a rank; blocks of 1,568 tokens
    state = state_bytes(channels=2 * 16 * 128 + 48 * 128, kernel=4, state=48 * 128 * 128, tp=2)
    token = attention_token_bytes(4, 2, 256, 1)
    planned = groups([Cache(Kind.FULL, 16, 1568, 1568 * token), Cache(Kind.STATE, 48, 1568, state, slots=2)])
    whole, request = pool(planned, int(4.99 * GIB)), Request(131_072)
    assert whole.blocks == 208
    assert round(max_concurrency(whole, request), 2) == 2.31
    assert logged_tokens(whole, request) == 302_921
    # two requests run, not 2.31; and one of 262,144 tokens fits, as the report says: 168 + 6 of 207 blocks
    assert capacity(whole, request) == Capacity(2, 2 * 131_072)
    require_one_request(whole, Request(262_144))
    assert longest_request(whole, Request(10**6)) == (207 - 6) * 1568


def test_logs_before_concurrency_times_length() -> None:
    # vllm#28228 (0.11): 2.30 GiB, 75,840 tokens and yet 2.48x at 120,000
    planned = groups([Cache(Kind.FULL, 7, 960, 960 * 1152, latent=True), Cache(Kind.STATE, 20, 960, 1_085_440)])
    whole = pool(planned, int(2.296 * GIB))
    assert whole.blocks == 318
    assert logged_tokens_by_groups(whole) == 75_840
    assert round(max_concurrency(whole, Request(120_000)), 2) == 2.48
    assert capacity(whole, Request(120_000)) == Capacity(2, 240_000)
    # vllm#40691 (0.19.0): 290,864 tokens and 33.04x at 32,768; blocks of 784 tokens hold a state at TP 1
    planned = groups([Cache(Kind.FULL, 16, 784, 784 * 4096), Cache(Kind.STATE, 48, 784, 3_207_168)])
    assert logged_tokens_by_groups(Pool(planned, 1487)) == 290_864
    assert round(max_concurrency(Pool(planned, 1487), Request(32_768)), 2) == 33.04


@pytest.mark.parametrize(("block", "token", "slots", "blocks"), [(384, 1152, 2, 350), (768, 576, 1, 175)])
def test_states_under_context_parallelism(block: int, token: int, slots: int, blocks: int) -> None:
    # A Kimi K3 log at TP 16 and DCP 8: 1,054,602 tokens, 1.01x at 1,048,576. KV of two bytes with aligned states and
    # KV of one byte without a prefix cache give the same figures: the log does not tell which of the two ran.
    state = state_bytes(channels=3 * 96 * 128, kernel=4, state=96 * 128 * 128, tp=16)
    page = block * token
    planned = groups([Cache(Kind.FULL, 24, block, page, latent=True), Cache(Kind.STATE, 69, block, state, slots=slots)])
    assert [group.layers for group in planned] == [24, 23, 23, 23]
    request = Request(1_048_576, dcp=8)
    assert logged_tokens(Pool(planned, blocks), request) == 1_054_602
    assert round(max_concurrency(Pool(planned, blocks), request), 2) == 1.01
    assert capacity(Pool(planned, blocks), request).requests == 1


def test_a_length_that_prefill_workers_cannot_hold() -> None:
    # dynamo#10104: 131,072 tokens written for workers of a 70B model; at TP 2 one request takes 20 GiB a GPU
    planned = attention(80, 8, 2)
    with pytest.raises(EngineRuleError, match=r"131072 tokens needs 20\.00 GiB"):
        require_one_request(pool(planned, 4 * GIB), Request(131_072))
    # 4 GiB are 1,638 blocks of 2.5 MiB, one of them held back
    assert longest_request(pool(planned, 4 * GIB), Request(131_072)) == 1637 * 16
    require_one_request(pool(planned, 20 * GIB + 5 * 2**19), Request(131_072))
    with pytest.raises(EngineRuleError):
        require_one_request(pool(planned, 20 * GIB), Request(131_072))


def test_override_replaces_the_measured_blocks() -> None:
    planned = attention(32, 8, 1)
    assert pool(planned, 0, override=64).blocks == 64
    assert longest_request(pool(planned, 0, override=64), Request(10_000)) == 63 * 16
    with pytest.raises(EngineRuleError, match="num_gpu_blocks_override is 0"):
        pool(planned, GIB, override=0)


def test_an_empty_pool_says_so() -> None:
    planned = attention(32, 8, 1)
    with pytest.raises(EngineRuleError, match="no memory is left for KV blocks"):
        require_one_request(pool(planned, 2**21), Request(16))
    assert longest_request(pool(planned, 2**21), Request(16)) == 0
    require_one_request(pool(planned, 2 * 2**21), Request(16))
