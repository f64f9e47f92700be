"""Memory tables from start-up logs: rows, sums and what is not named, worked by hand from published figures."""

import pathlib

import pytest

from explorer.engines.logs.entries import Rank
from explorer.engines.logs.reading import read_log
from explorer.engines.logs.table import Kind, Row, memory_table

GIB = 2**30
LOGS = pathlib.Path(__file__).with_name("logs")

FREE, TAKEN, PART, REST = Kind.FREE, Kind.TAKEN, Kind.PART, Kind.NOT_NAMED


def table_of(name: str, rank: Rank | None = None) -> dict[str, Row]:
    tables = memory_table(read_log(LOGS / f"{name}.log"))
    return tables[rank] if rank is not None else next(iter(tables.values()))


def in_gib(rows: dict[str, Row]) -> list[tuple[str, Kind, float, float]]:
    return [
        (name, row.kind, round(row.reading.value / GIB, 6), round(row.reading.half_width / GIB, 6))
        for name, row in rows.items()
    ]


def written(folder: pathlib.Path, *lines: str) -> dict[Rank, dict[str, Row]]:
    file = folder / "start.log"
    file.write_text("\n".join(lines), encoding="utf-8")
    return memory_table(read_log(file))


@pytest.mark.smoke
def test_sglang_with_a_pool_of_states():
    """13.81 - 2.43 GB fell while pools of 4.88 + 0.00 + 2.71 + 2.71 were made: 1.08 that no line names, to within five
    roundings of 0.005 and one that is doubled."""
    assert in_gib(table_of("sglang_0.5.6_hybrid")) == [
        ("process groups", TAKEN, 0.0, 0.005),
        ("before weights", FREE, 15.33, 0.005),
        ("weights", TAKEN, 1.52, 0.005),
        ("after weights", FREE, 13.81, 0.005),
        ("conv states", TAKEN, 4.88, 0.005),
        ("SSM states", TAKEN, 0.0, 0.005),
        ("KV pool", TAKEN, 5.42, 0.01),
        ("after weights to after pools", REST, 1.08, 0.03),
        ("after pools", FREE, 2.43, 0.005),
        ("before CUDA graphs", FREE, 2.42, 0.005),
        ("CUDA graphs", TAKEN, 0.03, 0.005),
        ("after CUDA graphs", FREE, 2.39, 0.005),
    ]


def test_each_rank_has_its_own():
    tables = memory_table(read_log(LOGS / "sglang_0.4.6_dp8.log"))
    assert list(tables) == [Rank(dp=n, tp=n) for n in range(8)]
    # 31.87 - 10.57 - 21.23 = 0.07: the table of requests and what else comes with the pools
    assert in_gib(tables[Rank(dp=5, tp=5)])[-2:] == [
        ("after weights to after pools", REST, 0.07, 0.015),
        ("after pools", FREE, 21.23, 0.005),
    ]
    assert tables[Rank(dp=5, tp=5)]["weights"].model == "DeepseekV3ForCausalLM"


def test_before_0_4_3_what_weights_took_is_the_fall():
    rows = table_of("sglang_0.4.0_tp1")
    assert in_gib(rows)[1] == ("weights", TAKEN, 13.51, 0.01)  # 23.20 - 9.69
    assert in_gib(rows)[3] == ("after weights to after pools", REST, 7.25, 0.01)  # 9.69 - 2.44


