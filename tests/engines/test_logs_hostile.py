"""Logs of any size and content: bounded memory and time, one clear line, nothing opened or run."""

import pathlib
import subprocess
import sys
import time

import pytest

from explorer.engines.logs import reading
from explorer.engines.logs.entries import Event, LogError, Rank
from explorer.engines.logs.lines import Lines
from explorer.engines.logs.patterns import LONGEST_LINE
from explorer.engines.logs.reading import read_log

END = b"[2026-01-01 00:00:01 TP0] Memory pool end. avail mem=1.00 GB"
SERVING = b"[2026-01-01 00:00:02 TP0] Decode batch. #running-req: 31, #token: 129488, gen throughput: 1290.67\n"


def written(folder: pathlib.Path, *parts: bytes) -> pathlib.Path:
    file = folder / "start.log"
    with file.open("wb") as opened:
        opened.writelines(parts)
    return file


def lines_of(events) -> list[tuple[int, Rank]]:
    return [(entry.line, entry.rank) for entry in events]


def test_a_hundred_megabytes_in_bounded_memory(tmp_path):
    """In a process of its own, whose peak is its own: below 200 MB with Python itself."""
    file = tmp_path / "start.log"
    with file.open("wb") as opened:
        opened.write(END + b"\n")
        for _ in range(100):
            opened.write(SERVING * (10**6 // len(SERVING)))
        opened.write(END)
    program = (
        "import pathlib, re, sys\n"
        "from explorer.engines.logs.reading import read_log\n"
        "log = read_log(sys.argv[1])\n"
        "status = pathlib.Path('/proc/self/status').read_text()\n"  # a fork's own peak, unlike ru_maxrss
        "print(len(log.entries), log.lines, re.search(r'VmHWM:\\s*([0-9]+)', status)[1], 'jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(file)], capture_output=True, text=True, check=True)
    entries, lines, kib, jax = done.stdout.split()
    assert (entries, jax) == ("2", "False")
    assert int(lines) == 2 + 100 * (10**6 // len(SERVING))
    assert int(kib) < 200_000


def test_what_is_kept_is_bounded_and_said(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_MOST_ENTRIES", 50)
    log = read_log(written(tmp_path, (END + b"\n") * 2060))
    assert len(log.entries) == 50 and log.unread == 2010
    assert "2,010 lines are left out: more is told of than a start can tell" in log.notes


def test_what_is_cut_is_tried_so_often_and_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_MOST_ENTRIES", 50)
    log = read_log(written(tmp_path, END, b"\n", b"Memory pool end\n" * 60, END))
    assert len(log.entries) == 1 and log.unread == 61
    assert "11 lines are left out: more is told of than a start can tell" in log.notes


def test_long_arguments_are_kept_in_bounds(tmp_path):
    launch = b"server_args=ServerArgs(" + b"x" * 60_000 + b")\n"
    log = read_log(written(tmp_path, launch * 300, END))
    kept = sum(len(entry.text("text") or "") for entry in log.entries)
    assert kept < 9 * 2**20 and log.unread > 100


def test_words_of_errors_are_cut(tmp_path):
    log = read_log(written(tmp_path, END, b"\nScheduler hit an exception: ", b"y" * 10_000))
    assert len(log.errors[0].text("text") or "") == 400


@pytest.mark.parametrize("megabytes", [1, 10])
def test_a_line_without_an_end(tmp_path, megabytes):
    log = read_log(written(tmp_path, b"server_args=ServerArgs(", b"x" * (megabytes * 10**6), b"\n", END, b"\n"))
    assert lines_of(log.of(Event.POOL_END)) == [(2, Rank(tp=0))] and log.lines == 2
    assert log.launch is not None and len(log.launch) == LONGEST_LINE - len("server_args=")
    assert "1 lines are longer than 64 KiB: the rest of them is not read" in log.notes


def test_the_rest_of_a_long_line_is_not_a_line(tmp_path):
    """Nor is its last piece, which is shorter than a line may be: the file ends a KiB after a block of one MiB."""
    start = END + b"\n" + b"x" * 3_000_000 + END + b"\n" + END + b"\n"
    file = written(tmp_path, start, b"y" * (2**23 + 2**10 - len(start) - len(END)), END)
    assert [entry.line for entry in read_log(file).entries] == [1, 3] and read_log(file).lines == 4
    file = written(tmp_path, start, b"y" * (2**23 - len(start)))
    assert read_log(file).lines == 4


def test_a_progress_bar_that_is_longer_than_a_line_may_be(tmp_path):
    bar = b"\rDeepGEMM warmup:   1%| | 28/4716 [00:01<03:02, 25.73it/s]" * 60_000
    log = read_log(written(tmp_path, b"one\n", bar, b"\r", END, bar, b"\n", END))
    assert lines_of(log.entries) == [(2, Rank(tp=0)), (3, Rank(tp=0))] and log.lines == 3


@pytest.mark.parametrize("at", range(2**20 - 70, 2**20 + 5, 5))
def test_a_record_across_blocks(tmp_path, at):
    """Blocks of a MiB end anywhere: within a record, at its end, before the line end."""
    log = read_log(written(tmp_path, b"a\n" * (at // 2), b"b" * (at % 2), b"\n" * (at % 2), END, b"\r\n", END))
    assert [entry.line for entry in log.entries] == [at // 2 + at % 2 + 1, at // 2 + at % 2 + 2]


def test_binary_junk(tmp_path):
    junk = bytes(range(256)) * 4000
    log = read_log(written(tmp_path, junk, b"\n", END, b"\n", junk))
    assert [entry.line for entry in log.entries] == [4002]
    with pytest.raises(LogError, match="no line of a start"):
        read_log(written(tmp_path, junk))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "latin-1"])
def test_encodings(tmp_path, encoding):
    """A Windows shell writes UTF-16; what is not UTF-8 within a line does not spoil it."""
    text = f"é\n{END.decode()}\n".encode(encoding)
    log = read_log(written(tmp_path, text))
    assert lines_of(log.entries) == [(2, Rank(tp=0))]


def test_utf_16_that_is_cut(tmp_path):
    log = read_log(written(tmp_path, f"{END.decode()}\nabc".encode("utf-16")[:-1]))
    assert lines_of(log.entries) == [(1, Rank(tp=0))]


def test_huge_and_odd_numbers(tmp_path):
    log = read_log(
        written(
            tmp_path,
            END,
            b"\nKV Cache is allocated. #tokens: " + b"9" * 5000 + b", KV size: 1.00 GB",
            b"\nKV Cache is allocated. #tokens: 1.5, KV size: 1.00 GB",
            b"\nMemory pool end. avail mem=nan GB",
            b"\nMemory pool end. avail mem=1e999 GB",
            b"\nMemory pool end. avail mem=1.2.3 GB",
        )
    )
    values = [value for entry in log.entries for value in entry.values.values()]
    assert all(value < 10**31 for value in values if isinstance(value, int))
    assert len(log.of(Event.POOL_END)) + log.unread >= 5


def test_days_that_do_not_exist(tmp_path):
    log = read_log(written(tmp_path, END.replace(b"2026-01-01", b"2026-02-31")))
    assert log.entries[0].seconds is None and log.entries[0].rank == Rank(tp=0)


def test_json_that_is_deep_or_no_document(tmp_path):
    deep = b'{"log":' + b"[" * 50_000 + END
    log = read_log(written(tmp_path, deep, b"\n", b'{"log": 7, "text": "' + END + b'"}', b"\n", b'{"' + END))
    assert [entry.line for entry in log.entries] == [1, 2, 3]


@pytest.mark.parametrize(
    "line",
    [
        b"Capture " * 8000 + b"graph begin. backend=",
        b"a" * 65_000 + b" KV Cache is allocated",
        b"Memory pool end" + b"1" * 65_000,
        b"Memory pool end" + b"1," * 32_000,
        b"bs=[" * 16_000 + b"graph end. ",
        b"(" * 32_000 + b"pid=1 Memory pool end",
        b"[2026-01-01 00:00:00" + b" TP1" * 16_000 + b"Memory pool end",
        b"Worker" * 10_000 + b" pid=" + b"Memory pool end",
        b"\x1b[" * 30_000 + b"Memory pool end",
        b"\x1b]" * 30_000 + b"Memory pool end",
        b"out of memory. Tried to allocate " * 1900,
        b"(A pid=1)" * 7000 + b"Memory pool end",
    ],
)
def test_no_line_takes_long(tmp_path, line):
    start = time.monotonic()
    file = written(tmp_path, END, b"\n", line[:65_500], b"\n")
    assert read_log(file).lines == 2
    assert time.monotonic() - start < 30.0  # a pattern that backtracks takes hours


def test_lines_are_those_that_hold_a_marker(tmp_path):
    file = written(tmp_path, b"one\ntwo mark\rthree\rfour mark\n\nfive mark")
    with file.open("rb") as opened:
        lines = Lines(opened, ("mark",))
        assert list(lines) == [(2, "two mark"), (2, "four mark"), (4, "five mark")]
        assert (lines.count, lines.cut) == (4, 0)
