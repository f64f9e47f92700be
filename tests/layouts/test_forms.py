"""What configs say of arithmetic: rotations by hand, scales, activations; what has no program is named."""

import json
import math
import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from layouts.dense.activation import SiTU
from layouts.models import ModelError, load_model
from layouts.models.config import Config
from layouts.models.load import load_forms
from layouts.models.rotary import read_rotary
from layouts.models.scale import Scale, scaled_config
from layouts.rules import Site
from tests.helpers import WITH_PROGRAM
from tests.layouts.decoding import DECODERS

YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def rotary(dim: int, **values: Any):
    return read_rotary(Config("here", values), dim)


def test_plain_rotation_and_where_theta_stands() -> None:
    """Pair i turns by theta^(-2 i / dim) a token."""
    for found in (
        rotary(4, rope_theta=100.0),
        rotary(4, rope_parameters={"rope_theta": 100.0, "rope_type": "default"}),
    ):
        np.testing.assert_allclose(found.frequencies, [1.0, 0.1])
        assert found.factor == 1.0
    turned = found.at(jnp.array([0, 3]))
    np.testing.assert_allclose(turned.cos, np.cos([[0, 0], [3, 0.3]]), rtol=1e-6)
    np.testing.assert_allclose(turned.sin, np.sin([[0, 0], [3, 0.3]]), rtol=1e-6, atol=1e-7)


def test_yarn_leaves_fast_pairs_and_stretches_slow_ones() -> None:
    """In 4096 tokens the first pair turns 652 times, more than beta_fast; the last 0.05 times, less than beta_slow."""
    scaling = {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 4096,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    }
    found = rotary(64, rope_theta=10000.0, rope_scaling=scaling)
    plain = 10000.0 ** (-np.arange(0, 64, 2) / 64)
    assert found.frequencies[0] == plain[0]
    assert found.frequencies[-1] == pytest.approx(plain[-1] / 40)
    assert found.factor == 1.0  # both mscale cancel
    alone = rotary(64, rope_theta=10000.0, rope_scaling={**scaling, "mscale": 0, "mscale_all_dim": 0})
    assert alone.factor == pytest.approx(0.1 * math.log(40) + 1)
    assert rotary(64, rope_theta=1e4, rope_scaling={**scaling, "attention_factor": 0.7}).factor == 0.7


def test_yarn_may_keep_its_ramp_where_it_falls() -> None:
    """gpt-oss: bounds of the ramp are not rounded to whole pairs, so that pairs in it differ."""
    exact, rounded = (
        rotary(64, rope_theta=150000, rope_scaling={**YARN, "truncate": truncate}).frequencies
        for truncate in (False, True)
    )
    assert exact[0] == rounded[0]
    assert exact[-1] == rounded[-1]
    assert not np.allclose(exact[8:18], rounded[8:18], rtol=1e-3)


def test_llama_blends_between_two_wavelengths() -> None:
    """8192 tokens: pairs that turn more than 4 times stay, those that turn less than once are stretched by 8."""
    found, plain = rotary(128, rope_theta=500000.0, rope_scaling=LLAMA3), 500000.0 ** (-np.arange(0, 128, 2) / 128)
    turns = 8192 * plain / (2 * math.pi)
    kept, stretched = turns > 4, turns < 1
    np.testing.assert_allclose(np.array(found.frequencies)[kept], plain[kept])
    np.testing.assert_allclose(np.array(found.frequencies)[stretched], plain[stretched] / 8)
    between = ~(kept | stretched)
    assert between.any()
    assert ((np.array(found.frequencies) < plain) & (np.array(found.frequencies) > plain / 8))[between].all()


@pytest.mark.parametrize(
    ("model", "scale"),
    [
        ("deepseek-v3", 192**-0.5 * (0.1 * math.log(40) + 1) ** 2),
        ("kimi-k3", 192**-0.5),
        ("glm-5.2-nvfp4", 256**-0.5),
        ("llama-3.1-8b", 128**-0.5),
    ],
)
def test_scales(model: str, scale: float) -> None:
    assert load_forms(model).scale == pytest.approx(scale)


