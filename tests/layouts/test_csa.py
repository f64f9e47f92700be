"""Compressed attention (DeepSeek-V4) against published sizes, a start-up log and hand arithmetic."""

import json
from fractions import Fraction

import pytest

from hw.work import Family
from layouts.blocks import step_blocks
from layouts.csa import CSA
from layouts.models import Model, ModelError, load_model
from layouts.models.load import has_program
from layouts.models.presets import FOLDER
from layouts.op import Op
from layouts.rules import Site
from layouts.shapes import ShapeError
from layouts.traits import traits_of

GIB = 2**30
FLASH, PRO = "deepseek-v4-flash", "deepseek-v4-pro"
WHOLE = dict.fromkeys(("attn_tp", "dense_tp", "shared_tp", "vocab_tp", "expert_tp", "attention_shard", "moe_shard"), 1)
SMALL = CSA(64, 4, 32, 8, 16, 2, 8, 128, 2, ratio=4, index_heads=2, index_dim=16, topk=8)


def rank_bytes(model: Model, cut: int) -> float:
    """Weights of one rank where every cut is the same, tables included, summed tensor by tensor."""
    values = dict.fromkeys(WHOLE, cut) | {"attention_shard": 1, "moe_shard": 1}
    size = Fraction(model.table_bytes)
    for tensor in model.vocabulary():
        size += tensor.resident(model.precision).evaluate(values)
    for layer in model.layers:
        numbers = values | {"experts_rank": layer.experts}
        size += sum(t.resident(model.precision).evaluate(numbers) for t in layer.tensors())
    return float(size)


def token_bytes(model: Model) -> Fraction:
    """Compressed rows and index keys of one token in all layers."""
    rows = [layer.attention for layer in model.layers if isinstance(layer.attention, CSA)]
    return sum(
        (Fraction(a.row_bytes("fp8") + a.index_bytes, a.ratio) for a in rows if a.ratio), start=Fraction(0)
    )  # fmt: skip


def ops(name: str, kind: int, prefill: bool = False) -> dict[str, Op]:
    return {op.name: op for op in step_blocks(load_model(name), prefill).blocks[1 + kind].ops}


def test_parameters_are_the_published_ones() -> None:
    """284.33 B as a loader prints it (ggml-org/llama.cpp#22319); 1.6 T on the model card, of which the Hub counts
    862 B stored elements: two of the experts' values are one of them, and each scale is one."""
    assert load_model(FLASH).parameters / 1e9 == pytest.approx(284.33, rel=1e-4)
    pro = load_model(PRO, "mtp")
    assert pro.draft is not None
    experts = 62 * 384 * 3 * 3072 * 7168
    drafted = sum(t.parameters for t in pro.draft.extra) + sum(layer.parameters for layer in pro.draft.layers)
    stored = pro.parameters + drafted - experts / 2 + experts / 32
    assert stored / 1e9 == pytest.approx(862, rel=1e-3)


def test_weights_are_those_of_the_published_index() -> None:
    """159,609,485,896 bytes in all (metadata of the checkpoint's index), the draft's layer among them."""
    model = load_model(FLASH, "mtp")
    assert model.draft is not None
    values = WHOLE | {"experts_rank": 256, "draft_shard": 1}
    draft = sum(t.resident(model.precision).evaluate(values) for t in model.draft.tensors())
    assert float(model.weight_bytes + draft) == pytest.approx(159_609_485_896, rel=0.001)


def test_a_rank_of_a_start_up_log() -> None:
    """sglang#28620: FP8 experts over TP8 are 35.52 GiB, o_a_proj in bf16 as on chips without its fp8 kernel."""
    model = load_model("sgl-project/DeepSeek-V4-Flash-FP8")
    assert model.precision["experts"].name == "fp8"
    upcast = 43 * 8192 * 4096 / 8
    assert (rank_bytes(model, 8) + upcast) / GIB == pytest.approx(35.52, rel=0.001)


def test_layers_of_the_presets() -> None:
    flash, pro = load_model(FLASH), load_model(PRO)
    assert [layer.label for layer in flash.layers[:4]] == ["MQA window + MoE"] * 2 + ["CSA + MoE", "HCA + MoE"]
    assert [flash.kind_counts, pro.kind_counts] == [(2, 21, 20), (31, 30)]
    assert (flash.precision["experts"].name, flash.precision["kv"].name) == ("mxfp4", "fp8")
    assert load_model("deepseek-ai/DeepSeek-V4-Flash-0731").layers == flash.layers
    assert not has_program(FLASH)


