"""Devices that are simulated on one CPU, and the threads that they share."""

import os

import jax
import pytest

from hw.compat import simulate_devices


@pytest.mark.parametrize(("devices", "cores", "threads"), [(4, 2, "16"), (2, 64, "64"), (1000, 2, "1024")])
def test_xla_has_threads_for_all_that_wait(
    monkeypatch: pytest.MonkeyPatch, devices: int, cores: int, threads: str
) -> None:
    asked = {}
    monkeypatch.setattr(jax.config, "update", asked.__setitem__)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.delenv("NPROC", raising=False)
    simulate_devices(devices)
    assert os.environ["NPROC"] == threads and asked == {"jax_num_cpu_devices": devices}


def test_a_users_own_number_of_threads_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    monkeypatch.setenv("NPROC", "3")
    simulate_devices(8)
    assert os.environ["NPROC"] == "3"