def test_kimi_k3_bounds_its_decay_and_activates_with_situ() -> None:
    forms = load_forms("kimi-k3@article")
    assert forms.kda is not None
    assert (forms.kda.gate_lower_bound, forms.kda.norm_eps) == (-5.0, 1e-5)
    assert forms.activation == SiTU(4.0, 25.0)
    assert load_forms(str(DECODERS / "kimi_linear")).kda.gate_lower_bound is None  # pyright: ignore[reportOptionalMemberAccess]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu' has no program; supported: silu, situ"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_type = 'longrope' has no program"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps = 'small' must be a number"),
        ({"rms_norm_eps": None}, "'rms_norm_eps' is missing"),
        ({"rope_theta": True}, "rope_theta = True must be a number"),
        ({"rope_theta": 1}, "rope_theta = 1 must be above 1"),
        ({"rope_scaling": {**YARN, "rope_theta": -5.0}}, "rope_scaling: rope_theta = -5 must be above 1"),
        ({"rope_scaling": {**YARN, "factor": 0}}, "rope_scaling: factor = 0 must be above 0"),
        ({"rope_scaling": {**YARN, "beta_slow": 0}}, "rope_scaling: beta_slow = 0 must be above 0"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor = 1 must be above 1"),
        ({"rope_scaling": {**LLAMA3, "factor": -8}}, "rope_scaling: factor = -8 must be above 0"),
    ],
)
def test_what_has_no_program_is_named(change: dict[str, Any], says: str, tmp_path: pathlib.Path) -> None:
    """Prices can still be had."""
    values = json.loads((DECODERS / "llama" / "config.json").read_text())
    values.pop("rope_parameters")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**values, "rope_theta": 10000.0, **change}))
    assert load_model(str(path)).layers
    with pytest.raises(ModelError, match=r"config\.json") as error:
        load_forms(str(path))
    assert says in str(error.value)


@pytest.mark.parametrize("name", WITH_PROGRAM)
def test_tiny_keeps_every_kind_of_layer(name: str, tmp_path: pathlib.Path) -> None:
    """In the same order of first appearance, in as few layers as show them all; 16 heads can be cut any way."""
    whole, small = load_model(name, draft="none"), load_model(str(scaled_config(name, Scale("tiny"), tmp_path)))
    assert [kind.label for kind in small.kinds] == [kind.label for kind in whole.kinds]
    assert len(small.layers) == 2 or small.kind_of_layer.count(small.kind_of_layer[-1]) == 1
    assert small.parameters < 2e6
    assert {stored.name for stored in small.precision.formats.values()} <= {"bf16", "fp32"}
    assert max(Site(small, 16, 8, 8).heads) == 16
    assert load_forms(str(tmp_path)).activation == load_forms(name).activation


def test_a_slice_keeps_its_width(tmp_path: pathlib.Path) -> None:
    small = load_model(str(scaled_config("deepseek-v3", Scale(layers=5, experts=8), tmp_path)))
    assert (small.hidden, len(small.layers), small.layers[-1].experts) == (7168, 5, 8)
    assert load_model(str(scaled_config("kimi-k3", Scale(layers=500), tmp_path))).layers == load_model("kimi-k3").layers
    router = load_forms(str(scaled_config("qwen3-235b-a22b", Scale(layers=1, experts=4), tmp_path))).router
    assert router is not None
    assert router.topk == 4  # of eight: there are no more


@pytest.mark.parametrize(
    ("model", "scale", "says"),
    [
        ("deepseek-v3", Scale(experts=12), "experts = 12 cannot be cut into 8 groups: give a multiple of 8"),
        ("deepseek-v3", Scale("tiny", experts=1), "experts = 1 cannot be cut into 4 groups: give a multiple of 4"),
        ("llama-3.1-8b", Scale(experts=2), "experts = 2: the model has none; leave it out"),
    ],
)
def test_experts_that_cannot_be_are_named(model: str, scale: Scale, says: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(ModelError, match=says):
        scaled_config(model, scale, tmp_path)


def test_a_token_chooses_no_more_experts_than_its_groups_hold(tmp_path: pathlib.Path) -> None:
    """Eight groups of one expert, of which four may be chosen: four, not eight. Twice as many experts: eight."""
    for experts, topk in ((8, 4), (16, 8)):
        router = load_forms(str(scaled_config("deepseek-v3", Scale(experts=experts), tmp_path))).router
        assert router is not None
        assert router.topk == topk


def test_experts_a_token_must_be_a_number(tmp_path: pathlib.Path) -> None:
    values = json.loads((DECODERS / "qwen3_moe" / "config.json").read_text())
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**values, "num_experts_per_tok": "many"}))
    with pytest.raises(ModelError, match="num_experts_per_tok = 'many' must be an integer"):
        scaled_config(str(path), Scale(experts=2), tmp_path)
