"""Trees of views over checkpoints of transformers and torchtitan, against numpy on what safetensors reads of them."""

import json
import pathlib
import shutil
from typing import Any, Final

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from safetensors.numpy import load_file, save_file

import layouts.dense.sharded as dense
import layouts.dsa.sharded as dsa
import layouts.gqa.sharded as gqa
import layouts.kda.sharded as kda
import layouts.mla.sharded as mla
import layouts.moe.sharded as moe
from hw.compat import automatic_mesh
from layouts.checkpoint import CheckpointError, architecture_of, open_folder, place, views
from layouts.checkpoint.names import NAMINGS
from layouts.checkpoint.views import View
from layouts.gqa import GQA
from layouts.gqa.reference import grouped_kv
from layouts.gqa.sharded import repeated_kv
from layouts.kda import KDA
from layouts.mla import MLA
from layouts.mla.reference import absorb
from layouts.models import Layer, Model, load_model
from layouts.models.config import read_json
from layouts.models.families import FAMILIES
from layouts.models.presets import base_of, find_config
from layouts.moe import MoE
from layouts.residual.attention_residual import output_shapes, weight_shapes
from tests.helpers import WITH_PROGRAM

DECODERS: Final = pathlib.Path(__file__).parents[1] / "goldens" / "decoders"
NAMES: Final = tuple(sorted(folder.name for folder in DECODERS.iterdir()))


def is_view(node: object) -> bool:
    return isinstance(node, View)


def tree(path: pathlib.Path, attn_tp: int = 1, vocab_tp: int = 1) -> tuple[Model, Any]:
    model, folder = load_model(str(path)), open_folder(path)
    return model, views(model, folder, architecture_of(folder), attn_tp=attn_tp, vocab_tp=vocab_tp)


def whole(made: Any) -> Any:
    """Every view read in full."""
    return jax.tree.map(lambda view: view[()], made, is_leaf=is_view)


def attention_shapes(layer: Layer, attn_tp: int) -> Any:
    match layer.attention:
        case MLA(indexer=None):
            return mla.weight_shapes(layer.attention)
        case MLA():
            return dsa.weight_shapes(layer.attention)
        case GQA():
            return gqa.weight_shapes(layer.attention, attn_tp)
        case KDA():
            return kda.weight_shapes(layer.attention)


def layer_shapes(layer: Layer, attn_tp: int) -> Any:
    return {
        "input_norm": (layer.hidden,),
        "attention": attention_shapes(layer, attn_tp),
        "post_attention_norm": (layer.hidden,),
        "ffn": moe.weight_shapes(layer.ffn) if isinstance(layer.ffn, MoE) else dense.weight_shapes(layer.ffn),
        **({"residual": weight_shapes(layer.residual)} if layer.residual else {}),
    }


@pytest.mark.parametrize("attn_tp, vocab_tp, rows", [(1, 1, 96), (4, 16, 96), (16, 10, 100)])
@pytest.mark.parametrize("name", NAMES)
def test_trees_are_those_of_the_programs(name, attn_tp, vocab_tp, rows):
    model, made = tree(DECODERS / name, attn_tp, vocab_tp)
    around = {"embed_tokens": (rows, 32), "final_norm": (32,), **({} if model.tied else {"lm_head": (rows, 32)})}
    around |= {"residual": output_shapes(model.residual)} if model.residual else {}
    got = jax.tree.map(lambda view: view.shape, made, is_leaf=is_view)
    assert got == {**around, "layers": [layer_shapes(layer, attn_tp) for layer in model.layers]}


@pytest.mark.parametrize("name", NAMES)
def test_every_stored_value_of_the_decoder_is_in_its_tree_once(name):
    # the goldens have no tensors that a decoder does without, so the values of the tree are those of the file
    _, made = tree(DECODERS / name)
    stored, held = load_file(DECODERS / name / "model.safetensors"), jax.tree.leaves(whole(made))
    in_tree, in_file = (np.sort(np.concatenate([x.ravel() for x in some])) for some in (held, list(stored.values())))
    np.testing.assert_array_equal(in_tree, in_file)
    used = {tensor for view in jax.tree.leaves(made, is_leaf=is_view) for tensor in view.names()}
    assert used == set(stored)


