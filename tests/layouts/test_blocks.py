"""The ops of a step by hand: FLOPs, bytes and messages of one rank, for layouts whose figures the articles print."""

import dataclasses
from fractions import Fraction

import hypothesis.strategies as st
import pytest
from hypothesis import given

from layouts.blocks import step_blocks
from layouts.layout import Layout, ShardedLayers
from layouts.moe import MoE
from tests.helpers import PRESETS
from tests.layouts.oracle import Case, Number, values
from tests.spaces import layouts, model_of

K3 = "kimi-k3@article"
SIZES = (1, 2, 4, 8, 16, 24, *range(32, 520, 8))
DP16 = Layout(
    attn_dp=16,
    ep=16,
    weight_shard=8,
    weight_shard_layers=ShardedLayers(1, 92, True),
    vocab_tp=8,
    dispatch="all_to_all",
)
DP2 = dataclasses.replace(DP16, attn_dp=2, attn_tp=8, dcp=8, weight_shard_layers=ShardedLayers(1, 92))
# 256 requests of 100k tokens on the instance: 16 a card, 80 rows; or 128 a group, 640 rows
LOAD = Case(100_000, 256, 5, SIZES, 148)

FIELDS = ("flops", "bytes", "payload", "size", "stride", "share")


def ops_of(name: str, layout: Layout, case: Case) -> dict[str, dict[str, dict[str, Number]]]:
    """Block -> op -> field -> value, ops that the layout does not take left out."""
    numbers = values(model_of(name), layout, case)
    blocks: dict[str, dict[str, dict[str, Number]]] = {}
    for block in step_blocks(model_of(name), case.prefill).blocks:
        found = {op.name: {f: getattr(op, f).evaluate(numbers) for f in FIELDS} for op in block.ops}
        blocks[block.name] = {op: fields for op, fields in found.items() if fields["share"] != 0}
    return blocks


@pytest.fixture(scope="module")
def dp16() -> dict[str, dict[str, dict[str, Number]]]:
    return ops_of(K3, DP16, LOAD)


@pytest.fixture(scope="module")
def dp2() -> dict[str, dict[str, dict[str, Number]]]:
    return ops_of(K3, DP2, LOAD)


KDA, MLA = "KDA + LatentMoE", "MLA + LatentMoE"


def test_kda_projections(dp16: dict, dp2: dict) -> None:
    """K09: 264,241,152 bytes of qkv; FP8 scales are one float32 for 128 x 128."""
    weights, scales = 36864 * 7168, 36864 * 7168 * 4 // 16384
    assert weights == 264_241_152
    assert dp16[KDA]["qkv_proj"]["flops"] == 2 * weights * 80
    assert dp16[KDA]["qkv_proj"]["bytes"] == weights + scales + 80 * 2 * (7168 + 36864)
    assert dp2[KDA]["qkv_proj"]["flops"] == 2 * weights * 640 // 8
    assert dp2[KDA]["qkv_proj"]["bytes"] == (weights + scales) // 8 + 640 * 2 * (7168 + 36864 // 8)
    # f_a is replicated: DP2 multiplies it with all rows of the group on each card
    assert dp2[KDA]["f_a_proj"]["flops"] == 2 * 128 * 7168 * 640


def test_state_traffic_goes_with_the_requests(dp16: dict, dp2: dict) -> None:
    """96 states of 128 x 128 float32, read once and written once; each row brings q, k, v, decay and output."""
    state = 2 * 96 * 128 * 128 * 4
    assert dp16[KDA]["kda_state"]["bytes"] == 16 * state + 80 * 5 * 2 * 12288
    assert dp2[KDA]["kda_state"]["bytes"] == dp16[KDA]["kda_state"]["bytes"]
    assert dp16[KDA]["kda_state"]["flops"] == dp2[KDA]["kda_state"]["flops"] == 80 * 7 * 96 * 128 * 128
    assert dp16["tail"]["kda_commit"]["bytes"] == 69 * 16 * state


