"""What SGLang makes of flags, and every rule it refuses a command by, each with one command that breaks it alone."""

from dataclasses import replace

import pytest

from layouts.serving.errors import EngineRuleError
from layouts.serving.flag_rules import RULES, broken_buffer, broken_flags
from layouts.serving.flags import Change, Flags, rows_dispatched, settled
from layouts.serving.reserve import Role
from layouts.serving.states import StateCache

LAZY, EXTRA, PLAIN = StateCache.EXTRA_BUFFER_LAZY, StateCache.EXTRA_BUFFER, StateCache.NO_BUFFER

# In the order of the rules: settled flags, and words of the message.
BROKEN: list[tuple[Flags, str]] = [
    (Flags(tp=4, attn_dp=2, dp=2), "replicas take no attention DP"),
    (Flags(tp=8, attn_dp=3), "does not divide --tp-size 8"),
    (Flags(tp=3, hosts=2), "no multiple of --nnodes 2"),
    (Flags(tp=8, dp=2, hosts=2), "use --attn-dp-size"),
    (Flags(tp=8, ep=3), "--ep-size 3 does not divide"),
    (Flags(tp=8, ep=2, moe_dp=2, attn_cp=2), "product must be --tp-size 8"),
    (Flags(tp=8, moe_dp=2, attn_cp=4), "differs from --moe-dp-size 2"),
    (Flags(tp=8, dense_tp=2), "neither 1 nor --tp-size 8"),
    (Flags(tp=8, vocab_in_group=True), "--enable-dp-lm-head needs"),
    (Flags(tp=8, attn_dp=4, vocab_all_to_all=True), "--attn-dp-size 4 to be --tp-size 8"),
    (Flags(tp=8, prefill_cp=True, attn_cp=2), "needs --cp-strategy"),
    (Flags(tp=8, attn_dp=4, dcp=4), "the 2 ranks of an attention group"),
    (Flags(tp=8, dcp=2, prefill_cp=True, cp_strategy="zigzag"), "with --enable-prefill-cp"),
    (Flags(tp=8, dcp_exchange="a2a"), "--dcp-comm-backend a2a needs"),
    (Flags(tp=8, dcp=8, dcp_exchange="ag_rs", dcp_replicate_q=True), "--dcp-replicate-q-proj needs"),
    (Flags(tp=8, weight_shard=4), "must be --tp-size 8"),
    (Flags(tp=8, weight_shard=8, pp=2), "takes no pipeline stages"),
    (Flags(tp=8, weight_shard=8, role=Role.DECODE), "is for prefill"),
    (Flags(tp=8, balance_experts=True), "raise --ep-size"),
    (Flags(tp=8, attn_dp=4, ep=8, exchange="flashinfer"), "flashinfer needs --attn-dp-size 4"),
    (Flags(tp=8, ep=8, exchange="pplx"), "two attention groups"),
    (Flags(tp=8, attn_dp=8, ep=8, exchange="pplx", deepep_mode="normal"), "no normal mode"),
    (Flags(tp=8, ep=8, exchange="deepep", dispatch_tokens=1025), "exceeds 1024"),
    (Flags(tp=8, attn_dp=8, ep=8, exchange="deepep", graph_batch=129), "129 rows a rank"),
    (Flags(chunk=100, page=64), "no multiple of --page-size 64"),
    (Flags(window_ratio=0.0), "must lie in (0, 1]"),
    (Flags(prefix_cache=False, hierarchical_cache=True), "without a prefix cache"),
    (Flags(tp=8, dcp=8, role=Role.DECODE, transfer="other"), "cannot feed decode with DCP"),
    (Flags(role=Role.PREFILL, transfer="fake"), "is for decode servers"),
    (Flags(role=Role.DECODE, transfer="fake"), "keeps nothing of a fake transfer"),
    (Flags(tp=2, attn_dp=2, speculative="STANDALONE"), "STANDALONE takes no attention DP"),
    (Flags(pp=2, speculative="EAGLE"), "on prefill servers only"),
    (Flags(state_cache=LAZY, overlap=False), "which pipeline stages lack"),
    (Flags(state_cache=LAZY, role=Role.PREFILL), "does not serve one phase alone"),
    (Flags(state_cache=PLAIN, page=64), "needs --page-size 1, not 64"),
    (Flags(state_cache=EXTRA, page=100), "no multiple of --page-size 100"),
    (Flags(state_cache=EXTRA, track_interval=4, verify_width=8, speculative="EAGLE"), "below the 8 rows verified"),
]


@pytest.mark.parametrize(("index", "case"), list(enumerate(BROKEN)))
def test_a_rule_that_is_broken_alone(index: int, case: tuple[Flags, str]) -> None:
    flags, words = case
    (message,) = broken_flags(flags)
    assert words in message
    assert "\n" not in message
    assert not RULES[index].holds(flags)


def test_every_rule_has_its_case() -> None:
    assert len(BROKEN) == len(RULES)


