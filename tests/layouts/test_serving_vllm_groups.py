"""Groups of a hybrid model's layers in vLLM, against tables that users printed of them and hand arithmetic."""

from dataclasses import replace

import pytest

from layouts.serving.errors import EngineRuleError
from layouts.serving.vllm_groups import Group, Request, block_bytes, groups, request_blocks, without_windows
from layouts.serving.vllm_pages import Cache, Kind, padded_page

# Rows and pages of the compressed attention in the packed fp8 format, pages padded to 576 bytes.
LATENT, INDEX, STATE, INDEX_STATE = (
    padded_page(64 * 584, 576),
    padded_page(64 * 132, 576),
    padded_page(4 * 2 * 2 * 512 * 4, 576),
    padded_page(4 * 2 * 2 * 128 * 4, 576),
)


def compressed(four: int, many: int, plain: int, index: int = INDEX) -> list[Cache]:
    """A model with `four` layers that keep every 4th token, `many` every 128th, and `plain` only a window."""
    layers = four + many + plain
    return [
        Cache(Kind.WINDOW, layers, 64, LATENT, latent=True, window=128),
        Cache(Kind.FULL, four, 256, LATENT, latent=True),
        Cache(Kind.FULL, many, 256, padded_page(2 * 584, 576), latent=True),
        Cache(Kind.FULL, four, 256, index, latent=True),
        Cache(Kind.WINDOW, four, 4, STATE, latent=True, window=8),
        Cache(Kind.WINDOW, four, 4, INDEX_STATE, latent=True, window=8),
        Cache(Kind.WINDOW, many, 8, padded_page(8 * 2 * 512 * 4, 576), latent=True, window=128),
    ]


def layers_of(planned: tuple[Group, ...]) -> list[int]:
    return [group.layers for group in planned]


def test_packed_groups_of_a_printed_table() -> None:
    # vllm#54703: 62 layers of 1,002,240 B, 22 of 823,680, 21 of 786,240, 42 of 870,912, 20 of 656,640
    planned = groups(compressed(21, 20, 2), block_outermost=True)
    table = {(group.layers, group.block_bytes) for group in planned}
    assert table == {(62, 1_002_240), (22, 823_680), (21, 786_240), (42, 870_912), (20, 656_640)}
    assert block_bytes(planned) == 1_002_240


def test_packed_block_of_a_larger_model_with_a_four_bit_index() -> None:
    # vllm#48993: a physical block stride of 1,315,008 bytes with 61 layers
    planned = groups(compressed(30, 31, 0, index=padded_page(64 * 68, 576)), block_outermost=True)
    assert block_bytes(planned) == 1_315_008


def test_one_type_is_one_group_whatever_its_pages() -> None:
    # attention rows and the index of the same tokens
    planned = groups([Cache(Kind.FULL, 61, 64, 64 * 656, latent=True), Cache(Kind.FULL, 61, 64, 64 * 132, latent=True)])
    assert layers_of(planned) == [122]
    assert block_bytes(planned) == 61 * 64 * (656 + 132)
    assert request_blocks(planned, Request(1000)) == 16


def test_equal_caches_are_one() -> None:
    draft = Cache(Kind.FULL, 1, 16, 4096)
    assert layers_of(groups([Cache(Kind.FULL, 32, 16, 4096), draft])) == [33]


def test_layers_are_cut_by_the_smallest_type() -> None:
    # vllm#28228: 7 attention layers and 20 with a state, which get one layer of padding (5 % of 20)
    planned = groups([Cache(Kind.FULL, 7, 960, 960 * 1152, latent=True), Cache(Kind.STATE, 20, 960, 1_085_440)])
    assert layers_of(planned) == [7, 7, 7, 6]
    assert block_bytes(planned) == 7 * 960 * 1152
    assert request_blocks(planned, Request(120_000)) == 125 + 3