def test_states_to_verify_and_the_pools_of_a_draft():
    """93.77 - 21.57 fell; states take 0.07 + 3.05 + 48.75 + 0.43, KV 4.52 + 4.52. The weights, which no line of the
    excerpt names, are in the 10.86 that are left."""
    rows = table_of("sglang_2026-10_oom")
    assert in_gib(rows) == [
        ("before weights", FREE, 93.77, 0.005),
        ("conv states", TAKEN, 0.07, 0.005),
        ("SSM states", TAKEN, 3.05, 0.005),
        ("SSM states to verify", TAKEN, 48.75, 0.005),
        ("conv windows to verify", TAKEN, 0.43, 0.005),
        ("KV pool", TAKEN, 9.04, 0.01),
        ("before weights to after pools", REST, 10.86, 0.04),
        ("after pools", FREE, 21.57, 0.005),
        ("draft KV pool", TAKEN, 6.78, 0.01),  # 21.57 - 6.78 - 14.77 = 0.02: no more than rounding
        ("after draft pools", FREE, 14.77, 0.005),
        ("target prefill CUDA graphs", TAKEN, 3.85, 0.005),
        ("after draft pools to after target prefill CUDA graphs", REST, 0.07, 0.015),
        ("after target prefill CUDA graphs", FREE, 10.85, 0.005),
        ("target verify CUDA graphs", TAKEN, 6.13, 0.005),
        ("after target verify CUDA graphs", FREE, 4.72, 0.005),
        ("draft verify CUDA graphs", TAKEN, 2.17, 0.005),
        ("after draft verify CUDA graphs", FREE, 2.56, 0.005),
    ]


def test_a_model_whose_pools_no_line_sizes_in_bytes():
    """DeepSeek-V4 says how many tokens its pools hold, not how many bytes. Capturing may free memory: 7.62 to 7.67."""
    rows = table_of("sglang_2026-09_dsv4", Rank(tp=0, ep=0))
    assert in_gib(rows) == [
        ("after pools", FREE, 9.9, 0.005),
        ("after draft pools", FREE, 9.9, 0.005),
        ("after draft pools to before target verify CUDA graphs", REST, 1.7, 0.01),
        ("before target verify CUDA graphs", FREE, 8.2, 0.005),
        ("target verify CUDA graphs", TAKEN, 0.58, 0.005),
        ("after target verify CUDA graphs", FREE, 7.62, 0.005),
        ("after target verify CUDA graphs to before draft verify CUDA graphs", REST, -0.05, 0.01),
        ("before draft verify CUDA graphs", FREE, 7.67, 0.005),
        ("draft verify CUDA graphs", TAKEN, -0.01, 0.005),
        ("after draft verify CUDA graphs", FREE, 7.68, 0.005),
        ("at the end", FREE, 7.68, 0.005),
    ]


def test_weights_of_a_draft_and_a_pool_whose_end_is_missing():
    rows = table_of("sglang_2026-08_draft")
    names = list(rows)
    assert rows["draft weights"].model == "Qwen4ExpForCausalLMMTP"
    assert in_gib(rows)[5] == ("draft weights", TAKEN, -1.86, 0.005)  # it takes less than the target gives back
    # 30.67 - 26.27 = 4.40, of which the KV pool is 3.66
    at = names.index("KV pool")
    assert in_gib(rows)[at : at + 2] == [
        ("KV pool", TAKEN, 3.66, 0.01),
        ("after draft weights to before target verify CUDA graphs", REST, 0.74, 0.02),
    ]


def test_a_pool_of_window_attention_is_the_line_that_sums_it(tmp_path):
    """SGLang prints both pools, then their sum: counted once, by the sum, which is rounded once."""
    (rows,) = written(
        tmp_path,
        "Load weight end. type=M, avail mem=20.00 GB, mem usage=5.00 GB.",
        "Full KV Cache is allocated. dtype: torch.bfloat16, #tokens: 100, K size: 1.00 GB, V size: 1.00 GB",
        "SWA KV Cache is allocated. dtype: torch.bfloat16, #tokens: 80, K size: 2.00 GB, V size: 2.00 GB",
        "SWAKVPool mem usage: 6.01 GB, swa size: 80, full size: 100",
        "Memory pool end. avail mem=13.99 GB",
    ).values()
    assert in_gib(rows)[2:] == [("KV pool", TAKEN, 6.01, 0.005), ("after pools", FREE, 13.99, 0.005)]
    assert rows["KV pool"].line == 4


