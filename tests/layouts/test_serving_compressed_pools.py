"""Pools of compressed attention in SGLang, against start-up logs, public derivations and the source's rule by hand."""

from fractions import Fraction

import pytest

from layouts.serving.compressed_pools import (
    CompressedLayers,
    compressed_pools,
    token_bytes_older,
    window_cap,
)
from layouts.serving.errors import EngineRuleError

FLASH = CompressedLayers(43, 21, 20, row=584, head=512, index=128, index_row=132)
PRO = CompressedLayers(61, 30, 31, row=584, head=512, index=128, index_row=132)
GIB = 2**30


def test_bytes_a_token_of_public_derivations() -> None:
    """Two public notes on the source: 23,749.84 B for the larger model, its draft's layer among the 62 with a window,
    and for the smaller, once states of ratio 128 were kept by request, terms that add up to about 7,705 B."""
    with_draft = CompressedLayers(62, 30, 31, row=584, head=512, index=128, index_row=132)
    assert float(token_bytes_older(with_draft)) == pytest.approx(23_749.8375, abs=1e-4)
    terms = 2511 + 3066 + 91 + 693 + 1075 + 269
    assert float(token_bytes_older(FLASH, states_by_request=True)) == pytest.approx(terms, abs=2)


def test_tokens_with_and_without_a_draft_of_one_report() -> None:
    """sglang#28620, 8 x L20: 120,576 tokens, and 73,472 with a draft, whose weights came after the pools: both are
    whole pages of the same bytes. Its weights of 35.52 GiB and share of 0.85 then leave 43.89 GiB free at first."""
    plain, drafted = token_bytes_older(FLASH), token_bytes_older(FLASH, drafts=True)
    least, most = max(120_576 * plain, 73_472 * drafted), min(120_832 * plain, 73_728 * drafted)
    assert least < most
    assert float(least) / GIB == pytest.approx(1.786, abs=0.001)
    assert (35.52 + float(least) / GIB) / 0.85 == pytest.approx(43.89, abs=0.01)


def test_pools_by_hand() -> None:
    """Pages of 256, 64 and 2 rows are padded to 149,760, 37,440 and 1,728 bytes."""
    token = 21 * (Fraction(37_440, 256) + 33) + 20 * Fraction(1728, 256)
    slot = 43 * 585 + Fraction(8, 256) * 21 * 4 * 640 * 4
    # 9 slots of 128 rows and one ring and a row more, in whole rows of 128
    state = 1408 * 20 * 1024 * 4
    found = compressed_pools(2 * GIB, FLASH, 8, window_slots=None)
    assert (found.token_bytes, found.window_bytes, found.state_bytes) == (token, slot, state)
    assert found.tokens == int((2 * GIB - state) / (token + slot / 10)) // 256 * 256
    assert found.window_slots == found.tokens // 10 // 256 * 256
    capped = compressed_pools(2 * GIB, FLASH, 8, window_slots=20_480)
    assert capped.tokens == int((2 * GIB - state - 20_480 * slot) / token) // 256 * 256
    assert capped.window_slots == 20_480


def test_pages_of_a_log() -> None:
    """sglang#26783 (the larger model): pages of ratio 128 of 1,728 bytes, states of ratio 4 of 16 x 4 KiB a page."""
    found = compressed_pools(40 * GIB, PRO, 8, window_slots=None, drafts=True)
    of_a_page = 30 * (37_440 + 64 * 132) + 31 * 1728
    assert found.token_bytes * 256 == Fraction(62, 61) * of_a_page
    states = found.window_bytes / Fraction(62, 61) * 256 - 61 * 149_760
    assert states == 30 * (16 * 8192 + 16 * 2048)


def test_rows_of_another_packing() -> None:
    """528 bytes in pages of 512: 135,168, 33,792 and 1,536 bytes for 256, 64 and 2 rows."""
    packed = CompressedLayers(43, 21, 20, row=528, head=512, index=128, index_row=132, align=512)
    found = compressed_pools(2 * GIB, packed, 8, window_slots=None)
    assert found.token_bytes == 21 * (Fraction(33_792, 256) + 33) + 20 * Fraction(1536, 256)
    assert found.window_bytes == 43 * 528 + Fraction(8, 256) * 21 * 4 * 640 * 4


def test_a_draft_keeps_wider_states_and_one_layer_more() -> None:
    plain = compressed_pools(8 * GIB, FLASH, 8, window_slots=None)
    drafted = compressed_pools(8 * GIB, FLASH, 8, window_slots=None, drafts=True)
    assert drafted.token_bytes == plain.token_bytes * Fraction(44, 43)
    # 9 slots of 256 rows, a ring and a row: 2,561 in whole 128s
    assert drafted.state_bytes == 2688 * 20 * 1024 * 4


def test_slots_of_the_windows() -> None:
    """8 requests of 128 + 128 + 256 + 256, two chunks and a page, and 32 prefixes of 384."""
    assert window_cap(8, 128, 8192) == 8 * 768 + 2 * 8192 + 256 + 32 * 384
    assert window_cap(8, 128, 8192, prefix_cache=False, overlap=False) == 8 * 768 + 8192 + 256
    assert window_cap(8, 128, 8192, prefix_cache=False, extra_slots=3) == -(-(8 * 768 + 3 * 384) // 256) * 256
    drafted = 8 * (128 + 4 * 128 + 256 + 8) + 2 * 8192 + 256
    assert window_cap(8, 128, 8192, verify_width=4, step_tokens=8, prefix_cache=False) == -(-drafted // 256) * 256


def test_a_limit_on_tokens() -> None:
    assert compressed_pools(8 * GIB, FLASH, 8, window_slots=None, max_total_tokens=10_000).tokens == 9984


def test_what_does_not_fit() -> None:
    with pytest.raises(EngineRuleError, match="hold no page beside windows and states of 0"):
        compressed_pools(GIB / 10, FLASH, 8, window_slots=None)
    with pytest.raises(EngineRuleError, match="256 window slots hold no request"):
        compressed_pools(0.13 * GIB, FLASH, 8, window_slots=None)
    with pytest.raises(EngineRuleError, match="window ratio 0"):
        compressed_pools(GIB, FLASH, 8, window_slots=None, ratio=0)
    with pytest.raises(EngineRuleError, match="more than 3"):
        CompressedLayers(3, 2, 2, 584, 512, 128, 132)
