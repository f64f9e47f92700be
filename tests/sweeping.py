"""Sweeps in the time that there is: `SWEEP_MINUTES=20 pytest -p tests.sweeping -m sweep`, as `make sweep` runs them.

Cases run in an order drawn from the date, so that over some days all of them do; those that there is no time left for
are skipped, and counted at the end. SWEEP_SEED repeats the order of another day. Without SWEEP_MINUTES all run.
"""

import datetime
import os
import random
import time
from typing import Any, Final

import pytest

MINUTES, SEED, END = "SWEEP_MINUTES", "SWEEP_SEED", "SWEEP_END"
LEFT: Final = "the time for the sweep is over"


def pytest_configure() -> None:
    """Into the environment, which the workers of a parallel run inherit: one order and one end for all."""
    os.environ.setdefault(SEED, datetime.date.today().isoformat())
    minutes = float(os.environ.get(MINUTES, "inf"))
    os.environ.setdefault(END, str(time.time() + 60 * minutes))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    random.Random(os.environ[SEED]).shuffle(items)


def pytest_runtest_setup() -> None:
    if time.time() > float(os.environ[END]):
        pytest.skip(LEFT)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    count = {outcome: len(terminalreporter.getreports(outcome)) for outcome in ("passed", "failed", "skipped")}
    ran = count["passed"] + count["failed"]
    terminalreporter.write_line(
        f"sweep: {ran} of {ran + count['skipped']} cases ran, in the order of {os.environ[SEED]}; "
        f"{count['failed']} failed"
    )
