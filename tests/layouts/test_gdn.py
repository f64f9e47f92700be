"""Gated DeltaNet with gated attention (Qwen3-Next and its successors) against a start-up log and hand arithmetic."""

import json
from fractions import Fraction

import pytest

from layouts.blocks import step_blocks
from layouts.gqa import GQA
from layouts.kda import KDA
from layouts.models import ModelError, load_model
from layouts.models.load import load_forms
from layouts.models.presets import FOLDER
from layouts.rules import Site
from layouts.shapes import ShapeError

GIB = 2**30
WHOLE = {"attn_tp": 1, "kv_head_ranks": 1}
SMALL = KDA(64, 4, 16, 4, True, head_gate=True, key_heads=2, value_dim=32)


def states(name: str) -> list[KDA]:
    return [layer.attention for layer in load_model(name).layers if isinstance(layer.attention, KDA)]


def test_pools_of_a_start_up_log() -> None:
    """Qwen3.8-27B-FP8 on one H100: 124 slots and one more, conv 0.34 and ssm 17.58 GiB; 330,323 tokens, K 10.08 GiB."""
    layers = states("Qwen/Qwen3.8-27B-FP8")
    assert len(layers) == 48
    slot = sum(layer.state_bytes(0).evaluate(WHOLE) for layer in layers)
    window = sum(layer.state_bytes(1).evaluate(WHOLE) for layer in layers) - slot
    assert float(125 * window / GIB) == pytest.approx(0.34, abs=0.005)
    assert float(125 * (slot - window) / GIB) == pytest.approx(17.58, abs=0.005)
    model = load_model("Qwen/Qwen3.8-27B-FP8")
    token = sum(layer.attention.kv_bytes("bf16").evaluate(WHOLE) for layer in model.layers)
    assert float(330_323 * token / 2 / GIB) == pytest.approx(10.08, abs=0.005)
    # the log's 28.47 GiB hold the vision tower: 0.46 B parameters in bf16
    assert float(model.weight_bytes) / GIB + 0.86 == pytest.approx(28.47, rel=0.01)


@pytest.mark.parametrize(("name", "billions"), [("qwen3.5-27b", 27), ("qwen3.5-397b-a17b", 397)])
def test_parameters_are_those_of_the_name(name: str, billions: float) -> None:
    assert load_model(name).parameters / 1e9 == pytest.approx(billions, rel=0.005)


