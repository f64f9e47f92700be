"""Start-up logs of both engines, several versions each: figures as published (logs/SOURCES.toml), ranks, and notes."""

import pathlib
import tomllib

import pytest

from explorer.engines.logs.entries import Engine, Event, Log, LogError, Rank, Reading
from explorer.engines.logs.reading import read_log
from tests.engines.readings import is_reading

GIB = 2**30
LOGS = pathlib.Path(__file__).with_name("logs")
SOURCES = tomllib.loads((LOGS / "SOURCES.toml").read_text(encoding="utf-8"))


def log_of(name: str) -> Log:
    return read_log(LOGS / f"{name}.log")


def written(folder: pathlib.Path, *lines: str, end: str = "\n") -> Log:
    file = folder / "start.log"
    file.write_text(end.join(lines) + end, encoding="utf-8")
    return read_log(file)


def gib(figure: Reading | None) -> float:
    assert figure is not None
    return round(figure.value / GIB, 6)


def test_every_log_has_a_source_and_every_source_a_log():
    assert {entry["file"] for entry in SOURCES.values()} == {file.name for file in LOGS.glob("*.log")}
    assert all(entry["source"] for entry in SOURCES.values())


@pytest.mark.smoke
def test_interleaved_ranks_with_colours_and_a_progress_bar():
    """sglang#6017: eight ranks, 105.59 GB of weights each, KV of 161,488 tokens in 10.57 GB."""
    log = log_of("sglang_0.4.6_dp8")
    assert log.engine is Engine.SGLANG and not log.unread
    assert log.ranks == tuple(Rank(dp=n, tp=n) for n in range(8))
    assert [str(rank) for rank in log.ranks[:2]] == ["DP0 TP0", "DP1 TP1"]
    for rank in log.ranks:
        (end,), (pool,) = log.of(Event.LOAD_END, rank), log.of(Event.KV_POOL, rank)
        assert gib(end.figure("used")) == 105.59
        assert gib(end.figure("free")) == (31.96 if rank.dp == 0 else 31.87)
        assert end.text("model") == "DeepseekV3ForCausalLM" and end.text("dtype") == "torch.bfloat16"
        assert pool.count("tokens") == 161488 and gib(pool.figure("kv")) == 10.57
    assert log.launch is not None
    assert log.launch.startswith("ServerArgs(model_path='/models/DeepSeek-V3'") and log.launch.endswith("=32)")


def test_two_records_in_one_line_are_of_two_ranks_and_of_that_line():
    pools = {str(entry.rank): entry.line for entry in log_of("sglang_0.4.6_dp8").of(Event.KV_POOL)}
    lines = (LOGS / "sglang_0.4.6_dp8.log").read_bytes().decode().split("\n")  # as editors count
    assert pools["DP1 TP1"] == pools["DP7 TP7"]
    assert all(f"[2025-05-09 15:00:16 {rank}]" in lines[line - 1] for rank, line in pools.items())


def test_a_printed_figure_is_an_interval():
    """A printed 10.57 GB is from 10.565 to 10.575 GiB, and holds 161,488 tokens and the slot of padding in 61 layers of
    576 values of two bytes. SGLang's GB is 2^30 bytes: 10.57 x 10^9 is not in it."""
    kv = log_of("sglang_0.4.6_dp8").of(Event.KV_POOL)[0].figure("kv")
    assert kv is not None and kv.low == pytest.approx(10.565 * GIB) and kv.high == pytest.approx(10.575 * GIB)
    assert kv.holds((161488 + 1) * 61 * 576 * 2)
    assert not kv.holds(10.57e9)


def test_clock():
    first, *_, last = log_of("sglang_0.5.6_hybrid").entries
    assert first.seconds is not None and last.seconds is not None
    assert last.seconds - first.seconds == 2.0  # 18:33:02 to 18:33:04
    start, *_, end = log_of("vllm_0.10.2_tp1").entries
    assert start.seconds is not None and end.seconds is not None
    assert end.seconds - start.seconds == 75.0  # 18:11:24 to 18:12:39


def test_milliseconds_on_demand(tmp_path):
    log = written(
        tmp_path,
        "[1970-01-01 00:00:01 TP1] Memory pool end. avail mem=1.00 GB",
        "[1970-01-01 00:01:00.250 TP1] Memory pool end. avail mem=1.00 GB",
    )
    assert [entry.seconds for entry in log.entries] == [1.0, 60.25]


