"""The cost model against the programs, at full size: layouts of 16 GPUs and more, and models wrong on purpose."""

import dataclasses
from collections.abc import Callable
from fractions import Fraction

import pytest

from hw.work import CollectiveKind
from layouts.audit import expected
from layouts.op import Op
from tests.audit.auditing import subject

V3, QWEN, LLAMA = "deepseek-v3", "qwen3-235b-a22b", "llama-3.1-70b"
SHARDED = "attn_dp=16,weight_shard=8"

# Chosen so that as many pairs of degrees and exchanges as possible stand together in one of them.
PAIRWISE = [
    ("kimi-k3", "pp=2,attn_dp=4,dcp=2,ep=2,moe_dp=2,vocab_tp=1,dcp_backend=fi_a2a"),
    ("kimi-k3@article", "replicas=2,attn_dp=8,ep=4,moe_dp=2,weight_shard=2,weight_shard_layers=1-92,vocab_tp=4"),
    ("deepseek-v3", "pp=4,attn_dp=1,dcp=4,ep=4,weight_shard=2,vocab_tp=2,dcp_backend=fi_a2a"),
    ("deepseek-v3", "attn_dp=16,moe_dp=8,weight_shard=4,vocab_tp=16"),
    ("deepseek-v3", "replicas=4,pp=2,attn_dp=2,ep=2"),
    ("deepseek-v3", "attn_dp=1,dcp=16,ep=2,moe_dp=2,vocab_tp=8,dcp_backend=ag_rs"),
    ("deepseek-v3", "replicas=2,attn_dp=4,ep=8,weight_shard=8,vocab_tp=8"),
    ("deepseek-v3.2", "replicas=4,attn_dp=2,dcp=2,moe_dp=2,dcp_backend=ag_rs"),
    ("deepseek-v3.2", "pp=4,attn_dp=4,moe_dp=4,weight_shard=2"),
    ("deepseek-v3.2", "attn_dp=8,dcp=2,ep=16,weight_shard=2,vocab_tp=16,dcp_backend=ag_rs"),
    ("glm-5.2-nvfp4", "attn_dp=1,dcp=16,dcp_backend=fi_a2a"),
    ("glm-5.2-nvfp4", "pp=2,attn_dp=8,moe_dp=4,weight_shard=2,vocab_tp=8"),
    ("glm-5.2-nvfp4", "attn_dp=4,dcp=4,ep=8,moe_dp=2,vocab_tp=16"),
    ("qwen3-235b-a22b", "attn_dp=16,moe_dp=16,weight_shard=8,vocab_tp=4"),
    ("qwen3-235b-a22b", "replicas=2,attn_dp=1,dcp=2,ep=4,vocab_tp=1,dcp_backend=ag_rs"),
    ("qwen3-235b-a22b", "pp=8,attn_dp=2,ep=2,weight_shard=2,vocab_tp=2"),
    ("qwen3-235b-a22b", "attn_dp=1,dcp=4,ep=16,weight_shard=4,vocab_tp=1,dcp_backend=fi_a2a"),
    ("qwen3-235b-a22b", "attn_dp=2,dcp=2,ep=2,moe_dp=8,dcp_backend=fi_a2a"),
    ("gpt-oss-120b", "replicas=16,attn_dp=1"),
    ("gpt-oss-120b", "attn_dp=1,dcp=2,ep=2,moe_dp=4,vocab_tp=4,dcp_backend=ag_rs"),
    ("gpt-oss-120b", "replicas=2,pp=2,attn_dp=4,ep=2,moe_dp=2,weight_shard=4,vocab_tp=2"),
    ("gpt-oss-120b", "attn_dp=2,ep=16,weight_shard=8,vocab_tp=16"),
    ("qwen3-32b", "replicas=4,attn_dp=4,weight_shard=4,vocab_tp=4"),
    ("qwen3-32b", "attn_dp=1,dcp=2,vocab_tp=8,dcp_backend=ag_rs"),
    ("llama-3.1-70b", "attn_dp=16,weight_shard=8"),
    ("llama-3.1-70b", "pp=2,attn_dp=8,weight_shard=4,vocab_tp=8"),
]
ARTICLES = [
    ("DP16 over a weight shard", "kimi-k3@article", 16, "attn_dp=16,ep=16"),
    ("DP2 x DCP8", "kimi-k3@article", 16, "attn_dp=2,dcp=8,ep=16"),
    ("TP64 / DP4 / DCP8", "kimi-k3@article", 64, "attn_dp=4,attn_tp=16,dcp=8,ep=64"),
    ("TP8", V3, 8, "attn_tp=8"),
    ("TP8, experts by rank", QWEN, 8, "attn_tp=8,ep=8"),
    ("two stages", V3, 16, "pp=2,attn_dp=8,ep=8"),
    ("two replicas", LLAMA, 16, "replicas=2,attn_tp=8"),
]


