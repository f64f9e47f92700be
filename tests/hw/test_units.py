"""What a person reads."""

import pytest

from hw.units import GB, GIB, format_bytes, format_rate, format_seconds


def test_gib_is_not_gb() -> None:
    assert GIB == 1_073_741_824
    assert GB == 1_000_000_000


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (44_130_791_424, "41.1 GiB"),  # the KV pool of article 000
        (1_254_096_896, "1.17 GiB"),  # two staging buffers of 627,048,448 bytes
        (367_001_600, "350 MiB"),
        (13_824, "13.5 KiB"),
        (512, "512 B"),
        (0, "0 B"),
        (-2 * 2**30, "-2.00 GiB"),
    ],
)
def test_bytes(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0835, "83.5 ms"), (620e-6, "620 us"), (1.5, "1.50 s"), (2.5e-9, "2.50 ns"), (0.0, "0 s"), (120.0, "120 s")],
)
def test_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(("rate", "text"), [(7.7e12, "7.7 TB/s"), (9e11, "900 GB/s"), (0.0, "0 B/s")])
def test_rates(rate: float, text: str) -> None:
    assert format_rate(rate) == text


def test_a_rate_may_be_of_flops() -> None:
    assert format_rate(4.5e15, "FLOP/s") == "4.5 PFLOP/s"
