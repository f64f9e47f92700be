"""Formats by component, from the quantisation configs of public checkpoints and from the command line."""

import json

import pytest

from hw.errors import MeshwrightError
from layouts.models import load_model
from layouts.models.presets import FOLDER
from layouts.precision import Module, PrecisionError, Quantization, parse_precision, read_precision
from layouts.tensor import FORMATS

WEIGHTS = ("attention", "shared", "dense", "experts", "head")


@pytest.mark.parametrize(
    ("name", "formats", "kv"),
    [
        # fp8 quantises every linear layer; the ignore lists of the others name what stays
        ("deepseek-v3", ("fp8", "fp8", "fp8", "fp8", "bf16"), "bf16"),
        ("kimi-k2.5", ("bf16", "bf16", "bf16", "int4", "bf16"), "bf16"),
        ("kimi-k2.6-nvfp4", ("bf16", "bf16", "bf16", "nvfp4", "bf16"), "fp8"),
        ("glm-5.2", ("bf16", "bf16", "bf16", "nvfp4", "bf16"), "fp8"),
        ("gpt-oss-120b", ("bf16", "bf16", "bf16", "mxfp4", "bf16"), "bf16"),
        ("kimi-k3", ("bf16", "bf16", "bf16", "mxfp4", "bf16"), "bf16"),
        ("qwen3-30b-a3b-fp8", ("fp8", "bf16", "bf16", "fp8", "bf16"), "bf16"),
        ("llama-3.1-8b", ("bf16",) * 5, "bf16"),
    ],
)
def test_formats_of_checkpoints(name, formats, kv):
    precision = load_model(name).precision
    assert tuple(precision[c].name for c in WEIGHTS) == formats
    assert (precision["kv"].name, precision["state"].name) == (kv, "fp32")


def test_k3_latent_follows_the_ignore_list_and_says_so():
    model = load_model("kimi-k3")
    assert model.precision["latent"].name == "mxfp4"
    assert any("latent" in note for note in model.notes)
    # the published 1.56 TB are met by bf16 latent projections
    assert float(load_model("kimi-k3", precision="latent=bf16").weight_bytes) == pytest.approx(1.56e12, rel=1e-3)


def test_article_build():
    precision = load_model("kimi-k3@article").precision
    names = {c: f.name for c, f in precision.formats.items()}
    fp8 = dict.fromkeys(("attention", "latent", "shared", "dense", "kv"), "fp8")
    assert names == {**fp8, "experts": "mxfp4", "head": "bf16", "draft": "bf16", "state": "fp32"}


def test_a_changed_ignore_list_changes_the_precision(tmp_path):
    config = json.loads((FOLDER / "glm-5.2-nvfp4.json").read_text())
    quantization = config["quantization_config"]
    quantization["ignore"] = [p for p in quantization["ignore"] if "self_attn" not in p]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    model = load_model(str(path))
    assert model.precision["attention"].name == "nvfp4"
    # layers 0 to 2 are ignored as a whole: the minority is told
    (note,) = (n for n in model.notes if n.startswith("attention"))
    assert "bf16" in note and note.endswith("taken as nvfp4")


def test_majority_is_by_parameters_not_by_layers():
    modules = [
        Module("dense", "model.layers.0.mlp.down_proj", 1000),
        Module("dense", "model.layers.1.mlp.down_proj", 10),
        Module("dense", "model.layers.2.mlp.down_proj", 10),
    ]
    config = {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.1", "model.layers.2"]}
    precision, notes = read_precision(Quantization(config, "here"), modules)
    assert precision["dense"].name == "fp8"
    assert len(notes) == 1 and "98.0 % fp8" in notes[0]


def test_wildcards_do_not_reach_other_layers():
    quantization = Quantization({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.1"]}, "here")
    assert quantization.format_of("model.layers.1.mlp.down_proj").name == "bf16"
    assert quantization.format_of("model.layers.10.mlp.down_proj").name == "fp8"


def group(kind: str, bits: int, size: int | None, targets: list[str] | None = None) -> dict:
    weights = {"type": kind, "num_bits": bits, "group_size": size}
    return {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": weights, "targets": targets}}}


@pytest.mark.parametrize(
    ("kind", "bits", "size", "expected", "bits_a_parameter"),
    [
        ("float", 4, 32, "mxfp4", 4.25),
        ("float", 4, 16, "nvfp4", 4.5),
        ("int", 4, 32, "int4", 4.5),
        ("int", 4, 128, "int4", 4.125),
        ("float", 8, None, "fp8", 8 + 32 / 128**2),
    ],
)
def test_formats_of_groups(kind, bits, size, expected, bits_a_parameter):
    found = Quantization(group(kind, bits, size), "here").format_of("model.layers.0.mlp.down_proj")
    assert found.name == expected
    assert float(found.payload + found.scale) * 8 == bits_a_parameter


def test_targets_choose_the_modules():
    quantization = Quantization(group("float", 8, None, ["re:.*experts.*"]), "here")
    assert quantization.format_of("model.layers.3.mlp.experts.0.down_proj").name == "fp8"
    assert quantization.format_of("model.layers.3.self_attn.o_proj").name == "bf16"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"quant_method": "awq"}, "quant_method = 'awq' is not supported.*fp8, mxfp4, compressed-tensors, modelopt"),
        ({}, "quant_method = None"),
        ([1], "must be an object, not list"),
        ({"quant_method": "fp8", "modules_to_not_convert": "lm_head"}, "must be a list of module names"),
        ({"quant_method": "fp8", "modules_to_not_convert": [1]}, "must be a list of module names"),
        ({"quant_method": "modelopt"}, "config_groups is missing"),
        ({"quant_method": "modelopt", "config_groups": {"g": 1}}, r"config_groups.g.weights is missing"),
        (group("int", 8, 32), "int 8 by 32.*supported"),
        (group("int", 4, 0), "int 4 by 0.*supported"),
        ({**group("float", 8, None), "ignore": ["re:("]}, "no regular expression"),
    ],
)
def test_bad_quantisation_configs(config, words):
    with pytest.raises(PrecisionError, match=words) as caught:
        Quantization(config, "here.json").format_of("model.layers.0.self_attn.o_proj")
    assert str(caught.value).startswith("here.json: ") and "\n" not in str(caught.value)


def test_parse_precision():
    assert parse_precision("") == {}
    assert parse_precision(" attention = fp8 ,kv=fp8, ") == {"attention": FORMATS["fp8"], "kv": FORMATS["fp8"]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("attention", "no '='"),
        ("atention=fp8", "did you mean 'attention'.*Components: attention, latent"),
        ("attention=fp6", "fp32, bf16, fp8, mxfp4, nvfp4, int4"),
        ("kv=int4", "formats for it: bf16, fp8"),
        ("state=fp8", "formats for it: fp32, bf16"),
        ("kv=fp8,kv=bf16", "twice"),
        ("=fp8", "no component ''"),
        ("kv=", "kv cannot be ''"),
    ],
)
def test_bad_precision_text(text, words):
    with pytest.raises(MeshwrightError, match=words) as caught:
        parse_precision(text)
    assert "\n" not in str(caught.value)


def test_precision_of_the_request_overrides_build_and_checkpoint():
    model = load_model("kimi-k3@article", precision="head=fp8,kv=bf16")
    assert (model.precision["head"].name, model.precision["kv"].name) == ("fp8", "bf16")
    assert model.precision["latent"].name == "fp8"
