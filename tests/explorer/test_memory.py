"""Where a GPU's memory goes: every line to the byte, what is conserved, and what the division admits."""

import functools

import equinox as eqx
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import given

from explorer.evaluate import Case, Tables, holding
from explorer.residents.budget import LEAST_FRACTION, MOST_FRACTION, Memory
from explorer.residents.line import Group
from explorer.residents.lines import kv_bytes_a_token
from hw.arithmetic import Exact
from hw.compat import COMPILE_TO_RUN_ONCE, x64
from hw.programs import kept
from hw.units import GIB
from layouts.cut import Cut, cuts_of
from layouts.layout import Layout
from tests.explorer.settings import ARTICLE, QWEN, V3, Setting, setting
from tests.layouts import oracle

DP16, DP2 = "attn_dp=16,ep=16", "attn_dp=2,dcp=8,ep=16"
BATCH = 16


@kept(COMPILE_TO_RUN_ONCE)
def _hold(tables: Tables, cuts: Cut, case: Case) -> Memory:
    def one(cut: Cut) -> Memory:
        return holding(Exact(), tables, cut, case, tables.values(Exact(), cut, case.load, case.machine))

    return jax.vmap(one)(cuts)


def hold(asked: Setting, layouts: list[Layout], case: Case | None = None) -> list[Memory]:
    """The memory of each of at most BATCH layouts, as NumPy."""
    with x64():
        found = _hold(asked.tables, cuts_of((layouts * BATCH)[:BATCH]), case or asked.case)
    return [jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], found) for i in range(len(layouts))]


def lines(asked: Setting, held: Memory) -> dict[str, int]:
    return {line.name: int(size) for line, size in zip(asked.tables.memory.lines, held.lines, strict=True)}


@functools.cache
def article(concurrency: int, extra_slots: int = 0) -> tuple[Memory, Memory]:
    """DP16 and DP2 x DCP8 of the article's build."""
    asked = setting(ARTICLE, context=100_000, extra_slots=extra_slots)
    dp16, dp2 = hold(asked, [asked.read(DP16), asked.read(DP2)], asked.request.case(concurrency))
    return dp16, dp2


def article_lines(concurrency: int, extra_slots: int = 0) -> tuple[dict[str, int], dict[str, int]]:
    asked = setting(ARTICLE, context=100_000, extra_slots=extra_slots)
    dp16, dp2 = article(concurrency, extra_slots)
    return lines(asked, dp16), lines(asked, dp2)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (ARTICLE, {"context": 100_000, "concurrency": 77, "extra_slots": 3}),
        ("deepseek-v3.2", {"context": 5000, "concurrency": 1000, "draft": "mtp", "verify_width": 3}),
        (QWEN, {"context": 30_000, "concurrency": 33}),
        ("gpt-oss-120b", {"context": 8000, "concurrency": 200}),
        (V3, {"context": 20_000, "phase": "prefill"}),
    ],
)
def test_every_line_is_that_of_plain_python_to_the_byte(model: str, options: dict[str, float | str]) -> None:
    """From the layout to the bytes: quantities, budget and expressions together, at random valid layouts."""
    asked = setting(model, "gb200", 16, **options)
    request, layouts = asked.request, asked.layouts(BATCH, seed=3)
    for layout, held in zip(layouts, hold(asked, layouts), strict=True):
        numbers = oracle.values(request.model, layout, asked.oracle_case)
        wanted = numbers["requests"] * layout.pp
        numbers |= {
            "slots": wanted + (request.extra_slots or 0) + 1,
            "draft_window": request.draft_window,
            "dispatch_tokens": request.dispatch_tokens or max(128, numbers["moe_rows"]),
            "global_kv_tokens": int(held.kv_tokens) * layout.dcp,
        }
        expected = {line.name: line.size.bytes(numbers) for line in asked.tables.memory.lines}
        assert lines(asked, held) == expected
        assert int(held.kv_bytes_a_token) == kv_bytes_a_token(request.model).bytes(numbers)