def test_pools_whose_sum_is_not_printed_are_summed(tmp_path):
    (rows,) = written(
        tmp_path,
        "Full KV Cache is allocated. dtype: torch.bfloat16, #tokens: 100, K size: 1.00 GB, V size: 1.00 GB",
        "SWA KV Cache is allocated. dtype: torch.bfloat16, #tokens: 80, K size: 2.00 GB, V size: 2.00 GB",
    ).values()
    assert in_gib(rows) == [("KV pool", TAKEN, 6.0, 0.02)] and rows["KV pool"].line == 2


def test_models_after_the_first_are_drafts(tmp_path):
    load = "Load weight end. type=M, avail mem=20.00 GB, mem usage=5.00 GB."
    pool = "KV Cache is allocated. #tokens: 100, KV size: 1.00 GB"
    begin = "Capture cuda graph begin. This can take up to several minutes."
    (rows,) = written(tmp_path, load, load, load, pool, begin, pool, begin, pool).values()
    assert [name for name, row in rows.items() if row.kind is TAKEN] == [
        *("weights", "draft weights", "draft 2 weights"),
        *("KV pool", "draft KV pool", "draft 2 KV pool"),
    ]


def test_kv_that_is_sized_after_the_graphs(tmp_path):
    """Addresses are reserved first (not memory), the pool is backed when the graphs are there."""
    (rows,) = written(
        tmp_path,
        "Load weight end. type=M, avail mem=50.00 GB, mem usage=5.00 GB.",
        "KV Cache VA upper bound. dtype: torch.bfloat16, #tokens: 900, KV size: 45.00 GB",
        "Memory pool end. avail mem=49.90 GB",
        "Capture target decode CUDA graph end. bs=[1], elapsed=1.00 s, mem usage=2.00 GB, avail mem=47.90 GB.",
        "Post-capture KV sizing: KV cache allocated. dtype: torch.bfloat16, #tokens: 800, KV size: 40.00 GB, "
        "avail mem=7.90 GB",
    ).values()
    assert in_gib(rows)[2:] == [
        ("after weights to after pools", REST, 0.1, 0.01),
        ("after pools", FREE, 49.9, 0.005),
        ("target decode CUDA graphs", TAKEN, 2.0, 0.005),
        ("after target decode CUDA graphs", FREE, 47.9, 0.005),
        ("KV pool", TAKEN, 40.0, 0.005),
        ("after KV pool", FREE, 7.9, 0.005),
    ]


def test_rings_of_a_replay_and_the_end(tmp_path):
    (rows,) = written(
        tmp_path,
        "Memory pool end. avail mem=10.00 GB",
        "GDN ReplaySSM ring buffers allocated (record_len=16, fold=False): d=0.100GB, k=0.200GB, g=0.003GB ",
        "Memory pool end. avail mem=9.70 GB",
        "max_total_num_tokens=5, chunked_prefill_size=6, max_prefill_tokens=7, max_running_requests=8, context_len=9, "
        "available_gpu_mem=9.00 GB",
    ).values()
    assert in_gib(rows)[1:] == [
        ("draft replay rings", TAKEN, 0.303, 0.0015),
        ("after draft pools", FREE, 9.7, 0.005),
        ("after draft pools to at the end", REST, 0.7, 0.01),
        ("at the end", FREE, 9.0, 0.005),
    ]


def test_what_is_captured_twice_is_listed_twice(tmp_path):
    end = "Capture cuda graph end. Time elapsed: 1.00 s. mem usage=1.00 GB. avail mem={} GB."
    (rows,) = written(tmp_path, end.format("9.00"), end.format("8.00"), end.format("7.00")).values()
    assert [name for name in rows if rows[name].kind is TAKEN] == ["CUDA graphs", "CUDA graphs (2)", "CUDA graphs (3)"]
    assert not [name for name in rows if rows[name].kind is REST]


