"""Both formats read cell by cell; what cannot be read is refused by row, or in one line for a whole file."""

import gzip
import pathlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from explorer.fidelity.files import DataFileError, load_runs
from explorer.fidelity.runs import Pool, Run
from tests.fidelity.samples import AGG, DISAGG, POINT, POINTS_COLUMNS, SILICON_COLUMNS, write


def one(tmp_path: pathlib.Path, **changes: str) -> Run | str:
    """The run of the aggregated sample with changes, or why its row is refused."""
    loaded = load_runs(write(tmp_path / "runs.csv", SILICON_COLUMNS, {**AGG, **changes}))
    return loaded.runs[0] if loaded.runs else loaded.refused[0].reason


def test_an_aggregated_row(tmp_path: pathlib.Path) -> None:
    run = one(tmp_path)
    assert isinstance(run, Run)
    assert (run.id, run.source, run.model, run.stated_model) == ("a", "runs", "deepseek-v3", "deepseek-ai/DeepSeek-R1")
    assert (run.hardware, run.engine, run.engine_version) == ("b200", "sglang", "0.5.9")
    assert (run.gemm, run.moe, run.kv, run.mode, run.phase) == ("fp8", "fp8_block", None, "agg", "serve")
    assert (run.input_tokens, run.output_tokens, run.concurrency) == (1024, 512, 64)
    assert run.pool == Pool(workers=1, tp=8, pp=1, attention_dp=1, moe_tp=8, moe_ep=1, batch=64)
    assert (run.prefill, run.decode, run.verify_width, run.accept_length) == (None, None, None, None)
    assert run.gpus == 8 and run.repaired is None
    assert dict(run.measured) == {"tpot": pytest.approx(0.0125), "ttft": pytest.approx(0.25)}


def test_every_degree_takes_gpus(tmp_path: pathlib.Path) -> None:
    run = one(tmp_path, tp_size="2", pp_size="3", attention_dp_size="4")
    assert isinstance(run, Run) and run.gpus == 24


def test_a_format_of_its_own_counts_before_the_one_over_all(tmp_path: pathlib.Path) -> None:
    own, overall = one(tmp_path, precision="fp4"), one(tmp_path, precision="fp4", gemm_quant_mode="", moe_quant_mode="")
    assert isinstance(own, Run) and isinstance(overall, Run)
    assert (own.gemm, own.moe, overall.gemm, overall.moe) == ("fp8", "fp8_block", "fp4", "fp4")


def test_a_disaggregated_row(tmp_path: pathlib.Path) -> None:
    (run,) = load_runs(write(tmp_path / "runs.csv", SILICON_COLUMNS, DISAGG)).runs
    assert run.pool is None
    assert run.prefill == Pool(workers=5, tp=4, moe_tp=1, moe_ep=4, batch=1)
    assert run.decode == Pool(workers=2, tp=2, attention_dp=8, moe_tp=1, moe_ep=16, batch=4)
    assert run.gpus == 5 * 4 + 2 * 16


def test_without_workers_the_number_of_gpus_is_unknown(tmp_path: pathlib.Path) -> None:
    (run,) = load_runs(write(tmp_path / "runs.csv", SILICON_COLUMNS, {**DISAGG, "decode_num_workers": ""})).runs
    assert run.gpus is None


def test_a_point(tmp_path: pathlib.Path) -> None:
    (run,) = load_runs(write(tmp_path / "p.csv", POINTS_COLUMNS, POINT)).runs
    assert (run.model, run.hardware, run.gpus, run.layout) == ("kimi-k3", "b300", 8, "attn_dp=1,attn_tp=8")
    assert (run.engine, run.phase, run.context, run.concurrency) == ("sglang", "serve", 8704, 16)
    assert (run.verify_width, run.accept_length, run.pools) == (8, 4.5, ())
    assert dict(run.measured) == {"tpot": pytest.approx(0.00988)}


@pytest.mark.parametrize(("unit", "value"), [("s", 9.88), ("ms", 9.88e-3), ("us", 9.88e-6), ("tok/s/GPU", 9.88)])
def test_units(tmp_path: pathlib.Path, unit: str, value: float) -> None:
    (run,) = load_runs(write(tmp_path / "p.csv", POINTS_COLUMNS, {**POINT, "unit": unit})).runs
    assert run.measured["tpot"] == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("cell", ["", "0", "0.0", "None", "nan", " "])
def test_blank_and_zero_are_unknown(tmp_path: pathlib.Path, cell: str) -> None:
    run = one(tmp_path, attention_dp_size=cell, moe_tp_size=cell, moe_ep_size=cell, batch_size=cell)
    assert isinstance(run, Run)
    assert run.pool == Pool(workers=1, tp=8, pp=1)


