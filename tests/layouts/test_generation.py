"""Requests through whole decoders: text is that of plain greedy decoding on one device whatever is drafted, however
requests are spread, and whatever happened in between."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layouts.cache.pool import PoolError
from layouts.decoder.program import Program
from layouts.generation import Capacity, Session, SessionError, generate, prompt_lookup
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


def laid_out(family: str, requests: int = 2, **options: Any) -> Session:
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
    from tests.layouts.decoding import loaded, program_of

    family = "kimi_linear"
    capacity = Capacity(2, 48, page=4, pages=6, verify=48)
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


def test_calls_out_of_order_are_refused_and_change_nothing() -> None:
    """With linear attention a second verify would forget what the first one wrote."""
    session = session_of("kimi_linear", Layout(), 2)
    first, other = session.admit(), session.admit()
    prompt = prompts("kimi_linear", 1)[0]
    text = [int(session.prefill({first: prompt})[first].tokens[-1])]
    with pytest.raises(SessionError, match="verify some before you accept"):
        session.accept({first: 1})
    for _ in range(TOKENS - 1):
        scored = session.verify({first: [text[-1], 3]})
        for step in (session.verify, session.prefill):
            with pytest.raises(SessionError, match="1 requests have verified tokens: accept some or none"):
                step({other: [1, 2]})
        for wrong, says in (({first: 3}, "give 0 to 2"), ({first: -1}, "give 0 to 2"), ({other: 1}, "leave it out")):
            with pytest.raises(SessionError, match=says):
                session.accept(wrong)
        assert session.length(other) == 0
        session.accept({first: 1})
        text.append(int(scored[first].tokens[0]))
    assert tuple(text) == plain("kimi_linear", 1)[0]


@pytest.mark.parametrize("requests", [1, 2])
def test_a_request_may_leave_between_verify_and_accept(requests: int) -> None:
    """Its line may then serve another, of which nothing is cut; where it was alone, nothing waits for an accept."""
    session = session_of("kimi-k3", Layout(), requests)
    *stays, goes = (session.admit() for _ in range(requests))
    prompt = prompts("kimi-k3", 1)[0]
    text = session.prefill(dict.fromkeys([*stays, goes], prompt))[goes].tokens.tolist()
    session.verify({request: [text[0], 7] for request in (*stays, goes)})
    session.release(goes)
    came = session.admit()
    assert came == goes
    if stays:
        session.accept({stays[0]: 1})
        assert session.length(stays[0]) == len(prompt) + 1
    assert session.length(came) == 0
    session.release(came)
    for request in stays:
        session.release(request)
    assert generate(session, [prompt], TOKENS).tokens == plain("kimi-k3", 1)


def test_rows_that_are_none_are_refused() -> None:
    session = session_of("llama", Layout(), 2)
    one, two = session.admit(), session.admit()
    vocab = golden("llama")[0].vocab
    refused: list[tuple[Callable[[Any], object], Any, str]] = [
        (session.prefill, {}, "at least one token each"),
        (session.prefill, {one: [1], two: []}, "at least one token each"),
        (session.prefill, {one: [1, vocab]}, f"token {vocab} is not in the vocabulary: give 0 to {vocab - 1}"),
        (session.verify, {one: [-1]}, "token -1 is not in the vocabulary"),
        (session.verify, {one: [1], two: [1, 2]}, "one request has 1 rows to verify and another 2"),
        (lambda rows: session.prefill(rows, 2), {one: [1, 2, 3]}, "width = 2 is less than the 3 tokens"),
        (session.admit, len(session.pools), "group = 1 is out of range: give 0 to 0"),
    ]
    for step, rows, says in refused:
        with pytest.raises(SessionError, match=says):
            step(rows)
    assert (session.length(one), session.length(two)) == (0, 0)


def test_a_request_that_is_gone_takes_no_slots_of_others() -> None:
    session = session_of("llama", Layout(), 2)
    here, gone = session.admit(), session.admit()
    session.release(gone)
    with pytest.raises(PoolError, match="was not admitted"):
        session.prefill({gone: [1, 2], here: [1, 2]})
    with pytest.raises(PoolError, match="was not admitted"):
        session.prefill({here: [1, 2], gone: [1, 2]})
    assert session.length(here) == 0


def test_a_first_step_that_verifies_begins_anew() -> None:
    """Whatever state the line's last request left."""
    session, tokens = session_of("kimi-k3", Layout(), 1), [5, 6, 7]
    found = []
    for _ in range(2):
        request = session.admit()
        found.append(session.verify({request: tokens})[request].logits)
        session.accept({request: 3})
        session.release(request)
    np.testing.assert_array_equal(*found)


