"""Families whose configs are read for their shapes alone: totals that publishers state, pools of start-up logs."""

import json

import pytest

from layouts.dsa.shape import Indexer
from layouts.kda import KDA
from layouts.mla import MLA
from layouts.models import ModelError, load_model
from layouts.models.load import load_forms
from layouts.models.presets import FOLDER
from layouts.precision import PrecisionError, parse_precision

GIB = 2**30
WHOLE = {"attn_tp": 1, "kv_head_ranks": 1}
MIXTRAL = {
    "architectures": ["MixtralForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 32000,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8,
    "num_experts_per_tok": 2, "max_position_embeddings": 32768, "sliding_window": None,
}  # fmt: skip
MINIMAX = MIXTRAL | {
    "architectures": ["MiniMaxM2ForCausalLM"], "hidden_size": 3072, "intermediate_size": 1536, "vocab_size": 200064,
    "num_hidden_layers": 62, "num_attention_heads": 48, "head_dim": 128, "num_local_experts": 256,
    "num_experts_per_tok": 8, "use_qk_norm": True, "use_routing_bias": True,
}  # fmt: skip
MISTRAL = {
    "architectures": ["MistralForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 32000,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 32768,
    "sliding_window": 4096,
}  # fmt: skip
QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"], "hidden_size": 8192, "intermediate_size": 29568, "vocab_size": 152064,
    "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 131072,
    "sliding_window": 131072, "use_sliding_window": False,
}  # fmt: skip
DEEPSEEK_V2 = {
    "architectures": ["DeepseekV2ForCausalLM"], "hidden_size": 5120, "intermediate_size": 12288, "vocab_size": 102400,
    "num_hidden_layers": 60, "num_attention_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "first_k_dense_replace": 1,
    "moe_intermediate_size": 1536, "n_routed_experts": 160, "n_shared_experts": 2, "num_experts_per_tok": 6,
    "topk_method": "group_limited_greedy", "max_position_embeddings": 163840,
}  # fmt: skip
GLM_4_5 = {
    "architectures": ["Glm4MoeForCausalLM"], "hidden_size": 5120, "intermediate_size": 12288, "vocab_size": 151552,
    "num_hidden_layers": 92, "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128,
    "attention_bias": True, "use_qk_norm": True, "first_k_dense_replace": 3, "moe_intermediate_size": 1536,
    "n_routed_experts": 160, "n_shared_experts": 1, "num_experts_per_tok": 8, "num_nextn_predict_layers": 1,
    "max_position_embeddings": 131072,
}  # fmt: skip
PUBLISHED = [  # parameters in 10^9 as the model cards and reports state them, MTP layers left out
    (MIXTRAL, 46.7, 0.001),
    (MINIMAX, 229, 0.003),
    (MISTRAL, 7.24, 0.001),
    (QWEN2, 72.7, 0.001),
    (DEEPSEEK_V2, 236, 0.003),
    (GLM_4_5, 353, 0.005),
]


def written(folder, config) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.mark.parametrize(
    ("config", "billions", "tolerance"), PUBLISHED, ids=[c[0]["architectures"][0] for c in PUBLISHED]
)
def test_parameters(tmp_path, config, billions, tolerance):
    path = written(tmp_path, config)
    assert load_model(path).parameters / 1e9 == pytest.approx(billions, rel=tolerance)
    with pytest.raises(ModelError, match="no program; it can be priced"):
        load_forms(path)


def test_windows(tmp_path):
    assert [layer.label for layer in load_model(written(tmp_path, MISTRAL)).kinds] == ["GQA window + dense"]
    assert [layer.label for layer in load_model(written(tmp_path, QWEN2)).kinds] == ["GQA + dense"]
    for wrong in (QWEN2 | {"use_sliding_window": True}, MIXTRAL | {"sliding_window": 4096}):
        with pytest.raises(ModelError, match=r"sliding_window.* is not supported for this architecture; set it to"):
            load_model(written(tmp_path, wrong))


def test_ling_against_a_start_up_log():
    """614 slots and one more: conv 0.38, ssm 10.81 GiB; 1,933,682 tokens of bf16 KV: 12.45 GiB."""
    model = load_model("ling-3.0-tiny")
    linear = [layer.attention for layer in model.layers if isinstance(layer.attention, KDA)]
    latent = [i for i, layer in enumerate(model.layers) if isinstance(layer.attention, MLA)]
    assert (len(linear), latent) == (18, [3, 7, 11, 15, 19, 23])
    slot = sum(layer.state_bytes(0).evaluate(WHOLE) for layer in linear)
    window = sum(layer.state_bytes(1).evaluate(WHOLE) for layer in linear) - slot
    assert float(615 * window / GIB) == pytest.approx(0.38, abs=0.005)
    assert float(615 * (slot - window) / GIB) == pytest.approx(10.81, abs=0.005)
    token = sum(layer.attention.kv_bytes("bf16").evaluate(WHOLE) for layer in model.layers)
    assert float(1_933_682 * token / GIB) == pytest.approx(12.45, abs=0.005)
    # q, k, v, decay and output gate from the hidden state, without low-rank pairs
    names = {t.name: t.parameters for t in linear[0].tensors()}
    assert names["f_proj"] == names["g_proj"] == names["qkv_proj"] // 3 == 2048 * 1536
    assert "f_a_proj" not in names


def test_ling_schedules(tmp_path):
    config = json.loads((FOLDER / "ling-3.0-tiny.json").read_text())
    for change, words in (({"short_conv_kernel_size": None}, "lightning"), ({"use_mla_nope": True}, "use_mla_nope")):
        with pytest.raises(ModelError, match=words):
            load_model(written(tmp_path, config | change))
    v2 = config | {"architectures": ["BailingMoeV2ForCausalLM"], "short_conv_kernel_size": None, "layer_group_size": 1}
    assert [kind.label for kind in load_model(written(tmp_path, v2)).kinds] == ["GQA + dense", "GQA + MoE"]


def test_glm_5_without_lists_of_layers(tmp_path):
    """744 B parameters as published; every layer has an index of its own, the first three are dense."""
    model = load_model("zai-org/GLM-5")
    assert model.parameters / 1e9 == pytest.approx(744, rel=0.001)
    assert model.kind_of_layer == (0,) * 3 + (1,) * 75
    config = json.loads((FOLDER / "glm-5.json").read_text())
    with pytest.raises(ModelError, match="'indexer_types' is missing"):
        load_model(written(tmp_path, config | {"index_topk_freq": 4}))


@pytest.mark.parametrize(("form", "held"), [("fp8", 656), ("fp8_raw", 576), ("bf16", 1152)])
def test_sparse_kv_has_two_layouts_of_one_byte(form, held):
    """SGLang: 656 B with scales, 576 B where the kernels read plain rows; 132 B of index key beside either."""
    model = load_model("deepseek-ai/DeepSeek-V3.2-Exp", precision=f"kv={form}")
    sizes = {layer.attention.kv_bytes(model.precision["kv"].name).bytes({}) for layer in model.layers}
    assert sizes == {held}
    indexers = [layer.attention.indexer for layer in model.layers if isinstance(layer.attention, MLA)]
    assert {index.key_bytes for index in indexers if isinstance(index, Indexer)} == {132}
    # 975,424 tokens are 43.67 GiB in the pull request that counts the index keys (scaled layout)
    if form == "fp8":
        assert 61 * (held + 132) * 975_424 / GIB == pytest.approx(43.67, abs=0.01)


def test_no_weight_is_stored_as_plain_kv():
    with pytest.raises(PrecisionError, match="attention cannot be 'fp8_raw'"):
        parse_precision("attention=fp8_raw")