def test_types_of_nearly_equal_numbers_are_not_cut() -> None:
    # 12 window and 13 full layers: the comment at the rule gives this example
    planned = groups([Cache(Kind.WINDOW, 12, 16, 1024, window=128), Cache(Kind.FULL, 13, 16, 1024)])
    assert layers_of(planned) == [12, 13]
    assert block_bytes(planned) == 13 * 1024
    assert layers_of(groups([Cache(Kind.WINDOW, 12, 16, 1024, window=128), Cache(Kind.FULL, 17, 16, 1024)])) == [12, 17]
    # 1.5 times as many are cut
    assert layers_of(groups([Cache(Kind.WINDOW, 12, 16, 1024, window=128), Cache(Kind.FULL, 18, 16, 1024)])) == [
        12,
        9,
        9,
    ]


def test_smaller_pages_get_larger_blocks_or_padding() -> None:
    half, odd = Cache(Kind.FULL, 4, 16, 512), Cache(Kind.WINDOW, 4, 16, 700, window=64)
    planned = groups([Cache(Kind.STATE, 4, 16, 1024), half, odd])
    (state,), (full,), (window,) = (group.caches for group in planned)
    assert (full.block, full.page_bytes) == (32, 1024)
    assert (window.block, window.page_bytes) == (16, 1024)
    assert (state.page_bytes, window.padding, full.padding) == (1024, 1024 - 700, 0)


def test_rows_that_cannot_be_padded() -> None:
    latent = Cache(Kind.FULL, 4, 16, 700, latent=True)
    with pytest.raises(EngineRuleError, match="does not divide the largest page"):
        groups([latent, Cache(Kind.STATE, 4, 16, 1024)])
    # beside plain windows these are kept in full instead: one group, blocks for all tokens
    planned = groups([latent, Cache(Kind.WINDOW, 2, 32, 2048, window=64)])
    assert layers_of(planned) == [6]
    assert block_bytes(planned) == 4 * 700 + 2 * 1024
    # rows whose page divides the largest get larger blocks, and the windows stay windows
    planned = groups([replace(latent, page_bytes=1024), Cache(Kind.WINDOW, 4, 32, 2048, window=64)])
    assert [group.caches[0].kind for group in planned] == [Kind.FULL, Kind.WINDOW]
    assert planned[0].caches[0].block == 32


def test_rows_beside_windows_and_two_blocks_stay_an_error() -> None:
    latent, full = Cache(Kind.FULL, 4, 16, 700, latent=True), Cache(Kind.FULL, 2, 32, 2048)
    with pytest.raises(EngineRuleError, match="cannot be padded"):
        groups([latent, full, Cache(Kind.WINDOW, 2, 32, 2048, window=64)])


def test_caches_that_a_larger_block_makes_equal_are_cut_together() -> None:
    # 16 tokens of half a page become 32 of a whole one, as the others have; 26 layers in groups of at most 7
    wide, narrow = Cache(Kind.WINDOW, 23, 32, 16384, window=128), Cache(Kind.WINDOW, 3, 16, 8192, window=128)
    planned = groups([wide, narrow, Cache(Kind.FULL, 7, 32, 16384)])
    assert layers_of(planned) == [7, 7, 6, 6, 7]
    # a page that padding fills up stays apart
    planned = groups([Cache(Kind.FULL, 6, 16, 1024), Cache(Kind.FULL, 6, 16, 700), Cache(Kind.STATE, 6, 16, 900)])
    assert layers_of(planned) == [6, 6, 6]


def test_equal_pages_are_not_packed() -> None:
    caches = [Cache(Kind.FULL, 7, 16, 1024), Cache(Kind.STATE, 14, 16, 1024)]
    assert layers_of(groups(caches, block_outermost=True)) == [7, 7, 7]