def test_rows_by_hand() -> None:
    """584 bytes a row, 132 an index key; 512 values of bf16 or of one byte."""
    model = load_model(FLASH)
    attention = model.layers[2].attention
    assert isinstance(attention, CSA)
    assert [attention.row_bytes(kind) for kind in ("fp8", "bf16", "fp8_raw")] == [448 + 128 + 8, 1024, 512]
    assert attention.kv_bytes("fp8").evaluate({}) == 146 and attention.index_bytes == 132
    assert (attention.reach, attention.row_tokens) == (2048, 8)
    # 8 tokens of value and score, two halves each, for rows of 512 and index keys of 128; 128 tokens at ratio 128
    assert attention.state_bytes == 8 * 2 * 2 * (512 + 128) * 4
    other = model.layers[3].attention
    assert isinstance(other, CSA) and other.state_bytes == 128 * 2 * 512 * 4
    assert token_bytes(model) == 21 * (146 + 33) + 20 * Fraction(584, 128)
    window = model.layers[0].attention
    assert isinstance(window, CSA) and not window.kv_bytes("fp8") and window.state_bytes == 0


def test_weights_by_hand() -> None:
    held = {t.name: t.parameters for t in SMALL.tensors()}
    mixing = {
        f"{half}_{part}": size for half in ("attention", "ffn") for part, size in (("mix_proj", 1024), ("mix", 11))
    }
    assert held == {
        "input_norm": 64, "qkv_a_proj": (16 + 32) * 64, "q_a_norm": 16, "kv_norm": 32, "q_b_proj": 128 * 16, "sinks": 4,
        "o_a_proj": 16 * 64, "o_b_proj": 64 * 16,
        "compress_proj": 128 * 64, "compress_place": 4 * 64, "compress_norm": 32,
        "index_q_b_proj": 32 * 16, "index_weights_proj": 2 * 64,
        "index_compress_proj": 64 * 64, "index_compress_place": 4 * 32, "index_compress_norm": 16,
        **mixing,
    }  # fmt: skip


def test_a_decode_step_reads_its_window_and_what_is_chosen() -> None:
    """Ten requests at 100,000 tokens: 128 rows of the window and 512 chosen of 25,000; or all of every 128th."""
    numbers = {
        "window_tokens": 10 * 128, "sparse_tokens": 10 * 2048, "kv_tokens": 10 * 100_000, "index_tokens": 10 * 100_000,
        "dcp": 1, "attn_tp": 8, "verify": 1, "rows": 10,
    }  # fmt: skip
    chosen, every = ops(FLASH, 1), ops(FLASH, 2)
    queries = 10 * 8 * 2 * 2 * 512
    assert chosen["csa_decode"].bytes.evaluate(numbers) == 10 * (128 + 512) * 584 + queries
    assert chosen["csa_decode"].flops.evaluate(numbers) == 10 * (128 + 512) * 8 * 4 * 512
    assert every["csa_decode"].bytes.evaluate(numbers) == (10 * 128 + Fraction(1_000_000, 128)) * 584 + queries
    assert chosen["index_scores"].bytes.evaluate(numbers) == 250_000 * 132
    assert chosen["index_scores"].flops.evaluate(numbers) == 250_000 * 2 * 64 * 128
    assert "index_scores" not in every and "index_scores" not in ops(FLASH, 0)
    # four verified rows a request ask as much again of the same rows
    four = numbers | {"verify": 4, "rows": 40}
    assert chosen["csa_decode"].flops.evaluate(four) == 4 * 10 * (128 + 512) * 8 * 4 * 512
    assert chosen["csa_decode"].bytes.evaluate(four) == 10 * (128 + 512) * 584 + 4 * queries
    assert chosen["index_scores"].flops.evaluate(four) == 4 * 250_000 * 2 * 64 * 128
    # two DCP ranks share compressed rows, and each keeps the window of all requests for the heads of both
    halves = numbers | {"window_tokens": 10 * 64, "sparse_tokens": 10 * 1024, "kv_tokens": 10 * 50_000, "dcp": 2}
    assert chosen["csa_decode"].flops.evaluate(halves) == 10 * (128 + 256) * 16 * 4 * 512


def test_a_prompt_sees_its_window_and_the_rows_before_it() -> None:
    numbers = {
        "window_prefix_tokens": 128, "sparse_prefix_tokens": 2048, "prefix_tokens": 50_000, "kv_tokens": 60_000,
        "rows": 4096, "attn_tp": 8,
    }  # fmt: skip
    chosen, window = ops(FLASH, 1, True), ops(FLASH, 0, True)
    assert chosen["csa_prefill"].flops.evaluate(numbers) == 4096 * (128 + 512) * 8 * 4 * 512
    assert chosen["csa_prefill"].bytes.evaluate(numbers) == (4096 + 15_000) * 584 + 4096 * 8 * 2 * 2 * 512
    assert window["csa_prefill"].flops.evaluate(numbers) == 4096 * 128 * 8 * 4 * 512
    assert chosen["index_scores"].flops.evaluate(numbers) == 4096 * 12_500 * 2 * 64 * 128


