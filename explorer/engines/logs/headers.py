"""Who wrote a line and when: a line cut into records, each with its writer's rank and clock."""

import datetime
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from explorer.engines.logs.entries import Rank

# Colours, cursor moves and titles of terminals, and control characters that are left over.
_ANSI: Final = re.compile(r"\x1b\[[0-9;?]{0,20}[@-~]|\x1b\][^\x07\x1b]{0,200}\x07?|[\x00-\x08\x0b-\x1f\x7f\ufeff]")

# SGLang 0.5.23, managers/scheduler.py configure_scheduler_process and utils/common.py configure_logger: "[2025-05-09
# 12:00:00 DP3 TP3 EP3]", milliseconds on demand. vLLM 0.33.0, logger.py and v1/executor/multiproc_executor.py:
# "(Worker_DP1_TP0_EP8 pid=7) INFO 10-06 12:00:03 [file.py:1]"; 0.8 to 0.10 "(VllmWorker rank=1 pid=7)" and
# "(EngineCore_1 pid=7)" (its number is the data parallel rank); before that "(VllmWorkerProcess pid=7)", or nothing.
_HEADER: Final = re.compile(
    r"\[(?P<sglang>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})?)(?P<ranks>(?: [A-Z_]{2,8}\d{1,6}){0,8})\]"
    r"|\((?P<process>[A-Za-z]\w{0,60})(?P<worker> (?:rank=|TP)\d{1,6})? pid=(?P<pid>\d{1,9})(?:, ip=[\d.:a-f]{1,40})?\)"
    r"|\b(?:INFO|WARNING|ERROR|DEBUG|CRITICAL) (?P<vllm>\d\d-\d\d \d\d:\d\d:\d\d)"
)
_FIELDS: Final = {
    **{"ATTN_CP": "cp", "PCP": "cp", "MOE_DP": "moe_dp", "DCP": "dcp"},
    **{name.upper(): name for name in ("dp", "pp", "tp", "ep")},
}
_PART: Final = re.compile(rf"({'|'.join(_FIELDS)})(\d{{1,6}})")
_CORE: Final = re.compile(r"EngineCore_(\d{1,6})$")
_WORKER: Final = re.compile(r"^(?:Vllm|Ray)\w{0,20}")
_WRAPPERS: Final = ("log", "message", "msg")
_LEAP_YEAR: Final = 2000  # vLLM prints no year; with this one every day exists


@dataclass(frozen=True)
class Record:
    """What one process wrote at once."""

    rank: Rank
    seconds: float | None
    text: str


def records(line: str) -> Iterator[Record]:
    """The records of a line: processes that share an output write into each other's lines, and behind progress bars.

    Whatever stands before a header (a container's name, a clock of Kubernetes) is a record without a rank.
    """
    text = _ANSI.sub("", _unwrapped(line))
    rank, seconds, end = Rank(), None, 0
    for header in _HEADER.finditer(text):
        between = text[end : header.start()]
        if between.strip():
            yield Record(rank, seconds, between)
            rank, seconds = Rank(), None
        rank, seconds, end = _joined(rank, _rank(header)), _seconds(header) or seconds, header.end()
    yield Record(rank, seconds, text[end:])


def _unwrapped(line: str) -> str:
    """The message of a line that a collector of logs wrote as JSON, any other line as it is."""
    if not line.startswith('{"'):
        return line
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return line
    words = [document.get(key) for key in _WRAPPERS] if isinstance(document, dict) else []
    return next((word for word in words if isinstance(word, str)), line)


def _rank(header: re.Match[str]) -> Rank:
    if header["sglang"]:
        return _of_parts(header["ranks"])
    process = header["process"]
    if process is None:
        return Rank()
    core = _CORE.search(process)
    if core:
        return Rank(dp=int(core[1]))
    worker = (header["worker"] or "").strip()
    if worker.startswith("rank="):
        return Rank(worker=int(worker.removeprefix("rank=")))
    rank = _of_parts(f"{process} {worker}")
    return Rank(pid=int(header["pid"])) if _WORKER.match(process) and not rank.named else rank


def _of_parts(words: str) -> Rank:
    return Rank(**{_FIELDS[name]: int(number) for name, number in _PART.findall(words)})


def _joined(first: Rank, second: Rank) -> Rank:
    """Of two headers side by side ("(EngineCore_1 pid=7) (VllmWorker rank=0 pid=8) ERROR ..."): the later says more."""
    return replace(first, **{name: number for name, number in vars(second).items() if number is not None})


def _seconds(header: re.Match[str]) -> float | None:
    """On the clock of the log, as if it were UTC."""
    if header["sglang"]:
        day = header["sglang"].replace(",", ".")
    elif header["vllm"]:
        day = f"{_LEAP_YEAR}-{header['vllm']}"
    else:
        return None
    whole, _, fraction = day.partition(".")
    try:
        moment = datetime.datetime.strptime(f"{whole} +0000", "%Y-%m-%d %H:%M:%S %z")
    except ValueError:
        return None
    return moment.timestamp() + (float(f"0.{fraction}") if fraction else 0.0)
