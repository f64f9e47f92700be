"""Degrees that vLLM's flags mean, and the rules at which it refuses a command."""

from dataclasses import replace

import pytest

from layouts.serving.errors import EngineRuleError
from layouts.serving.vllm_limits import Limits
from layouts.serving.vllm_parallel import (
    All2All,
    Degrees,
    ParallelFlags,
    all2all,
    degrees,
    exchanges_rows,
    spreads_rows,
)
from layouts.serving.vllm_rules import ModelFacts, ServeFlags, broken_rules

MOE = ModelFacts(heads=128, kv_heads=128, latent=True, experts=256)
GQA = ModelFacts(heads=64, kv_heads=4, experts=128)
DENSE = ModelFacts(heads=64, kv_heads=8)
SERVE = ServeFlags(max_model_len=32_768, limits=Limits(8192, 1024))


def test_experts_are_cut_over_every_rank() -> None:
    flags = ParallelFlags(tp=2, dp=8, pp=2)
    assert degrees(flags, experts=True) == Degrees(32, 1, attn_dp=8, attn_tp=2, pp=2, pcp=1, dcp=1, ep=1, moe_tp=16)
    whole = replace(flags, expert_parallel=True)
    assert degrees(whole, experts=True) == Degrees(32, 1, attn_dp=8, attn_tp=2, pp=2, pcp=1, dcp=1, ep=16, moe_tp=1)


def test_prefill_context_parallelism_adds_gpus_and_cuts_experts() -> None:
    flags = ParallelFlags(tp=4, pcp=2, dcp=8, expert_parallel=True)
    assert degrees(flags, experts=True) == Degrees(8, 1, attn_dp=1, attn_tp=4, pp=1, pcp=2, dcp=8, ep=8, moe_tp=1)


def test_dense_ranks_are_servers_of_their_own() -> None:
    flags = ParallelFlags(tp=4, dp=2)
    assert degrees(flags, experts=False) == Degrees(8, 2, attn_dp=1, attn_tp=4, pp=1, pcp=1, dcp=1, ep=1, moe_tp=1)


def test_degrees_are_positive() -> None:
    with pytest.raises(EngineRuleError, match="data_parallel_size is 0"):
        ParallelFlags(dp=0)


def test_backends() -> None:
    assert all2all("deepep_low_latency") is All2All.DEEPEP_LOW_LATENCY
    assert all2all("pplx") is all2all("naive") is All2All.GATHER_SCATTER
    assert all2all("flashinfer_all2allv") is All2All.FLASHINFER_TWO_SIDED
    for unknown in ("passthrough", "deepep"):
        with pytest.raises(EngineRuleError, match="choose one of"):
            all2all(unknown)


def test_what_the_backend_does_with_rows() -> None:
    wide = ParallelFlags(tp=2, dp=4, expert_parallel=True)
    assert spreads_rows(wide)
    assert not spreads_rows(replace(wide, dp=1))
    assert not spreads_rows(replace(wide, tp=1))
    assert not spreads_rows(replace(wide, all2all=All2All.FLASHINFER_TWO_SIDED))
    assert exchanges_rows(ParallelFlags(dp=2))
    assert exchanges_rows(ParallelFlags(tp=2, pcp=2, expert_parallel=True))
    assert not exchanges_rows(ParallelFlags(tp=8, expert_parallel=True))


def test_commands_that_start_break_no_rule() -> None:
    wide = ParallelFlags(tp=1, dp=16, expert_parallel=True, all2all=All2All.DEEPEP_LOW_LATENCY, eplb=True)
    assert broken_rules(wide, replace(SERVE, nodes=2, local_dp=8, dual_batch=True), MOE) == ()
    assert broken_rules(ParallelFlags(tp=8, dcp=8), SERVE, MOE) == ()
    edge = replace(SERVE, max_num_active_seqs=1024, long_prefill_threshold=32_768)
    assert broken_rules(ParallelFlags(tp=16, dcp=4), edge, GQA) == ()
    assert broken_rules(wide, replace(SERVE, dual_batch=True, decode_threshold=2, prefill_threshold=2), MOE) == ()
    assert broken_rules(ParallelFlags(tp=4, pcp=2, dcp=2), SERVE, MOE) == ()
    assert broken_rules(ParallelFlags(tp=2, dp=4), replace(SERVE, local_dp=4, transfers_kv=True), GQA) == ()
    assert broken_rules(ParallelFlags(tp=8, dcp=8), replace(SERVE, block=64, dcp_interleave=64), MOE) == ()


