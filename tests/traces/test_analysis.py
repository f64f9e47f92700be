"""A trace that is added up by hand: wall time, layers, copies. The arithmetic stands beside each figure."""

import dataclasses
import pathlib

import numpy as np
import pytest

from explorer.traces.analysis import Analysis, analyse
from explorer.traces.events import Kind, Trace, TraceError
from explorer.traces.reading import read_trace
from tests.traces.made import ALL, GATHER, PEER, STEP, annotation, kernel, peer, written

US = 1e-6


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return read_trace(written(tmp_path_factory.mktemp("trace") / "made.json"))


@pytest.fixture(scope="module")
def found(trace: Trace) -> Analysis:
    return analyse(trace)


def of(folder: pathlib.Path, *events: dict, **options) -> Analysis:
    return analyse(read_trace(written(folder / "t.json", events)), **options)


@pytest.mark.smoke
def test_wall_time(found: Analysis):
    expected = {
        "union_seconds": 86,  # 0-46 and 50-90
        "kernels_seconds": 80,  # 0-40 and 50-90
        "peer_copies_only_seconds": 6,  # 40-46
        "communication_only_seconds": 26,  # 25-35, 40-46, 75-85
        "exposed_copies_seconds": 6,
        "idle_seconds": 14,  # 46-50, 90-100
    }
    assert dataclasses.asdict(found.time) == pytest.approx({name: value * US for name, value in expected.items()})
    assert found.step_seconds == pytest.approx(100 * US)


def test_the_step_of_median_length_among_those_that_run_something(found: Analysis):
    steps = found.steps
    assert steps.count == 2
    assert (steps.median_seconds, steps.low_seconds) == pytest.approx((100 * US, 100 * US))
    assert steps.high_seconds == pytest.approx(120 * US)
    assert found.device == 0


def test_layers_by_annotations(found: Analysis):
    kinds = {kind.layer_kind: kind for kind in found.layer_kinds}
    assert found.layers_found_by == "annotations"
    assert list(kinds) == ["mla_layer", "kda_layer", "outside of layers"]
    mla, kda, rest = kinds.values()
    assert (mla.count, kda.count) == (1, 1)
    assert (mla.wall_seconds, kda.wall_seconds, rest.wall_seconds) == pytest.approx((40 * US, 40 * US, 20 * US))
    assert (mla.main_seconds, kda.main_seconds, rest.main_seconds) == pytest.approx((40 * US, 40 * US, 0))
    # the copy of the GPU's own part, 10-12, runs beside the KDA layer
    assert (mla.kernel_seconds, kda.kernel_seconds) == pytest.approx((40 * US, 42 * US))
    # the gather that ends at 46 is for the layer that starts at 50; behind the one that ends at 70 comes none
    assert (mla.gather_seconds, kda.gather_seconds, rest.gather_seconds) == pytest.approx((36 * US, 0, 10 * US))
    assert (mla.exposed_seconds, kda.exposed_seconds, rest.exposed_seconds) == pytest.approx((6 * US, 0, 0))


def test_copy_groups_follow_the_stream_and_not_the_correlation(found: Analysis):
    first, second = found.copy_groups
    assert (first.layer_kind, first.count, first.copies, first.bytes) == ("mla_layer", 1, 3, 30000)
    assert first.seconds == pytest.approx(36 * US)  # from the local copy at 10 to 46
    assert first.bandwidth == pytest.approx(30000 / (36 * US))
    assert first.copy_bandwidth == pytest.approx(30000 / (30 * US))  # 8 + 8 + 14 us of copying
    assert first.exposed_seconds == pytest.approx(6 * US)
    assert (second.layer_kind, second.copies, second.bytes) == ("", 1, 10000)
    assert second.seconds == pytest.approx(10 * US)
    assert second.exposed_seconds == 0


