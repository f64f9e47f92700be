"""`meshwright log` on the command line: one log, two beside each other, and what means harm."""

import json
import pathlib

import pytest

from explorer.cli import main

LOGS = pathlib.Path(__file__).with_name("logs")
DP8 = str(LOGS / "sglang_0.4.6_dp8.log")
ARTICLE = [str(LOGS / f"sglang_2026-10_{name}.log") for name in ("dp16", "dp2")]
GIB = 2**30
LAUNCH = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --dp 8 --enable-dp-attention"


def ran(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["log", *arguments])
    streams = capsys.readouterr()
    return status, streams.out, streams.err


@pytest.mark.smoke
def test_without_a_chip_it_is_only_read(capsys):
    status, out, _ = ran(capsys, DP8, "--json")
    document = json.loads(out)
    (log,) = document["logs"]
    assert (status, document["schema"], document["against"]) == (0, "log/1", [])
    assert log["not_predicted"] == "--hardware is not given: the log is only read"
    assert {row["predicted"] for row in log["rows"]} == {None}
    assert [row["name"] for row in log["rows"]][:3] == ["before weights", "weights", "after weights"]


def test_columns_of_predictions_are_drawn_where_there_are_any(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    _, out, _ = ran(capsys, DP8)
    assert "residual" not in out and "error %" not in out
    _, out, _ = ran(capsys, DP8, "--hardware", "h200", "--command", f"{LAUNCH} --mem-fraction-static 0.85")
    assert "residual" in out and "error %" in out


def test_counts_that_the_rules_leave_nothing_for_are_told(capsys):
    """The log does not print the fraction that left 10.57 GiB: the default would leave none."""
    _, out, _ = ran(capsys, DP8, "--hardware", "h200", "--json")
    document = json.loads(out)
    assert [count["predicted"] for count in document["logs"][0]["counts"]] == [None]
    assert any("by the rules it would not start" in note for note in document["notes"])


def test_the_memory_of_the_article_side_by_side(capsys):
    """What article 000 says that DP2 x DCP8 takes more than DP16: 0.65 GiB of process groups, 2.2 less of weights
    (loaded less released), 6.5 less KV, 0.5 more draft KV, 5.9 more graphs; and what no line names, by interval."""
    status, out, _ = ran(capsys, ARTICLE[0], "--against", ARTICLE[1], "--json")
    rows = {row["name"]: row for row in json.loads(out)["against"]}
    more = {name: row["difference"] / GIB for name, row in rows.items() if row["difference"] is not None}
    assert status == 0
    assert more["process groups"] == pytest.approx(0.65)
    released = more["after weights to before draft weights"]
    assert more["weights"] + released == pytest.approx(-2.2)
    assert [rows["after weights to before draft weights"][key] / GIB for key in "ab"] == pytest.approx([-47.7, -14.6])
    assert more["KV pool"] == pytest.approx(-6.5)
    assert more["draft KV pool"] == pytest.approx(0.5)
    assert more["target verify CUDA graphs"] == pytest.approx(5.9)
    # 1.26 GiB of DP16's first interval are the draft's staging pool, which the article books with the draft's weights
    intervals = {
        "after draft weights to after pools": (0.15 + 1.26, 0.82),
        "after pools to after draft pools": (0.13, 0.83),
        "after draft pools to before target verify CUDA graphs": (0.36, 1.58),
        "after target verify CUDA graphs to before draft CUDA graphs": (None, 0.39),
    }
    for name, (a, b) in intervals.items():
        width = rows[name]["half_width"] / GIB
        assert rows[name]["b"] / GIB == pytest.approx(b, abs=width)
        assert rows[name]["a"] is None if a is None else rows[name]["a"] / GIB == pytest.approx(a, abs=width)


def test_pools_of_the_article_differ_by_what_it_says(capsys):
    """10.4 GiB: states, ring, KV and draft KV together. The states of DP16 are 16.16 GiB."""
    _, out, _ = ran(capsys, ARTICLE[0], "--against", ARTICLE[1], "--json")
    rows = {row["name"]: row for row in json.loads(out)["against"]}
    states = ("conv states", "SSM states", "SSM states to verify", "conv windows to verify")
    pools = (*states, "replay rings", "KV pool", "draft KV pool")
    assert sum(rows[name]["a"] for name in states) / GIB == pytest.approx(16.16, abs=1e-6)
    assert sum(rows[name]["difference"] for name in pools) / GIB == pytest.approx(-10.4, abs=0.05)


def test_a_row_of_the_second_log_alone_stands_where_it_was_read(capsys):
    _, out, _ = ran(capsys, ARTICLE[0], "--against", ARTICLE[1], "--json")
    names = [row["name"] for row in json.loads(out)["against"]]
    at = names.index("after target verify CUDA graphs to before draft CUDA graphs")
    assert names[at - 1 : at + 2 : 2] == ["after target verify CUDA graphs", "before draft CUDA graphs"]


def test_a_launch_beside_a_log_that_lacks_it(capsys):
    _, out, _ = ran(capsys, DP8, "--hardware", "h200", "--command", LAUNCH, "--json")
    (log,) = json.loads(out)["logs"]
    assert (log["layout_text"], log["not_predicted"]) == ("attn_dp=8,vocab_tp=8", None)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["/dev/zero"], "a device has no end"),
        (["/dev/null"], "a device has no end"),
        (["/tmp"], "Is a directory"),
        (["/nonexistent"], "No such file"),
        (["a\0b"], "null byte"),
        (["~nobody-of-that-name/x.log"], "cannot be read"),
        ([DP8, "--against", "/dev/zero"], "a device has no end"),
        ([DP8, "--hardware", "nochip"], "unknown hardware"),
        ([DP8, "--command", "vllm serve m"], "--hardware is missing"),
        ([DP8, "--hardware", "h200", "--command", "/dev/zero"], "is no file"),
        ([DP8, "--hardware", "h200", "--command", "vllm serve /dev/zero -tp 8"], "is no file"),
        ([DP8, "--hardware", "h200", "--command", "ls"], "starts no engine"),
    ],
)
def test_what_cannot_be_is_one_line_and_status_2(capsys, arguments, says):
    status, out, err = ran(capsys, *arguments)
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert (status, out, len(lines)) == (2, "", 1)
    assert says in lines[0] and "Traceback" not in err


@pytest.mark.parametrize("held", [b"", b"\0" * 1000, bytes(range(256)) * 4000, b"\xff\xfe" + b"ab" * 999], ids=len)
def test_files_that_are_no_logs(capsys, tmp_path, held):
    file = tmp_path / "start.log"
    file.write_bytes(held)
    status, out, err = ran(capsys, str(file))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "holds no line of a start" in err


def test_arguments_in_a_log_are_never_run_or_opened(capsys, tmp_path):
    made = tmp_path / "made"
    file = tmp_path / "start.log"
    file.write_text(
        f"server_args=ServerArgs(model_path='$(touch {made})', tp_size=__import__('os').system('touch {made}'))\n"
        "[2026-05-07 10:00:00] Load weight begin. avail mem=79.00 GB\n"
        "[2026-05-07 10:00:01] Load weight end. elapsed=1.00 s, type=X, avail mem=64.00 GB, mem usage=15.00 GB.\n"
    )
    status, out, _ = ran(capsys, str(file), "--hardware", "h100", "--json")
    assert status == 0
    assert json.loads(out)["logs"][0]["not_predicted"]
    assert not made.exists()