def test_clock_and_rank_of_two_headers_side_by_side(tmp_path):
    log = written(tmp_path, "[1970-01-01 00:00:01] (Worker_TP1 pid=401) Available KV cache memory: 1.00 GiB")
    assert [(entry.rank, entry.seconds) for entry in log.entries] == [(Rank(tp=1), 1.0)]


def test_before_0_4_3_no_memory_of_graphs_and_no_chunk():
    log = log_of("sglang_0.4.0_tp1")
    assert not log.unread
    (end,), (total,) = log.of(Event.GRAPH_END), log.of(Event.MAX_TOTAL_TOKENS)
    assert end.figure("used") is None and is_reading(end.figure("elapsed"), 2.19, 0.005)
    assert (total.count("tokens"), total.count("requests"), total.count("context")) == (56524, 2049, 32768)
    assert total.count("chunk") is None and total.figure("free") is None


def test_hybrid():
    log = log_of("sglang_0.5.6_hybrid")
    (states,), (pool,), (sizes,) = log.of(Event.STATE_POOL), log.of(Event.KV_POOL), log.of(Event.GRAPH_SIZES)
    assert states.count("slots") == 85292
    assert gib(states.figure("conv")) == 4.88 and gib(states.figure("ssm")) == 0.0
    assert gib(pool.figure("keys")) == gib(pool.figure("values")) == 2.71
    assert sizes.text("batches") == "[1, 2, 4, 8]"


def test_cut_line_is_counted_and_said():
    log = log_of("sglang_0.5.3_prefill_cut")
    assert log.unread == 1 and log.lines == 4
    assert not log.of(Event.POOL_END) and not log.ready
    assert log.of(Event.KV_POOL)[0].count("tokens") == 524288
    assert "1 lines name an event" in " ".join(log.notes) and "ends before the engine serves" in " ".join(log.notes)


def test_a_draft_loads_after_the_target():
    log = log_of("sglang_2026-08_draft")
    target, draft = log.of(Event.LOAD_END)
    assert (target.text("quant"), target.text("model")) == ("modelopt_fp4", "Qwen4ExpForConditionalGeneration")
    assert draft.text("model") == "Qwen4ExpForCausalLMMTP" and gib(draft.figure("used")) == -1.86
    (begin,) = log.of(Event.GRAPH_BEGIN)
    assert begin.text("graph") == "target verify" and begin.text("batches") == "[1, 2]"
    assert log.ready and not log.notes


def test_out_of_memory():
    log = log_of("sglang_2026-10_oom")
    stopped, oom = log.errors
    assert stopped.text("kind") == "stopped"
    assert oom.text("kind") == "out of memory"
    assert is_reading(oom.figure("tried"), 970 * 2**20, 0.005 * 2**20)
    assert is_reading(oom.figure("free"), 676.81 * 2**20, 0.005 * 2**20)
    assert gib(oom.figure("total")) == 94.5
    assert "the log ends before the engine serves: it failed" in log.notes


def test_vllm_refuses_the_longest_request():
    """vllm#10517: 1,478 blocks of 16 tokens hold 23,648, fewer than the 29,000 of one request."""
    log = log_of("vllm_0.6.4_refuses")
    assert (log.engine, log.version) == (Engine.VLLM, "0.6.4.post1")
    (blocks,), (error,), (profile,) = log.of(Event.BLOCKS), log.errors, log.of(Event.PROFILE)
    assert blocks.count("gpu") == 1478 and blocks.count("host") == 2048
    assert error.text("kind") == "longest request"
    assert (error.count("context"), error.count("fits")) == (29000, 1478 * 16)
    assert gib(profile.figure("peak_torch")) == 17.98 and gib(profile.figure("kv")) == 2.89
    assert is_reading(log.of(Event.LOAD_END)[0].figure("used"), 14.9888 * GIB, 0.00005 * GIB)


def test_workers_that_are_told_apart_by_their_process_alone():
    log = log_of("vllm_0.8_workers")
    assert log.ranks == (Rank(pid=507), Rank(pid=521))
    for rank in log.ranks:
        (budget,), (profile,) = log.of(Event.PROFILE_BUDGET, rank), log.of(Event.PROFILE, rank)
        assert gib(budget.figure("budget")) == 23.35
        parts = ("weights", "non_torch", "activation", "kv")
        assert [gib(profile.figure(name)) for name in parts] == [21.21, 0.2, 0.37, 1.57]