def test_staging_pools_of_the_article() -> None:
    """K05 to K07: 1196 and 350 MiB for the target, 1288 MiB for the draft of DP16, none for that of DP2."""
    dp16, dp2 = article(128)
    assert [float(m.staging) / 2**20 for m in (dp16, dp2)] == pytest.approx([1196, 350], abs=0.5)
    assert [float(m.draft_staging) / 2**20 for m in (dp16, dp2)] == pytest.approx([1288, 0], abs=0.5)
    assert float(dp16.staging) == 2 * 627_048_448


def test_slots_and_state_of_the_article() -> None:
    """K13, K16, K17: 33 slots hold 16.16 GiB of state; with the ring a slot takes 0.64 GiB, an eighth under DP2."""
    dp16, _ = article(384, extra_slots=8)
    _, dp2 = article(384, extra_slots=16)
    assert (int(dp16.slots), int(dp2.slots)) == (33, 209)
    wide, narrow = article_lines(384, extra_slots=8)[0], article_lines(384, extra_slots=16)[1]
    assert wide["linear-attention state"] / GIB == pytest.approx(16.16, rel=1e-3)
    slot = [
        (held["linear-attention state"] + held["ReplaySSM ring"]) / slots / GIB
        for held, slots in ((wide, 33), (narrow, 209))
    ]
    assert slot == pytest.approx([0.64, 0.08], rel=5e-3)
    assert [held["draft KV"] / GIB for held in (wide, narrow)] == pytest.approx([1.496, 1.992 * 4753 / 7997], rel=1e-3)
    assert [held["req_to_token"] / GIB for held in (wide, narrow)] == pytest.approx([0.129, 0.816], rel=5e-3)


def test_other_lines_of_the_article() -> None:
    """K12, K18, K26, K22: replicated Q, KV bytes a token, DeepEP buffer of 144 rows."""
    wide, narrow = article_lines(384)
    assert (wide["replicated Q projections"], narrow["replicated Q projections"]) == (0, 24 * (28_311_552 + 12_582_912))
    assert [int(m.kv_bytes_a_token) for m in article(384)] == [13_824, 13_824]
    assert wide["DeepEP buffer"] / GIB == narrow["DeepEP buffer"] / GIB == pytest.approx(3.50, rel=2e-3)


@given(st.integers(1, 40))
def test_what_goes_with_requests_is_conserved(a_card: int) -> None:
    """K29, K30: at equal concurrency a card holds the same KDA state and the same MLA KV under DP16 and DP2 x DCP8."""
    dp16, dp2 = article(16 * a_card)
    state = [
        line["linear-attention state"] // int(m.slots) * int(m.wanted)
        for line, m in zip(article_lines(16 * a_card), (dp16, dp2), strict=True)
    ]
    assert state[0] == state[1]
    assert int(dp16.wanted) == a_card
    assert int(dp2.wanted) == 8 * a_card
    kv = [float(m.wanted) * 100_000 * float(m.kv_bytes_a_token) / dcp for m, dcp in ((dp16, 1), (dp2, 8))]
    assert kv[0] == kv[1] == a_card * 100_000 * 13_824


@pytest.mark.parametrize("model", [ARTICLE, V3, QWEN])
def test_memory_needed_grows_with_concurrency(model: str) -> None:
    asked = setting(model)
    layouts = asked.layouts(BATCH)
    previous = [-np.inf] * BATCH
    for concurrency in (1, 16, 17, 100, 1000):
        needed = [float(m.needed) for m in hold(asked, layouts, asked.request.case(concurrency))]
        assert all(a <= b for a, b in zip(previous, needed, strict=True))
        previous = needed