def test_slots_and_rings_by_hand() -> None:
    """Two key heads of 16 and four states of 16 x 32: 64 channels of q and k, 128 of v."""
    window, recurrent = 3 * 192 * 2, 4 * 16 * 32 * 4
    assert SMALL.state_bytes(0).evaluate(WHOLE) == window + recurrent
    assert SMALL.state_bytes(4, "bf16").evaluate({"attn_tp": 2}) == Fraction(5 * window + recurrent // 2, 2)
    # a ring of SGLang: d in two halves a state, k in two halves a key head, one fp32 decay a state
    assert SMALL.replay_bytes(16).evaluate(WHOLE) == 16 * (2 * 2 * 4 * 32 + 2 * 2 * 2 * 16 + 4 * 4)


def test_weights_by_hand() -> None:
    held = {t.name: t.parameters for t in SMALL.tensors()}
    assert held == {
        "input_norm": 64, "qkvz_proj": (32 + 32 + 128 + 128) * 64, "ba_proj": 8 * 64, "o_proj": 64 * 128,
        "conv1d": 192 * 4, "A_log": 4, "dt_bias": 4, "o_norm": 32,
    }  # fmt: skip


def test_a_gate_doubles_the_query_projection() -> None:
    plain, gated = (GQA(64, 4, 2, 16, 0, False, True, output_gate=gate) for gate in (False, True))
    sizes = [{t.name: t.parameters for t in gqa.tensors()} for gqa in (plain, gated)]
    assert sizes[1].pop("q_proj") == 2 * sizes[0].pop("q_proj") == 2 * 64 * 64
    assert sizes[0] == sizes[1]


def test_work_of_a_step() -> None:
    """A state of 48 x 128 x 128 is read and written in fp32 for each request; seven FLOPs a value and row."""
    block = next(b for b in step_blocks(load_model("qwen3.5-27b")).blocks if b.name == "GDN + dense")
    ops = {op.name: op for op in block.ops}
    numbers = {"attn_tp": 4, "requests": 3, "rows": 3, "verify": 1}
    assert ops["gdn_state"].flops.evaluate(numbers) == 3 * 7 * 48 * 128 * 128 // 4
    q_and_k, v_and_o = 2 * 16 * 128, 2 * 48 * 128
    expected = (3 * 2 * 4 * 48 * 128 * 128 + 3 * 2 * (q_and_k + v_and_o)) // 4
    assert ops["gdn_state"].bytes.evaluate(numbers) == expected
    assert ops["gdn_conv"].bytes.evaluate(numbers) == 3 * 2 * 2 * 4 * (q_and_k + 48 * 128) // 4
    assert ops["gdn_state"].problem is None and "gdn_gated_norm" in ops
    chunk = {op.name for op in next(b for b in step_blocks(load_model("qwen3.5-27b"), True).blocks if b.attention).ops}
    assert {"gdn_chunk", "gdn_conv"} <= chunk


def test_attention_tp_divides_the_key_heads() -> None:
    assert Site(load_model("qwen3.5-27b"), 8, 8, 8).heads == (16, 24, 48)


def test_layers_by_interval_or_by_list(tmp_path) -> None:
    config = json.loads((FOLDER / "qwen3.5-27b.json").read_text())["text_config"]
    config |= {"architectures": ["Qwen3NextForCausalLM"], "num_hidden_layers": 8, "attn_output_gate": False}
    del config["layer_types"]
    model = load_model(_written(tmp_path, config))
    assert [layer.label.partition(" ")[0] for layer in model.layers] == ["GDN", "GDN", "GDN", "GQA"] * 2
    assert not any(layer.attention.output_gate for layer in model.layers if isinstance(layer.attention, GQA))
    config["full_attention_interval"] = 2
    assert load_model(_written(tmp_path, config)).kind_counts == (4, 4)


def test_quantised_modules_go_by_their_own_names(tmp_path) -> None:
    """An ignore list as NVIDIA writes it: linear attention and shared experts stay bf16, full attention too."""
    config = json.loads((FOLDER / "qwen3.5-397b-a17b.json").read_text())
    weights = {"num_bits": 4, "type": "float", "group_size": 16}
    ignore = ["*.mlp.shared_expert.*", "model.language_model.layers.*.linear_attn*", "*.self_attn*"]
    config["quantization_config"] = {
        "quant_method": "modelopt", "ignore": ignore, "config_groups": {"group_0": {"weights": weights}},
    }  # fmt: skip
    model = load_model(_written(tmp_path, config))
    assert {part: model.precision[part].name for part in ("attention", "shared", "experts")} == {
        "attention": "bf16", "shared": "bf16", "experts": "nvfp4",
    }  # fmt: skip
    assert not any("%" in note for note in model.notes)
    config["quantization_config"]["ignore"] = ignore[:2]  # now full attention, a quarter of the layers, is NVFP4
    mixed = load_model(_written(tmp_path, config))
    assert mixed.precision["attention"].name == "bf16"
    assert any("attention:" in note and "nvfp4" in note for note in mixed.notes)


def test_mtp_layers_attend_to_everything() -> None:
    draft = load_model("qwen3.5-397b-a17b", draft="mtp").draft
    assert draft is not None
    assert [layer.label for layer in draft.layers] == ["GQA + MoE"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"linear_num_key_heads": 5}, "linear_num_value_heads = 48 must be a multiple of linear_num_key_heads = 5"),
        ({"linear_conv_kernel_dim": None}, "'linear_conv_kernel_dim' is missing"),
        ({"layer_types": ["full_attention"] * 63}, "layer_types must be a list of 64"),
    ],
)
def test_configs_that_are_wrong(tmp_path, change, words) -> None:
    config = json.loads((FOLDER / "qwen3.5-27b.json").read_text())
    config["text_config"] |= change
    with pytest.raises(ModelError, match=words):
        load_model(_written(tmp_path, config))


def test_it_has_no_program() -> None:
    with pytest.raises(ModelError, match=r"no program; it can be priced"):
        load_forms("qwen3.5-27b")
    with pytest.raises(ShapeError, match="go with one decay a head"):
        KDA(64, 4, 16, 4, True, key_heads=2)
    with pytest.raises(ShapeError, match="value heads = 4 must be a multiple of key heads = 3"):
        KDA(64, 4, 16, 4, True, head_gate=True, key_heads=3)


def _written(folder, config) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)