def test_packed_states_are_cut_to_what_a_block_holds() -> None:
    # 10 pages of 1,000 bytes make the block; a state of 4,000 fits twice, so 5 layers make 3 groups
    full, other = Cache(Kind.FULL, 10, 16, 1000, latent=True), Cache(Kind.WINDOW, 3, 8, 500, latent=True, window=64)
    planned = groups([full, Cache(Kind.STATE, 5, 16, 4000), other], block_outermost=True)
    assert layers_of(planned) == [10, 2, 2, 1, 3]
    assert block_bytes(planned) == 10_000
    mixed = [replace(other, layers=30, page_bytes=1000), other]
    with pytest.raises(EngineRuleError, match="states of 2 page sizes cannot be cut into 4 groups"):
        groups([full, *mixed], block_outermost=True)


def test_packed_patterns_waste_the_fewest_layers() -> None:
    def planned(windows: int, states: int = 0) -> list[int]:
        pattern = [Cache(Kind.FULL, 4, 16, 100, latent=True), Cache(Kind.FULL, 4, 16, 200, latent=True)]
        others = [Cache(Kind.WINDOW, windows, 8, 1000, latent=True, window=64)]
        others += [Cache(Kind.STATE, states, 16, 2500)] if states else []
        return layers_of(groups([*pattern, *others], block_outermost=True))

    # groups of 4 repeats leave none empty for 12; groups of 5 leave one where there are 4 and 5
    assert planned(12) == [8, 4, 4, 4]
    assert planned(5) == [8, 5]
    # groups of 5 leave one each for 4, 9 and 4; five windows of 1,000 bytes are the block, which two states fit
    assert planned(9, states=4) == [8, 5, 4, 2, 2]


def test_window_blocks_are_bounded_by_the_tokens_in_flight() -> None:
    planned = groups([Cache(Kind.WINDOW, 2, 16, 1024, window=128)])
    # ceil((127 + 256) / 16) + 1; a short request holds no more than itself
    assert request_blocks(planned, Request(10_000, in_flight=256)) == 25
    assert request_blocks(planned, Request(100, in_flight=256)) == 8
    with pytest.raises(EngineRuleError, match="set DCP to 1"):
        request_blocks(planned, Request(100, dcp=2))


def test_without_the_hybrid_manager_windows_keep_everything() -> None:
    full, window = Cache(Kind.FULL, 6, 32, 2048), Cache(Kind.WINDOW, 6, 16, 1024, window=128)
    assert request_blocks(groups(without_windows([full, window])), Request(3200)) == 100
    assert without_windows([window]) == (window,)


def test_dcp_shares_the_tokens_of_full_attention_alone() -> None:
    full, state = Cache(Kind.FULL, 4, 16, 1024, latent=True), Cache(Kind.STATE, 4, 16, 1000, slots=2)
    assert request_blocks(groups([full, state]), Request(1600, dcp=4)) == 25 + 2
    # 1,601 tokens are 401 on the first of four ranks
    assert request_blocks(groups([full]), Request(1601, dcp=4)) == 26
    whole = Cache(Kind.FULL, 1, 16, 1024, dcp_sharded=False)
    assert request_blocks(groups([whole]), Request(1600, dcp=4)) == 100


def test_a_pipeline_stage_is_cut_as_the_whole_model_is() -> None:
    # 8 + 24 layers in groups of 8; half of them on a stage: 4 layers a group
    caches = [Cache(Kind.FULL, 8, 16, 1024, stage_layers=4), Cache(Kind.STATE, 24, 16, 1024, stage_layers=12)]
    planned = groups(caches)
    assert len(planned) == 4
    assert block_bytes(planned) == 4 * 1024
    # a stage with an uneven run: at most ceil(13 / 3) of the states fall into one group
    assert block_bytes(groups([caches[0], Cache(Kind.STATE, 24, 16, 1024, stage_layers=13)])) == 5 * 1024


def test_no_cache_is_no_pool() -> None:
    with pytest.raises(EngineRuleError, match="no layer keeps a cache"):
        groups([])