def read(name: str, layer: int, attn_tp: int = 1) -> tuple[Layer, Any, dict[str, np.ndarray]]:
    """A layer's shape, its weights as the tree has them, and its tensors by their names below the layer."""
    model, made = tree(DECODERS / name, attn_tp)
    stored = load_file(DECODERS / name / "model.safetensors")
    at = f"model.layers.{layer}."
    below = {key.partition(at)[2]: value for key, value in stored.items() if at in key}
    return model.layers[layer], whole(made["layers"][layer]), below


def same(got: dict[str, Any], expected: dict[str, Any]) -> None:
    assert set(got) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)


@pytest.mark.parametrize("name", ["deepseek_v3", "glm_moe_dsa"])
def test_mla_with_a_low_rank_query(name):
    layer, got, stored = read(name, 0)
    assert isinstance(layer.attention, MLA)
    kc, vc = absorb(layer.attention, stored["self_attn.kv_b_proj.weight"])  # pyright: ignore[reportArgumentType]
    fused = [stored[f"self_attn.{name}.weight"] for name in ("q_a_proj", "kv_a_proj_with_mqa")]
    expected = {
        "fused_qkv_a_proj": np.concatenate(fused),
        "q_a_norm": stored["self_attn.q_a_layernorm.weight"],
        "q_b_proj": stored["self_attn.q_b_proj.weight"],
        "kv_a_norm": stored["self_attn.kv_a_layernorm.weight"],
        "w_kc": kc,
        "w_vc": vc,
        "o_proj": stored["self_attn.o_proj.weight"],
    }
    if layer.attention.indexer is not None:
        norm = [stored[f"self_attn.indexer.k_norm.{part}"] for part in ("weight", "bias")]
        expected |= {"index_k_norm": np.concatenate(norm), "index_q_b_proj": stored["self_attn.indexer.wq_b.weight"]}
        expected["index_k_proj"] = stored["self_attn.indexer.wk.weight"]
        expected["index_weights_proj"] = stored["self_attn.indexer.weights_proj.weight"]
    same(got["attention"], expected)


def test_mla_with_a_full_query_and_with_a_gate():
    _, got, stored = read("kimi_linear", 2)
    assert {"q_proj", "kv_a_proj"} <= set(got["attention"])
    np.testing.assert_array_equal(got["attention"]["q_proj"], stored["self_attn.q_proj.weight"])
    np.testing.assert_array_equal(got["attention"]["kv_a_proj"], stored["self_attn.kv_a_proj_with_mqa.weight"])
    _, got, stored = read("kimi-k3", 2)
    np.testing.assert_array_equal(got["attention"]["gate_proj"], stored["self_attn.g_proj.weight"])


@pytest.mark.parametrize("attn_tp", [1, 2, 16])
@pytest.mark.parametrize("name", ["gpt_oss", "qwen3", "llama"])
def test_gqa(name, attn_tp):
    layer, got, stored = read(name, 1, attn_tp)
    shape: Any = layer.attention

    def pair(of: str) -> Any:
        key, value = (stored[f"self_attn.{which}_proj.{of}"] for which in ("k", "v"))
        return repeated_kv(shape, grouped_kv(shape, key, value), attn_tp)  # pyright: ignore[reportArgumentType]

    expected = {"q_proj": stored["self_attn.q_proj.weight"], "kv_proj": pair("weight")}
    expected["o_proj"] = stored["self_attn.o_proj.weight"]
    if shape.bias:
        expected |= {"q_bias": stored["self_attn.q_proj.bias"], "kv_bias": pair("bias")}
        expected |= {"o_bias": stored["self_attn.o_proj.bias"], "sinks": stored["self_attn.sinks"]}
    if shape.qk_norm:
        norms = [stored[f"self_attn.{which}_norm.weight"] for which in ("q", "k")]
        expected["qk_norm"] = np.concatenate(norms)
    same(got["attention"], expected)