@pytest.mark.parametrize(("name", "text"), PAIRWISE, ids=lambda value: value)
def test_model_and_program_agree(name: str, text: str) -> None:
    asked = subject(name)
    layout = asked.layout(text)
    assert asked.wrong(layout, asked.audit(layout)) == []


@pytest.mark.parametrize(("name", "gpus", "text"), [case[1:] for case in ARTICLES], ids=[case[0] for case in ARTICLES])
def test_layouts_of_the_field_reports_agree(name: str, gpus: int, text: str) -> None:
    asked = subject(name)
    layout = asked.layout(text, gpus)
    found = asked.audit(layout, verify=5)
    assert asked.wrong(layout, found) == []
    assert found.left_out == found.notes == ()


@pytest.mark.parametrize(
    ("name", "text", "padded"),
    [
        ("kimi-k3", "attn_dp=2,dcp=4,ep=16", "4 of 16"),  # 4 requests a group, 3 rows each, over 8 ranks
        ("deepseek-v3", "pp=2,attn_dp=1,dcp=2", "4 of 16"),
        ("glm-5.2-nvfp4", "attn_dp=4,dcp=4,ep=8,dcp_backend=ag_rs", "2 of 8"),  # 2 requests
        ("gpt-oss-120b", "attn_dp=1", "11 of 32"),
    ],
    ids=lambda value: value,
)
def test_loads_that_no_cut_divides_agree(name: str, text: str, padded: str) -> None:
    """7 requests of 1001 tokens, 3 rows each: the rows that pad an attention group are no work of its attention."""
    asked = subject(name)
    layout = asked.layout(text)
    found = asked.audit(layout, verify=3, context=1001, requests=7)
    assert asked.wrong(layout, found) == []
    assert found.notes == (f"{padded} rows only pad the attention group: its attention is priced only",)


@pytest.mark.parametrize("name", ["kimi-k3", "glm-5.2-nvfp4", "gpt-oss-120b", "llama-3.1-70b"])
def test_the_attention_of_a_block_lies_between_its_norm_and_the_sum_of_its_group(name: str) -> None:
    blocks = [block for block in expected.step_blocks(subject(name).model).blocks if block.attention]
    assert len(blocks) == len(subject(name).model.kinds)
    for block in blocks:
        assert block.ops[block.attention.start - 1].name == "input_norm"
        assert block.ops[block.attention.stop].name in ("attention_reduce_scatter", "attention_all_reduce")


@pytest.mark.smoke
def test_exchanges_are_those_of_hand_arithmetic() -> None:
    """256 requests over two attention groups of 8: 128 rows of 7168 values in bfloat16; one of 3 + 58 layers each."""
    asked = subject(V3)
    found = asked.audit(asked.layout("attn_dp=2,ep=16"))
    rows = {(row.kind, row.size, int(row.payload)): row.program for row in found.rows}
    held = 128 * 7168 * 2
    assert rows[CollectiveKind.ALL_REDUCE, 8, held] == 1 + 3 + 3  # embedding; attention and MLP of the dense layers
    assert rows[CollectiveKind.REDUCE_SCATTER, 8, held] == rows[CollectiveKind.ALL_GATHER, 8, held] == 58


@pytest.mark.smoke
def test_weights_are_gathered_one_by_one() -> None:
    """80 layers in bfloat16: queries and the output of 64 heads of 128 over 8192 values, keys and values of 8."""
    asked = subject(LLAMA)
    found = asked.audit(asked.layout(SHARDED))
    gathers = {row.payload: row.program for row in found.rows if row.names == ("weight_all_gather",)}
    assert gathers == {64 * 128 * 8192 * 2: 2 * 80, 2 * 8 * 128 * 8192 * 2: 80}


def changed(
    monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[Op], Op | None], text: str = "attn_dp=2,attn_tp=8"
) -> list[str]:
    """What the audit says of a layout where ops of one name are changed, or left out, in the cost model."""
    step_blocks = expected.step_blocks

    def blocks(model):
        whole = step_blocks(model)
        return dataclasses.replace(whole, blocks=tuple(dataclasses.replace(b, ops=ops(b)) for b in whole.blocks))

    def ops(block):
        found = [change(op) if op.name == name else op for op in block.ops]
        return tuple(op for op in found if op is not None)

    monkeypatch.setattr(expected, "step_blocks", blocks)
    asked = subject(LLAMA)
    layout = asked.layout(text)
    return asked.wrong(layout, asked.audit(layout))