def test_a_column_of_concurrency_counts_before_the_text(tmp_path: pathlib.Path) -> None:
    run = one(tmp_path, concurrency="7")
    silent = one(tmp_path, silicon_data_source="db; silicon_concurrency=; other_silicon_concurrency_x=3")
    assert isinstance(run, Run) and isinstance(silent, Run)
    assert (run.concurrency, silent.concurrency) == (7, None)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"isl": "-1"}, "isl is '-1', not a number from 0 on"),
        ({"isl": "1e400"}, "isl is '1e400', not a number from 0 on"),
        ({"isl": "ten"}, "isl is 'ten', not a number"),
        ({"isl": "10.5"}, "isl is '10.5', not a count"),
        ({"osl": ""}, "isl and osl must both be stated"),
        ({"mode": "both"}, "mode is 'both', not agg or disagg"),
        ({"model_path": ""}, "model_path is blank"),
        ({"tp_size": ""}, "tp_size is blank"),
        ({"silicon_ttft_ms": "", "silicon_tpot_ms": "0"}, "neither silicon_ttft_ms nor silicon_tpot_ms is stated"),
        ({"moe_ep_size": "3"}, "moe_tp_size * moe_ep_size is 24, not tp_size * attention_dp_size = 8"),
    ],
)
def test_a_bad_row_is_refused_with_its_reason(tmp_path: pathlib.Path, changes: dict[str, str], reason: str) -> None:
    bad = {**AGG, **changes, "id": "bad"}
    loaded = load_runs(write(tmp_path / "runs.csv", SILICON_COLUMNS, AGG, bad, AGG))
    assert [run.id for run in loaded.runs] == ["a", "a"]
    assert [(r.id, r.quantities, r.reason) for r in loaded.refused] == [("bad", ("tpot", "ttft"), reason)]


def test_a_row_of_another_length_is_refused(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "p.csv", POINTS_COLUMNS, POINT)
    path.write_text(path.read_text() + "q,short\n")
    (refused,) = load_runs(path).refused
    assert (refused.id, refused.reason) == ("q", f"2 cells under {len(POINTS_COLUMNS)} columns")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"unit": "furlong"}, "unit is 'furlong', not one of s, ms, us, tok/s, tok/s/GPU"),
        ({"phase": "nap"}, "phase is 'nap', not one of serve, decode, prefill"),
        ({"value": ""}, "value is blank or 0"),
        ({"accept_length": "0.5"}, "accept_length is 0.5, and a step yields one token at least"),
    ],
)
def test_a_bad_point_is_refused(tmp_path: pathlib.Path, changes: dict[str, str], reason: str) -> None:
    (refused,) = load_runs(write(tmp_path / "p.csv", POINTS_COLUMNS, {**POINT, **changes})).refused
    assert (refused.quantities, refused.reason) == (("tpot",), reason)


@pytest.mark.parametrize(
    ("changes", "read", "why"),
    [
        # 64 GPUs with experts cut 8 x 8 on a chip whose domain is 8 GPUs
        ({"tp_size": "64", "moe_ep_size": "8"}, Pool(1, 8, 1, 1, 1, 8, 64), "8 GPUs with EP 8"),
        (
            {"tp_size": "1", "attention_dp_size": "64", "moe_ep_size": "8", "batch_size": "2"},
            Pool(1, 1, 1, 8, 1, 8, 16),
            "8 GPUs with EP 8",
        ),
        # the same on a chip whose domain holds 64 GPUs, and 4 x 2 on 8: as they are
        ({"tp_size": "64", "moe_ep_size": "8", "system": "gb200"}, Pool(1, 64, 1, 1, 8, 8, 64), None),
        ({"tp_size": "32", "moe_ep_size": "4"}, Pool(1, 32, 1, 1, 8, 4, 64), None),
        ({"moe_tp_size": "4", "moe_ep_size": "2"}, Pool(1, 8, 1, 1, 4, 2, 64), None),
        ({"tp_size": "4", "moe_tp_size": "2", "moe_ep_size": "2"}, Pool(1, 4, 1, 1, 2, 2, 64), None),
    ],
)
def test_squared_gpus(tmp_path: pathlib.Path, changes: dict[str, str], read: Pool, why: str | None) -> None:
    run = one(tmp_path, **changes)
    assert isinstance(run, Run) and run.pool == read
    assert (run.repaired is None) if why is None else (run.repaired is not None and run.repaired.endswith(why))


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("DEEPSEEK-V3", "deepseek-v3"),
        ("somewhere/else/DeepSeek-R1", "somewhere/else/DeepSeek-R1"),
        ("./DeepSeek-R1", "./DeepSeek-R1"),
        ("/models/DeepSeek-R1", "/models/DeepSeek-R1"),
        ("models/deepseek-r1/config.json", "models/deepseek-r1/config.json"),
        ("kimi-k3@article", "kimi-k3@article"),
    ],
)
def test_public_names_of_models(tmp_path: pathlib.Path, name: str, preset: str) -> None:
    run = one(tmp_path, model_path=name)
    assert isinstance(run, Run) and run.model == preset


