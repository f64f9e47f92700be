"""Presets against the published sizes of the models; drafts; and every way in which a config can be wrong."""

import json
import tomllib

import pytest

from hw.errors import MeshwrightError
from layouts.gqa import GQA
from layouts.models import Draft, Model, ModelError, draft_names, load_model, preset_names
from layouts.models.presets import DRAFTS, FOLDER, aliases, index
from layouts.symbols import ATTN_TP, DRAFT_ROWS, DRAFT_SHARD, MOE_ROWS, ROWS


@pytest.mark.parametrize(
    ("name", "billions", "tolerance"),
    [
        ("deepseek-v3", 671, 0.003),  # technical report, without the MTP module
        ("llama-3.1-8b", 8.03, 0.001),
        ("llama-3.1-70b", 70.6, 0.001),
        ("qwen3-235b-a22b", 235, 0.003),
        ("qwen3-30b-a3b-fp8", 30.5, 0.003),
        ("qwen3-32b", 32.8, 0.003),
        ("gpt-oss-120b", 116.8, 0.001),
        ("kimi-k2.5", 1030, 0.005),
        ("kimi-linear-48b-a3b", 49.122681728, 1e-9),  # a listing of the checkpoint's tensors
        ("deepseek-v4-flash", 284, 0.002),
        ("deepseek-v4-pro", 1600, 0.02),
    ],
)
def test_parameters_of_public_models(name, billions, tolerance):
    assert load_model(name).parameters / 1e9 == pytest.approx(billions, rel=tolerance)


def drafted(name: str, draft: str | None = None) -> Draft:
    found = load_model(name, draft=draft).draft
    assert found is not None
    return found


def windows(model: Model) -> list[int]:
    return [layer.attention.window for layer in model.layers if isinstance(layer.attention, GQA)]


def test_mtp_of_deepseek_v3_is_near_the_reported_size():
    # the report counts 14 B for the MTP module with its own embedding and head (2 x 0.93 B), which serving shares
    draft = drafted("deepseek-v3", "mtp")
    size = sum(layer.parameters for layer in draft.layers) + sum(t.parameters for t in draft.extra)
    assert (size + 2 * 129280 * 7168) / 1e9 == pytest.approx(13.5, abs=0.5)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_loads(name):
    model = load_model(name)
    assert model.name == name
    assert sum(model.kind_counts) == len(model.layers) == len(model.kind_of_layer)
    assert tuple(model.kinds[k] for k in model.kind_of_layer) == model.layers
    assert model.context_limit >= 40_960


def test_every_shipped_file_has_a_source():
    files = {p.name for folder in (FOLDER, DRAFTS) for p in folder.iterdir() if p.is_file()} - {"SOURCES.toml"}
    described = set(index()) - {"aliases"}
    assert files == described
    assert all(index()[name]["origin"] and index()[name]["licence"] for name in described)


def test_aliases_and_case():
    assert set(aliases().values()) <= set(preset_names())
    assert load_model("GLM-5.2").name == "glm-5.2-nvfp4"
    assert load_model("kimi-k2").name == "kimi-k2.5"


