"""The default memory reserve and the load peak, by hand arithmetic and against the article's start-up logs (M22)."""

import pytest

from layouts.serving.errors import EngineRuleError
from layouts.serving.requantise import (
    BYTES_A_PARAMETER,
    RequantisedWeight,
    load_peak,
    requantise_temporaries,
)
from layouts.serving.reserve import (
    Defaults,
    Role,
    ServerSettings,
    default_limits,
    default_mem_fraction,
    fraction_with_vision,
    reserve_bytes,
    reserve_parts,
)

MIB, GIB = 2**20, 2**30


@pytest.mark.parametrize(
    ("gib", "tp", "expected"),
    [
        (16, 1, (2048, 8)),
        (32, 1, (4096, 48)),
        (32, 4, (4096, 160)),
        (20, 1, (4096, 48)),
        (35, 1, (4096, 32)),
        (44, 1, (4096, 32)),
        (80, 2, (8192, 256)),
        (140, 8, (8192, 512)),
        (180, 1, (16384, 512)),
    ],
)
def test_default_limits(gib: int, tp: int, expected: tuple[int, int]) -> None:
    assert default_limits(gib * GIB, tp) == Defaults(*expected)


def test_default_batch_stops_at_the_running_limit() -> None:
    assert default_limits(180 * GIB, 8, max_running=24) == Defaults(16384, 24)


def test_reserve_of_a_unified_dp_server_by_hand() -> None:
    # 512 + 1.5 x 16384 + 1024 x 8 / 8 + 2 x 512 + (3 + 1.5) x 512 x 8 + 1536 for MLA prefill graphs, 1024 for DeepEP's
    settings = ServerSettings(
        chunk=16384, max_batch=512, tp=8, attn_dp=8, latent_kv=True, prefill_graphs=40, deepep=True
    )
    without_deepep = 512 + 24576 + 1024 + 1024 + 18432 + 1536 + 1024
    assert reserve_bytes(180 * GIB, settings) == (without_deepep + 2048) * MIB
    assert default_mem_fraction(180 * GIB, settings) == round(1 - (without_deepep + 2048) / (180 * 1024), 3)


def test_floor_of_large_chips_comes_before_deepep() -> None:
    settings = ServerSettings(chunk=2048, max_batch=24, tp=8, role=Role.DECODE, max_running=24, deepep=True)
    assert reserve_bytes(180 * GIB, settings) == 12 * GIB
    # below 60 GiB no floor: 512 + 3072 + 1024 + 48
    assert reserve_bytes(44 * GIB, settings) == (512 + 3072 + 1024 + 48 + 2048) * MIB


def test_decode_servers_count_verified_rows_and_prefill_servers_no_decode_graphs() -> None:
    decode = ServerSettings(chunk=16384, max_batch=384, tp=16, role=Role.DECODE, max_running=4096, verify_width=5)
    assert reserve_parts(180 * GIB, decode)["activations"] == 4096 * 5 * 3 // 2 * MIB
    prefill = ServerSettings(chunk=16384, max_batch=384, tp=16, attn_dp=4, role=Role.PREFILL, prefill_graphs=40)
    parts = reserve_parts(180 * GIB, prefill)
    assert parts["decode graphs"] == parts["DP attention"] == 0
    assert parts["prefill graphs"] == 8 * 40 * MIB


def test_without_decode_graphs_the_groups_still_count() -> None:
    # 3 x 256 x 4 groups; no graphs, no DeepEP buffers in them
    settings = ServerSettings(chunk=8192, max_batch=256, tp=8, attn_dp=4, deepep=True, decode_graphs=False)
    parts = reserve_parts(140 * GIB, settings)
    assert (parts["DP attention"], parts["decode graphs"], parts["DeepEP"]) == (3 * 256 * 4 * MIB, 0, 0)
    assert parts["prefill graphs"] == 0