def test_streams_and_ops(found: Analysis):
    main, side = found.streams
    assert (main.stream, main.main, main.events, side.stream, side.main) == ("7", True, 8, "20", False)
    assert (main.busy_seconds, side.busy_seconds) == pytest.approx((80 * US, 42 * US))
    ops = {op.name: op for op in found.ops}
    assert (ops[GATHER].kind, ops[GATHER].count) == (Kind.COMMUNICATION, 2)
    assert ops[GATHER].seconds_total == pytest.approx(20 * US)
    assert ops[PEER].kind is Kind.PEER_COPY
    assert ops["memcpy128"].kind is Kind.LOCAL_COPY
    assert ops["gemm"].seconds_each == pytest.approx(5 * US)


def test_layers_by_patterns_begin_with_their_first_kernel(trace: Trace):
    found = analyse(trace, layer_patterns=("KDA + MoE=attn_kda", "attn_mla"))
    kinds = {kind.layer_kind: kind for kind in found.layer_kinds if kind.count}
    assert found.layers_found_by == "patterns"
    walls = {name: kind.wall_seconds for name, kind in kinds.items()}
    assert walls == pytest.approx({"KDA + MoE": 50 * US, "attn_mla": 45 * US, "before the first layer": 5 * US})
    mains = {name: kind.main_seconds for name, kind in kinds.items()}
    assert mains == pytest.approx({"KDA + MoE": 40 * US, "attn_mla": 35 * US, "before the first layer": 5 * US})


def test_the_first_pattern_that_matches_counts(trace: Trace):
    found = analyse(trace, layer_patterns=("special=attn_kda", "any=attn"))
    assert {k.layer_kind: k.count for k in found.layer_kinds if k.count} == {
        "special": 1,
        "any": 1,
        "before the first layer": 1,
    }


def test_a_pattern_may_look_ahead(trace: Trace):
    found = analyse(trace, layer_patterns=("(?=void attn)void",))
    assert {kind.layer_kind: kind.count for kind in found.layer_kinds}["(?=void attn)void"] == 2


def test_layers_by_repetition(tmp_path: pathlib.Path):
    """An embedding, five layers of three kernels, logits: two microseconds each, without gaps."""
    names = ["embed", *["norm", "attn", "gemm"] * 5, "logits"]
    found = of(tmp_path, *(kernel(name, 2 * i, 2 * i + 2) for i, name in enumerate(names)))
    layers, rest = found.layer_kinds
    assert (layers.layer_kind, layers.count, found.layers_found_by) == ("3 kernels from norm", 5, "repetition")
    assert (layers.main_seconds, rest.main_seconds) == pytest.approx((30 * US, 4 * US))


def test_layers_of_two_kinds_in_turn_repeat_together(tmp_path: pathlib.Path):
    names = [*(["norm", "kda"] * 3 + ["norm", "mla", "copy"]) * 4, "tail"]
    found = of(tmp_path, *(kernel(name, i, i + 1) for i, name in enumerate(names)))
    assert [(k.layer_kind, k.count) for k in found.layer_kinds] == [
        ("9 kernels from norm", 4),
        ("outside of layers", 0),
    ]


def test_numbers_that_a_compiler_appends_do_not_hide_a_layer(tmp_path: pathlib.Path):
    names = ["start_7", *(f"{name}{i}" for i in range(4) for name in ("norm_", "dot.3.", "all-reduce."))]
    found = of(tmp_path, *(kernel(name, i, i + 1) for i, name in enumerate(names)))
    assert next((k.layer_kind, k.count) for k in found.layer_kinds) == ("3 kernels from norm", 4)
    assert {op.name: op.count for op in found.ops} == {"start": 1, "norm": 4, "dot": 4, "all-reduce": 4}


def test_layers_and_not_steps_are_what_repeats(tmp_path: pathlib.Path):
    """Four steps that nothing marks: their period explains all kernels, that of their layers nearly as many."""
    names = ["embed", *["norm", "attn", "gemm"] * 10, "logits"] * 4
    found = of(tmp_path, *(kernel(name, i, i + 1) for i, name in enumerate(names)))
    assert next((k.layer_kind, k.count) for k in found.layer_kinds) == ("3 kernels from norm", 40)