def test_a_folder_that_is_there_is_no_public_name(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine" / "DeepSeek-R1").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    run = one(tmp_path, model_path="mine/DeepSeek-R1")
    assert isinstance(run, Run) and run.model == "mine/DeepSeek-R1"


def test_packed_with_a_mark_and_other_columns(tmp_path: pathlib.Path) -> None:
    plain = write(tmp_path / "runs.csv", ("weather", *reversed(SILICON_COLUMNS)), {**AGG, "weather": "fair"})
    packed = tmp_path / "other.csv.gz"
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbf" + plain.read_bytes()))
    loaded = load_runs(packed)
    assert loaded.unread == ("weather",)
    assert loaded.runs[0].source == "other"
    assert loaded.runs[0].inputs == load_runs(plain).runs[0].inputs


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "has no rows"),
        (b"\n\n", "has no rows"),
        (b"a,b\n", "has no rows"),
        (b"a,b\n1,2\n", "no column id"),
        (b"id,id\n1,2\n", "column 'id' is there twice"),
        (bytes(range(256)), "is not text"),
        (b"a\0,b\n1,2\n", "is not text"),
        (b"\x1f\x8bjunk", "cannot be read"),
        (gzip.compress(b"a,b\n1,2\n" * 99, mtime=0)[:-12], "cannot be read"),
        (b'a,b\n"1,2\n', "no CSV table"),
    ],
)
def test_a_file_that_is_no_table_is_one_line(tmp_path: pathlib.Path, content: bytes, part: str) -> None:
    path = tmp_path / "junk.csv"
    path.write_bytes(content)
    with pytest.raises(DataFileError, match=part) as caught:
        load_runs(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_other_columns_name_those_expected(tmp_path: pathlib.Path) -> None:
    path = write(
        tmp_path / "p.csv", [c for c in POINTS_COLUMNS if c != "unit"], {k: v for k, v in POINT.items() if k != "unit"}
    )
    with pytest.raises(
        DataFileError, match="no column unit; expected are the columns id, silicon_data_source"
    ) as caught:
        load_runs(path)
    assert "quantity, value, unit" in str(caught.value)


@pytest.mark.parametrize("name", [".", "absent.csv", "a\0b"])
def test_a_file_that_is_not_there_is_one_line(tmp_path: pathlib.Path, name: str) -> None:
    with pytest.raises(DataFileError, match="cannot be read"):
        load_runs(str(tmp_path) + "/" + name)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.dictionaries(
        st.sampled_from([c for c in SILICON_COLUMNS if c != "id"]),
        st.one_of(st.text(st.characters(codec="utf-8", exclude_characters="\0\r\n"), max_size=8), st.floats().map(str)),
        max_size=3,
    )
)
def test_no_cell_crashes(tmp_path: pathlib.Path, changes: dict[str, str]) -> None:
    """A row comes out as a run of positive figures or as one refusal of one line."""
    loaded = load_runs(write(tmp_path / "runs.csv", SILICON_COLUMNS, AGG, {**AGG, **changes}))
    assert len(loaded.runs) + len(loaded.refused) == 2
    assert all("\n" not in refusal.reason for refusal in loaded.refused)
    for run in loaded.runs:
        assert all(np.isfinite(value) and value > 0 for value in run.measured.values())


@pytest.mark.parametrize(
    ("changes", "workers"),
    [
        ({"batch_size": "16"}, 4),  # 64 requests, 16 on the one rank of a worker
        ({"tp_size": "4", "attention_dp_size": "2", "batch_size": "16"}, 2),
        ({"batch_size": "48"}, 1),  # no whole number of workers
        ({"batch_size": "128"}, 1),
        ({"batch_size": ""}, 1),
        ({"batch_size": "16", "silicon_data_source": ""}, 1),
    ],
)
def test_workers_of_an_aggregated_run(tmp_path: pathlib.Path, changes: dict[str, str], workers: int) -> None:
    run = one(tmp_path, **changes)
    assert isinstance(run, Run) and run.pool is not None and run.pool.workers == workers
    assert run.gpus == 8 * workers
