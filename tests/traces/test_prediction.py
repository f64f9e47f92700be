"""A predicted step written as a trace, and read back as if it had been measured: the same times."""

import json
import pathlib
from collections import defaultdict
from typing import Any

import pytest

import explorer
from explorer.cli import main
from explorer.costing import Cost, cost_of
from explorer.priced import Priced, priced
from explorer.request import make_request
from explorer.traces.answer import Traced, answer
from explorer.traces.chrome import write_chrome
from explorer.traces.export import predicted_document, predicted_trace
from explorer.traces.lineup import line_up
from explorer.traces.reading import read_trace
from hw.errors import MeshwrightError
from layouts.op import Stream

NS = 1e-9
ASK = "--model kimi-k3@article --hardware b200 --gpus 16 --context 100000 --concurrency 64 --layout attn_dp=16,ep=16"
Document = dict[str, Any]


@pytest.fixture(scope="module")
def found() -> Priced:
    request = make_request("kimi-k3@article", "b200", 16, context=100_000, concurrency=64)
    return priced(request, request.layout("attn_dp=16,ep=16"))


@pytest.fixture(scope="module")
def cost(found: Priced) -> Cost:
    return cost_of(found)


@pytest.fixture(scope="module")
def document(found: Priced) -> Document:
    return predicted_document(found)


@pytest.fixture(scope="module")
def traced(document: Document, cost: Cost, tmp_path_factory: pytest.TempPathFactory) -> Traced:
    path = tmp_path_factory.mktemp("trace") / "step.json.gz"
    write_chrome(document, path)
    return answer(path, read_trace(path), predicted=cost)


def test_wall_time_is_the_predictions(traced: Traced, cost: Cost):
    time, streams = traced.analysis.time, cost.streams
    positions = len(cost.timeline)
    assert traced.analysis.step_seconds == pytest.approx(cost.step_seconds, abs=NS)
    assert streams[Stream.GATHER].exposed > 1e-3
    assert time.peer_copies_only_seconds <= time.exposed_copies_seconds
    assert time.exposed_copies_seconds == pytest.approx(streams[Stream.GATHER].exposed, abs=positions * NS)
    assert traced.analysis.main_seconds == pytest.approx(streams[Stream.MAIN].busy, abs=positions * NS)
    assert time.union_seconds == pytest.approx(cost.step_seconds, abs=positions * NS)
    assert time.idle_seconds == pytest.approx(0, abs=positions * NS)


def test_kinds_of_layers_are_the_predictions(traced: Traced, cost: Cost):
    measured = {kind.layer_kind: kind for kind in traced.analysis.layer_kinds}
    assert set(measured) == {kind.layer_kind for kind in cost.layer_kinds}
    for kind in cost.layer_kinds:
        seen = measured[kind.layer_kind]
        assert seen.count == kind.count
        assert seen.main_seconds == pytest.approx(kind.main_seconds, abs=kind.count * NS)
        assert seen.gather_seconds == pytest.approx(kind.gather_seconds, abs=kind.count * NS)
        assert seen.exposed_seconds == pytest.approx(kind.wait_seconds, abs=2 * kind.count * NS)


def test_ops_are_the_predictions(traced: Traced, cost: Cost):
    seconds, counts = defaultdict(float), defaultdict(float)
    for op in cost.ops:
        seconds[op.name] += op.seconds_total
        counts[op.name] += op.count
    for op in traced.analysis.ops:
        assert op.count == counts.pop(op.name)
        assert op.seconds_total == pytest.approx(seconds[op.name], abs=op.count * NS)
    assert not counts


def test_every_line_agrees(traced: Traced):
    assert len(traced.lineup or ()) > 20
    for line in traced.lineup or ():
        assert line.measured == pytest.approx(line.predicted, abs=2e-7), line


def test_beside_another_prediction(traced: Traced, cost: Cost, found: Priced):
    request = found.request
    other = cost_of(priced(request, request.layout("attn_dp=2,dcp=8,ep=16"), found.tables))
    lines = {(line.part, line.quantity): line for line in line_up(traced.analysis, other)}
    length = lines["step", "length"]
    assert (length.measured, length.predicted) == (traced.analysis.step_seconds, other.step_seconds)
    assert length.ratio == pytest.approx(cost.step_seconds / other.step_seconds, rel=1e-6)
    gathers = lines["draft GQA window + dense", "gathers"]  # which DP2 does not shard
    assert gathers.measured and gathers.predicted == 0 and gathers.ratio is None


