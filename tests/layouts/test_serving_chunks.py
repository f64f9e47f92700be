"""Prefill chunks and captured prefill sizes, by hand against SGLang's rules."""

import pytest

from layouts.serving.chunks import captures_prefill, group_chunk, prefill_graph_limit, prefill_graph_sizes
from layouts.serving.errors import EngineRuleError


@pytest.mark.parametrize(("chunk", "groups", "share"), [(16_384, 8, 2048), (8192, 3, 2730), (8192, 1, 8192)])
def test_groups_share_the_chunk(chunk: int, groups: int, share: int) -> None:
    """B23: the chunk that runs is chunked_prefill_size // dp_size."""
    assert group_chunk(chunk, groups) == share


def test_no_chunks_stay_none_and_a_chunk_below_the_groups_is_refused() -> None:
    assert group_chunk(-1, 8) == -1
    assert group_chunk(0, 8) == 0
    assert group_chunk(8, 8) == 1
    with pytest.raises(EngineRuleError, match="raise it to 8"):
        group_chunk(7, 8)


def test_what_forbids_prefill_graphs() -> None:
    assert captures_prefill()
    assert captures_prefill(exchange="deepep")
    assert not captures_prefill(exchange="mooncake")
    assert not captures_prefill(decode_only=True)
    assert not captures_prefill(kda=True)
    assert not captures_prefill(pp=2)
    assert not captures_prefill(dcp=8)
    assert not captures_prefill(two_batch=True)
    assert not captures_prefill(multimodal=True)


@pytest.mark.parametrize(
    ("latent", "pp", "total", "limit"),
    [(False, 1, None, 16_384), (True, 1, None, 8192), (False, 2, None, 8192), (False, 1, 1000, 1000)],
)
def test_largest_captured_prefill(latent: bool, pp: int, total: int | None, limit: int) -> None:
    assert prefill_graph_limit(16_384, latent_kv=latent, pp=pp, max_total_tokens=total) == limit
    assert prefill_graph_limit(512, latent_kv=latent, pp=pp) == 512


def test_captured_prefill_sizes() -> None:
    assert prefill_graph_sizes(50) == (4, 8, 12, 16, 20, 24, 28, 32, 48)
    sizes = prefill_graph_sizes(8192)
    # 8 + 14 + 8 + 8 + 12 sizes up to 4,096, then 4,608 .. 8,192 by 512
    assert len(sizes) == 50 + 8
    assert sizes[-1] == 8192
    assert prefill_graph_sizes(8500) == sizes
