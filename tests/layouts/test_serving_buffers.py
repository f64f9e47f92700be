"""Buffers and clamps against claims K22, K23, K26 and the practitioners' cases A8, A11, A27, A28, A36."""

import pytest

from layouts.serving.buffers import (
    deepep_buffer_bytes,
    most_dispatch_tokens,
    request_table_bytes,
    slot_map_bytes,
)
from layouts.serving.errors import EngineRuleError
from layouts.serving.requests import (
    Clamp,
    Running,
    admitted_requests,
    requests_that_run,
)

GIB = 2**30


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("tokens", "width", "experts", "gib"),
    [
        (144, 3584, 896, "3.50"),  # K26
        (120, 3584, 896, "2.92"),
        (2048, 5120, 448, "35.55"),  # A28, printed to two decimals
        (1856, 5120, 448, "32.21"),
        (1840, 5120, 448, "31.94"),
        (1536, 5120, 448, "26.66"),
        (128, 7168, 256, "1.78"),
        (256, 7168, 256, "3.55"),
        (512, 7168, 256, "7.11"),
        (1024, 7168, 256, "14.22"),
        (256, 7168, 384, "5.33"),  # A27
    ],
)
def test_deepep_buffer(tokens: int, width: int, experts: int, gib: str) -> None:
    assert f"{deepep_buffer_bytes(tokens, width, experts) / GIB:.2f}" == gib


def test_deepep_buffer_by_hand() -> None:
    # width 128: dispatch 16 + 256, combine 256 + 4; 2 experts, 1 token: send 520, receive 544; counters 128 each
    assert deepep_buffer_bytes(1, 128, 2) == 2 * (520 + 544) + 256
    # 33 experts x 4 B = 132 B of counters, rounded up to 256
    assert deepep_buffer_bytes(1, 128, 33) == 2 * 33 * (260 + 272) + 512


def test_deepep_width_must_hold_whole_scale_groups() -> None:
    with pytest.raises(EngineRuleError, match="multiple"):
        deepep_buffer_bytes(128, 7000, 256)


def test_most_dispatch_tokens() -> None:
    """A28: 1,840 tokens start, 1,856 do not. By hand: width 128, 2 experts: 2,128 B a token, 256 B of counters."""
    assert 1840 <= most_dispatch_tokens(5120, 448) < 1856
    assert most_dispatch_tokens(128, 2) == (16 * (2**31 - 1) - 1 - 256) // 2128


@pytest.mark.parametrize(("slots", "table_gib"), [(33, "0.13"), (209, "0.82")])
def test_article_request_table(slots: int, table_gib: str) -> None:
    assert f"{request_table_bytes(slots, 1_048_576) / GIB:.2f}" == table_gib


def test_article_slot_map() -> None:
    assert f"{slot_map_bytes(21_500_000) / GIB:.2f}" == "0.16"
    assert f"{slot_map_bytes(3_192_000) / GIB:.2f}" == "0.02"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        # A8: 257 state slots, 5 a request; A11: 429 slots; A36: 40 slots
        ((2048, 1, 1_167_552, 9216, 257, 5), Running(51, Clamp.STATE)),
        ((2048, 1, 5_890_560, 9216, 429, 5), Running(85, Clamp.STATE)),
        ((64, 1, 10**6, 1000, 40, 5), Running(8, Clamp.STATE)),
        ((384, 16, 3_190_000, 100_000, None, 1), Running(24, Clamp.MAX_RUNNING)),
        ((384, 16, 3_190_000, 400_000, 33, 1), Running(7, Clamp.KV)),
        ((8, 16, 10**9, 1000, None, 1), Running(1, Clamp.MAX_RUNNING)),
        ((100, 1, 0, 1000, None, 1), Running(0, Clamp.KV)),
        ((24, 1, 24_000, 1000, 24, 1), Running(24, Clamp.MAX_RUNNING)),
    ],
)
def test_the_clamp_that_binds(arguments: tuple[int, int, int, int, int | None, int], expected: Running) -> None:
    assert requests_that_run(*arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        # without a limit: 512 x 32,000 / 4,096 = 4,000; then the two ends of the estimate
        ((None, 1, 32_000, 4096), Running(4000, Clamp.ESTIMATE)),
        ((None, 1, 10**6, 262_144), Running(2048, Clamp.ESTIMATE)),
        ((None, 8, 10**7, 4096), Running(4096, Clamp.ESTIMATE)),
        ((None, 1, 3000, 4096), Running(1500, Clamp.KV)),
        ((1000, 4, 10**6, 4096), Running(250, Clamp.MAX_RUNNING)),
        ((1000, 4, 401, 4096), Running(200, Clamp.KV)),
        ((10_000, 1, 10**6, 4096), Running(10_000, Clamp.MAX_RUNNING)),
        ((1000, 4, 10**6, 4096, 1000, 5), Running(200, Clamp.STATE)),
        # a state pool for just as many does not bind
        ((1000, 4, 10**6, 4096, 1250, 5), Running(250, Clamp.MAX_RUNNING)),
    ],
)
def test_admitted_requests(arguments: tuple[int | None, int, int, int], expected: Running) -> None:
    assert admitted_requests(*arguments) == expected


def test_without_a_limit_the_context_decides() -> None:
    # 8 ranks of 8,000 tokens under DCP: half of one rank's is 4,000, 512 x 8,000 / 1,000 = 4,096
    assert requests_that_run(None, 1, 64_000, 10, context=1000, dcp=8) == Running(4000, Clamp.KV)
    assert requests_that_run(None, 1, 640_000, 10, context=1000, dcp=8) == Running(4096, Clamp.ESTIMATE)
    assert requests_that_run(None, 1, 640_000, 1000, context=1000, dcp=8) == Running(640, Clamp.KV)
    with pytest.raises(EngineRuleError, match="context"):
        requests_that_run(None, 1, 64_000, 10)
