"""Whole decoders against models that nobody here wrote (transformers; torchtitan for Kimi K3), under every kind of cut.

The goldens' routers have no gap below 1e-4, so that float32 rounding cannot send a token elsewhere. Logits behind 24
known tokens agree to 2e-5 of the largest.
"""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import pytest

from layouts.layout import Layout
from layouts.text import parse, text_of
from tests.layouts.covering import Set, covering
from tests.layouts.decoding import FAMILIES, SCORED, error, golden, session_of, teacher_forced

BOUND = 2e-5
WIDTH = 20  # rows of a request in a step: the second step reads what the first one cached


@pytest.fixture(autouse=True)
def forget_programs() -> Iterator[None]:
    """No two layouts share a program, and hundreds of them would fill the memory."""
    yield
    jax.clear_caches()


def scored(family: str, layout: Layout, width: int = WIDTH, **options: Any) -> float:
    """Error of the logits under a layout."""
    _, _, tokens, expected = golden(family)
    found = teacher_forced(session_of(family, layout, **options), tokens, width)
    return error(found[:, -SCORED:], expected)


@functools.cache
def quick() -> tuple[tuple[str, str], ...]:
    """(family, layout): every value of every key in each family, every pair of values in some."""
    seen: Set = set()
    *others, last = sorted(FAMILIES, key=lambda family: family == "deepseek_v3")  # the quickest to compile of its kind
    chosen = {family: covering(golden(family)[0], 16, seen) for family in others}
    chosen[last] = covering(golden(last)[0], 16, seen, every_pair=True)
    return tuple((f, text_of(layout, golden(f)[0])) for f, found in chosen.items() for layout in found)


@pytest.mark.parametrize("family", FAMILIES)
def test_one_device_gives_what_others_give(family: str) -> None:
    assert scored(family, Layout()) < BOUND


@pytest.mark.parametrize(("family", "text"), quick())
def test_every_kind_of_cut(family: str, text: str) -> None:
    assert scored(family, parse(text, 16, golden(family)[0])) < BOUND


@pytest.mark.parametrize(
    ("gpus", "text"),
    [
        (16, "attn_dp=16,ep=16,weight_shard=8"),
        (16, "attn_dp=2,dcp=8,ep=16,weight_shard=8"),
        (8, "attn_tp=8,expert_tp=8"),
        (8, "pp=2,attn_dp=2,attn_tp=2,ep=4"),
        (8, "replicas=2,attn_dp=2,dcp=2,ep=4"),
    ],
)
def test_layouts_of_the_articles(gpus: int, text: str) -> None:
    """DP16 and DP2 x DCP8 with sharded weights, TP8, two stages, two replicas; DP4 x TP16 x DCP8 is traced in the
    audit's tests."""
    assert scored("kimi-k3", parse(text, gpus, golden("kimi-k3")[0])) < BOUND
