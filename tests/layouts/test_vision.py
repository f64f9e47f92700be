"""The tower for pictures as bytes on a rank: sums over the checkpoint's tensors by hand, and a start-up log."""

import json
import pathlib
from typing import Any

import pytest

from explorer.residents.lines import fixed_lines
from layouts.models import ModelError, load_model
from layouts.models.presets import FOLDER

GIB = 2**30
W, INNER, DEPTH = 1152, 4304, 27  # of the tower of Qwen3.5
# weights and biases of a block that go with attention TP, and those that every rank has: norms and output biases
CUT = DEPTH * (3 * W * W + 3 * W + W * W + INNER * W + INNER + W * INNER)
WHOLE = DEPTH * (4 * W + 2 * W)
ENTRY = W * 3 * 2 * 16 * 16 + W + 2304 * W


def held(model: str, tp: int = 1) -> int:
    return sum(t.resident(load_model(model).precision).bytes({"attn_tp": tp}) for t in load_model(model).vision)


def changed(tmp_path: pathlib.Path, **changes: Any) -> str:
    config = json.loads((FOLDER / "qwen3.5-27b.json").read_text())
    config["vision_config"] |= changes
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return str(path)


@pytest.mark.parametrize(("model", "out"), [("qwen3.5-27b", 5120), ("qwen3.5-397b-a17b", 4096)])
@pytest.mark.parametrize("tp", [1, 2, 8])
def test_bytes_of_a_rank(model: str, out: int, tp: int) -> None:
    merged = 4 * W
    cut = CUT + merged * merged + merged + merged * out
    assert held(model, tp) == 2 * (cut // tp + WHOLE + ENTRY + 2 * W + out)


def test_a_start_up_log_has_the_tower_in_its_weights() -> None:
    """Case A15: Qwen3.8-27B-FP8 on one GPU takes 28.47 GiB; the text model alone has 27.45."""
    model = load_model("Qwen/Qwen3.8-27B-FP8")
    assert (float(model.weight_bytes) + held("Qwen/Qwen3.8-27B-FP8")) / GIB == pytest.approx(28.47, rel=0.01)
    assert "weights: vision tower" in [line.name for line in fixed_lines(model)]
    assert "weights: vision tower" not in [line.name for line in fixed_lines(load_model("qwen3-32b"))]


def test_the_tower_keeps_its_format_and_is_no_parameter() -> None:
    plain, changed = load_model("qwen3.5-27b"), load_model("qwen3.5-27b", precision="dense=fp8,attention=fp8")
    assert held("qwen3.5-27b") == sum(t.resident(changed.precision).bytes({"attn_tp": 1}) for t in changed.vision)
    assert plain.parameters / 1e9 == pytest.approx(26.9, rel=0.01)


def test_mergers_of_inner_blocks_have_their_norm_behind_the_merging(tmp_path: pathlib.Path) -> None:
    deep = load_model(changed(tmp_path, deepstack_visual_indexes=[8, 16, 24]))
    more = sum(t.resident(deep.precision).bytes({"attn_tp": 1}) for t in deep.vision) - held("qwen3.5-27b")
    merged = 4 * W
    assert more == 2 * 3 * (2 * merged + merged * merged + merged + merged * 5120 + 5120)


def test_other_towers_are_not_counted_and_said(tmp_path: pathlib.Path) -> None:
    assert not load_model("kimi-k2.5").vision and "the vision tower is not counted" in load_model("kimi-k2.5").notes
    assert not load_model("qwen3.5-27b").notes
    other = load_model(changed(tmp_path, num_position_embeddings=None))
    assert not other.vision and other.notes == ("the vision tower is not counted",)


@pytest.mark.parametrize(
    ("key", "value"),
    [("depth", 0), ("hidden_size", "wide"), ("spatial_merge_size", 10**9), ("deepstack_visual_indexes", [99])],
)
def test_sizes_that_cannot_be(tmp_path: pathlib.Path, key: str, value: object) -> None:
    with pytest.raises(ModelError, match=f"vision_config: {key}"):
        load_model(changed(tmp_path, **{key: value}))