@pytest.mark.parametrize("fraction", [None, 0.5, 0.88])
@pytest.mark.parametrize("model", [ARTICLE, V3, QWEN])
def test_the_division_adds_up(model: str, fraction: float | None) -> None:
    """Start + weights + staging + state + KV of the load + what is left of it + reserve is the whole GPU."""
    asked = setting(model)
    case = asked.case
    if fraction is not None:
        case = eqx.tree_at(lambda c: c.budget.mem_fraction, case, np.float64(fraction))
    layouts = asked.layouts(BATCH, seed=1)
    for layout, held in zip(layouts, hold(asked, layouts, case), strict=True):
        sizes = {group: float(held.lines @ asked.tables.memory.of(group)) for group in Group}
        kv = float(held.wanted) * 30_000 * float(held.kv_bytes_a_token) / layout.dcp
        static = sizes[Group.WEIGHTS] + float(held.staging + held.draft_staging) + sizes[Group.STATE] + kv
        assert static == pytest.approx(float(held.needed), rel=1e-12)
        whole = sizes[Group.START] + static + float(held.slack) + sizes[Group.RESERVE] + float(held.remainder)
        assert whole == pytest.approx(float(asked.request.machine.free_bytes), rel=1e-12)
        assert sizes[Group.KV] == sizes[Group.STAGING] == 0
        if fraction is None:
            assert LEAST_FRACTION <= held.mem_fraction <= MOST_FRACTION
            assert held.remainder >= 0 or held.mem_fraction == LEAST_FRACTION
        else:
            assert held.mem_fraction == fraction


def test_the_pool_holds_what_is_left_in_whole_tokens() -> None:
    """By hand: what weights, staging and state leave of the share, over 13,824 bytes a token."""
    for held, dcp in zip(article(64), (1, 8), strict=True):
        asked = setting(ARTICLE, context=100_000, extra_slots=0)
        state = float(held.lines @ asked.tables.memory.of(Group.STATE))
        assert float(held.kv_tokens) == (float(held.budget) - state) // 13_824
        assert float(held.running) == min(64 / (2 if dcp == 8 else 16), float(held.kv_tokens) * dcp // 100_000)


def test_a_load_that_does_not_fit_is_short_of_memory() -> None:
    asked = setting(V3, context=100_000)
    fits, full = (hold(asked, [asked.read(DP16)], asked.request.case(c))[0] for c in (16, 800))
    assert fits.slack > 0 > full.slack
    assert fits.running == 1
    assert 0 < full.running < full.wanted


def test_a_model_that_does_not_fit_holds_nothing() -> None:
    asked = setting(ARTICLE, "h100", 16)
    for held in hold(asked, asked.layouts(BATCH)):
        assert held.slack < 0
        assert held.kv_tokens == held.running == 0


def test_one_dp_group_of_a_prefill_holds_whole_prompts() -> None:
    """A group's chunk of 8192 rows is part of one prompt of 20,000 tokens; the pool must hold all of it."""
    asked = setting(V3, context=20_000, phase="prefill", chunk=16 * 8192)
    held = hold(asked, [asked.read("attn_dp=16,ep=16")])[0]
    assert (held.wanted, held.slots) == (1, 2)
    short = setting(V3, context=3000, phase="prefill", chunk=16 * 8192)
    assert hold(short, [short.read("attn_dp=16,ep=16")])[0].wanted == 3


def test_lines_of_one_model_have_names_of_their_own() -> None:
    for model in (ARTICLE, V3, QWEN):
        found = [line.name for line in setting(model).tables.memory.lines]
        assert len(set(found)) == len(found)


def test_estimates_have_a_range_and_exact_lines_have_none() -> None:
    for line in setting(ARTICLE).tables.memory.lines:
        assert (line.low < 1 < line.high) if not line.exact else (line.low == line.high == 1)
        assert line.provenance


def test_context_is_divided_by_dcp_and_nothing_else() -> None:
    """Doubling the context adds the same KV to a card under DP16 and under DP2 x DCP8."""
    asked = setting(ARTICLE, context=100_000)
    longer = setting(ARTICLE, context=200_000)
    for text in (DP16, DP2):
        a, b = (hold(s, [s.read(text)])[0] for s in (asked, longer))
        assert float(b.needed - a.needed) == 4 * 100_000 * 13_824


@pytest.mark.parametrize(("layout", "gib"), [("attn_dp=16,ep=16", 3.69), ("attn_dp=2,dcp=8,ep=16", 6.74)])
def test_graphs_pass_through_the_sizes_that_were_read(layout: str, gib: float) -> None:
    """Article 000, largest captured size of either build without the DeepEP buffer: 24 and 192 requests of 5 rows."""
    asked = setting(ARTICLE, context=100_000, concurrency=384, draft="dspark-kimi-k3", verify_width=5)
    held = hold(asked, [asked.read(layout)])[0]
    assert lines(asked, held)["CUDA graphs"] / GIB == pytest.approx(gib, abs=0.01)
