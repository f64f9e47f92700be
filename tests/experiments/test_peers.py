"""Peers beside ours: what a published table says of a shape, what is asked of a peer, and how it is drawn."""

import importlib.metadata
import json
import pathlib
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.measured import measure_or_show
from experiments.peers import __main__, published, tables
from experiments.peers.case import Case, asked
from experiments.peers.installed import NotInstalledError, file_of, module, versions

MLA = {"requests": 16, "verify": 1, "heads": 128, "tokens": 32_768}
OURS = MLA | {"form": "ours", "seconds": 2e-4, "xla_seconds": 8e-4, "tflops": 600.0, "tb_per_s": 3.0}


def test_a_public_table_is_read_at_a_shape() -> None:
    """Rows h200_sxm,...,128,16,1,32767,0.2513999... and bf16,bf16,16,32768,268.708,0.549 of the files."""
    found = {row.chip: row.seconds for row in published.at("mla_decode", MLA)}
    assert found == {"H200": pytest.approx(251.4e-6, rel=1e-6), "H800": pytest.approx(268.708e-6)}
    (step,) = published.at("kda_step", {"requests": 64, "heads": 96, "tokens": 1})
    assert (step.chip, step.seconds) == ("H200", pytest.approx(237.48159e-6, rel=1e-6))


@pytest.mark.parametrize(
    "shape",
    [
        MLA | {"verify": 5},  # the table is of one token
        MLA | {"tokens": 32_767},  # what the table calls 32767 is 32768 tokens
        MLA | {"page": 64},  # a size that the table knows nothing of
        {name: size for name, size in MLA.items() if name != "tokens"},
    ],
)
def test_other_shapes_have_no_published_time(shape: dict[str, int]) -> None:
    assert published.at("mla_decode", shape) == []


def test_every_published_entry_is_of_an_op_and_says_where_it_is_from() -> None:
    stated = [figure for op in tables.TITLES for figure in published.figures(op)]
    assert len(stated) == published.FILE.read_text(encoding="utf-8").count("\n[[figure]]")
    assert all(figure.source and figure.chip and figure.quantity in {*tables.RATES, "seconds"} for figure in stated)


def test_a_peer_is_held_to_the_reference_of_the_first_request() -> None:
    wanted = np.array([[1.0, 2.0, 2.0]])
    right = jnp.array([[1.0, 2.0, 2.03], [9.0, 9.0, 9.0]])  # 0.03 of a norm of 3: 1 %

    def refuses(x: jax.Array) -> Any:
        raise ValueError("\nhead size 576\nmore")

    peers = {
        "right": lambda x: lambda: [x],
        "wrong": lambda x: lambda: [x.at[0, 0].set(1.1)],
        "refuses": refuses,
        "nan": lambda x: lambda: [x * jnp.nan],
    }
    case = Case("mla_decode", MLA, lambda: (right,), lambda x: [wanted], peers)
    rows = {row["peer"]: row for row in asked(case, list(peers))}
    assert rows["right"]["error"] == pytest.approx(0.01, rel=1e-3)
    assert rows["right"]["seconds"] > 0 and rows["right"]["timed"] == "queued" and "refused" not in rows["right"]
    assert rows["wrong"]["refused"].startswith("wrong: off by 3.5e-02") and "seconds" not in rows["wrong"]
    assert rows["nan"]["refused"] == "wrong: off by nan of the norm"
    assert rows["refuses"]["refused"] == "head size 576"
    assert list(asked(case, [])) == []
    assert rows["right"]["shape"] == MLA and rows["right"]["op"] == "mla_decode"


def test_lines_stand_in_order_with_the_rates_of_our_work() -> None:
    rows = [
        {"op": "kda_step", "shape": {"requests": 1}, "peer": "other op", "refused": "-"},
        {"op": "kda_step", "shape": MLA, "peer": "other op", "refused": "-"},
        {"op": "mla_decode", "shape": MLA, "peer": "fast", "seconds": 1e-4, "error": 1e-3, "timed": "graph"},
        {"op": "mla_decode", "shape": MLA, "peer": "none", "refused": "not installed"},
        {"op": "mla_decode", "shape": MLA | {"heads": 3}, "peer": "other shape", "refused": "-"},
    ]
    found = list(tables.lines("mla_decode", [OURS], rows))
    assert [line.who for line in found[:4]] == ["ours", "XLA", "fast", "none"]
    assert found[0].of_ours == 1 and found[0].rates == {"tflops": 600, "tb_per_s": 3}
    assert found[1].of_ours == pytest.approx(4) and found[1].rates["tflops"] == pytest.approx(150)
    assert found[2].of_ours == pytest.approx(0.5) and found[2].rates["tb_per_s"] == pytest.approx(6)
    assert found[3].seconds is None and found[3].note == "not installed"
    assert [line.note.split(":")[0] for line in found[4:6]] == ["published, H200", "published, H800"]
    assert [(line.who, line.shape.split(", ")[2]) for line in found[6:]] == [("other shape", "3 heads")]