def test_vllm_before_0_6_6_has_a_fraction_for_a_budget():
    """0.90 x 23.58 = 21.222; torch's peak 17.98 holds the weights; with 0.35 and 2.89 of KV it is 21.22."""
    rows = table_of("vllm_0.6.4_refuses")
    assert in_gib(rows) == [
        ("GPU memory", Kind.TOTAL, 23.58, 0.005),
        # 0.005 x 0.905 and 0.005 x 23.58
        ("budget", Kind.BUDGET, 21.222, pytest.approx(0.122425)),
        ("weights", PART, 14.9888, 0.00005),
        ("weights and peak activation", TAKEN, 17.98, 0.005),
        ("non-torch memory", TAKEN, 0.35, 0.005),
        ("KV pool", TAKEN, 2.89, 0.005),
    ]


def test_vllm_0_8():
    """21.21 + 0.20 + 0.37 + 1.57 = 23.35, the budget: nothing is left that has no name."""
    rows = table_of("vllm_0.8_workers", Rank(pid=521))
    taken = [row.reading.value for row in rows.values() if row.kind is TAKEN]
    assert sum(taken) == pytest.approx(23.35 * GIB) == rows["budget"].reading.value
    assert "budget to KV pool" not in rows


def test_vllm_0_10():
    rows = table_of("vllm_0.10.2_tp1")
    assert [(name, row.kind) for name, row in rows.items()] == [
        ("GPU memory", Kind.TOTAL),
        ("before start", FREE),
        ("budget", Kind.BUDGET),
        ("weights", TAKEN),
        ("non-torch memory", TAKEN),
        ("peak activation", TAKEN),
        ("KV pool", TAKEN),
        ("CUDA graphs", TAKEN),
    ]
    assert in_gib(rows)[3] == ("weights", TAKEN, 14.0786, 0.00005)
    assert rows["KV pool"].reading.value == 59212694937 and rows["before start"].reading.value == 78.66 * GIB


def test_vllm_with_weights_and_non_torch_memory_in_one():
    """85.51 - 56.89 - 0.76 - 27.85 = 0.01, within four roundings of 0.005. Only one worker says what weights take."""
    tables = memory_table(read_log(LOGS / "vllm_2026-08_tp4.log"))
    assert list(tables) == [Rank(tp=0), Rank(tp=1)]
    assert tables[Rank(tp=0)]["weights"].kind is PART and "weights" not in tables[Rank(tp=1)]
    for rows in tables.values():
        spent = ("weights and non-torch memory", "peak activation", "KV pool")
        assert sum(rows[name].reading.value for name in spent) == pytest.approx(85.50 * GIB)
        assert "budget to KV pool" not in rows


def test_vllm_graphs_that_were_estimated_far_too_large():
    """254.49 - 171.25 - 36.74 - 46.50 = 0: the 33.06 of the estimate are within the peak, the 8.57 that graphs took are
    on top of the budget."""
    rows = table_of("vllm_2026-08_dp_ep", Rank(dp=0, ep=0))
    assert in_gib(rows)[2:] == [
        ("budget", Kind.BUDGET, 254.49, 0.005),
        ("weights and non-torch memory", TAKEN, 171.25, 0.005),
        ("peak activation", TAKEN, 36.74, 0.005),
        ("CUDA graphs, estimated", PART, 33.06, 0.005),
        ("KV pool", TAKEN, 46.5, 0.005),
        ("CUDA graphs", TAKEN, 8.57, 0.005),
    ]


def test_vllm_says_what_the_budget_is_spent_on_beside_these(tmp_path):
    text = (LOGS / "vllm_2026-09_tp1.log").read_text(encoding="utf-8").replace(": 7.08 GiB", ": 6.08 GiB")
    (rows,) = written(tmp_path, *text.splitlines(), "Estimated CUDA graph memory: 0.60 GiB total").values()
    assert rows["CUDA graphs, estimated"].kind is PART
    assert in_gib(rows)[-1] == ("budget to KV pool", REST, 1.0, 0.02)  # 22.9 - 14.73 - 1.09 - 6.08


def test_a_rank_that_says_nothing_of_memory_has_no_table():
    log = read_log(LOGS / "vllm_2026-08_tp4.log")
    assert Rank() in {entry.rank for entry in log.entries} and Rank() not in memory_table(log)