@pytest.mark.parametrize("names", ["abcdabx", "xabcabcyzuvw"])
def test_nothing_repeats_often_enough(names: str, tmp_path: pathlib.Path):
    found = of(tmp_path, *(kernel(name, i, i + 1) for i, name in enumerate(names)))
    assert [kind.layer_kind for kind in found.layer_kinds] == ["outside of layers"]
    assert found.layer_kinds[0].main_seconds == pytest.approx(len(names) * US)


@pytest.mark.parametrize(("gap", "groups"), [(10, 1), (11, 2)])
def test_a_gap_ends_a_group_of_copies(tmp_path: pathlib.Path, gap: int, groups: int):
    found = of(tmp_path, kernel("gemm", 0, 90), peer(0, 10, 5, 1), peer(10 + gap, 20 + gap, 5, 2))
    assert sum(group.count for group in found.copy_groups) == groups


def test_a_local_copy_begins_the_next_group(tmp_path: pathlib.Path):
    """Two gathers without a gap, as where the main stream waits for each: a local copy and two copies, twice."""
    one = (kernel("memcpy128", 0, 1, 20), peer(1, 2, 5, 1), peer(2, 3, 5, 2))
    two = (kernel("memcpy128", 3, 4, 20), peer(4, 5, 5, 1), peer(5, 6, 5, 2))
    whole = of(tmp_path, kernel("gemm", 9, 30), *one, *two)
    assert whole.time.peer_copies_only_seconds == pytest.approx(4 * US)
    assert whole.time.exposed_copies_seconds == pytest.approx(6 * US)  # the local copies too
    (found,) = whole.copy_groups
    assert (found.count, found.copies, found.bytes) == (2, 2, 10)
    assert found.seconds == pytest.approx(3 * US)
    assert found.exposed_seconds == pytest.approx(6 * US)


def test_an_annotation_of_their_stream_begins_the_next_group_and_owns_it(tmp_path: pathlib.Path):
    """No gap and no local copy tells the two gathers apart, and the first began before the step."""
    marks = [annotation(f"gather {kind}", start, start + 12, 20, kind) for start, kind in ((-4, "A"), (8, "B"))]
    copies = [peer(-4, 7, 5, 1), kernel("memcpy128", 7, 8, 20), peer(8, 14, 5, 1), peer(14, 20, 5, 2)]
    found = of(tmp_path, annotation("step", 0, 40), kernel("gemm", 22, 40), *marks, *copies)
    assert [(g.layer_kind, g.copies) for g in found.copy_groups] == [("B", 2), ("A", 1)]
    assert [g.seconds for g in found.copy_groups] == pytest.approx([12 * US, 7 * US])


def test_annotations_alone_tell_gathers_apart(tmp_path: pathlib.Path):
    marks = [annotation("weights", start, start + 10, 20, "A") for start in (0, 10)]
    (found,) = of(tmp_path, kernel("gemm", 0, 30), *marks, peer(0, 10, 5, 1), peer(10, 20, 5, 1)).copy_groups
    assert (found.count, found.copies) == (2, 1)


def test_a_gather_is_for_the_layer_that_starts_with_its_end(tmp_path: pathlib.Path):
    layers = [annotation("layer 0", 0, 10), annotation("mla layer 1", 20, 30), annotation("late layer 2", 30, 40)]
    kernels = [kernel("gemm", start, start + 10) for start in (0, 20, 30)]
    (group,) = of(tmp_path, *layers, *kernels, peer(0, 20, 5, 1)).copy_groups
    assert group.layer_kind == "mla layer"


def test_what_starts_with_the_end_of_a_layer_is_not_in_it(tmp_path: pathlib.Path):
    found = of(tmp_path, annotation("layer 0", 0, 10), kernel("gemm", 0, 10), kernel("late", 10, 13, 9))
    assert [(k.layer_kind, k.kernel_seconds) for k in found.layer_kinds] == [
        ("layer", pytest.approx(10 * US)),
        ("outside of layers", pytest.approx(3 * US)),
    ]


