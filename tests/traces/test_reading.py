"""What is read from a file, in pieces of any size, and what of files that are no traces."""

import gzip
import json
import pathlib
from typing import Any

import numpy as np
import pytest

from explorer.cli import main
from explorer.traces import chrome
from explorer.traces.events import KINDS, Kind, Trace, TraceError, kind_of_copy, kind_of_kernel
from explorer.traces.reading import read_trace
from tests.traces.made import ALL, kernel, peer, written

WHOLE = json.dumps({"traceEvents": list(ALL)})


def bad(**changed: Any) -> str:
    return json.dumps({"traceEvents": [kernel("gemm", 0, 1) | changed]})


BAD: dict[str, tuple[bytes, str]] = {
    "empty.json": (b"", "no GPU events"),
    "junk.json": (bytes(range(256)) * 50, "no trace"),
    "words.json": (b"{hello", "traceEvents"),
    "number.json": (b"7", "no trace"),
    "config.json": (b'{"hidden_size": 4096}', "traceEvents"),
    "cut.json": (WHOLE[: len(WHOLE) // 2].encode(), "in the middle of its events"),
    "damaged.json": (WHOLE.replace('"kernel"', '"ker"nel"', 1).encode(), "breaks in the middle"),
    "cut_list.json": (b'[{"ph": "X"}, {"ph"', "in the middle of its events"),
    "cut.json.gz": (gzip.compress(WHOLE.encode())[:-200], "cut short"),
    "damaged.json.gz": (gzip.compress(WHOLE.encode())[:200] + b"x" * 300, "cut short or damaged"),
    "not.json.gz": (b"\x1f\x8bjunk and nothing else", "cut short or damaged"),
    "nothing.json": (b'{"traceEvents": []}', "no GPU events"),
    "host.json": (json.dumps({"traceEvents": [{"ph": "X", "cat": "cpu_op", "ts": 1, "dur": 2}]}).encode(), "GPU"),
    "no_time.json": (bad(ts=None).encode(), "no usable time"),
    "word_time.json": (bad(ts="soon").encode(), "no usable time"),
    "nan_time.json": (bad(ts=float("nan")).encode(), "no usable time"),
    "huge_time.json": (bad(ts=10**40).encode(), "no usable time"),
    "huge_exponent.json": (bad(ts=1).replace('"ts": 1', '"ts": 1e999999999').encode(), "no usable time"),
    "negative.json": (bad(dur=-5).encode(), "ends before it starts"),
    "junk.pb": (b"\x00\x01not a profile", "no trace"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_trace_is_one_line_and_status_2(
    name: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    content, says = BAD[name]
    (tmp_path / name).write_bytes(content)
    assert main(["trace", str(tmp_path / name)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("error: ")
    assert says in line


@pytest.mark.parametrize("path", ["{folder}", "{folder}/none.json", "~nobody9/x.json", "/" + "a" * 5000])
def test_a_path_that_cannot_be_read(path: str, tmp_path: pathlib.Path):
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(path.format(folder=tmp_path))


def same(a: Trace, b: Trace) -> None:
    assert a.annotations == b.annotations
    for column in ("device", "kind", "start", "end", "bytes"):
        np.testing.assert_array_equal(getattr(a.events, column), getattr(b.events, column))
    (first, second) = (
        [(t.names[n], t.streams[s]) for n, s in zip(t.name, t.stream, strict=True)] for t in (a.events, b.events)
    )
    assert first == second


@pytest.mark.parametrize("piece", [1, 7, 64, 1 << 22])
def test_pieces_of_any_size_give_the_same_trace(piece: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    whole = read_trace(written(tmp_path / "a.json"))
    monkeypatch.setattr(chrome, "_PIECE", piece)
    same(read_trace(tmp_path / "a.json"), whole)


def test_gzipped_and_bare_lists_give_the_same_trace(tmp_path: pathlib.Path):
    whole = read_trace(written(tmp_path / "a.json"))
    (tmp_path / "b.json.gz").write_bytes(gzip.compress((tmp_path / "a.json").read_bytes()))
    (tmp_path / "c.json").write_text(json.dumps(list(ALL), indent=2))
    same(read_trace(tmp_path / "b.json.gz"), whole)
    same(read_trace(tmp_path / "c.json"), whole)


def test_something_endless_is_given_up(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chrome, "_LONGEST", 1000)
    monkeypatch.setattr(chrome, "_PIECE", 100)
    (tmp_path / "a.json").write_text('{"traceEvents": [{"name": "' + "x" * 100_000)
    with pytest.raises(TraceError, match="no event"):
        read_trace(tmp_path / "a.json")


def test_times_since_1970_keep_their_nanoseconds(tmp_path: pathlib.Path):
    """A double has a quarter of a microsecond there: the figures are read as they are written."""
    text = json.dumps({"traceEvents": [kernel("gemm", 0, 1)]}).replace('"ts": 1000', '"ts": 1796001815477718.274')
    (tmp_path / "a.json").write_text(text.replace('"dur": 1', '"dur": 2.001'))
    events = read_trace(tmp_path / "a.json").events
    assert (events.start[0], events.end[0]) == (1796001815477718274, 1796001815477720275)


def test_an_event_has_what_the_profiler_said(tmp_path: pathlib.Path):
    memset = kernel("Memset (Device)", 5, 6) | {"cat": "gpu_memset"}
    inside = kernel("Memcpy DtoD (Device -> Device)", 7, 8, bytes=64) | {"cat": "gpu_memcpy"}
    between = peer(9, 10, 32, 3) | {"name": inside["name"], "pid": 0}
    between["args"]["inDevice"] = 2
    other = kernel("gemm", 11, 12, device=1) | {"pid": 0}
    numbered = kernel("gemm", 13, 14) | {"pid": 3, "args": {"stream": 7}}
    made = (peer(1, 3, 4096, 5), memset, inside, between, other, numbered)
    events = read_trace(written(tmp_path / "a.json", made)).events
    kinds = [Kind.PEER_COPY, Kind.MEMSET, Kind.LOCAL_COPY, Kind.PEER_COPY, Kind.KERNEL, Kind.KERNEL]
    assert [KINDS[kind] for kind in events.kind] == kinds
    assert [events.streams[stream] for stream in events.stream] == ["20", "7", "7", "20", "7", "7"]
    np.testing.assert_array_equal(events.bytes, [4096, np.nan, 64, 32, np.nan, np.nan])
    assert events.device.tolist() == [0, 0, 0, 2, 1, 3]


@pytest.mark.parametrize(
    "changed",
    [
        {"cat": ["kernel"]},
        {"name": {"a": [1]}},
        {"name": "\ud800 half a character"},
        {"name": None},
        {"args": [1, 2]},
        {"args": {"stream": ["x"], "device": "one", "bytes": "many", "kind": ["kernel"]}},
        {"args": {"device": -3, "bytes": -1}},
        {"cat": "gpu_user_annotation", "args": {"layer_kind": {"a": 1}}},
        {"cat": "user_annotation", "name": "step 1", "args": {"layer_kind": 7}},
        {"tid": None, "pid": "python", "args": None},
        {"dur": None},
        {"dur": 1e15},
    ],
)
def test_odd_events_are_taken_or_refused(
    changed: dict[str, Any], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    path = written(tmp_path / "odd.json", (kernel("gemm", 0, 1), kernel("odd", 2, 3) | changed))
    status = main(["trace", str(path)])
    out, err = capsys.readouterr()
    assert out if status == 0 else (status, len(err.splitlines())) == (2, 1)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", Kind.COMMUNICATION),
        ("void deep_ep::internode_ll::dispatch<true>", Kind.COMMUNICATION),
        ("void vllm::cross_device_reduce_1stage<nv_bfloat16, 8>", Kind.COMMUNICATION),
        ("reduce-scatter.7", Kind.COMMUNICATION),
        ("collective-permute-start", Kind.COMMUNICATION),
        ("memcpy128", Kind.LOCAL_COPY),
        ("nvjet_tst_128x64_TNT", Kind.KERNEL),
        ("reduce_kernel<512, 1>", Kind.KERNEL),
    ],
)
def test_kernels_by_name(name: str, kind: Kind):
    assert kind_of_kernel(name) is kind


def test_copies_by_name_and_by_ends():
    assert kind_of_copy("Memcpy PtoP (Device -> Device)") is Kind.PEER_COPY
    assert kind_of_copy("MemcpyP2P") is Kind.PEER_COPY
    assert kind_of_copy("Memcpy DtoD (Device -> Device)") is Kind.LOCAL_COPY
    assert kind_of_copy("Memcpy DtoD (Device -> Device)", between=True) is Kind.PEER_COPY
    assert kind_of_copy("Memcpy HtoD (Pinned -> Device)") is Kind.LOCAL_COPY


def test_a_trace_written_is_the_trace_read(tmp_path: pathlib.Path):
    whole = read_trace(written(tmp_path / "a.json"))
    for name in ("b.json", "b.json.gz"):
        chrome.write_chrome(chrome.chrome_document(whole), tmp_path / name)
        again = read_trace(tmp_path / name)
        same(again, whole)