def test_a_prompt_may_go_on_behind_a_text() -> None:
    """A turn of the user's behind one of the model's: all of it cached as if it had been one prompt."""
    family = "kimi-k3"
    known, turn = prompts(family, 1)[0], [9, 8, 7, 6]
    session = session_of(family, Layout(), 1)
    request = session.admit()
    said = session.prefill({request: known})[request].tokens.tolist()
    session.verify({request: [*said, 1]})
    session.accept({request: 1})
    behind = session.prefill({request: turn})[request].logits
    session.release(request)
    request = session.admit()
    whole = session.prefill({request: [*known, *said, *turn]})[request].logits
    np.testing.assert_allclose(behind, whole, atol=2e-5 * np.abs(whole).max())


def test_text_that_does_not_fit_leaves_the_session_empty() -> None:
    """48 tokens: a prompt of 40 goes in, the ninth token behind it does not; three prompts are one too many."""
    session = session_of("llama", Layout(), 2)
    free = session.pools[0].free_slots
    with pytest.raises(PoolError, match="would have 49 tokens"):
        generate(session, [[1] * 40, [2] * 5], 12)
    with pytest.raises(PoolError, match="would have 50 tokens"):
        generate(session, [[1] * 50], 1)
    with pytest.raises(PoolError, match="lines of the request table are taken"):
        generate(session, [[1]] * 3, 1)
    with pytest.raises(SessionError, match="at least one token"):
        generate(session, [[1], []], 1)
    wrong: list[dict[str, Any]] = [{"count": 0}, {"count": 1, "width": 0}, {"count": 1, "chunk": 0}]
    for options in wrong:
        with pytest.raises(SessionError, match="= 0 is out of range: give at least 1"):
            generate(session, [[1]], **options)
    assert (session.pools[0].free_slots, session.pools[0].idle_lines) == (free, 2)
    assert len(generate(session, [[1] * 40], 9).tokens[0]) == 9  # the last token is said, not cached
    assert len(generate(session, [[1] * 47], 1, width=4).tokens[0]) == 1  # no step behind the prompt


def test_steps_are_timed_at_full_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row of the pool is read: where all reads fell on one row, a cache would serve them. Tokens differ, too."""
    session = session_of("llama", Layout(), 2)
    seen: list[Any] = []
    through = Program.through

    def watched(program: Program, held: Any, caches: Any, placed: Any, entering: Any, phase: Any) -> Any:
        seen.append((placed, entering))
        return through(program, held, caches, placed, entering, phase)

    monkeypatch.setattr(Program, "through", watched)
    found = session.timed(3)
    assert len(seen) == 2 + max(3, found.steps) + 3 * 4 * found.steps
    assert 0 < found.least <= found.flight <= found.most and found.host > 0
    (given,), entering = seen[0]
    assert len(set(given.batch.slots.reshape(-1).tolist())) == 2 * 48
    assert given.batch.lengths.tolist() == [45, 45]
    assert len(set(entering.tolist())) > 1
    assert (given.pending.tolist(), given.begins.tolist()) == ([3, 3], [False, False])
    assert session.pools[0].idle_lines == 2
    with pytest.raises(SessionError, match="width = 49"):
        session.timed(49)
    session.admit()
    with pytest.raises(PoolError, match="release a request first"):
        session.step_full(1)
    assert session.pools[0].idle_lines == 1


def test_steps_in_flight_wait_for_the_last_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """What enters the first stage is the same, made of what the step before has said."""
    session = session_of("llama", parse("pp=2", 2, golden("llama")[0]), 2)
    entered, said = [], []
    through = Program.through

    def watched(program: Program, held: Any, caches: Any, placed: Any, entering: Any, phase: Any) -> Any:
        output, caches = through(program, held, caches, placed, entering, phase)
        entered.append(entering)
        said.append(output.tokens)
        return output, caches

    behind: list[Any] = []
    kept = Program.behind
    monkeypatch.setattr(Program, "through", watched)
    monkeypatch.setattr(Program, "behind", lambda program, *given: behind.append(given) or kept(program, *given))
    session.timed(3)
    assert len({tuple(tokens.tolist()) for tokens in entered}) == 1
    assert len(behind) == len(said) and all(
        given[1].tokens is tokens for given, tokens in zip(behind, said, strict=True)
    )
    assert entered[1] is not entered[0]


def test_no_step_verifies_more_than_a_ring_holds() -> None:
    from tests.layouts.decoding import loaded, program_of

    capacity = Capacity(1, 48, page=4, verify=2)
    program = program_of("kimi_linear", Layout(), capacity)
    session = Session(program, loaded("kimi_linear", program), capacity, np.float32)
    request = session.admit()
    with pytest.raises(SessionError, match="rows to verify of each request = 3 is out of range: give 1 to 2"):
        session.verify({request: [1, 2, 3]})
    assert session.length(request) == 0
    with pytest.raises(SessionError, match="width = 3"):
        session.timed(3)
    session.release(request)
    assert generate(session, prompts("kimi_linear", 1), TOKENS, 2).tokens == plain("kimi_linear", 1)


def test_a_session_has_the_room_of_its_program() -> None:
    session = session_of("llama", Layout(), 2)
    with pytest.raises(SessionError, match="the program has another room"):
        Session(session.program, session.held, Capacity(3, 48, page=4), np.float32)


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