@pytest.mark.parametrize(
    "flags",
    [
        Flags(),
        Flags(tp=8, attn_dp=8, ep=8, exchange="deepep", vocab_in_group=True, dense_tp=1, graph_batch=128),
        Flags(tp=64, attn_dp=4, dcp=8, ep=64, exchange="deepep", hosts=8, max_running=256, role=Role.DECODE),
        Flags(tp=8, attn_cp=2, moe_dp=2, ep=4, prefill_cp=True, cp_strategy="interleave"),
        Flags(tp=8, attn_dp=8, vocab_all_to_all=True),
        Flags(tp=8, dcp=8, dcp_exchange="a2a", dcp_replicate_q=True),
        Flags(chunk=-1, page=64, state_cache=EXTRA, window_ratio=1.0),
        Flags(state_cache=PLAIN, overlap=False),
        Flags(hierarchical_cache=True),
        Flags(role=Role.DECODE, prefix_cache=False, transfer="other"),
        Flags(tp=8, dcp=8, transfer="other"),
        Flags(tp=8, ep=8, exchange="deepep", dispatch_tokens=1024),
        Flags(chunk=0, page=64, state_cache=EXTRA, track_interval=64, verify_width=64, speculative="EAGLE"),
    ],
)
def test_commands_that_pass(flags: Flags) -> None:
    assert broken_flags(flags) == []


def test_one_rank_has_no_groups() -> None:
    assert len(broken_flags(Flags(vocab_all_to_all=True))) == 1
    assert len(broken_flags(Flags(dcp_replicate_q=True))) == 1


def test_rows_of_a_draft_count_against_the_dispatch_cap() -> None:
    """B21: 128 rows a rank by default; decode requests x (1 + draft tokens) above it trip the kernel's assertion."""
    flags = Flags(tp=8, attn_dp=8, ep=8, exchange="deepep", speculative="EAGLE", verify_width=4, max_running=264)
    assert rows_dispatched(flags) == 33 * 4
    assert len(broken_flags(flags)) == 1
    assert broken_flags(replace(flags, max_running=256)) == []
    assert broken_flags(replace(flags, graph_batch=32)) == []
    assert broken_flags(replace(flags, dispatch_tokens=132)) == []
    # four ranks of a group share its rows: 132 / 4
    assert rows_dispatched(replace(flags, attn_dp=2, max_running=66)) == 33
    assert rows_dispatched(replace(flags, role=Role.PREFILL)) == 0
    # a batch beyond the graphs runs without them
    assert rows_dispatched(replace(flags, graph_batch=8, decode_graphs=False)) == 33 * 4


def test_the_buffer_that_deepep_refuses() -> None:
    """A28: width 5,120 and 448 experts; 1,856 tokens fail and 1,840 start in vLLM (SGLang caps both)."""
    flags = Flags(tp=16, attn_dp=16, ep=16, exchange="deepep", dispatch_tokens=1856)
    assert "at most 184" in broken_buffer(flags, 5120, 448)[0]
    assert broken_buffer(replace(flags, dispatch_tokens=1840), 5120, 448) == []
    assert broken_buffer(replace(flags, dispatch_tokens=1843), 5120, 448) == []
    assert broken_buffer(replace(flags, deepep_mode="normal"), 5120, 448) == []


def test_expert_exchange_spans_tp_and_groups_share_the_chunk() -> None:
    flags, changes = settled(Flags(tp=8, attn_dp=4, exchange="deepep", chunk=16_384, vocab_in_group=True))
    assert (flags.ep, flags.chunk, flags.vocab_in_group) == (8, 4096, True)
    assert Change("ep", "1", "8", "deepep exchanges rows among all of tp") in changes
    assert {change.flag for change in changes} == {"ep", "chunk"}
    assert settled(Flags(tp=8, ep=4))[0].ep == 4
    assert settled(Flags(chunk=8192, vocab_in_group=True))[0] == Flags(chunk=8192)
    assert not settled(Flags(tp=8, exchange="deepep", deepep_mode="normal"))[0].decode_graphs


def test_a_decode_server_drops_the_prefix_cache_and_adds_slots() -> None:
    flags, _ = settled(Flags(tp=16, attn_dp=16, role=Role.DECODE, max_running=512, state_cache=EXTRA))
    assert (flags.prefix_cache, flags.state_cache, flags.extra_slots) == (False, StateCache.OFF, 64)
    kept, _ = settled(Flags(role=Role.DECODE, decode_prefix_cache=True, extra_slots=3, max_running=8))
    assert (kept.prefix_cache, kept.extra_slots) == (True, 3)
    # the limit that speculation sets comes later and adds no slots
    assert settled(Flags(role=Role.DECODE, speculative="EAGLE"))[0].extra_slots == 0


def test_speculation_sets_a_limit_and_a_chain_its_width() -> None:
    chain = Flags(speculative="NEXTN", speculative_steps=3, speculative_topk=1, verify_width=8)
    assert (settled(chain)[0].max_running, settled(chain)[0].verify_width) == (48, 4)
    block = Flags(speculative="DSPARK", speculative_steps=1, speculative_topk=1, verify_width=8, max_running=9)
    assert settled(block) == (block, ())
    assert settled(replace(chain, speculative_topk=4))[0].verify_width == 8


def test_gathered_experts_and_overlap() -> None:
    flags, _ = settled(Flags(tp=4, weight_shard=4, exchange="deepep", chunk=8192))
    assert (flags.attn_dp, flags.ep, flags.exchange, flags.dense_tp) == (4, 4, "none", 1)
    assert (flags.vocab_in_group, flags.decode_graphs, flags.chunk) == (True, False, 2048)
    assert not settled(Flags(pp=2))[0].overlap
    assert not settled(Flags(state_cache=PLAIN))[0].overlap
    assert settled(Flags(state_cache=EXTRA))[0].overlap


def test_a_width_below_one_is_refused() -> None:
    with pytest.raises(EngineRuleError, match="tp is 0"):
        Flags(tp=0)
    with pytest.raises(EngineRuleError, match="page is 0"):
        Flags(page=0)