@pytest.mark.parametrize("name, dim", [("kimi_linear", 4), ("kimi-k3", 8)])
def test_kda(name, dim):
    _, got, stored = read(name, 1)
    expected = {
        "qkv_proj": np.stack([stored[f"self_attn.{x}_proj.weight"].reshape(16, dim, 32) for x in "qkv"]),
        "conv1d": np.stack([stored[f"self_attn.{x}_conv1d.weight"].reshape(16, dim, 4) for x in "qkv"]),
        "f_a_proj": stored["self_attn.f_a_proj.weight"],
        "f_b_proj": stored["self_attn.f_b_proj.weight"].reshape(16, dim, dim),
        "A_log": stored["self_attn.A_log"].ravel(),
        "dt_bias": stored["self_attn.dt_bias"].reshape(16, dim),
        "b_proj": stored["self_attn.b_proj.weight"],
        "o_norm": stored["self_attn.o_norm.weight"],
        "o_proj": stored["self_attn.o_proj.weight"].reshape(32, 16, dim),
    }
    if name == "kimi-k3":
        expected["g_proj"] = stored["self_attn.g_proj.weight"].reshape(16, dim, 32)
    else:
        expected["g_a_proj"] = stored["self_attn.g_a_proj.weight"]
        expected["g_b_proj"] = stored["self_attn.g_b_proj.weight"].reshape(16, dim, dim)
    same({k: v for k, v in vars(got["attention"]).items() if v is not None}, expected)


@pytest.mark.parametrize(
    "name, layer, module, gate, up, down",
    [
        ("deepseek_v3", 2, "mlp.", "gate_proj", "up_proj", "down_proj"),
        ("kimi-k3", 3, "block_sparse_moe.", "w1", "w3", "w2"),
    ],
)
def test_experts_stored_one_by_one(name, layer, module, gate, up, down):
    _, got, stored = read(name, layer)
    ffn = got["ffn"]
    for expert in (0, 7, 15):
        for at, part in enumerate((gate, up)):
            np.testing.assert_array_equal(
                ffn.experts.w13[expert, at], stored[f"{module}experts.{expert}.{part}.weight"]
            )
        np.testing.assert_array_equal(ffn.experts.w2[expert], stored[f"{module}experts.{expert}.{down}.weight"])
    np.testing.assert_array_equal(ffn.router, stored[f"{module}gate.weight"])
    np.testing.assert_array_equal(ffn.correction_bias, stored[f"{module}gate.e_score_correction_bias"])
    shared = [stored[f"{module}shared_experts.{part}_proj.weight"] for part in ("gate", "up")]
    np.testing.assert_array_equal(ffn.shared.gate_up, np.stack(shared))
    np.testing.assert_array_equal(ffn.shared.down, stored[f"{module}shared_experts.down_proj.weight"])
    if ffn.latent is not None:
        for at, part in enumerate(("down_proj", "up_proj", "norm")):
            np.testing.assert_array_equal(ffn.latent[at], stored[f"{module}routed_expert_{part}.weight"])


def test_experts_stored_together_with_gate_and_up_by_turns():
    _, got, stored = read("gpt_oss", 1)
    experts, gate_up = got["ffn"].experts, stored["mlp.experts.gate_up_proj"]
    np.testing.assert_array_equal(experts.w13[:, 0], gate_up[:, :, 0::2].swapaxes(1, 2))
    np.testing.assert_array_equal(experts.w13[:, 1], gate_up[:, :, 1::2].swapaxes(1, 2))
    np.testing.assert_array_equal(experts.w13_bias[:, 1], stored["mlp.experts.gate_up_proj_bias"][:, 1::2])
    np.testing.assert_array_equal(experts.w2, stored["mlp.experts.down_proj"].swapaxes(1, 2))
    np.testing.assert_array_equal(experts.w2_bias, stored["mlp.experts.down_proj_bias"])
    np.testing.assert_array_equal(got["ffn"].router_bias, stored["mlp.router.bias"])