def test_a_path_gives_the_same_model_as_the_preset(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text((FOLDER / "qwen3-32b.json").read_text())
    for path in (folder, folder / "config.json"):
        model = load_model(str(path))
        assert model.name == "my-model" and model.layers == load_model("qwen3-32b").layers


def test_layers_of_glm_and_gpt_oss():
    glm, oss = load_model("glm-5.2"), load_model("gpt-oss-120b")
    labels = [layer.label for layer in glm.layers]
    assert labels[:8] == ["DSA + dense"] * 3 + ["DSA shared + MoE"] * 3 + ["DSA + MoE", "DSA shared + MoE"]
    assert windows(oss)[:4] == [128, 0, 128, 0]
    assert (glm.kv_heads, oss.kv_heads) == (0, 8)


def test_sliding_window_of_qwen3(tmp_path):
    model = load_model(write(tmp_path, "qwen3-32b", use_sliding_window=True, sliding_window=4096, max_window_layers=60))
    assert windows(model) == [0] * 60 + [4096] * 4


def test_dense_layers_of_a_qwen3_moe(tmp_path):
    model = load_model(write(tmp_path, "qwen3-235b-a22b", decoder_sparse_step=2, mlp_only_layers=[1]))
    assert [i for i, layer in enumerate(model.layers[:6]) if layer.experts] == [3, 5]


def test_vocabulary():
    untied = load_model("llama-3.1-8b")
    assert [t.name for t in untied.vocabulary()] == ["embed_tokens", "lm_head", "final_norm"]
    assert untied.vocabulary()[0].payload(untied.precision).bytes({"vocab_tp": 8}) == 128256 * 4096 * 2 // 8


def test_a_tied_matrix_is_counted_once(tmp_path):
    tied = load_model(write(tmp_path, "llama-3.1-8b", tie_word_embeddings=True))
    assert load_model("llama-3.1-8b").parameters - tied.parameters == 128256 * 4096


def test_dspark_draft_of_the_article_build():
    model, draft = load_model("kimi-k3@article"), drafted("kimi-k3@article")
    assert (draft.name, len(draft.layers), draft.passes, draft.block, draft.kv) == ("dspark-kimi-k3", 5, 1, 4, "window")
    weights = {t.name: t for t in draft.layers[0].tensors()}
    assert weights["q_proj"].out + weights["kv_proj"].out == 6144
    assert {t.component for t in draft.tensors()} == {"draft"}
    assert weights["gate_up_proj"].cut == ATTN_TP
    assert {t.rows for t in weights.values()} == {None, DRAFT_ROWS}
    assert {name: model.defaults[name] for name in ("accept_length", "verify_width", "vocab_tp", "weight_shard")} == {
        "accept_length": 3.5, "verify_width": 5, "vocab_tp": 8, "weight_shard": 8,
    }  # fmt: skip
    assert (draft.verifying(6).passes, draft.verifying(6).block) == (1, 5)
    assert load_model("kimi-k3@article", draft="none").draft is None
    assert load_model("kimi-k3", draft="dspark-kimi-k3").draft == load_model("kimi-k3", draft="dspark").draft == draft


def test_mtp_draft_keeps_the_components_of_the_model():
    draft = drafted("deepseek-v3.2", "mtp")
    assert (draft.kv, draft.passes) == ("token", 1)
    assert (draft.verifying(4).passes, draft.verifying(4).block) == (3, 3)
    weights = {t.name: t for t in draft.tensors()}
    assert weights["w13"].component == "experts" and weights["o_proj"].component == "attention"
    assert (weights["eh_proj"].out, weights["eh_proj"].inp) == (7168, 14336)
    assert weights["o_proj"].rows == DRAFT_ROWS and weights["o_proj"].shard == DRAFT_SHARD
    assert weights["router"].rows == MOE_ROWS * DRAFT_ROWS / ROWS


def test_mtp_layers_left_in_bf16_are_draft_weights():
    model = load_model("glm-5.2", draft="mtp")
    assert {t.component for t in drafted("glm-5.2", "mtp").tensors()} == {"draft"}
    assert any("MTP" in note for note in model.notes)


def write(folder, preset: str, drop: str | None = None, section: str | None = None, **changes) -> str:
    """A copy of a preset with some keys changed or one dropped, in `section` of it if named."""
    config = json.loads((FOLDER / f"{preset}.json").read_text())
    part = config[section] if section else config
    part |= changes
    if drop:
        del part[drop]
    path = folder / "broken.json"
    path.write_text(json.dumps(config))
    return str(path)


CHANGES = [
    ("deepseek-v3", {"hidden_size": 0}, "hidden_size = 0 must be an integer from 1"),
    ("deepseek-v3", {"hidden_size": -7168}, "hidden_size = -7168"),
    ("deepseek-v3", {"hidden_size": "7168"}, "hidden_size = '7168'"),
    ("deepseek-v3", {"hidden_size": float("nan")}, "hidden_size = nan"),
    ("deepseek-v3", {"hidden_size": float("inf")}, "hidden_size = inf"),
    ("deepseek-v3", {"hidden_size": 7168.5}, "hidden_size = 7168.5"),
    ("deepseek-v3", {"hidden_size": 10**8}, "hidden_size = 100000000"),
    ("deepseek-v3", {"vocab_size": True}, "vocab_size = True"),
    ("deepseek-v3", {"num_hidden_layers": 10**7}, "num_hidden_layers"),
    ("deepseek-v3", {"num_experts_per_tok": 257}, "num_experts_per_tok = 257 must not exceed n_routed_experts = 256"),
    ("deepseek-v3", {"max_position_embeddings": [1]}, "max_position_embeddings"),
    ("deepseek-v3", {"tie_word_embeddings": "no"}, "tie_word_embeddings = 'no' must be true or false"),
    ("deepseek-v3", {"moe_layer_freq": 0}, "moe_layer_freq = 0"),
    (
        "deepseek-v3",
        {"architectures": ["MambaForCausalLM"]},
        "'MambaForCausalLM' is not supported.*DeepseekV3ForCausalLM",
    ),
    ("deepseek-v3", {"architectures": []}, "'architectures' is missing.*supported"),
    ("deepseek-v3", {"architectures": "DeepseekV3ForCausalLM"}, "'architectures' is missing"),
    ("deepseek-v3", {"quantization_config": {"quant_method": "gptq"}}, "quant_method = 'gptq' is not supported"),
    ("deepseek-v3", {"text_config": 3}, "text_config must be an object"),
    (
        "llama-3.1-8b",
        {"num_key_value_heads": 5},
        "num_attention_heads = 32 must be a multiple of num_key_value_heads = 5",
    ),
    ("llama-3.1-8b", {"num_attention_heads": 24}, "hidden_size = 4096 must be a multiple of num_attention_heads = 24"),
    ("qwen3-235b-a22b", {"mlp_only_layers": [94]}, "mlp_only_layers must hold integers from 0 to 93"),
    ("qwen3-32b", {"use_sliding_window": True}, "'sliding_window' is missing"),
    ("gpt-oss-120b", {"layer_types": ["full_attention"] * 35}, "layer_types must be a list of 36"),
    ("gpt-oss-120b", {"layer_types": ["linear"] * 36}, "layer_types holds 'linear'; supported: full_attention"),
    ("glm-5.2-nvfp4", {"indexer_types": ["shared"] * 78}, "indexer_types starts with 'shared'"),
]


@pytest.mark.parametrize(("preset", "changes", "words"), CHANGES, ids=[c[2][:50] for c in CHANGES])
def test_nonsense_values(tmp_path, preset, changes, words):
    refuses(write(tmp_path, preset, **changes), words)


@pytest.mark.parametrize(
    ("preset", "section", "key"),
    [
        ("deepseek-v3", None, "hidden_size"),
        ("deepseek-v3", None, "kv_lora_rank"),
        ("deepseek-v3", None, "n_routed_experts"),
        ("deepseek-v3", None, "vocab_size"),
        ("deepseek-v3", None, "max_position_embeddings"),
        ("deepseek-v3.2", None, "index_n_heads"),
        ("kimi-k3", "text_config", "linear_attn_config"),
        ("kimi-k2.5", "text_config", "moe_intermediate_size"),
        ("glm-5.2-nvfp4", None, "indexer_types"),
        ("qwen3-32b", None, "intermediate_size"),
        ("qwen3-30b-a3b-fp8", None, "num_experts_per_tok"),
        ("gpt-oss-120b", None, "num_local_experts"),
        ("llama-3.1-70b", None, "num_hidden_layers"),
    ],
)
def test_a_missing_key_is_named(tmp_path, preset, section, key):
    refuses(write(tmp_path, preset, drop=key, section=section), f"key {key!r} is missing")


def test_k3_layers_must_all_be_placed(tmp_path):
    linear = json.loads((FOLDER / "kimi-k3.json").read_text())["text_config"]["linear_attn_config"]
    broken = {**linear, "full_attn_layers": [4, 8]}
    refuses(write(tmp_path, "kimi-k3", section="text_config", linear_attn_config=broken), "name each of the 93 layers")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"architectures": ["Llama', "is no complete JSON"),
        (b"", "is no complete JSON"),
        (b"[1, 2]", "holds a JSON list"),
        (b"null", "holds a JSON NoneType"),
        (b"\xff\xfe\x00", "is no complete JSON"),
        (b"[" * 200_000, "is no complete JSON"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "is no complete JSON"),
        (b"{}", "'architectures' is missing"),
    ],
    ids=["truncated", "empty", "list", "null", "not utf-8", "deep", "long integer", "empty object"],
)
def test_files_that_are_no_config(tmp_path, content, words):
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    refuses(str(path), words)