def test_latent_attention(dp16: dict, dp2: dict) -> None:
    """576 FP8 bytes a token; scores over 576 values, outputs over 512, for 96 heads in either layout."""
    for found in (dp16, dp2):
        core = found[MLA]["mla_decode"]
        assert core["flops"] == 16 * 100_000 * 5 * 96 * 2 * (576 + 512)
    assert dp16[MLA]["mla_decode"]["bytes"] == 16 * 100_000 * 576 + 80 * 96 * 2 * (576 + 512)
    assert dp2[MLA]["mla_decode"]["bytes"] == 16 * 100_000 * 576 + 640 * 96 * 2 * (576 + 512)


def test_replicated_queries_cost_what_the_group_saves(dp16: dict, dp2: dict) -> None:
    """K10, K11: under DCP8 each card multiplies the Q projections of all 96 heads with 640 rows."""
    assert dp2[MLA]["q_b_proj"]["flops"] == 2 * 28_311_552 * 640 == 8 * dp16[MLA]["q_b_proj"]["flops"]
    assert dp2[MLA]["w_kc"]["flops"] == 2 * (12_582_912 // 2) * 640
    # the value side comes after the exchange, on 12 heads
    assert dp2[MLA]["w_vc"]["flops"] == dp16[MLA]["w_vc"]["flops"] == 2 * 96 * 128 * 512 * 80


def test_exchange_of_partial_attention(dp16: dict, dp2: dict) -> None:
    """640 rows x 96 heads of 512 bf16 values and an LSE in two bf16 columns, over 8 neighbours."""
    exchange = dp2[MLA]["dcp_exchange"]
    assert (exchange["payload"], exchange["size"], exchange["stride"]) == (640 * 96 * 2 * 514, 8, 1)
    assert {"q_all_gather", "lse_all_gather", "output_reduce_scatter", "dcp_scale"}.isdisjoint(dp2[MLA])
    assert "dcp_exchange" not in dp16[MLA]


def test_gathering_backend_of_the_exchange() -> None:
    """ag_rs: Q of 12 heads gathered to 96, float32 LSE of 8 ranks, float32 outputs scattered; no copy of Q."""
    found = ops_of(K3, dataclasses.replace(DP2, dcp_backend="ag_rs"), LOAD)[MLA]
    assert found["q_all_gather"]["payload"] == 640 * 96 * 576 * 2
    assert found["lse_all_gather"]["payload"] == 8 * 640 * 96 * 4
    assert found["output_reduce_scatter"]["payload"] == 640 * 96 * 512 * 4
    assert found["q_b_proj"]["flops"] == 2 * 28_311_552 * 640 // 8
    assert "dcp_exchange" not in found


def test_calls_of_the_exchange() -> None:
    """D07: with replicated Q the packed exchange is one call where ag_rs makes three; with Q gathered, two."""
    calls = {}
    for name, layout in ((K3, DP2), ("qwen3-235b-a22b", Layout(attn_tp=16, dcp=4, ep=16))):
        for backend in ("ag_rs", "a2a"):
            blocks = step_blocks(model_of(name)).blocks[1:]
            numbers = values(model_of(name), dataclasses.replace(layout, dcp_backend=backend), LOAD)
            taken = [
                op
                for b in blocks
                if "draft" not in b.name
                for op in b.ops
                if op.collective and op.size.names == {"dcp"}
            ]
            per_kind = len(
                [b for b in blocks if any(op.name == "dcp_exchange" for op in b.ops) and "draft" not in b.name]
            )
            calls[name, backend] = sum(op.share.evaluate(numbers) for op in taken) / per_kind
    assert calls == {(K3, "ag_rs"): 3, (K3, "a2a"): 1, ("qwen3-235b-a22b", "ag_rs"): 3, ("qwen3-235b-a22b", "a2a"): 2}


def test_rows_are_scattered_before_the_experts_and_gathered_after(dp16: dict, dp2: dict) -> None:
    """S26, S27: 640 rows of 7168 bf16 values over the 8 cards of a host; nothing where attention is whole."""
    for name in ("attention_reduce_scatter", "moe_all_gather"):
        assert (dp2[KDA][name]["payload"], dp2[KDA][name]["size"]) == (9_175_040, 8)
        assert dp16[KDA][name]["size"] == 1
    assert {"dp_all_gather", "dp_sum_gather", "attention_all_reduce", "dp_reduce_scatter"}.isdisjoint(dp2[KDA])


def test_dispatch_and_combine(dp16: dict, dp2: dict) -> None:
    """80 rows to 16 experts: 3584 FP8 values and 28 float32 scales out, 3584 bf16 values back, in both layouts."""
    for found in (dp16, dp2):
        assert found[KDA]["dispatch"]["payload"] == 80 * 16 * (3584 + 112)
        assert found[KDA]["combine"]["payload"] == 80 * 16 * 2 * 3584
        assert found[KDA]["dispatch"]["size"] == 16


def test_experts_read_what_is_touched(dp16: dict, dp2: dict) -> None:
    """1280 rows reach the 56 experts of a card, which reads nearly all: half a byte a value and 1/32 of scales."""
    touched = 56 * (1 - (1 - 16 / 896) ** 1280)
    for found in (dp16, dp2):
        w13 = found[KDA]["w13"]
        assert w13["flops"] == 2 * 6144 * 3584 * 1280
        assert float(w13["bytes"]) == pytest.approx(
            touched * 6144 * 3584 * 17 / 32 + 1280 * 2 * (3584 + 6144), rel=1e-12
        )
        assert found[KDA]["w2"]["flops"] == 2 * 3584 * 3072 * 1280
    assert touched > 55.9


def test_gathered_weights(dp16: dict, dp2: dict) -> None:
    """K01, K02: the largest layer of DP16 and the MoE part of DP2; a card copies its own eighth (read and write)."""
    assert dp16[KDA]["weight_all_gather"]["payload"] == 627_048_448
    assert dp16[MLA]["weight_all_gather"]["payload"] == 387_973_120
    assert dp16["draft GQA window + dense"]["weight_all_gather"]["payload"] == 675_282_944
    assert dp2[KDA]["weight_all_gather"]["payload"] == dp2[MLA]["weight_all_gather"]["payload"] == 183_500_800
    assert dp16[KDA]["weight_local_copy"]["bytes"] == 627_048_448 * 2 // 8
    assert dp16[KDA]["weight_all_gather"]["size"] == 8


def test_bytes_received_by_weight_gathers_a_step() -> None:
    """K03, K04: 48,411,181,056 and 14,771,814,400 bytes, 7/8 of layers 1-92 and of the five draft layers."""
    for layout, expected in ((DP16, 48_411_181_056), (DP2, 14_771_814_400)):
        step, numbers = step_blocks(model_of(K3)), values(model_of(K3), layout, LOAD)
        sharded = [*step.target[1:], *(step.draft if layout.weight_shard_layers.draft else ())]
        whole = sum(step.blocks[step.sequence[i]].staging.evaluate(numbers) for i in sharded)
        assert whole * 7 / 8 == expected


def test_head_and_tail(dp16: dict) -> None:
    """Eight cards share the vocabulary: each looks up and multiplies the rows of all eight with its eighth."""
    assert dp16["head"]["embed_all_reduce"]["payload"] == 640 * 7168 * 2
    assert dp16["tail"]["lm_head"]["flops"] == 2 * 163840 * 7168 * 640 // 8
    assert dp16["tail"]["logits_row_gather"]["payload"] == 640 * 7168 * 2
    assert dp16["tail"]["logits_all_gather"]["payload"] == 640 * 163840 * 2


def test_draft_pass(dp16: dict, dp2: dict) -> None:
    """A block of 4 rows a request; DP2 cuts it by heads over 8 cards, whatever DCP does to the model."""
    layer = dp16["draft GQA window + dense"]
    assert layer["o_proj"]["flops"] == 2 * 7168 * 4096 * 64
    assert layer["kv_proj"]["flops"] == 2 * (2 * 16 * 64) * 7168 * 64
    assert layer["gate_up_proj"]["bytes"] == 28672 * 7168 * 2 + 64 * 2 * (7168 + 28672)
    assert dp2["draft GQA window + dense"]["o_proj"]["flops"] == 2 * 7168 * 4096 * 512 // 8
    assert {"dcp_exchange", "q_all_gather"}.isdisjoint(dp2["draft GQA window + dense"])
    assert dp16["draft in"]["fc"]["flops"] == 2 * 7168 * 35840 * 80


def test_one_group_sums_over_all_ranks() -> None:
    found = ops_of("deepseek-v3", Layout(attn_tp=16, expert_tp=16), Case(4096, 60, 1, SIZES, 148))["MLA + MoE"]
    assert found["attention_all_reduce"]["payload"] == found["moe_all_reduce"]["payload"] == 64 * 7168 * 2
    assert found["attention_all_reduce"]["size"] == found["moe_all_reduce"]["size"] == 16
    # every rank has all rows: 1/16 of the width of each expert, 64 rows x 8 experts
    assert found["w13"]["flops"] == 2 * 4096 * 7168 * 64 * 8 // 16
    assert found["shared_gate_up_proj"]["flops"] == 2 * 4096 * 7168 * 64 // 16
    assert {"dispatch", "combine", "dp_all_gather", "attention_reduce_scatter"}.isdisjoint(found)


@pytest.mark.parametrize(
    ("padding", "gather", "rows"), [("max_len", "dp_all_gather", 64), ("sum_len", "dp_sum_gather", 60)]
)
def test_attention_groups_meet_before_the_experts(padding: str, gather: str, rows: int) -> None:
    """4 groups of 4 ranks; 15 requests a group run as 16. SUM_LEN carries the 60 rows that there are."""
    layout = Layout(attn_dp=4, attn_tp=4, ep=16, padding=padding)
    found = ops_of("deepseek-v3", layout, Case(4096, 60, 1, SIZES, 148))["MLA + MoE"]
    assert (found[gather]["payload"], found[gather]["size"]) == (rows * 7168 * 2, 16)
    assert found["router"]["flops"] == 2 * 256 * 7168 * rows
    assert found["w13"]["flops"] == Fraction(2 * 4096 * 7168 * rows * 8, 16)
    back = "dp_reduce_scatter" if padding == "max_len" else "moe_all_reduce"
    assert found[back]["payload"] == rows * 7168 * 2


def test_copies_of_the_experts_share_the_rows() -> None:
    """moe_dp 2: each half of the ranks computes half of the rows, its shared expert cut over that half alone."""
    layout = Layout(attn_dp=16, ep=8, moe_dp=2)
    found = ops_of("deepseek-v3", layout, Case(4096, 256, 1, SIZES, 148))["MLA + MoE"]
    assert (found["dp_all_gather"]["payload"], found["dp_all_gather"]["size"]) == (128 * 7168 * 2, 8)
    assert found["shared_down_proj"]["flops"] == 2 * 7168 * 2048 * 128 // 8


def test_stages_hand_rows_on() -> None:
    """Hidden state and residual of a micro-batch, three times for four stages of 4 ranks: a quarter from each rank,
    gathered by the four."""
    layout = Layout(pp=4, attn_tp=4, expert_tp=4)
    found = ops_of("deepseek-v3", layout, Case(4096, 64, 1, SIZES, 148))["head"]
    send, gather = found["pp_send"], found["pp_all_gather"]
    assert (send["payload"], send["size"], send["stride"]) == (3 * 4 * 2 * 2 * 7168, 4, 4)
    assert (gather["payload"], gather["size"], gather["stride"]) == (3 * 16 * 2 * 2 * 7168, 4, 1)
    assert "pp_all_gather" not in ops_of("deepseek-v3", Layout(attn_tp=4, expert_tp=4), LOAD)["head"]


def test_a_mixing_stream_is_handed_on_as_its_sum_and_blocks() -> None:
    """93 layers open 8 blocks of 12, of which half stand at a cut on average; 32 rows a micro-batch, two stages."""
    found = ops_of("kimi-k3", Layout(pp=2, attn_tp=8, expert_tp=8), Case(4096, 64, 1, SIZES, 148))["head"]
    assert found["pp_send"]["payload"] == 32 * (1 + 4) * 2 * 7168 // 8


@pytest.mark.parametrize(
    ("name", "layout", "before", "after"),
    [
        ("deepseek-v3", Layout(attn_dp=2, attn_tp=8, ep=16, dispatch="all_to_all"), 4, 4),  # a rank's part
        ("deepseek-v3", Layout(attn_dp=16, ep=16, dispatch="all_gather"), 4, 4),  # whole: normed, then gathered
        ("deepseek-v3", Layout(attn_dp=2, attn_tp=8, ep=16, dispatch="all_gather"), 32, 64),  # a sum until gathered
        ("deepseek-v3", Layout(attn_dp=16, ep=16, dispatch="all_gather", padding="sum_len"), 4, 4),
        ("deepseek-v3", Layout(attn_tp=16, expert_tp=16, dispatch="all_gather"), 64, 64),
        ("kimi-k3", Layout(attn_dp=2, attn_tp=8, ep=16, dispatch="all_to_all"), 32, 4),  # gathered, then read
        ("kimi-k3", Layout(attn_dp=2, attn_tp=8, ep=16, dispatch="all_gather"), 32, 32),
    ],
    ids=str,
)
def test_norms_run_on_the_rows_that_an_engine_norms(name: str, layout: Layout, before: int, after: int) -> None:
    """64 requests of one row: input and residual read, residual and result written, and each block of a stream read."""
    model = model_of(name)
    kind = next(i for i, la in enumerate(model.kinds) if isinstance(la.ffn, MoE))
    blocks = [0, 0]
    if model.residual is not None:
        places = model.layers_of_kind(kind)
        blocks = [
            Fraction(sum(-(-i // 12) for i in places), len(places)),
            Fraction(sum(i // 12 + 1 for i in places), len(places)),
        ]
    found = ops_of(name, layout, Case(4096, 64, 1, SIZES, 148))[model.kinds[kind].label]
    norms = [found[n]["bytes"] for n in ("input_norm", "post_attention_norm")]
    assert norms == [rows * (4 + more) * 2 * 7168 for rows, more in zip((before, after), blocks, strict=True)]


def test_sliding_windows_bound_what_is_read() -> None:
    """gpt-oss: 8 KV heads x 64 x 2, bf16; every other layer sees 128 tokens."""
    found = ops_of("gpt-oss-120b", Layout(), Case(50_000, 4, 1, SIZES, 148))
    full, window = (next(v for k, v in found.items() if k.startswith(n)) for n in ("GQA +", "GQA window"))
    io = 4 * 2 * 2 * 64 * 64
    assert full["gqa_decode"]["bytes"] == 4 * 50_000 * 2 * 8 * 64 * 2 + io
    assert window["gqa_decode"]["bytes"] == 4 * 128 * 2 * 8 * 64 * 2 + io
    assert full["gqa_decode"]["flops"] == 4 * 50_000 * 64 * 64 * 4


def test_sparse_attention_scores_all_and_reads_the_best() -> None:
    """DeepSeek-V3.2: 64 index heads of 128 over every token, 132 bytes each; 2048 tokens are attended."""
    found = ops_of("deepseek-v3.2", Layout(attn_dp=16, ep=16, dispatch="all_to_all"), Case(50_000, 64, 1, SIZES, 148))
    layer = found["DSA + MoE"]
    assert layer["index_scores"]["flops"] == 4 * 50_000 * 2 * 64 * 128
    assert layer["index_scores"]["bytes"] == 4 * 50_000 * 132
    assert layer["mla_decode"]["flops"] == 4 * 2048 * 128 * 2 * (576 + 512)


PREFILL = Case(16384, 1, 1, SIZES, 148, chunk=8192, prefill=True)


def test_prefill_attends_to_half_of_the_prompt() -> None:
    """8192 rows over 8192 keys on average, 128 heads of 192 + 128; 64 index heads score, 2048 latents are kept."""
    layout = Layout(attn_tp=8, expert_tp=8)
    dense = ops_of("deepseek-v3", layout, PREFILL)["MLA + MoE"]
    assert dense["mla_prefill"]["flops"] == 8192 * 8192 * 2 * 128 * (192 + 128) // 8
    sparse = ops_of("deepseek-v3.2", layout, PREFILL)["DSA + MoE"]
    assert sparse["index_scores"]["flops"] == 8192 * 8192 * 2 * 64 * 128
    assert sparse["mla_prefill"]["flops"] == 8192 * 2048 * 2 * 128 * (576 + 512) // 8
    windowed = ops_of("gpt-oss-120b", Layout(), PREFILL)["GQA window + MoE"]
    assert windowed["gqa_prefill"]["flops"] == 8192 * 128 * 64 * 64 * 4


def test_prefill_wants_the_logits_of_the_last_token_only() -> None:
    found = ops_of("deepseek-v3", Layout(attn_tp=8, expert_tp=8, vocab_tp=8), PREFILL)
    assert found["tail"]["lm_head"]["flops"] == 2 * 129280 * 7168 // 8
    assert found["head"]["embed_all_reduce"]["payload"] == 8192 * 7168 * 2
    assert not any("draft" in block for block in found)


def test_context_parallel_prefill_gathers_keys_and_rows() -> None:
    """Each of 4 ranks computes 2048 rows, sees the latents of all 8192, and the experts see all rows."""
    found = ops_of("deepseek-v3", Layout(attn_cp=4, attn_tp=2, expert_tp=8), PREFILL)["MLA + MoE"]
    gather = found["cp_kv_all_gather"]
    assert (gather["payload"], gather["size"], gather["stride"]) == (8192 * 576 * 2, 4, 2)
    assert found["mla_prefill"]["flops"] == 2048 * 8192 * 2 * 128 * (192 + 128) // 2
    assert found["dp_all_gather"]["payload"] == 8192 * 7168 * 2
    assert found["w13"]["flops"] == 2 * 4096 * 7168 * 8192 * 8 // 8


@given(layouts(K3, 16), st.integers(1, 64))
def test_work_that_is_cut_adds_up(layout: Layout, requests: int) -> None:
    """Over all ranks of a stage a projection that is cut costs what it costs on one: two FLOPs a parameter and row."""
    case = Case(1000, requests * layout.attn_dp * layout.replicas * layout.pp, 1, tuple(range(1, 65)), 148)
    rows = values(model_of(K3), layout, case)["rows"] * layout.attn_dp
    found = ops_of(K3, layout, case)
    assert found[KDA]["qkv_proj"]["flops"] * layout.tp == 2 * 36864 * 7168 * rows
    assert found[MLA]["w_vc"]["flops"] * layout.tp == 2 * 96 * 128 * 512 * rows
    if layout.padding == "max_len":
        assert found[KDA]["w13"]["flops"] * layout.tp == 2 * 6144 * 3584 * 16 * rows
        assert found[KDA]["shared_down_proj"]["flops"] * layout.tp == 2 * 7168 * 6144 * rows


@given(st.sampled_from(PRESETS), st.data())
def test_alternatives_exclude_each_other(name: str, data: st.DataObject) -> None:
    """One way to the experts and one way back; ops of the ways not taken have no share, all others have one."""
    layout = data.draw(layouts(name, 16))
    numbers = values(model_of(name), layout, LOAD)
    for block in step_blocks(model_of(name)).blocks:
        shares = {op.name: op.share.evaluate(numbers) for op in block.ops}
        assert set(shares.values()) <= {0, 1}
        if "router" in shares:
            ways = [shares[n] for n in ("dispatch", "dp_all_gather", "dp_sum_gather")]
            alone = layout.dispatch == "all_gather" and layout.attn_dp * layout.attn_cp * layout.moe_dp == 1
            assert sum(ways) == (0 if alone else 1)
            latent = "moe_latent_all_reduce" in shares
            assert shares["moe_latent_all_reduce" if latent else "moe_all_reduce"] + shares["moe_all_gather"] == 1
            assert shares["attention_reduce_scatter"] + shares["attention_all_reduce"] == (
                0 if shares["dp_sum_gather"] and not latent else 1
            )
