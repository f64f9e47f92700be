"""`meshwright cost --op-tables`: what is printed, and one line where there are no tables."""

import json
import pathlib

import pytest

from explorer.cli import main
from hw.tables.source import FOLDER_VARIABLE
from tests.tables.tree import gemm_rows, write

_ASKED = ["cost", "--model", "llama-3.1-8b", "--hardware", "h100", "--gpus", "2", "--layout", "attn_tp=2"]
_LOAD = ["--context", "2048", "--concurrency", "12", "--op-tables"]


def test_the_document_names_the_tables(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    sizes = ([8, 16], [1024, 2048, 4096, 8192, 16384], [2048, 4096, 8192])
    write(tmp_path, "h100_sxm/gemm/vllm/0.24.0/gemm_perf.parquet", gemm_rows("bfloat16", 300.0, *sizes))
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert main([*_ASKED, *_LOAD, "vllm", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["op_tables"]["sources"] == [f"{FOLDER_VARIABLE} op table gemm h100_sxm vllm 0.24.0, interpolated"]


def test_without_tables_one_line_and_status_2(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("pyarrow", reason="reading op tables needs pyarrow (the extra `tables`)")
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr("hw.tables.source._MODULE", "no_such_module_of_tables")
    assert main([*_ASKED, *_LOAD, "sglang"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: op tables: aiconfigurator-core is not installed: pip install")
    assert printed.err.count("\n") == 1
