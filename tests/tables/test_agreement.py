"""The comparison of curves with tables: its arithmetic on rows made for it, and the result that is stored."""

import json
import pathlib

import numpy as np
import pytest

from experiments import op_tables
from experiments.op_curves.gemm import product
from hw.arithmetic import Exact
from hw.compat import in_x64
from hw.machine import load_machine
from hw.tables import Kind
from hw.tables.source import FOLDER_VARIABLE
from hw.time import compute_seconds
from hw.work import Family, Rate, Work
from tests.tables.tree import write


@in_x64
def _curve(m: float, n: float, k: float) -> float:
    one = np.ones(1)
    features = product("bf16", m * one, n * one, k * one, one)
    work = Work.of([Family.GEMM], [Rate.BF16], **features)
    return float(compute_seconds(Exact(), load_machine("h200"), work)[0])


def test_rows_are_priced_and_sorted_by_what_was_fitted(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """7168 wide with few rows stands in the shipped tables; 4096 does not."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    sizes = ((64, 16384, 7168, 1.25), (64, 16384, 4096, 0.8), (64, 128, 4096, 2.0))
    rows = [
        {"gemm_dtype": "bfloat16", "m": m, "n": n, "k": k, "latency": 1e3 * _curve(m, n, k) * longer}
        for m, n, k, longer in sizes
    ]
    write(tmp_path, "h200_sxm/gemm/sglang/1/gemm_perf.parquet", rows)
    found = {(a.rows, a.size): (a.form, a.count, a.bias, a.median) for a in op_tables.agreements("h200", "sglang")}
    assert found == {
        ("fitted", "large"): ("bf16", 1, -0.2, 0.2),
        ("others", "large"): ("bf16", 1, 0.25, 0.25),
        ("others", "small"): ("bf16", 1, -0.5, 0.5),  # 1 MB of weights: 0.2 us
    }


def test_kinds_may_be_chosen(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    row = {"gemm_dtype": "bfloat16", "m": 64, "n": 4096, "k": 4096, "latency": 1.0}
    write(tmp_path, "h200_sxm/gemm/sglang/1/gemm_perf.parquet", [row])
    assert [*op_tables.agreements("h200", "sglang", [Kind.LIBRARY])] == []


def test_the_stored_result_is_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert op_tables.main(["--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads(op_tables.RESULTS.read_text(encoding="utf-8"))
    assert {row["chip"] for row in document["agreements"]} == {*op_tables.CHIPS}
    assert op_tables.main([]) == 0
    assert "mla_decode" in capsys.readouterr().out