def test_an_unchanged_model_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    assert changed(monkeypatch, "o_proj", lambda op: op) == []


def test_a_payload_that_is_a_byte_off_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = changed(monkeypatch, "logits_all_gather", lambda op: dataclasses.replace(op, payload=op.payload + 1))
    assert len(wrong) == 2 and all("ALL_GATHER" in line for line in wrong)
    assert [("model=1, program=0" in line, "model=0, program=1" in line) for line in wrong].count((True, False)) == 1


def test_an_exchange_of_another_kind_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    other = CollectiveKind.REDUCE_SCATTER
    wrong = changed(monkeypatch, "mlp_all_reduce", lambda op: dataclasses.replace(op, collective=other))
    assert any("REDUCE_SCATTER" in line and "model=80, program=0" in line for line in wrong)


def test_an_exchange_that_is_missing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = changed(monkeypatch, "mlp_all_reduce", lambda op: None)
    assert "model=81, program=161" in line


def test_weights_that_hold_other_bytes_are_found_where_all_together_hold_as_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def moved(op: Op) -> Op:
        first, second, *others = op.program_messages
        half = second * Fraction(1, 2)
        return dataclasses.replace(op, program_messages=(first + half, half, *others))

    wrong = changed(monkeypatch, "weight_all_gather", moved, SHARDED)
    sides = sorted(line.partition("model=")[2].partition(", names")[0] for line in wrong)
    assert sides == ["0, program=80", "80, program=0", "80, program=0", "80, program=160"]


def test_a_group_of_another_size_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = changed(monkeypatch, "attention_all_reduce", lambda op: dataclasses.replace(op, size=op.size * 2))
    assert any("size=16" in line and "model=80, program=0" in line for line in wrong)


@pytest.mark.parametrize(("factor", "found"), [(1, []), (2, ["+"]), (0, ["-"])])
def test_flops_that_are_off_are_found(monkeypatch: pytest.MonkeyPatch, factor: int, found: list[str]) -> None:
    wrong = changed(monkeypatch, "o_proj", lambda op: dataclasses.replace(op, flops=op.flops * factor))
    assert [line.split("FLOPs off by ")[1][0] for line in wrong] == found


def test_an_op_the_program_lacks_is_listed_and_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = changed(monkeypatch, "o_proj", lambda op: dataclasses.replace(op, program=False))
    assert [line.split("FLOPs off by ")[1][0] for line in wrong] == ["-"]
    asked = subject(LLAMA)
    assert "o_proj" in asked.audit(asked.layout("attn_dp=2,attn_tp=8")).priced_only["GQA + dense"]


def test_only_what_runs_in_a_layout_is_listed() -> None:
    """Nothing merges partial attention where no tokens are cut."""
    asked = subject(V3)
    listed = [asked.audit(asked.layout(text)).priced_only for text in ("attn_dp=16", "attn_dp=2,dcp=8")]
    assert ["dcp_pack_merge" in ops["MLA + MoE"] for ops in listed] == [False, True]


def test_an_exchange_of_one_rank_is_not_listed() -> None:
    """Rows are cut into parts before they are gathered only where an attention group has several ranks."""
    asked = subject("kimi-k3", 2)
    texts = ("attn_dp=16,ep=16,dispatch=all_gather", "attn_dp=2,ep=16,dispatch=all_gather")
    listed = [asked.audit(asked.layout(text)).priced_only for text in texts]
    assert ["dp_own_rows" in ops["KDA + LatentMoE"] for ops in listed] == [False, True]


def test_the_parts_of_a_step_that_engines_gather_behind_a_send_are_listed() -> None:
    asked = subject(LLAMA, 4)
    listed = [asked.audit(asked.layout(text)).priced_only["head"] for text in ("pp=2,attn_tp=8", "attn_tp=16")]
    assert listed == [("embed", "pp_all_gather"), ("embed",)]


def test_weights_that_no_shard_gathers_are_not_listed() -> None:
    """Attention cut by heads and no shared expert: a weight shard has nothing to gather."""
    asked = subject(QWEN, 2)
    texts = [f"attn_dp={groups},ep=16,weight_shard=4,weight_shard_layers=0-1" for groups in (16, 1)]
    listed = [asked.audit(asked.layout(text)).priced_only["GQA + MoE"] for text in texts]
    assert ["weight_local_copy" in ops for ops in listed] == [True, False]
