"""JAX's own format: a profile made here on the CPU, and one of a GPU spelled out by hand."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.profiler import ProfileData

from explorer.traces.analysis import analyse
from explorer.traces.events import KINDS, Kind, Recorder, Trace, TraceError
from explorer.traces.reading import read_trace
from explorer.traces.xplane import _innermost


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Three steps of a product in a loop of four rounds, and one behind it."""
    folder = tmp_path_factory.mktemp("profile")
    x = jnp.full((64, 64), 0.1)

    @jax.jit
    def work(x):
        return jnp.sort(jax.lax.fori_loop(0, 4, lambda _, y: jnp.sin(y @ y), x) @ x)

    work(x).block_until_ready()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(folder, profiler_options=options):
        for number in range(3):
            with jax.profiler.StepTraceAnnotation("step", step_num=number):
                work(x).block_until_ready()
    (path,) = folder.rglob("*.xplane.pb")
    return path


def durations(path: pathlib.Path, *leave: str) -> list[int]:
    """Of the ops, as the library itself reads them."""
    planes = ProfileData.from_file(str(path)).planes
    events = [e for plane in planes if plane.name == "/host:CPU" for line in plane.lines for e in line.events]
    ops = [e for e in events if "hlo_op" in dict(e.stats) and not e.name.startswith(leave)]
    return sorted(round(e.start_ns) + round(e.duration_ns) - round(e.start_ns) for e in ops)


def test_ops_of_a_run_on_the_cpu(recorded: pathlib.Path):
    trace = read_trace(recorded)
    assert trace.source == "xplane"
    assert sum("sin" in trace.events.names[name] for name in trace.events.name) == 3 * 4
    # the loop's own event holds those of its rounds, and is left out for them
    assert sorted(trace.events.span.tolist()) == durations(recorded, "while", "call")


def test_steps_of_a_run_on_the_cpu(recorded: pathlib.Path):
    found = analyse(read_trace(recorded))
    assert found.steps.count == 3
    assert found.steps.low_seconds <= found.step_seconds <= found.steps.high_seconds
    assert 0 < found.time.union_seconds < found.step_seconds
    assert found.time.union_seconds + found.time.idle_seconds == pytest.approx(found.step_seconds)
    assert found.on_host


def test_a_loop_that_begins_with_its_first_op_is_left_out():
    recorder = Recorder()
    for name, start, end in (("dot", 0, 4), ("while", 0, 10), ("sine", 4, 10), ("sort", 10, 12)):
        recorder.add(name, "thread", 0, Kind.KERNEL, start, end)
    inner = _innermost(recorder.events())
    assert [inner.names[n] for n in inner.name] == ["dot", "sine", "sort"]


GPU = """
planes {
  id: 1 name: "/device:GPU:1"
  event_metadata { key: 1 value { id: 1 name: "gemm_fusion_dot_3" } }
  event_metadata { key: 2 value { id: 2 name: "ncclDevKernel_AllReduce_Sum_bf16_RING_LL" } }
  event_metadata { key: 3 value { id: 3 name: "MemcpyP2P" } }
  event_metadata { key: 4 value { id: 4 name: "MemcpyD2D" } }
  event_metadata { key: 5 value { id: 5 name: "Memset" } }
  event_metadata { key: 6 value { id: 6 name: "jit_step" } }
  stat_metadata { key: 1 value { id: 1 name: "memcpy_details" } }
  stat_metadata { key: 2 value { id: 2 name: "memset_details" } }
  lines {
    id: 13 name: "Stream #13(Compute)" timestamp_ns: 5000
    events { metadata_id: 1 offset_ps: 0 duration_ps: 4000000 }
    events { metadata_id: 2 offset_ps: 4000000 duration_ps: 2000000 }
    events { metadata_id: 5 offset_ps: 6000000 duration_ps: 1000000
             stats { metadata_id: 2 str_value: "kind:device size:64 async:1" } }
  }
  lines {
    id: 20 name: "Stream #20(MemcpyP2P,MemcpyD2D)" timestamp_ns: 6000
    events { metadata_id: 4 offset_ps: 0 duration_ps: 1000000
             stats { metadata_id: 1 str_value: "kind_src:device kind_dst:device size:512 dest:0 async:1" } }
    events { metadata_id: 3 offset_ps: 1000000 duration_ps: 7000000
             stats { metadata_id: 1 str_value: "kind_src:device kind_dst:device size:3584 dest:1 async:1" } }
  }
  lines { id: 99 name: "XLA Modules" timestamp_ns: 5000 events { metadata_id: 6 offset_ps: 0 duration_ps: 9000000 } }
}
planes {
  id: 2 name: "/host:CPU"
  event_metadata { key: 1 value { id: 1 name: "step" } }
  event_metadata { key: 2 value { id: 2 name: "$run.py:3 main" } }
  event_metadata { key: 3 value { id: 3 name: "fusion" } }
  stat_metadata { key: 1 value { id: 1 name: "hlo_op" } }
  lines {
    id: 1 name: "python" timestamp_ns: 4000
    events { metadata_id: 1 offset_ps: 0 duration_ps: 20000000 }
    events { metadata_id: 2 offset_ps: 0 duration_ps: 30000000 }
    events { metadata_id: 3 offset_ps: 0 duration_ps: 30000000 stats { metadata_id: 1 str_value: "fusion" } }
  }
}
"""


def test_times_beyond_64_bits_are_refused(tmp_path: pathlib.Path):
    path = tmp_path / "late.xplane.pb"
    late = GPU.replace("timestamp_ns: 5000", "timestamp_ns: 9223372036854775000")
    path.write_bytes(ProfileData.text_proto_to_serialized_xspace(late))
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(path)


@pytest.fixture
def gpu(tmp_path: pathlib.Path) -> Trace:
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(ProfileData.text_proto_to_serialized_xspace(GPU))
    return read_trace(path)


def test_streams_of_a_gpu(gpu: Trace):
    """Kernels and copies of its streams; neither the lines drawn from them nor what the host ran."""
    e = gpu.events
    rows = [(e.names[n], e.streams[s], KINDS[k]) for n, s, k in zip(e.name, e.stream, e.kind, strict=True)]
    assert rows == [
        ("gemm_fusion_dot_3", "13", Kind.KERNEL),
        ("MemcpyD2D", "20", Kind.LOCAL_COPY),
        ("MemcpyP2P", "20", Kind.PEER_COPY),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "13", Kind.COMMUNICATION),
        ("Memset", "13", Kind.MEMSET),
    ]
    assert set(e.device.tolist()) == {1}
    assert (e.start.tolist(), e.end.tolist()) == ([5000, 6000, 7000, 9000, 11000], [9000, 7000, 14000, 11000, 12000])
    np.testing.assert_array_equal(e.bytes, [np.nan, 512, 3584, np.nan, np.nan])
    assert [a.name for a in gpu.annotations] == ["step"]


def test_a_step_of_a_gpu(gpu: Trace):
    """From 4 to 24 us: busy 5-14, of which 9-11 are communication beside a copy and 12-14 the copy alone."""
    found = analyse(gpu)
    assert found.step_seconds == pytest.approx(20e-6)
    assert found.time.union_seconds == pytest.approx(9e-6)
    assert found.time.exposed_copies_seconds == pytest.approx(2e-6)
    assert found.time.communication_only_seconds == pytest.approx(4e-6)
    (group,) = found.copy_groups
    assert (group.copies, group.bytes) == (1, 3584)
    assert group.bandwidth == pytest.approx(3584 / 8e-6)