def test_names_and_paths_that_do_not_exist(tmp_path):
    refuses("kimi-k4", "unknown model 'kimi-k4'; did you mean 'kimi-k3'.*deepseek-v3", file="")
    refuses("kimi-k3@articel", "did you mean 'kimi-k3@article'", file="")
    refuses("", "unknown model ''", file="")
    refuses(str(tmp_path / "absent.json"), "cannot be read", file="absent.json")
    refuses(str(tmp_path), "cannot be read", file="config.json")


def refuses(name: str, words: str, file: str = "broken.json") -> None:
    with pytest.raises(MeshwrightError, match=words) as caught:
        load_model(name)
    assert file in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "draft", "words"),
    [
        ("kimi-k3", "mtp", "no MTP layers.*dspark-kimi-k3"),
        ("kimi-k3", "dspork", "unknown draft 'dspork'.*none, mtp, dspark-kimi-k3"),
        ("llama-3.1-8b", "dspark", "unknown draft 'dspark'"),
        ("llama-3.1-8b", "dspark-kimi-k3", "hidden_size = 7168 is not the 4096 of llama-3.1-8b"),
        ("deepseek-v3", "dspark-kimi-k3", "vocab_size = 163840 is not the 129280"),
        ("kimi-k3", "absent/draft.json", "cannot be read"),
        (
            "kimi-k3",
            str(FOLDER / "kimi-k3.json"),
            "draft architecture 'KimiK3ForConditionalGeneration' is not supported",
        ),
    ],
)
def test_bad_drafts(model, draft, words):
    with pytest.raises(ModelError, match=words) as caught:
        load_model(model, draft=draft)
    assert "\n" not in str(caught.value)


def test_a_draft_with_another_kv_head_count_is_refused(tmp_path):
    draft = json.loads((DRAFTS / "dspark-kimi-k3.json").read_text()) | {"hidden_size": 4096, "vocab_size": 128256}
    path = tmp_path / "draft.json"
    path.write_text(json.dumps(draft))
    with pytest.raises(ModelError, match=r"KV head counts \[8, 16\] differ"):
        load_model("llama-3.1-8b", draft=str(path))


def test_presets_that_are_listed_exist():
    assert draft_names() == ("dspark-kimi-k3",)
    overlay = tomllib.loads((FOLDER / "kimi-k3@article.toml").read_text())
    assert overlay["base"] in preset_names()
