"""Names under which models are served: published checkpoints, with their publisher or as the folder where they lie."""

from typing import Any

import pytest

from layouts.models import ModelError, load_model, preset_names
from layouts.models.presets import FOLDER, checkpoints, find_config, index, published


@pytest.mark.parametrize(
    ("name", "preset", "context"),
    [
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3", 163840),
        ("/models/DeepSeek-R1", "deepseek-v3", 163840),
        ("/models/deepseek-r1-0528/", "deepseek-v3", 163840),
        ("D:\\models\\DeepSeek-V3.1", "deepseek-v3", 163840),
        ("deepseek-ai/DeepSeek-V3.2-Exp", "deepseek-v3.2", 163840),
        ("moonshotai/Kimi-K3", "kimi-k3", 1048576),
        ("moonshotai/Kimi-K2-Instruct-0905", "kimi-k2-instruct@0905", 262144),
        (" Qwen3-235B-A22B-FP8 ", "qwen3-235b-a22b@fp8", 40960),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507", "qwen3-235b-a22b@2507", 262144),
        ("meta-llama/Llama-3.1-70B-Instruct", "llama-3.1-70b", 131072),
        ("neuralmagic/Meta-Llama-3.1-70B-Instruct-FP8", "llama-3.1-70b@fp8", 131072),
        ("zai-org/GLM-5.2-FP8", "glm-5.2-nvfp4@fp8", 1048576),
        ("openai/gpt-oss-120b", "gpt-oss-120b", 131072),
        ("nvidia/Kimi-K2.6-NVFP4", "kimi-k2.6-nvfp4", 262144),
        ("glm-5.2", "glm-5.2-nvfp4", 1048576),
        ("KIMI-K3@Article", "kimi-k3@article", 1048576),
    ],
)
def test_a_served_name_is_a_preset(name, preset, context):
    assert published(name) == preset
    model = load_model(name)
    assert (model.name, model.context_limit) == (preset, context)


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    # bytes of the safetensors files that the publishers list, 10^9; tolerance for what is not counted (draft layers)
    [
        ("moonshotai/Kimi-K2-Instruct", 1029),
        ("moonshotai/Kimi-K2-Thinking", 594),
        ("Qwen/Qwen3-235B-A22B-FP8", 236.4),
        ("zai-org/GLM-5.2", 1488),
    ],
)
def test_weights_of_a_build(name, gigabytes):
    assert float(load_model(name).weight_bytes) / 1e9 == pytest.approx(gigabytes, rel=0.01)


def test_every_checkpoint_is_of_one_file_that_is_there():
    tables: list[dict[str, Any]] = [dict(about) for file, about in index().items() if file != "aliases"]
    found = [str(name).lower() for about in tables for name in about.get("published", ())]
    assert len(found) == len(set(found)) == len(checkpoints()) > 30
    assert set(checkpoints().values()) <= set(preset_names())
    assert not any("/" in name for name in checkpoints())


def test_a_folder_that_is_there_wins(tmp_path):
    folder = tmp_path / "DeepSeek-R1"
    assert published(str(folder)) == "deepseek-v3"
    folder.mkdir()
    (folder / "config.json").write_text((FOLDER / "llama-3.1-8b.json").read_text())
    assert published(str(folder)) is None
    assert find_config(str(folder)) == folder / "config.json"
    assert load_model(str(folder)).hidden == 4096


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("deepseek-ai/DeepSeek-R1-0529", "deepseek-r1-0528"),
        ("org/llama-3.1-71b", "llama-3.1-70b"),
        ("/m/kimi-k33", "kimi-k3"),
    ],
)
def test_a_name_that_nobody_published(name, near):
    with pytest.raises(ModelError, match=f"unknown model {name!r}; did you mean {near!r}"):
        load_model(name)


@pytest.mark.parametrize("name", ["x" * 100_000, "a/" * 5000, "\0", "org/\0", "-", "~nobody/x", "//", "org/\n"])
def test_names_that_are_none(name):
    with pytest.raises(ModelError) as caught:
        load_model(name)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 3000