EP = ParallelFlags(tp=8, expert_parallel=True)
REFUSED = [
    (ParallelFlags(tp=3), SERVE, DENSE, "tensor-parallel-size 3 does not divide 64"),
    # context parallelism
    (ParallelFlags(tp=8, dcp=3), SERVE, MOE, "does not divide TP 8"),
    (ParallelFlags(tp=4, pcp=2, dcp=4), SERVE, MOE, "choose one of 1, 2, 8"),
    (ParallelFlags(tp=4, dcp=2), SERVE, GQA, "no KV head has a copy"),
    (ParallelFlags(tp=8, dcp=4), SERVE, GQA, "exceeds the 2 copies"),
    (ParallelFlags(tp=64, dcp=16), SERVE, replace(GQA, heads=128, kv_heads=8), "exceeds the 8 copies"),
    (ParallelFlags(tp=48, dcp=4), SERVE, ModelFacts(heads=48, kv_heads=8), "the 6 query heads"),
    (ParallelFlags(tp=8, dcp=8), replace(SERVE, dcp_interleave=32), MOE, "does not divide a block of 16"),
    (ParallelFlags(tp=8), replace(SERVE, dcp_exchange="fi_a2a"), MOE, "choose one of ag_rs, a2a"),
    (ParallelFlags(tp=8, dcp=4), replace(SERVE, transfers_kv=True), MOE, "set it to 1 or to 8"),
    # experts
    (EP, SERVE, DENSE, "needs a model with experts"),
    (replace(EP, redundant_experts=8), SERVE, MOE, "8 redundant experts need --enable-eplb"),
    (ParallelFlags(tp=8, eplb=True), SERVE, MOE, "needs --enable-expert-parallel"),
    (ParallelFlags(eplb=True, expert_parallel=True), SERVE, MOE, "more than one rank"),
    (replace(EP, eplb=True, redundant_experts=4), SERVE, MOE, "set the redundant experts to 0 or a multiple of 8 more"),
    (replace(EP, tp=16, dp=3, eplb=True), SERVE, MOE, "set the redundant experts to 32 or"),
    (EP, replace(SERVE, elastic_ep=True), MOE, "elastic-ep needs --enable-eplb"),
    (replace(EP, eplb=True, pp=2), replace(SERVE, elastic_ep=True), MOE, "with 2 pipeline stages"),
    (replace(EP, all2all=All2All.MOONEP), replace(SERVE, quantised=True), MOE, "moonep takes bfloat16"),
    (replace(EP, all2all=All2All.MOONEP, eplb=True), SERVE, MOE, "moonep takes bfloat16"),
    (replace(EP, all2all=All2All.MOONEP), SERVE, replace(MOE, dtype="float16"), "moonep takes bfloat16"),
    # data parallelism
    (ParallelFlags(tp=8), replace(SERVE, nodes=3), MOE, "--nnodes 3 does not divide the 8 GPUs"),
    (ParallelFlags(dp=8), replace(SERVE, local_dp=16), MOE, "exceeds --data-parallel-size 8"),
    (ParallelFlags(dp=8), replace(SERVE, hybrid_lb=True, external_lb=True), MOE, "exclude each other"),
    (ParallelFlags(dp=8), replace(SERVE, hybrid_lb=True), MOE, "needs --data-parallel-size-local"),
    (ParallelFlags(), replace(SERVE, external_lb=True), MOE, "needs --data-parallel-size above 1"),
    (ParallelFlags(), replace(SERVE, external_lb=True), DENSE, "needs --data-parallel-size above 1"),
    (ParallelFlags(dp=2), replace(SERVE, external_lb=True), DENSE, "independent servers"),
    # limits
    (ParallelFlags(), replace(SERVE, chunked_prefill=False), DENSE, "without chunked prefill"),
    (ParallelFlags(), replace(SERVE, limits=Limits(512, 1024)), DENSE, "is below --max-num-seqs 1024"),
    (ParallelFlags(), replace(SERVE, max_num_active_seqs=1025), DENSE, "exceeds --max-num-seqs 1024"),
    (ParallelFlags(), replace(SERVE, long_prefill_threshold=40_000), DENSE, "exceeds --max-model-len 32768"),
    (ParallelFlags(), replace(SERVE, limits=Limits(4, 4), speculative=4), DENSE, "leaves no token beside 4"),
    # two halves of a step
    (replace(EP, dp=2), replace(SERVE, dual_batch=True), MOE, "--enable-dbo with --all2all-backend"),
    (
        replace(EP, dp=2, all2all=All2All.NIXL_EP),
        replace(SERVE, dual_batch=True, decode_threshold=1),
        MOE,
        "at least 2",
    ),
    (
        replace(EP, dp=2, all2all=All2All.NIXL_EP),
        replace(SERVE, dual_batch=True, speculative=3),
        MOE,
        "does not go with speculative decoding",
    ),
    # cache
    (
        ParallelFlags(),
        replace(SERVE, chunked_prefill=False, limits=Limits(32_768, 8)),
        replace(DENSE, hybrid=True),
        "prefix caching of a hybrid model",
    ),
    (ParallelFlags(), replace(SERVE, kv_dtype="float16"), DENSE, "differs from the model's bfloat16"),
    (ParallelFlags(tp=16, dcp=16), replace(SERVE, transfers_kv=True), ModelFacts(64, 1), "is for latent attention"),
]


@pytest.mark.parametrize(("parallel", "serve", "model", "message"), REFUSED)
def test_each_rule_alone(parallel: ParallelFlags, serve: ServeFlags, model: ModelFacts, message: str) -> None:
    (line,) = broken_rules(parallel, serve, model)
    assert message in line
    assert "\n" not in line


def test_every_broken_rule_is_named() -> None:
    serve = replace(SERVE, limits=Limits(16, 64), dual_batch=True, kv_dtype="float16")
    lines = broken_rules(ParallelFlags(tp=3, pp=2), serve, DENSE)
    assert len(lines) == 5


def test_missing_redundant_experts_are_enough() -> None:
    flags = ParallelFlags(tp=16, dp=3, expert_parallel=True, eplb=True, redundant_experts=32)
    assert broken_rules(flags, SERVE, MOE) == ()
