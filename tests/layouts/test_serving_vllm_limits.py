"""Default limits and captured graph sizes of vLLM, by hand from its rules and against logs."""

import pytest

from layouts.serving.errors import EngineRuleError
from layouts.serving.vllm_limits import WIDE_GRAPHS, Context, Limits, capture_sizes, default_limits, in_flight_tokens

GIB = 2**30
LONG = 131_072


@pytest.mark.parametrize(
    ("gib", "context", "expected"),
    [
        (180, Context.SERVER, (16384, 1024)),
        (180, Context.OFFLINE, (16384, 1024)),
        (160, Context.SERVER, (16384, 1024)),
        (139, Context.SERVER, (8192, 1024)),
        (79, Context.OFFLINE, (16384, 1024)),
        (70, Context.SERVER, (8192, 1024)),
        (69, Context.SERVER, (2048, 256)),
        (24, Context.OFFLINE, (8192, 256)),
    ],
)
def test_defaults_by_memory_and_context(gib: int, context: Context, expected: tuple[int, int]) -> None:
    assert default_limits(gib * GIB, LONG, context=context) == Limits(*expected)


def test_flags_and_modes_change_the_defaults() -> None:
    chip = 80 * GIB
    assert default_limits(chip, LONG, slow_prefill=True) == Limits(2048, 256)
    assert default_limits(160 * GIB, LONG, slow_prefill=True) == Limits(16384, 1024)
    assert default_limits(chip, LONG, throughput=True) == Limits(16384, 2048)
    assert default_limits(chip, LONG, throughput=True, tokens=4096) == Limits(4096, 2048)
    # a step holds a whole prompt without chunks, 256 tokens with experts in batches; requests follow the tokens
    assert default_limits(chip, LONG, chunked_prefill=False) == Limits(LONG, 1024)
    assert default_limits(chip, LONG, batched_experts=True) == Limits(256, 256)
    # no more than all requests can have; a given number of requests is not lowered
    assert default_limits(chip, 512, requests=4) == Limits(2048, 4)
    assert default_limits(chip, LONG, requests=500, tokens=100) == Limits(100, 500)
    with pytest.raises(EngineRuleError, match="max_num_seqs is -1"):
        default_limits(chip, LONG, requests=-1)


def test_tokens_in_flight() -> None:
    # vllm#52495: 8,192, "doubled under async scheduling"
    assert in_flight_tokens(8192) == 16_384
    assert in_flight_tokens(8192, async_scheduling=False) == 8192
    assert in_flight_tokens(8192, pp=3) == 4 * 8192
    assert in_flight_tokens(8192, pp=3, v2_runner=False) == 3 * 8192
    assert in_flight_tokens(8192, v2_runner=False) == 2 * 8192


def test_graph_sizes_of_a_server() -> None:
    sizes = capture_sizes(Limits(8192, 1024))
    # 1, 2, 4; 8 to 248 by 8; 256 to 512 by 16
    assert sizes == (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
    assert len(sizes) == 3 + 31 + 17
    assert capture_sizes(Limits(8192, 1024), ceiling=WIDE_GRAPHS)[-1] == 1024


def test_graph_sizes_follow_the_limits() -> None:
    # twice the requests, and the requests themselves
    assert capture_sizes(Limits(8192, 5)) == (1, 2, 4, 5, 8)
    assert capture_sizes(Limits(8192, 1)) == (1, 2)
    # the largest step, where it is within the bound
    assert capture_sizes(Limits(20, 16)) == (1, 2, 4, 8, 16, 20)
    assert capture_sizes(Limits(8192, 4), interactive=True) == tuple(range(1, 9))


def test_graph_sizes_of_drafts_are_whole_requests() -> None:
    sizes = capture_sizes(Limits(8192, 10), query=5)
    # up to 2 x 10 x 5 tokens by 8; 1, 2, 4, 8 and 10 requests of 5 tokens
    assert sizes == tuple(sorted({1, 2, 4, *range(8, 101, 8)} | {5, 10, 20, 40, 50}))
    # beyond the ceiling there are none: 512 / 17 is 30.1, so 24 requests of 17 tokens are the most of a stride of 8
    sizes = capture_sizes(Limits(8192, 512), query=17)
    assert max(n for n in sizes if n % 17 == 0 and n % 8 == 0) == 24 * 17
    assert sizes[-1] == 512


def test_graph_sizes_by_flag() -> None:
    assert capture_sizes(Limits(8192, 1024), largest=24) == (1, 2, 4, 8, 16, 24)
    assert capture_sizes(Limits(8192, 3), largest=20) == (1, 2, 4, 8, 16)
    assert capture_sizes(Limits(64, 8), explicit=[64, 1, 128, 1]) == (1, 64)
    assert capture_sizes(Limits(64, 8), explicit=[1, 64], largest=64) == (1, 64)
    with pytest.raises(EngineRuleError, match="leave one of the two flags out"):
        capture_sizes(Limits(64, 8), explicit=[1, 64, 128], largest=128)
    with pytest.raises(EngineRuleError, match="drop the others"):
        capture_sizes(Limits(64, 8), explicit=[0, 8])
    with pytest.raises(EngineRuleError, match="max_cudagraph_capture_size is 0"):
        capture_sizes(Limits(64, 8), largest=0)


def test_a_size_beyond_any_step_is_refused_at_once() -> None:
    with pytest.raises(EngineRuleError, match="--max-cudagraph-capture-size below 4194304"):
        capture_sizes(Limits(10**18, 8), largest=10**18)
