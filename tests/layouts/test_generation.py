"""Requests through whole decoders: text is that of plain greedy decoding on one device whatever is drafted, however
requests are spread, and whatever happened in between."""

import functools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layouts.cache.pool import PoolError
from layouts.generation import Session, generate, prompt_lookup
from layouts.layout import Layout
from layouts.text import parse
from tests.layouts.decoding import FAMILIES, golden, session_of

TOKENS = 10
# one layout a family, between them every way to cut; all families have been held against others in test_decoder
CUTS = {
    "deepseek_v3": "pp=2,attn_dp=2,ep=8,weight_shard=1",
    "glm_moe_dsa": "pp=2,attn_dp=2,dcp=2,ep=8",
    "gpt_oss": "attn_dp=4,attn_tp=4,dcp=2,ep=4,expert_tp=4,dcp_backend=ag_rs",
    "kimi-k3": "attn_dp=4,dcp=2,ep=16,weight_shard=8",
    "kimi_linear": "replicas=2,attn_dp=2,attn_tp=4,ep=4,moe_dp=2",
    "llama": "attn_dp=2,attn_tp=8,dcp=2",
    "qwen3": "replicas=2,attn_dp=8",
    "qwen3_moe": "attn_dp=16,ep=16",
}


def prompts(family: str, count: int, seed: int = 1) -> list[list[int]]:
    """Random tokens, of different lengths."""
    draw = np.random.default_rng(seed)
    return [draw.integers(0, golden(family)[0].vocab, 5 + 3 * i).tolist() for i in range(count)]


def laid_out(family: str, requests: int = 2, **options: bool) -> Session:
    return session_of(family, parse(CUTS[family], 16, golden(family)[0]), requests, **options)


@functools.cache
def plain(family: str, count: int = 2) -> tuple[tuple[int, ...], ...]:
    """Text of one token a step on one device."""
    return generate(session_of(family, Layout(), count), prompts(family, count), TOKENS).tokens


def half_right(family: str):
    """A draft that knows the text and gets every third token of it wrong."""
    known = {tuple(p): list(t) for p, t in zip(prompts(family, 2), plain(family), strict=True)}

    def draft(text: Sequence[int], count: int) -> list[int]:
        prompt = next(p for p in known if tuple(text[: len(p)]) == p)
        done = len(text) - len(prompt)
        coming = (known[prompt] + [0] * count)[done : done + count]
        return [token + (i % 3 == 2) for i, token in enumerate(coming, done)]

    return draft


@pytest.mark.parametrize("family", FAMILIES)
def test_verified_text_is_plain_text(family: str) -> None:
    text = generate(laid_out(family), prompts(family, 2), TOKENS, 4, half_right(family))
    assert text.tokens == plain(family)
    assert 0 < text.kept < text.drafted
    assert text.steps < TOKENS - 1
    assert text.accept_length > 1


@pytest.mark.parametrize("family", ["kimi-k3", "glm_moe_dsa"])
def test_prompts_may_go_in_by_chunks_and_tokens_lie_in_pages(family: str) -> None:
    session = laid_out(family, interleaved_pages=True)
    assert generate(session, prompts(family, 2), TOKENS, chunk=3).tokens == plain(family)


@pytest.mark.parametrize("family", ["kimi_linear", "deepseek_v3"])
def test_one_group_may_have_all_requests_and_others_none(family: str) -> None:
    session = laid_out(family)
    texts = []
    for prompt in prompts(family, 2):
        request = session.admit(group=1)
        last = int(session.prefill({request: prompt})[request].tokens[-1])
        texts.append((request, [last]))
    for _ in range(TOKENS - 1):
        rows = {request: text[-1:] for request, text in texts}
        scored = session.verify(rows)
        session.accept(dict.fromkeys(rows, 1))
        for request, text in texts:
            text.append(int(scored[request].tokens[-1]))
    assert tuple(tuple(text) for _, text in texts) == plain(family)


def test_a_line_begins_anew_for_the_next_request() -> None:
    """Whatever the last one left in its pages and its state."""
    session = session_of("kimi-k3", Layout(), 1)
    first = generate(session, prompts("kimi-k3", 1, seed=9), TOKENS)
    again = generate(session, prompts("kimi-k3", 1), TOKENS)
    assert again.tokens == plain("kimi-k3", 1)
    assert first.tokens != again.tokens


def test_a_full_pool_is_an_error_and_nothing_is_overwritten() -> None:
    """Six pages of four for two requests of up to 48 tokens: the long one is refused, the short one goes on."""
    from layouts.generation import Capacity
    from tests.layouts.decoding import loaded, program_of

    family = "kimi_linear"
    capacity = Capacity(2, 48, page=4, pages=6)
    program = program_of(family, Layout(), capacity)
    session = Session(program, loaded(family, program), capacity, np.float32)
    short = session.admit()
    text = [int(session.prefill({short: prompts(family, 1)[0]})[short].tokens[-1])]
    long = session.admit()
    for _ in range(TOKENS - 1):
        with pytest.raises(PoolError, match="needs 10 pages of 4 slots and"):
            session.prefill({long: [1] * 40})
        with pytest.raises(PoolError):  # the short one's rows are given back too
            session.verify({short: [1] * 40, long: [2] * 40})
        scored = session.verify({short: text[-1:]})
        session.accept({short: 1})
        text.append(int(scored[short].tokens[-1]))
    assert tuple(text) == plain(family, 1)[0]
    with pytest.raises(PoolError, match="lines of the request table are taken"):
        session.admit()


def test_an_unaccepted_step_leaves_no_trace() -> None:
    session = session_of("kimi-k3", Layout(), 1)
    request = session.admit()
    prompt = prompts("kimi-k3", 1)[0]
    text = [int(session.prefill({request: prompt})[request].tokens[-1])]
    for _ in range(TOKENS - 1):
        session.verify({request: [7, 8, 9]})
        session.accept({})
        assert session.length(request) == len(prompt) + len(text) - 1
        scored = session.verify({request: text[-1:]})
        session.accept({request: 1})
        text.append(int(scored[request].tokens[-1]))
    assert tuple(text) == plain("kimi-k3", 1)[0]


def test_look_up_proposes_what_followed_the_last_time() -> None:
    assert prompt_lookup([1, 2, 3, 9, 1, 2, 3], 2) == [9, 1]
    assert prompt_lookup([4, 5, 4, 6, 4], 2) == [6, 4]  # the latest of two
    assert prompt_lookup([1, 2, 8, 2, 7, 1, 2], 1) == [8]  # a longer ending counts for more than a later one
    assert prompt_lookup([1, 2, 3], 2) == [3, 3]
    assert prompt_lookup([5, 5], 3) == [5, 5, 5]
    assert prompt_lookup([1], 2) == [1, 1]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(0, 6))
def test_look_up_gives_as_many_as_asked_for(text: list[int], count: int) -> None:
    assert len(prompt_lookup(text, count)) == count