def test_copies_do_not_make_a_main_stream(tmp_path: pathlib.Path):
    found = of(tmp_path, kernel("gemm", 0, 5), peer(0, 50, 5, 1))
    assert [(stream.stream, stream.main) for stream in found.streams] == [("7", True), ("20", False)]
    assert found.main_seconds == pytest.approx(5 * US)


def test_a_copy_of_unknown_size_has_no_bandwidth(tmp_path: pathlib.Path):
    copies = [peer(0, 10, 5, 1), peer(10, 20, 5, 2)]
    del copies[1]["args"]["bytes"]
    (found,) = of(tmp_path, *copies).copy_groups
    assert (found.copies, found.bytes, found.bandwidth, found.copy_bandwidth) == (2, None, None, None)


def test_events_are_cut_off_at_the_ends_of_the_step(tmp_path: pathlib.Path):
    crossing = (kernel("gemm", -20, 2, 30), peer(95, 130, 7, 1))
    found = of(tmp_path, *STEP, *crossing)
    assert found.step_seconds == pytest.approx(100 * US)
    assert found.time.idle_seconds == pytest.approx((14 - 5) * US)
    assert {op.name: op.seconds_total for op in found.ops}["gemm"] == pytest.approx((5 + 5 + 2) * US)


def test_another_gpu(trace: Trace):
    found = analyse(trace, device=1)
    assert found.step_seconds == pytest.approx(30 * US)
    assert found.time.idle_seconds == 0
    assert not found.copy_groups


def test_parts_sum_to_the_step(tmp_path: pathlib.Path):
    draw = np.random.default_rng(0)
    starts, spans, streams = draw.integers(0, 3000, 400), draw.integers(0, 40, 400), draw.integers(1, 5, 400)
    made = [
        peer(s, s + t, 5, 1) if stream == 4 else kernel(f"k{t % 7}", s, s + t, int(stream))
        for s, t, stream in zip(starts.tolist(), spans.tolist(), streams.tolist(), strict=True)
    ]
    time = (found := of(tmp_path, *made)).time
    parts = time.kernels_seconds + time.peer_copies_only_seconds + time.idle_seconds
    assert parts == pytest.approx(found.step_seconds, rel=1e-12)
    assert time.union_seconds + time.idle_seconds == pytest.approx(found.step_seconds, rel=1e-12)
    assert time.exposed_copies_seconds == pytest.approx(time.peer_copies_only_seconds)  # no local copies here
    assert sum(k.wall_seconds for k in found.layer_kinds) == pytest.approx(found.step_seconds)
    assert sum(k.main_seconds for k in found.layer_kinds) == pytest.approx(found.main_seconds)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"device": 5}, "choose one of 0, 1"),
        ({"layer_patterns": ("x=nothing_of_this",)}, "in no kernel's name"),
        ({"layer_patterns": ("x=(",)}, "no regular expression"),
        ({"step_pattern": "["}, "no regular expression"),
        ({"step_pattern": "prefill"}, "matches no annotation"),
        ({"step_pattern": "pause"}, "matches no annotation with GPU events"),
    ],
)
def test_what_a_trace_lacks_is_said(trace: Trace, options: dict, says: str):
    with pytest.raises(TraceError, match=says):
        analyse(trace, **options)


def test_annotations_of_the_host_are_said_to_be_so(tmp_path: pathlib.Path):
    host = {"ph": "X", "cat": "user_annotation", "name": "step 4", "pid": 9, "tid": 9, "ts": 1000, "dur": 60}
    kernels = [event for event in ALL if event.get("cat") in ("kernel", "gpu_memcpy")]
    found = of(tmp_path, *kernels, host)
    assert found.on_host
    assert found.step_seconds == pytest.approx(60 * US)