def test_vllm_0_10():
    log = log_of("vllm_0.10.2_tp1")
    assert log.version == "0.10.2" and log.ready and not log.notes and not log.unread
    assert log.launch is not None and log.launch.startswith("{'max_model_len': 4096")
    (size,), (concurrency,), (profile,) = log.of(Event.KV_SIZE), log.of(Event.CONCURRENCY), log.of(Event.PROFILE)
    assert size.count("tokens") == 451744 and concurrency.count("context") == 4096
    assert is_reading(concurrency.figure("requests"), 110.29, 0.005)
    assert profile.figure("kv") == Reading(59212694937, 0.5)
    assert log.ranks == (Rank(dp=0),)


def test_zeros_that_vllm_drops_are_digits_all_the_same():
    """format_gib rounds to two decimals and then prints 22.90 as "22.9": it stands for 22.895 to 22.905."""
    log = log_of("vllm_2026-09_tp1")
    assert is_reading(log.of(Event.PROFILE_BUDGET)[0].figure("budget"), 22.9 * GIB, 0.005 * GIB)
    assert log.of(Event.PROFILE_BUDGET)[0].figure("utilization") == Reading(0.972)


def test_one_line_that_tells_of_two_events():
    """vLLM 0.33 prints the KV size and the concurrency in one line."""
    log = log_of("vllm_2026-09_tp1")
    (size,), (concurrency,) = log.of(Event.KV_SIZE), log.of(Event.CONCURRENCY)
    assert size.line == concurrency.line == 3
    assert size.count("tokens") == 222822 and concurrency.count("context") == 131072


@pytest.mark.parametrize(
    ("header", "rank"),
    [
        ("[2025-05-09 12:00:00 DP3 TP3 EP3] ", Rank(dp=3, tp=3, ep=3)),
        ("[2026-05-09 12:00:00 DP1 PP2 ATTN_CP3 MOE_DP4 TP5 EP6] ", Rank(dp=1, pp=2, cp=3, moe_dp=4, tp=5, ep=6)),
        ("[2026-05-09 12:00:00] ", Rank()),
        ("(VllmWorker rank=1 pid=4711) INFO 05-16 16:35:18 [gpu_worker.py:227] ", Rank(worker=1)),
        ("(EngineCore_1 pid=7) (VllmWorker rank=0 pid=8) INFO 05-16 16:35:18 [x.py:1] ", Rank(dp=1, worker=0)),
        ("(VllmWorker TP3 pid=4711) INFO 08-16 16:35:18 [x.py:1] ", Rank(tp=3)),
        ("(Worker_TP0 pid=770) INFO 08-21 18:22:06 [gpu_worker.py:789] ", Rank(tp=0)),
        ("(Worker_DP1_TP0_EP8 pid=7) INFO 09-24 09:47:57 [x.py:1] ", Rank(dp=1, tp=0, ep=8)),
        ("(Worker_PP1_PCP2_TP3_DCP4 pid=7) INFO 09-24 09:47:57 [x.py:1] ", Rank(pp=1, cp=2, tp=3, dcp=4)),
        ("(EngineCore_DP2 pid=12) INFO 09-24 09:47:57 [x.py:1] ", Rank(dp=2)),
        ("(EngineCore pid=12) INFO 09-24 09:47:57 [x.py:1] ", Rank()),
        ("(RayWorkerWrapper pid=12, ip=10.0.0.2) INFO 09-24 09:47:57 [x.py:1] ", Rank(pid=12)),
        ("\x1b[36m(Worker_TP1 pid=401)\x1b[0;0m INFO 09-24 09:47:57 [x.py:1] ", Rank(tp=1)),
        ("04:19:58.174993201Z (Worker_TP1 pid=401) INFO 09-24 09:47:57 [x.py:1] ", Rank(tp=1)),
        ("vllm-decode-0  | 2026-09-24T09:47:57Z (Worker_TP1 pid=401) INFO 09-24 09:47:57 [x.py:1] ", Rank(tp=1)),
        ("3: [2026-05-09 12:00:00 TP3] ", Rank(tp=3)),
    ],
)
def test_ranks(tmp_path, header, rank):
    text = "Memory pool end. avail mem=1.00 GB" if "[20" in header else "Available KV cache memory: 1.00 GiB"
    log = written(tmp_path, header + text)
    assert [entry.rank for entry in log.entries] == [rank]