@pytest.mark.parametrize("name, module", [("llama", "mlp."), ("kimi-k3", "mlp."), ("kimi_linear", "block_sparse_moe.")])
def test_dense_layers_norms_and_vocabulary(name, module):
    _, got, stored = read(name, 0)
    gate_up = np.stack([stored[f"{module}{part}_proj.weight"] for part in ("gate", "up")])
    np.testing.assert_array_equal(got["ffn"].gate_up, gate_up)
    np.testing.assert_array_equal(got["ffn"].down, stored[f"{module}down_proj.weight"])
    np.testing.assert_array_equal(got["input_norm"], stored["input_layernorm.weight"])
    np.testing.assert_array_equal(got["post_attention_norm"], stored["post_attention_layernorm.weight"])
    _, made = tree(DECODERS / name, vocab_tp=7)
    all_of = load_file(DECODERS / name / "model.safetensors")
    prefix = "language_model." if name == "kimi-k3" else ""
    for leaf, key in (("embed_tokens", "model.embed_tokens"), ("lm_head", "lm_head")):
        padded = made[leaf][()]
        np.testing.assert_array_equal(padded[:96], all_of[f"{prefix}{key}.weight"])
        assert padded.shape == (98, 32) and not padded[96:].any()


def test_reads_of_attention_residuals():
    _, got, stored = read("kimi-k3", 1)
    expected = {name: stored[f"{name}.weight"] for name in got["residual"]}
    same(got["residual"], expected)
    assert set(expected) == {f"{at}_res_{part}" for at in ("self_attention", "mlp") for part in ("norm", "proj")}


def test_every_architecture_that_has_a_program_has_names():
    configs = (read_json(find_config(base_of(name))).values for name in WITH_PROGRAM)
    runs = {architecture for config in configs for architecture in config["architectures"]}  # pyright: ignore
    assert runs <= set(NAMINGS) <= set(FAMILIES)


@pytest.mark.smoke
def test_each_device_gets_its_part():
    _, made = tree(DECODERS / "deepseek_v3")
    mesh = automatic_mesh(np.array(jax.devices()).reshape(4, 4), ("a", "b"))
    by_leaf = {1: PartitionSpec("a"), 2: PartitionSpec("a", "b"), 3: PartitionSpec(None, "b", "a")}
    shardings = jax.tree.map(
        lambda view: NamedSharding(mesh, by_leaf.get(len(view.shape), PartitionSpec("a", None, "b", None))),
        made["layers"][1],
        is_leaf=is_view,
    )
    placed = place(made["layers"][1], shardings)
    expected = whole(made["layers"][1])
    jax.tree.map(np.testing.assert_array_equal, placed, expected)
    jax.tree.map(lambda x, sharding: sharding.is_equivalent_to(x.sharding, x.ndim) or pytest.fail(), placed, shardings)
    halved = place(made["final_norm"], NamedSharding(mesh, PartitionSpec(None)), np.float16)
    assert halved.dtype == np.float16
    np.testing.assert_array_equal(halved, whole(made["final_norm"]).astype(np.float16))


def changed(tmp_path: pathlib.Path, name: str, change: Any) -> pathlib.Path:
    """A copy of a golden whose tensors have been changed."""
    folder = tmp_path / name
    shutil.copytree(DECODERS / name, folder)
    stored = load_file(folder / "model.safetensors")
    change(stored)
    save_file({key: np.ascontiguousarray(value) for key, value in stored.items()}, folder / "model.safetensors")
    return folder


