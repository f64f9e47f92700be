"""Bytes of tokens, states and pages in vLLM, against its logs and hand arithmetic."""

import pytest

from layouts.serving.errors import EngineRuleError
from layouts.serving.vllm_pages import (
    Cache,
    Kind,
    StateMode,
    aligned_block,
    padded_page,
    state_slots,
)
from tests.layouts.vllm_pages_oracle import attention_token_bytes, index_token_bytes, latent_token_bytes, state_bytes


def test_attention_keeps_at_least_one_head() -> None:
    # K and V of 8 heads of 128 in two bytes; cut over 16 ranks one whole head stays
    assert attention_token_bytes(8, 1, 128, 2) == 2 * 8 * 128 * 2
    assert attention_token_bytes(8, 16, 128, 2) == 2 * 128 * 2
    assert attention_token_bytes(4, 2, 192, 1, value_head=128) == 2 * (192 + 128)


def test_latent_and_index_rows() -> None:
    assert latent_token_bytes(576, 2) == 1152
    assert latent_token_bytes(576, 1, "fp8_ds_mla") == 656
    assert latent_token_bytes(576, 1, "nvfp4_ds_mla") == 352
    assert index_token_bytes(128) == 132
    # vllm#48993: "reducing the 128-dimensional row from 132 to 68 bytes"
    assert index_token_bytes(128, four_bits=True) == 68
    with pytest.raises(EngineRuleError, match="choose one of fp8_ds_mla"):
        latent_token_bytes(576, 1, "fp8")


def test_state_grows_by_draft_tokens_in_the_convolution_alone() -> None:
    # 32 heads of 128 x 128 over 2 ranks in fp32; 3 x 16 x 128 channels with 3 inputs in two bytes
    common = {"channels": 3 * 32 * 128, "kernel": 4, "state": 32 * 128 * 128, "tp": 2}
    assert state_bytes(**common) == 16 * 128 * 128 * 4 + 3 * 16 * 128 * 3 * 2
    assert state_bytes(**common, speculative=2) == 16 * 128 * 128 * 4 + 3 * 16 * 128 * 5 * 2
    with pytest.raises(EngineRuleError, match="lower TP"):
        state_bytes(channels=12, kernel=4, state=10, tp=5)
    with pytest.raises(EngineRuleError, match="lower TP"):
        state_bytes(channels=10, kernel=4, state=12, tp=5)


def test_slots_of_a_request() -> None:
    assert state_slots(StateMode.NONE) == 1
    assert state_slots(StateMode.NONE, speculative=4) == 5
    assert state_slots(StateMode.ALIGN) == 2
    assert state_slots(StateMode.ALIGN, speculative=4, checkpoints=1) == 7
    assert state_slots(StateMode.ALIGN, speculative=4, replay=True) == 2
    with pytest.raises(EngineRuleError, match="use a full cache"):
        state_slots(StateMode.ALL)


def test_attention_block_holds_a_state() -> None:
    # Qwen3.8-27B FP8 at TP 2 (mitchross/talos-argocd-proxmox#1995 logs a block of 1,568 tokens): 48 value and 16 key
    # heads of 128, 4 KV heads of 256 in fp8
    state = state_bytes(channels=2 * 16 * 128 + 48 * 128, kernel=4, state=48 * 128 * 128, tp=2)
    assert aligned_block(attention_token_bytes(4, 2, 256, 1), state) == 1568
    # a state that fits leaves the block as it is, and a user's larger block sets the step
    assert aligned_block(1024, 1024 * 16) == 16
    assert aligned_block(1024, 1024 * 65, block=64) == 128
    assert aligned_block(1024, 1024 * 16, checkpoint=48) == 48
    # three steps of a user's 40 are 120 tokens, and the kernel takes multiples of 16
    assert aligned_block(1, 81, block=40) == 128


def test_latent_block_beside_states_is_a_multiple_of_128() -> None:
    state = state_bytes(channels=3 * 32 * 128, kernel=4, state=32 * 128 * 128, tp=2)
    assert state == 1_085_440
    # 1,085,440 / 1,152 = 942.2 tokens: 1,024 in 0.33.0; the log of vllm#28228 (0.11) has multiples of 64, so 960
    assert aligned_block(1152, state, latent=True) == 1024
    assert aligned_block(1152, state, kernel_block=64) == 960


def test_pages_of_packed_rows_are_padded() -> None:
    # 64 rows of 584 bytes are 37,376; rounded up to 576 they are the 37,440 of vllm#54703
    assert padded_page(64 * 584, 576) == 37_440
    assert padded_page(576, 576) == 576


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": Kind.FULL, "window": 128}, "to a window cache alone"),
        ({"kind": Kind.WINDOW}, "to a window cache alone"),
        ({"kind": Kind.FULL, "stage_layers": 5}, "at most all of them"),
        ({"kind": Kind.FULL, "block": 0}, "block is 0"),
    ],
)
def test_caches_that_cannot_be(changes: dict[str, object], message: str) -> None:
    with pytest.raises(EngineRuleError, match=message):
        Cache(**({"layers": 4, "block": 16, "page_bytes": 1024} | changes))  # pyright: ignore[reportArgumentType]
