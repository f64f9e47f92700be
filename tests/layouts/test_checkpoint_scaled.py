"""Quantised checkpoints: views of fp8 and MXFP4 tensors against numpy, and whole goldens stored so and read back."""

import json
import pathlib
import shutil
from typing import Any, Final

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from safetensors.numpy import load_file, save_file

from hw.compat import automatic_mesh
from layouts.checkpoint import CheckpointError, architecture_of, open_folder, place, views
from layouts.checkpoint.scaled import E2M1, E8M0, Scaled
from layouts.checkpoint.views import Box, Stored, View
from layouts.models import load_model

DECODERS: Final = pathlib.Path(__file__).parents[1] / "goldens" / "decoders"
FP4: Final = (0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6)
Arrays = dict[str, np.ndarray]


class Memory:
    """Arrays as a source, with what has been read of each."""

    def __init__(self, arrays: Arrays):
        self.arrays, self.boxes = arrays, []

    def read(self, name: str, box: Box) -> np.ndarray:
        self.boxes.append((name, box))
        return self.arrays[name][box].copy()

    def dtype(self, name: str) -> np.dtype:
        return self.arrays[name].dtype

    def view(self, name: str) -> View:
        return Stored(self, name, self.arrays[name].shape)


def bytes_of(*shape: int, least: int = 0, most: int = 256, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(least, most, size=shape, dtype=np.uint8)


def fp8(*shape: int, seed: int = 0) -> np.ndarray:
    """Random finite e4m3: codes 0x7f and 0xff are NaN."""
    codes = bytes_of(*shape, seed=seed)
    return np.where(codes & 0x7F == 0x7F, 0, codes).astype(np.uint8).view(ml_dtypes.float8_e4m3fn)


def unpacked(packed: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    """MXFP4 by hand, float64: low half first, 2^(byte - 127) for each 32."""
    values = np.empty((*packed.shape[:-1], 2 * packed.shape[-1]))
    values[..., 0::2], values[..., 1::2] = np.array(FP4)[packed & 15], np.array(FP4)[packed >> 4]
    spread = np.repeat(exponents.astype(np.float64), 32, axis=-1)[..., : values.shape[-1]]
    return values * 2.0 ** (spread - 127)


def of_blocks(payload: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """fp8 in blocks by hand, float64."""
    rows, columns = (np.arange(size) // 128 for size in payload.shape)
    return payload.astype(np.float64) * scale.astype(np.float64)[rows[:, None], columns[None, :]]


BOXES = [(slice(0, 200), slice(0, 300)), (slice(3, 131), slice(127, 129)), (slice(130, 200), slice(257, 258))]


@pytest.mark.parametrize("box", BOXES)
def test_fp8_in_blocks(box: Box) -> None:
    source = Memory({"w": fp8(200, 300), "s": np.random.default_rng(1).uniform(0.5, 2, (2, 3)).astype(np.float32)})
    view = Scaled(source.view("w"), source.view("s"), (128, 128))
    expected = of_blocks(source.arrays["w"], source.arrays["s"])[box]
    found = view.read(box)
    assert view.dtype == found.dtype == np.float32 and view.names() == ("w", "s")
    np.testing.assert_array_equal(found, expected.astype(np.float32))
    read = dict(source.boxes)
    assert read["w"] == box  # no more of the payload than the box
    assert read["s"] == tuple(slice(cut.start // 128, (cut.stop + 127) // 128) for cut in box)


@pytest.mark.parametrize("box", [(slice(0, 5), slice(0, 96)), (slice(1, 3), slice(31, 66)), (slice(4, 5), slice(7, 8))])
def test_mxfp4(box: Box) -> None:
    source = Memory({"w": bytes_of(5, 48), "s": bytes_of(5, 3, least=100, most=150, seed=1)})
    view = Scaled(E2M1(source.view("w")), E8M0(source.view("s")), (1, 32))
    np.testing.assert_array_equal(view.read(box), unpacked(source.arrays["w"], source.arrays["s"])[box])
    assert view.shape == (5, 96)
    assert dict(source.boxes)["w"][1] == slice(box[1].start // 2, (box[1].stop + 1) // 2)


def changed(tmp_path: pathlib.Path, name: str, change: Any) -> pathlib.Path:
    """A copy of a golden whose tensors have been changed."""
    folder = tmp_path / name
    shutil.copytree(DECODERS / name, folder)
    stored = load_file(folder / "model.safetensors")
    change(stored)
    save_file({key: np.ascontiguousarray(value) for key, value in stored.items()}, folder / "model.safetensors")
    return folder


def read(folder: pathlib.Path) -> Any:
    opened = open_folder(folder)
    return views(load_model(str(folder)), opened, architecture_of(opened), attn_tp=1, vocab_tp=1)


def whole(made: Any) -> Any:
    return jax.tree.map(lambda view: view[()], made, is_leaf=lambda node: isinstance(node, View))


def as_fp8(stored: Arrays) -> None:
    """Every projection but the router as DeepSeek-V3 stores it, random."""
    for seed, (name, value) in enumerate(list(stored.items())):
        if name.endswith("_proj.weight") or "kv_a_proj" in name:
            stored[name] = fp8(*value.shape, seed=seed)
            scale = np.random.default_rng(seed).uniform(0.5, 2, [-(-size // 128) for size in value.shape])
            stored[f"{name}_scale_inv"] = scale.astype(np.float32)


def test_a_checkpoint_of_fp8_is_that_of_its_values(tmp_path: pathlib.Path) -> None:
    stored: Arrays = {}

    def change(plain: Arrays) -> None:
        as_fp8(plain)
        stored.update(plain)  # safetensors reads no fp8 as numpy

    quantised = changed(tmp_path / "fp8", "deepseek_v3", change)

    def values(plain: Arrays) -> None:
        for name in [name for name in stored if f"{name}_scale_inv" in stored]:
            plain[name] = of_blocks(stored[name], stored[f"{name}_scale_inv"]).astype(np.float32)

    plain = changed(tmp_path / "plain", "deepseek_v3", values)
    assert sum(name.endswith("_scale_inv") for name in stored) > 100
    jax.tree.map(np.testing.assert_array_equal, whole(read(quantised)), whole(read(plain)))


def test_a_checkpoint_of_packed_mxfp4_is_that_of_its_values(tmp_path: pathlib.Path) -> None:
    def pack(stored: Arrays) -> None:
        for seed, name in enumerate([name for name in stored if ".experts." in name]):
            out, inp = stored.pop(name).shape
            stored[f"{name}_packed"] = bytes_of(out, inp // 2, seed=seed)
            stored[f"{name}_scale"] = bytes_of(out, -(-inp // 32), least=120, most=130, seed=seed)

    quantised = changed(tmp_path / "mxfp4", "kimi-k3", pack)
    stored = load_file(quantised / "model.safetensors")

    def values(plain: Arrays) -> None:
        for name in [name for name in plain if f"{name}_packed" in stored]:
            plain[name] = unpacked(stored[f"{name}_packed"], stored[f"{name}_scale"]).astype(np.float32)

    jax.tree.map(
        np.testing.assert_array_equal,
        whole(read(quantised)),
        whole(read(changed(tmp_path / "plain", "kimi-k3", values))),
    )


def as_blocks(folder: pathlib.Path) -> pathlib.Path:
    """The golden with experts of a whole group of 32 inputs, stored as gpt-oss stores them."""
    config = json.loads((folder / "config.json").read_text()) | {"intermediate_size": 32}
    (folder / "config.json").write_text(json.dumps(config))
    stored = load_file(folder / "model.safetensors")
    for seed, name in enumerate([name for name in stored if name.endswith(("gate_up_proj", "down_proj"))]):
        out = 64 if "gate_up" in name else 32
        experts = stored.pop(name).shape[0]
        stored[f"{name}_blocks"] = bytes_of(experts, out, 1, 16, seed=seed)
        stored[f"{name}_scales"] = bytes_of(experts, out, 1, least=120, most=130, seed=seed)
        stored[f"{name}_bias"] = np.zeros((experts, out), np.float32)
    save_file(stored, folder / "model.safetensors")
    return folder


def test_experts_in_blocks_of_mxfp4(tmp_path: pathlib.Path) -> None:
    folder = as_blocks(changed(tmp_path, "gpt_oss", lambda stored: None))
    stored, experts = load_file(folder / "model.safetensors"), read(folder)["layers"][1]["ffn"].experts
    gate_up, down = (
        unpacked(stored[f"{name}_blocks"].reshape(*stored[f"{name}_scales"].shape[:2], 16), stored[f"{name}_scales"])
        for name in (f"model.layers.1.mlp.experts.{which}_proj" for which in ("gate_up", "down"))
    )
    np.testing.assert_array_equal(experts.w13[()], np.stack([gate_up[:, 0::2], gate_up[:, 1::2]], axis=1))
    np.testing.assert_array_equal(experts.w2[()], down)
    part = (slice(3, 5), slice(1, 2), slice(7, 30), slice(5, 8))
    np.testing.assert_array_equal(experts.w13[part], experts.w13[()][part])


def test_each_device_gets_the_values_of_its_part(tmp_path: pathlib.Path) -> None:
    made = read(changed(tmp_path, "deepseek_v3", as_fp8))["layers"][2]["ffn"].experts
    mesh = automatic_mesh(np.array(jax.devices()).reshape(4, 4), ("a", "b"))
    sharding = NamedSharding(mesh, PartitionSpec("a", None, "b", None))
    np.testing.assert_array_equal(place(made.w13, sharding), made.w13[()])


@pytest.mark.parametrize(
    "name, change, text",
    [
        (
            "deepseek_v3",
            {"model.layers.0.mlp.up_proj.weight_scale_inv": np.ones((2, 1), np.float32)},
            "[2, 1] for [1, 1]",
        ),
        ("llama", {"model.layers.0.mlp.up_proj.weight": fp8(48, 32)}, "float8_e4m3fn without scales"),
        ("llama", {"model.layers.0.mlp.up_proj.weight_packed": np.zeros((48, 4), np.int32)}, "packed int4 or FP4"),
    ],
)
def test_other_quantisations_are_refused(tmp_path: pathlib.Path, name: str, change: Arrays, text: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(changed(tmp_path, name, lambda stored: stored.update(change)))
    assert text in str(caught.value) and "\n" not in str(caught.value)


def test_nvfp4_is_not_read_as_mxfp4(tmp_path: pathlib.Path) -> None:
    """The same names, with e4m3 scales for each 16 and one of the matrix."""

    def change(stored: Arrays) -> None:
        name = "model.layers.0.mlp.up_proj.weight"
        out, inp = stored.pop(name).shape
        stored |= {f"{name}_packed": bytes_of(out, inp // 2), f"{name}_scale": fp8(out, inp // 16)}
        stored[f"{name}_global_scale"] = np.ones(1, np.float32)

    with pytest.raises(CheckpointError, match="packed int4 or FP4"):
        read(changed(tmp_path, "llama", change))


def test_a_group_that_the_width_does_not_fill_is_mis_shaped(tmp_path: pathlib.Path) -> None:
    folder = as_blocks(changed(tmp_path, "gpt_oss", lambda stored: None))
    config = json.loads((folder / "config.json").read_text()) | {"intermediate_size": 16}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"down_proj_blocks \[16, 32, 1, 16\] for \[16, 32, 0, 16\]"):
        read(folder)