def test_deepep_in_prefill_graphs() -> None:
    settings = ServerSettings(chunk=8192, max_batch=0, tp=8, role=Role.PREFILL, prefill_graphs=58, deepep=True)
    assert reserve_parts(140 * GIB, settings)["prefill graphs"] == (58 * 8 + 1024) * MIB


def test_a_server_that_sizes_kv_after_capture_reserves_a_slack() -> None:
    settings = ServerSettings(chunk=8192, max_batch=256, tp=4, pp=2, sized_after_capture=True)
    assert reserve_bytes(80 * GIB, settings) == (1536 + 1024) * MIB


def test_images_take_of_the_fraction() -> None:
    # ViT-L/14 itself; 27 layers of 1,152 are 1.4238 of it; 63 of 1,792 are 8 of it and stop at 80 %
    assert fraction_with_vision(0.8, 24, 1024) == pytest.approx(0.8 * 0.95)
    assert fraction_with_vision(0.8, 27, 1152) == pytest.approx(0.8 * 0.95 * (1 - 0.042383), abs=1e-6)
    assert fraction_with_vision(0.8, 63, 1792) == pytest.approx(0.8 * 0.95 * 0.8)
    assert fraction_with_vision(0.8, 6, 512) == pytest.approx(0.8 * 0.95 * 1.05)


def test_a_reserve_beyond_the_chip_names_the_remedy() -> None:
    with pytest.raises(EngineRuleError, match="lower the chunk"):
        reserve_bytes(16 * GIB, ServerSettings(chunk=16384, max_batch=8, tp=1))


def test_requantisation_holds_three_fp32_copies_at_its_peak() -> None:
    assert BYTES_A_PARAMETER == 12
    assert requantise_temporaries(128, 256) == 12 * 128 * 256


def _moe_part() -> tuple[RequantisedWeight, ...]:
    return (
        RequantisedWeight("latent_down", 3584, 7168, 92, 8),
        RequantisedWeight("latent_up", 7168, 3584, 92, 8),
        RequantisedWeight("shared_gate_up", 12288, 7168, 92, 8),
        RequantisedWeight("shared_down", 7168, 6144, 92, 8),
    )


def test_article_release_after_load_dp2() -> None:
    # 92 x 183,500,800 x 7/8 whole rows, and 12 B for each of the 88,080,384 parameters of the shared gate_up
    peak = load_peak(_moe_part())
    assert peak.whole == 14_771_814_400
    assert peak.temporaries == 12 * 88_080_384
    assert peak.released / GIB == pytest.approx(14.6, rel=0.05)


def test_article_release_after_load_dp16() -> None:
    attention = (
        RequantisedWeight("kda_qkv", 36864, 7168, 68, 8),
        RequantisedWeight("kda_gate", 12288, 7168, 68, 8),
        RequantisedWeight("kda_o", 7168, 12288, 68, 8),
        RequantisedWeight("mla_q_b", 18432, 1536, 24, 8),
        RequantisedWeight("mla_o", 7168, 12288, 24, 8),
        RequantisedWeight("mla_gate", 12288, 7168, 24, 8),
    )
    dense = RequantisedWeight("dense_gate_up", 2 * 33792, 7168)
    peak = load_peak((*_moe_part(), *attention, dense))
    # The dense layer on every rank (as the article's build may have it) gives the largest temporaries.
    assert peak.temporaries == 12 * 2 * 33792 * 7168
    assert peak.released / GIB == pytest.approx(47.7, rel=0.05)
    # Cut over all 16 ranks, as the public source has it, the largest is KDA's qkv: 2.6 GiB less.
    public = load_peak((*_moe_part(), *attention))
    assert public.released / GIB == pytest.approx(45.1, abs=0.05)


def test_rows_must_divide_over_the_shard() -> None:
    with pytest.raises(EngineRuleError, match="change the shard"):
        RequantisedWeight("w", 100, 128, shard=8)
