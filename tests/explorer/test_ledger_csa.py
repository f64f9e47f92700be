"""The ledger's lines of compressed attention (DeepSeek-V4-Flash on 8 GPUs), by hand."""

from fractions import Fraction

from explorer.ledger import Ledger, ledger
from explorer.request import make_request
from explorer.residents.lines import fixed_lines, kv_bytes_a_token
from layouts.models import load_model

ROW, LAYERS = 584, {"layers_0": 2, "layers_1": 21, "layers_2": 20}
STATES = 21 * 8 * 4 * 640 * 4 + 20 * 128 * 2 * 512 * 4


def of(layout: str, draft: str | None = None) -> Ledger:
    width = 2 if draft else None
    request = make_request(
        "deepseek-v4-flash", "h200", 8, context=100_000, concurrency=64, draft=draft, verify_width=width
    )
    return ledger(request, request.layout(layout))


def test_a_token_is_its_compressed_rows_and_index_keys() -> None:
    token = kv_bytes_a_token(load_model("deepseek-v4-flash"))
    rows, keys = 21 * Fraction(ROW, 4) + 20 * Fraction(ROW, 128), 21 * Fraction(132, 4)
    assert token.evaluate({**LAYERS, "dcp": 1}) == rows + keys
    # every rank of a DCP group keeps the index keys of all tokens (lightseekorg/tokenspeed#1162)
    assert token.evaluate({**LAYERS, "dcp": 2}) == rows + 2 * keys
    assert kv_bytes_a_token(load_model("deepseek-v4-flash", "mtp")).evaluate({**LAYERS, "dcp": 1}) == rows + keys


def test_what_a_request_keeps_whatever_its_length() -> None:
    found = of("attn_dp=8,ep=8")
    assert found.by_name["sliding-window KV"] == 8 * 128 * 43 * ROW
    assert found.by_name["compressor state"] % STATES == 0
    assert found.by_name["compressor state"] >= (8 + 1) * STATES
    assert found.by_name["rotary tables"] == 2 * 2 * 1_048_576 * 64 * 4


def test_windows_stay_whole_under_dcp() -> None:
    """No layout of the engines has it yet, so the line itself is asked."""
    (line,) = (line for line in fixed_lines(load_model("deepseek-v4-flash")) if line.name == "sliding-window KV")
    numbers = {**LAYERS, "requests": 64, "pp": 1, "window_held": 128, "dcp": 2}
    assert line.size.evaluate(numbers) == 64 * 128 * 43 * ROW


def test_the_draft_has_a_window_of_its_own() -> None:
    assert of("attn_dp=8,ep=8", "mtp").by_name["sliding-window KV"] == 8 * 128 * 44 * ROW