def error_of(folder: pathlib.Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        tree(folder)
    return str(caught.value)


def test_missing_misshaped_and_unknown_tensors_are_named_together(tmp_path):
    def change(stored: dict[str, np.ndarray]) -> None:
        del stored["model.norm.weight"]
        del stored["model.layers.1.self_attn.k_proj.weight"]
        stored["model.layers.0.mlp.up_proj.weight"] = np.zeros((32, 48), np.float32)
        stored["model.layers.3.input_layernorm.weight"] = np.zeros(32, np.float32)
        stored |= {f"extra.{i:02}": np.zeros(1, np.float32) for i in range(11)}

    text = error_of(changed(tmp_path, "llama", change))
    assert "\n" not in text
    assert "tensors missing 2: model.norm.weight, model.layers.1.self_attn.k_proj.weight;" in text
    assert "mis-shaped 1: model.layers.0.mlp.up_proj.weight [32, 48] for [48, 32];" in text
    assert "unknown 12: extra.00, extra.01, extra.02," in text and "extra.09 and 2 more; give the weights" in text


@pytest.mark.parametrize(
    "name, extra",
    [
        ("deepseek_v3", ("model.layers.3.eh_proj.weight", "model.layers.3.self_attn.kv_b_proj.weight")),
        ("deepseek_v3", ("model.layers.0.self_attn.rotary_emb.inv_freq",)),
        ("qwen3", ("lm_head.weight",)),
        ("kimi-k3", ("vision_tower.patch_embed.weight", "mm_projector.linear_1.weight")),
    ],
)
def test_tensors_that_a_decoder_does_without(tmp_path, name, extra):
    folder = changed(tmp_path, name, lambda stored: stored.update({key: np.zeros(2, np.float32) for key in extra}))
    jax.tree.map(np.testing.assert_array_equal, whole(tree(folder)[1]), whole(tree(DECODERS / name)[1]))


@pytest.mark.parametrize(
    "name, extra",
    [
        ("deepseek_v3", "model.layers.3.self_attn.kv_b_proj.weight"),  # a layer too many, and no MTP layer
        ("llama", "vision_tower.patch_embed.weight"),
        ("llama", "model.layers.0.self_attn.q_proj.bias"),
        ("gpt_oss", "model.layers.0.mlp.experts.gate_up_proj_extra"),
    ],
)
def test_nothing_else_is_left_out_silently(tmp_path, name, extra):
    folder = changed(tmp_path, name, lambda stored: stored.update({extra: np.zeros(2, np.float32)}))
    assert f"tensors unknown 1: {extra};" in error_of(folder)


@pytest.mark.parametrize(
    "name, extra, kind",
    [
        ("deepseek_v3", "model.layers.9.mlp.up_proj.weight_scale_inv", "fp8 in blocks"),
        ("gpt_oss", "model.layers.9.mlp.experts.gate_up_proj_blocks", "MXFP4 in blocks"),
        ("kimi-k3", "language_model.model.layers.1.block_sparse_moe.experts.0.w1.weight_packed", "packed int4 or FP4"),
        ("glm_moe_dsa", "model.layers.2.mlp.experts.0.up_proj.weight_scale_2", "scaled fp8 or FP4"),
        ("llama", "model.layers.0.mlp.up_proj.qweight", "packed integers"),
    ],
)
def test_quantised_weights_are_refused_by_name(tmp_path, name, extra, kind):
    folder = changed(tmp_path, name, lambda stored: stored.update({extra: np.zeros(2, np.uint8)}))
    text = error_of(folder)
    assert f"weights are quantised, {kind} ({extra}, 1 such tensors)" in text and "convert the weights" in text


@pytest.mark.parametrize("value", [None, "LlamaForCausalLM", ["Unheard"], [3]])
def test_a_config_without_a_known_architecture(tmp_path, value):
    folder = changed(tmp_path, "llama", lambda stored: None)
    config = json.loads((folder / "config.json").read_text()) | {"architectures": value}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"architectures = .* is none of DeepseekV3ForCausalLM"):
        architecture_of(open_folder(folder))