def test_the_streams_are_read_and_written_twice_a_layer() -> None:
    numbers = {"rows": 10, "attn_tp": 8}
    found = ops(FLASH, 0)
    assert found["stream_mix"].bytes.evaluate(numbers) == 10 * 2 * 3 * 2 * 4 * 4096
    assert found["ffn_mix_proj"].flops.evaluate(numbers) == 10 * 2 * 24 * 4 * 4096
    # the queries of 8 heads read and written, one row of 1,024 bytes read, one of 584 written
    assert found["csa_prepare"].bytes.evaluate(numbers) == 10 * (2 * 2 * 8 * 512 + 1024 + 584)


def test_the_output_goes_through_a_product_a_group() -> None:
    """Eight groups of 4,096 values to 1,024 each, one of them on each of eight ranks; sinks are whole on every rank."""
    numbers = {"rows": 10, "attn_tp": 8, "attention_shard": 1}
    product = ops(FLASH, 0)["o_a_proj"]
    assert product.family is Family.GEMM_HEADS
    weight = 1024 * 4096 * (1 + Fraction(4, 128 * 128))
    assert product.bytes.evaluate(numbers) == weight + 2 * 10 * (4096 + 1024)
    model = load_model(FLASH)
    sinks = next(t for t in model.layers[0].attention.tensors() if t.name == "sinks")
    assert sinks.resident(model.precision).evaluate(numbers) == 64 * 4


def test_what_quantities_depend_on() -> None:
    """An index keeps 512 rows of 4 tokens, or 1,024: they reach as far as so many tokens do."""
    flash, pro = traits_of(load_model(FLASH)), traits_of(load_model(PRO))
    assert [(t.window, t.index_topk, t.kv_heads) for t in (flash, pro)] == [(128, 2048, 0), (128, 4096, 0)]


def test_attention_is_cut_by_its_output_groups() -> None:
    assert Site(load_model(FLASH), 8, 8, 8).heads == (8, 64)
    assert Site(load_model(PRO), 8, 8, 8).heads == (16, 128)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compress_ratios": [0, 4]}, "compress_ratios has 2 entries; one is needed for each of 43 layers"),
        ({"compress_ratios": [2] * 43}, "compress_ratios holds 2; supported: 0, 4, 128"),
        ({"compress_ratios": None}, "key 'compress_ratios' is missing"),
        ({"num_key_value_heads": 8}, "num_key_value_heads must be 1"),
        ({"expert_dtype": "fp3"}, "expert_dtype = 'fp3' is not supported; supported: fp4, fp8"),
        ({"o_groups": 7}, "num_attention_heads = 64 must be a multiple of o_groups = 7"),
        ({"index_topk": None}, "key 'index_topk' is missing"),
        ({"qk_rope_head_dim": 512}, "rope = 512 must be below head_dim = 512"),
        (
            {"quantization_config": {"quant_method": "fp8", "moe_quant_algo": "X"}},
            "moe_quant_algo = 'X' is not supported",
        ),
    ],
)
def test_configs_that_are_not_understood(tmp_path, changes, message) -> None:
    with pytest.raises(ModelError, match=message):
        load_model(written(tmp_path, changes))


def test_experts_of_other_formats(tmp_path) -> None:
    plain = load_model(written(tmp_path, {"expert_dtype": None}))
    assert plain.precision["experts"].name == "fp8"
    quantised = {"quant_method": "fp8", "moe_quant_algo": "NVFP4"}
    assert load_model(written(tmp_path, {"quantization_config": quantised})).precision["experts"].name == "nvfp4"


@pytest.mark.parametrize("changes", [{"ratio": 128}, {"topk": 0}, {"index_heads": 0, "index_dim": 0, "topk": 0}])
def test_an_index_goes_with_one_ratio(changes) -> None:
    sizes = {**SMALL.__dict__, **changes}
    with pytest.raises(ShapeError, match="an index goes with a ratio of 4"):
        CSA(**sizes)


def test_groups_divide_heads() -> None:
    with pytest.raises(ShapeError, match="heads = 4 must be a multiple of groups = 3"):
        CSA(**{**SMALL.__dict__, "groups": 3})


def written(folder, changes) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads((FOLDER / f"{FLASH}.json").read_text()) | changes))
    return str(path)