def test_a_line_that_a_collector_wrote_as_json(tmp_path):
    line = '{"log":"[2026-05-09 12:00:00 TP3] Memory pool end. avail mem=1.00 GB\\n","stream":"stderr"}'
    launch = (
        '{"message":"\\u001b[1m[2026-05-09 12:00:00]\\u001b[0m server_args=ServerArgs(model_path=\\"m\\")\\n","n":1}'
    )
    log = written(tmp_path, launch, line)
    assert log.entries[1].rank == Rank(tp=3) and gib(log.entries[1].figure("free")) == 1.0
    assert log.launch == 'ServerArgs(model_path="m")'


def test_what_stands_before_a_header_is_of_no_rank(tmp_path):
    line = "Memory pool end. avail mem=1.00 GB[2026-05-09 12:00:00 TP3] Memory pool end. avail mem=2.00 GB"
    assert [(e.rank, gib(e.figure("free"))) for e in written(tmp_path, line).entries] == [(Rank(), 1), (Rank(tp=3), 2)]


def test_a_rank_is_that_of_its_own_header(tmp_path):
    head, text = " INFO 09-24 09:47:57 [x.py:1] ", "Available KV cache memory: 1.00 GiB"
    log = written(tmp_path, "(Worker_TP1 pid=7)" + head + text + head + text)
    assert [entry.rank for entry in log.entries] == [Rank(tp=1), Rank()]


def test_a_start_after_one_that_failed_is_another(tmp_path):
    launch = "[2026-01-01 00:00:00] server_args=ServerArgs(model_path='m')"
    begin = "[2026-01-01 00:00:01 TP0] Load weight begin. avail mem={} GB"
    failed = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
    log = written(tmp_path, launch, begin.format("10.00"), failed, launch, begin.format("20.00"))
    assert gib(log.of(Event.LOAD_BEGIN)[0].figure("free")) == 20.0 and not log.errors
    assert log.notes[0] == "the log holds 2 starts: this is number 2, from line 4"


def test_the_last_start_with_memory_is_read(tmp_path):
    def start(free: str) -> list[str]:
        return [
            "[2026-01-01 00:00:00] server_args=ServerArgs(model_path='m')",
            f"[2026-01-01 00:00:01 TP0] Load weight begin. avail mem={free} GB",
            "[2026-01-01 00:00:09] The server is fired up and ready to roll!",
        ]

    log = written(tmp_path, *start("10.00"), *start("20.00"), start("30.00")[0])
    assert gib(log.of(Event.LOAD_BEGIN)[0].figure("free")) == 20.0
    assert log.notes[0] == "the log holds 3 starts: this is number 2, from line 4"


def test_hosts_of_one_launch_one_after_the_other_are_one_start(tmp_path):
    def host(rank: int) -> list[str]:
        return [
            "[2026-01-01 00:00:00] server_args=ServerArgs(model_path='m', tp_size=2)",
            f"[2026-01-01 00:00:01 TP{rank}] Load weight begin. avail mem=10.00 GB",
            "[2026-01-01 00:00:09] The server is fired up and ready to roll!",
        ]

    log = written(tmp_path, *host(0), *host(1))
    assert log.ranks == (Rank(tp=0), Rank(tp=1)) and not log.notes


def test_lines_of_another_engine_are_left_out(tmp_path):
    pools = ["[2026-01-01 00:00:01 TP0] Memory pool end. avail mem=1.00 GB"] * 2
    log = written(tmp_path, *pools, "Available KV cache memory: 1.00 GiB")
    assert log.engine is Engine.SGLANG and len(log.entries) == 2
    assert "1 lines of another engine are left out" in log.notes


def test_nothing_but_an_out_of_memory_message(tmp_path):
    log = written(tmp_path, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has")
    assert log.engine is None and gib(log.errors[0].figure("tried")) == 20.0


@pytest.mark.parametrize("text", ["", "hello\n", "AssertionError\n", "\x00\xff\n"])
def test_no_start_is_one_line_that_says_so(tmp_path, text):
    file = tmp_path / "a.log"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(LogError) as error:
        read_log(file)
    message = str(error.value)
    assert "no line of a start of SGLang or vLLM" in message and "give what" in message and "\n" not in message


@pytest.mark.parametrize("path", ["/no/such/file", ".", "nul\0in it"])
def test_what_cannot_be_read_is_one_line(path):
    with pytest.raises(LogError) as error:
        read_log(path)
    assert "cannot be read" in str(error.value) and "\n" not in str(error.value)