def test_gathers_have_the_bytes_of_their_weights(traced: Traced):
    """Of a KDA layer each GPU receives 548.7 MB, of an MLA layer 339.5 MB (article 000: 7/8 of 627 MB, of 388 MB)."""
    received = {group.layer_kind: group.bytes for group in traced.analysis.copy_groups}
    assert received["KDA + LatentMoE"] == pytest.approx(627048448 * 7 / 8, rel=1e-3)
    assert received["MLA + LatentMoE"] == pytest.approx(339.5e6, rel=1e-3)


def test_ops_lie_inside_their_layers_and_layers_on_their_streams(document: Document):
    """As viewers need it: tracks named, times in microseconds, events of a track nested or apart."""
    events = document["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 0}
    assert set(tracks.values()) == {"main", "weight gather"}
    complete = [e for e in events if e["ph"] == "X"]
    assert {e["ph"] for e in events} == {"M", "X"}
    for track in tracks:
        open_until: list[int] = []
        on_track = [
            (round(e["ts"] * 1000), round(e["dur"] * 1000)) for e in complete if (e["pid"], e["tid"]) == (0, track)
        ]
        for start, span in sorted(on_track, key=lambda at: (at[0], -at[1])):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or start + span <= open_until[-1]
            open_until.append(start + span)
        assert len(on_track) > 190
    names = [e["name"] for e in complete]
    assert {"layer 0", "layer 92", "weights of layer 92", "step"} <= set(names)
    assert any(e["pid"] not in (0,) and "scheduling" in e["name"] for e in complete)


def test_ops_of_a_layer_come_in_the_order_of_the_model(found: Priced):
    events = predicted_trace(found).events
    layer = events.take(events.stream == events.streams.index("main")).within(0, int(2e9))
    names = [layer.names[n] for n in layer.name]
    order = ["qkv_proj", "kda_state", "o_proj", "dispatch", "w13", "w2", "combine"]
    first = names.index("dispatch")
    assert [names.index(name, first - 30 if first > 30 else 0) for name in order[:3]] < [first] * 3
    assert [n for n in names[first:] if n in order[3:]][:4] == order[3:]


def test_a_step_that_waits_for_the_host_is_idle_on_the_gpu():
    request = make_request("llama-3.1-8b", "b300", 8, context=16)
    found = priced(request, request.layout("attn_dp=2"))
    cost = cost_of(found)
    traced = answer("step.json", predicted_trace(found), predicted=cost)
    assert traced.analysis.step_seconds == pytest.approx(3.07e-3)  # article 002
    assert traced.analysis.time.idle_seconds == pytest.approx(cost.streams[Stream.HOST].exposed, abs=1e-7)


def test_from_the_command_line(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "new" / "step.json.gz"
    assert main(["cost", *ASK.split(), "--trace", str(file), "--json"]) == 0
    said = capsys.readouterr()
    assert f"wrote {file}" in said.err
    assert main(["trace", str(file), *ASK.split(), "--json"]) == 0
    document = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert document["schema"] == "trace/1"
    assert document["step_seconds"] == pytest.approx(json.loads(said.out)["step_seconds"], abs=NS)
    assert document["request"]["against"]["concurrency"] == 64
    assert main(["trace", str(file), *ASK.split()]) == 0
    out = capsys.readouterr().out
    assert "Beside the prediction: kimi-k3@article, 16 x b200, attn_dp=16,ep=16" in out
    assert main(["trace", str(file)]) == 0
    assert "Beside" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--layout ep=16", "--layout is of a prediction"),
        ("--model kimi-k3", "--hardware is missing"),
        ("--context 100", "--model is missing"),
        ("--device -1", "device -1"),
        ("--device one", "whole number"),
        ("--layer-pattern x=(", "regular expression"),
    ],
)
def test_a_question_that_is_incomplete(
    arguments: str, says: str, found: Priced, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    write_chrome(predicted_document(found), tmp_path / "step.json")
    assert main(["trace", str(tmp_path / "step.json"), *arguments.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


@pytest.mark.parametrize("name", ["step.txt", "folder.json", "file.json/step.json"])
def test_where_a_trace_cannot_be_written(name: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "file.json").write_text("")
    assert main(["cost", *ASK.split(), "--trace", str(tmp_path / name)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: trace ")


def test_as_a_function(document: Document, cost: Cost, tmp_path: pathlib.Path):
    write_chrome(document, tmp_path / "step.json")
    answered = explorer.trace(tmp_path / "step.json", against=cost).document()
    assert answered["layout_text"] == "attn_dp=16,ep=16"
    assert explorer.trace(tmp_path / "step.json").document()["lineup"] is None
    with pytest.raises(MeshwrightError):
        explorer.trace(tmp_path / "none.json")
    named = explorer.trace(tmp_path / "step.json", layer_patterns=("attention=kda_state",), against=cost).document()
    assert any("--layer-pattern" in line for line in named["notes"])