def test_a_shape_that_we_did_not_time_has_no_rates() -> None:
    row = {"op": "mla_decode", "shape": MLA, "peer": "fast", "seconds": 1e-4, "error": 1e-3, "timed": "graph"}
    first, *_ = tables.lines("mla_decode", [OURS | {"heads": 64}], [row])
    assert (first.who, first.rates, first.of_ours) == ("fast", {}, None)


def test_the_stored_results_are_drawn(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"op": "mla_decode", "shape": MLA, "peer": "fast", "seconds": 1e-4, "error": 1e-3, "timed": "graph"}
    document = {"device": "a GPU", "versions": {"jax": "1"}, "rows": [row], "notes": ["a note"]}
    (tmp_path / "peers.json").write_text(json.dumps(document), encoding="utf-8")
    tables.show(tmp_path / "peers.json")
    said = capsys.readouterr().out
    assert "660 TFLOP/s" in said and "a note" in said and "a GPU" in said


def test_every_stored_row_has_a_time_or_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(__main__.RESULTS.read_text(encoding="utf-8"))["rows"]
    assert {row["op"] for row in rows} == tables.TITLES.keys()
    assert all(("seconds" in row) != ("refused" in row) for row in rows)
    tables.show(__main__.RESULTS)
    assert capsys.readouterr().out.count("FlashMLA") > 3


# who, at which op and how many tokens verified, and what is said of their part of our time
SAID = (
    ("mla_decode", "FlashMLA", None, "FlashMLA 0.79 to 0.82"),
    ("mla_decode", "FlashAttention 3", None, "FlashAttention 3 0.85 to 0.96"),
    ("mla_decode", "SGLang Triton", None, "Triton kernel 3.96 to 9.31"),
    ("paged_attention", "torch FlashAttention 2", 1, "FlashAttention 2 0.83"),
    ("paged_attention", "FlashAttention 3", 1, "FlashAttention 3 0.78 to 0.85"),
    ("paged_attention", "jax cuDNN", 1, "JAX's cuDNN 0.92 to 1.35"),
    ("paged_attention", "SGLang Triton", 1, "SGLang's 1.25 to 4.12"),
    ("paged_attention", "torch cuDNN", 1, "PyTorch's cuDNN 1.28 to 3.98"),
    ("paged_attention", "FlashAttention 3", 5, "of five: FlashAttention 3 0.54"),
    ("kda_step", "flash-linear-attention, recurrent", 1, "flash-linear-attention 0.87 of a step of one token"),
    ("kda_step", "flash-linear-attention, recurrent", 5, "and 1.33 to 1.39 of five"),
    ("grouped_gemm", "SGLang Triton", None, "SGLang's 0.96"),
    ("grouped_gemm", "torch grouped_mm", None, "PyTorch's 1.46 to 1.53"),
)


@pytest.mark.parametrize(("op", "peer", "verified", "said"), SAID)
def test_what_we_say_of_peers_is_what_was_measured(op: str, peer: str, verified: int | None, said: str) -> None:
    rows = json.loads(__main__.RESULTS.read_text(encoding="utf-8"))["rows"]
    ours = json.loads((tables.STORED / f"{op}.json").read_text(encoding="utf-8"))["timed"]
    asked = [row for row in rows if row["op"] == op and _tokens(row["shape"]) in (verified or _tokens(row["shape"]),)]
    parts = [line.of_ours for line in tables.lines(op, ours, asked) if line.who == peer and line.of_ours is not None]
    figures = " to ".join(dict.fromkeys(f"{part:.2f}" for part in (min(parts), max(parts))))
    assert figures in said and said in " ".join((__main__.__doc__ or "").split())


def _tokens(shape: dict[str, int]) -> int:
    """Verified of a request: what KDA's shapes call tokens."""
    return shape.get("verify", shape["tokens"])


def test_a_file_of_a_package_is_loaded_with_stand_ins(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd-1.0.dist-info").mkdir()
    (tmp_path / "odd-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "__init__.py").write_text("raise ImportError('needs much')\n")
    (tmp_path / "odd" / "kernel.py").write_text("from odd.needs import size\n\n\ndef twice():\n    return 2 * size\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert file_of("odd", "odd/kernel.py", {"odd.needs": {"size": 21}}).twice() == 42
    assert "odd.needs" not in sys.modules and "odd" not in sys.modules
    assert versions(["odd", "absent"]) == {"odd": "1.0"}


def test_what_is_not_installed_is_named() -> None:
    with pytest.raises(NotInstalledError, match="absent_package is not installed; install it"):
        module("absent_package.part")
    with pytest.raises(NotInstalledError, match="absent is not installed"):
        file_of("absent", "absent/kernel.py", {})
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("absent")


def test_no_peer_is_a_dependency(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing the command and showing needs neither JAX's GPU part nor PyTorch."""
    monkeypatch.setattr(sys, "argv", ["peers", "absent.json"])
    with pytest.raises(SystemExit, match=r"absent\.json does not exist"):
        measure_or_show("", __main__.RESULTS, __main__.measure, tables.show)
    assert "torch" not in sys.modules
