"""Folders of safetensors, whole and damaged: the files are written by the safetensors library or byte by byte."""

import json
import pathlib
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from layouts.checkpoint import CheckpointError, open_folder
from layouts.checkpoint.views import box_of

ONE, INDEX = "model.safetensors", "model.safetensors.index.json"
PAIR = {
    "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
    "b": {"dtype": "I8", "shape": [3], "data_offsets": [8, 11]},
}


def write(folder: pathlib.Path, header: object, data: int = 11, name: str = ONE, length: int | None = None) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(text) if length is None else length
    (folder / name).write_bytes(struct.pack("<Q", size) + text + bytes(range(data)))


def message(folder: pathlib.Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_folder(folder)
    text = str(caught.value)
    assert "\n" not in text and str(folder) in text
    return text


@pytest.mark.smoke
@pytest.mark.parametrize(
    "dtype", [np.float32, np.float16, np.int64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
)
def test_boxes_are_those_of_the_saved_array(tmp_path, dtype):
    wide = np.arange(60).reshape(5, 4, 3).astype(dtype)
    save_file({"wide": wide, "none": np.zeros((0, 3), dtype), "one": wide[0, 0, :1]}, tmp_path / ONE)
    folder = open_folder(tmp_path)
    assert {name: entry.shape for name, entry in folder.entries.items()} == {
        "wide": (5, 4, 3),
        "none": (0, 3),
        "one": (1,),
    }
    for index in ((), (slice(1, 3), slice(None), slice(2, 3)), (slice(4, 5), slice(0, 2))):
        got = folder.read("wide", box_of(index, wide.shape))
        assert got.dtype == folder.dtype("wide") == wide.dtype and got.flags.owndata
        np.testing.assert_array_equal(got.view(np.uint8), wide[index].copy().view(np.uint8))
    assert folder.read("none", box_of((), (0, 3))).shape == (0, 3)


@pytest.mark.parametrize("mapped", [1, 24, 50, 1 << 20])
def test_runs_of_rows_that_are_mapped_one_by_one_make_the_box(tmp_path, monkeypatch, mapped):
    monkeypatch.setattr("layouts.checkpoint.folder._MAPPED", mapped)  # bytes; a row has 24
    rows, scalar = np.arange(42, dtype=np.float32).reshape(7, 6), np.array(3.0, np.float32)
    save_file({"rows": rows, "scalar": scalar}, tmp_path / ONE)
    folder = open_folder(tmp_path)
    np.testing.assert_array_equal(folder.read("rows", (slice(1, 6), slice(2, 5))), rows[1:6, 2:5])
    assert folder.read("scalar", ()).shape == () and folder.read("scalar", ()) == 3.0


def test_shards_are_found_through_the_index(tmp_path):
    save_file({"a": np.ones(2, np.float32)}, tmp_path / "x-1.safetensors")
    save_file({"b": np.full(3, 7, np.int8)}, tmp_path / "x-2.safetensors")
    index = {"weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}}
    (tmp_path / INDEX).write_text(json.dumps(index))
    assert open_folder(tmp_path).read("b", (slice(1, 3),)).tolist() == [7, 7]


def test_a_folder_without_weights(tmp_path):
    assert "holds neither model.safetensors nor model.safetensors.index.json" in message(tmp_path)


def entry(**changes: object) -> dict[str, object]:
    return {"a": {**PAIR["a"], **changes}, "b": PAIR["b"]}


DAMAGED = {
    "empty": (b"", 0, 5, "bytes hold no safetensors header"),
    "length past the file": (PAIR, 11, 1 << 40, "hold no safetensors header of 1099511627776"),
    "no JSON": (b"{'a': 1}", 11, None, "its header is no JSON"),
    "no text": (b"\xff\xfe{}", 11, None, "its header is no JSON"),
    "deep": (b"[" * 100_000, 11, None, "its header is no JSON"),
    "a list": ([1], 11, None, "its header is a JSON list, not an object"),
    "a name twice": (b'{"a": 1, "a": 2}', 11, None, "a name stands twice"),
    "no description": ({"a": 3}, 11, None, "tensor 'a' is described by no object"),
    "unknown dtype": (entry(dtype="F4"), 11, None, "tensor 'a' has dtype 'F4'; supported: BOOL"),
    "dtype is no text": (entry(dtype=[1]), 11, None, r"tensor 'a' has dtype \[1\]"),
    "negative size": (entry(shape=[-2]), 11, None, "tensor 'a' has a shape or data_offsets that are no sizes"),
    "size is a bool": (entry(shape=[True, 2]), 11, None, "no sizes"),
    "three offsets": (entry(data_offsets=[0, 8, 9]), 11, None, "no sizes"),
    "offsets of another size": (entry(data_offsets=[0, 7]), 11, None, r"tensor 'a' has 7 bytes for F32 \[2\]"),
    "offsets backwards": (entry(data_offsets=[8, 0]), 11, None, "tensor 'a' has -8 bytes"),
    "overlap": (entry(data_offsets=[3, 11]), 11, None, "tensor 'a' starts at byte 3 of the data, not at 0"),
    "hole": (
        {"a": PAIR["a"], "b": {**PAIR["b"], "data_offsets": [9, 12]}},
        12,
        None,
        "'b' starts at byte 9 of the data, not at 8",
    ),
    "truncated": (PAIR, 10, None, "its header describes 11 bytes of data, the file holds 10"),
    "too long": (PAIR, 12, None, "its header describes 11 bytes of data, the file holds 12"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_file_is_named_with_what_is_wrong(tmp_path, case):
    header, data, length, expected = DAMAGED[case]
    write(tmp_path, header, data, length=length)
    with pytest.raises(CheckpointError, match=expected):
        open_folder(tmp_path)
    message(tmp_path)


def test_a_file_of_a_few_bytes(tmp_path):
    (tmp_path / ONE).write_bytes(b"\x00\x01")
    assert "2 bytes hold no safetensors header" in message(tmp_path)


@given(st.binary(max_size=60), st.integers(0, 2**64 - 1) | st.integers(0, 60))
def test_junk_is_never_more_than_an_error(tmp_path_factory, junk, length):
    folder = tmp_path_factory.mktemp("junk")
    write(folder, junk, 0, length=length)
    try:
        assert open_folder(folder).entries == {}  # "{}" and an empty metadata are the only sound short files
    except CheckpointError as error:
        assert "\n" not in str(error)


INDEXES = {
    "no JSON": (b"{", "is no JSON"),
    "no map": (b'{"metadata": {}}', "has no 'weight_map'"),
    "a list": (b"[]", "has no 'weight_map'"),
    "empty map": (b'{"weight_map": {}}', "has no 'weight_map'"),
    "parent folder": (b'{"weight_map": {"a": "../x.safetensors"}}', r"puts 'a' in '../x.safetensors'; only"),
    "absolute": (b'{"weight_map": {"a": "/etc/x.safetensors"}}', "only"),
    "backslash": (b'{"weight_map": {"a": "..\\\\x.safetensors"}}', "only"),
    "another kind": (b'{"weight_map": {"a": "x.bin"}}', "only"),
    "no text": (b'{"weight_map": {"a": 3}}', "only"),
    "missing file": (
        b'{"weight_map": {"a": "x.safetensors", "b": "z.safetensors"}}',
        "files are missing: z.safetensors;",
    ),
    "missing tensor": (
        b'{"weight_map": {"a": "x.safetensors", "b": "x.safetensors", "c": "x.safetensors"}}',
        "x.safetensors lacks c;",
    ),
    "tensor too many": (b'{"weight_map": {"a": "x.safetensors"}}', "x.safetensors holds, against the index, b;"),
    "in two files": (
        b'{"weight_map": {"a": "x.safetensors", "b": "y.safetensors"}}',
        "x.safetensors holds, against the index, b;",
    ),
}


@pytest.mark.parametrize("case", INDEXES)
def test_a_wrong_index_is_named_with_what_is_wrong(tmp_path, case):
    text, expected = INDEXES[case]
    write(tmp_path, PAIR, name="x.safetensors")
    write(tmp_path, {"b": {**PAIR["b"], "data_offsets": [0, 3]}}, 3, name="y.safetensors")
    (tmp_path / INDEX).write_bytes(text)
    with pytest.raises(CheckpointError, match=expected):
        open_folder(tmp_path)
    message(tmp_path)


def test_many_names_are_cut_at_ten(tmp_path):
    write(tmp_path, PAIR, name="x.safetensors")
    names = {f"t{i:02}": "x.safetensors" for i in range(13)} | dict.fromkeys("ab", "x.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": names}))
    assert "lacks t00, t01, t02, t03, t04, t05, t06, t07, t08, t09 and 3 more;" in message(tmp_path)
