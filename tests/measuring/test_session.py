"""Benches are timed once, within the budget, and what cannot run says why."""

import pathlib
import time
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from explorer.measuring.answer import answer
from explorer.measuring.errors import MeasuringError
from explorer.measuring.journal import BANDWIDTH, Journal
from explorer.measuring.listing import benches_of
from explorer.measuring.machine import Here, chip_of_device, machine_here
from explorer.measuring.session import measure
from hw.measuring import Bench, normal
from hw.work import Family, Rate, Work


def here(devices: int = 1) -> Here:
    return machine_here("h200", devices, simulated=True)


def bench(name: str, turn: Any, size: float = 8192.0) -> Bench:
    work = Work.of([Family.ELEMENTWISE], [Rate.BF16], np.zeros(1), np.array([size]))
    return Bench(name, work, turn, held=lambda key: normal(key, (64, 32)))


def negated(held: jax.Array, own: tuple[()]) -> jax.Array:
    return -held


def broken(held: jax.Array, own: tuple[()]) -> jax.Array:
    raise ValueError("no such kernel\nand a second line")


def journal(tmp_path: pathlib.Path) -> Journal:
    return Journal(tmp_path / "m.journal", {"machine": "m"})


@pytest.mark.smoke
def test_rows_are_timed_and_not_timed_again(tmp_path: pathlib.Path) -> None:
    kept = journal(tmp_path)
    assert measure(here(), [bench("one", negated)], kept) == []
    assert kept.rows["one"]["seconds"] > 0
    assert kept.rows["one"] == {
        "name": "one", "family": "elementwise", "rate": "bf16", "bytes": 8192.0, "seconds": kept.rows["one"]["seconds"]
    }  # fmt: skip
    before = dict(kept.rows)
    # the bench of that name would fail if it were run
    assert (
        measure(here(2), [bench("one", broken), bench("two", negated), bench("three", negated)], journal(tmp_path))
        == []
    )
    after = journal(tmp_path).rows
    assert set(after) == {BANDWIDTH, "one", "two", "three"}
    assert after["one"] == before["one"]


def test_no_row_begins_behind_the_deadline(tmp_path: pathlib.Path) -> None:
    kept = journal(tmp_path)
    assert measure(here(), [bench("one", negated)], kept, deadline=time.monotonic() - 1.0) == ["one"]
    assert "one" not in kept.rows


def test_a_bench_that_fails_is_told_and_the_others_go_on(tmp_path: pathlib.Path) -> None:
    kept = journal(tmp_path)
    measure(here(), [bench("bad", broken), bench("good", negated)], kept)
    assert kept.rows["bad"] == {"name": "bad", "error": "no such kernel"}
    assert kept.rows["good"]["seconds"] > 0
    assert "bad does not run here: no such kernel" in answer(here(), list(kept.rows.values())).document()["notes"]


def test_the_first_form_that_runs_is_timed(tmp_path: pathlib.Path) -> None:
    kept = journal(tmp_path)
    measure(here(), [bench("one", {"fast": broken, "slow": negated, "slower": broken})], kept)
    assert (kept.rows["one"]["form"], kept.rows["one"]["tried"]) == ("slow", ["fast: no such kernel"])
    document = answer(here(), list(kept.rows.values())).document()
    assert "one: slow was timed, as fast: no such kernel" in document["notes"]
    assert [set(row) for row in document["rows"]] == [{"name", "family", "rate", "bytes", "seconds", "form"}]


def test_nothing_timed_is_no_answer() -> None:
    with pytest.raises(MeasuringError, match=r"^nothing could be timed: no such kernel: give more --seconds"):
        answer(here(), [{"name": "bad", "error": "no such kernel"}])


def test_every_curve_has_rows_wherever_the_list_is_cut(tmp_path: pathlib.Path) -> None:
    """Of a third of the benches each family and kind has about a third of its own."""
    every = benches_of(here(2))
    names = [b.name.split()[0] for b in every]
    assert len({b.name for b in every}) == len(every)
    for word in ("all_gather", "all_reduce", "send", "states", "latent", "grouped", "copy"):
        total, first = names.count(word), names[: len(names) // 3].count(word)
        assert total >= 4 and abs(first - total / 3) <= 1, word
    assert {b.name.split()[0] for b in benches_of(here(1))} == set(names) - {
        "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send"
    }  # fmt: skip


def test_groups_of_every_size_that_divides_the_devices() -> None:
    sizes = [b.name.rsplit(" ", 1)[1] for b in benches_of(here(8), ["all_reduce"])]
    assert set(sizes) == {"2", "4", "8"}
    assert {b.name.rsplit(" ", 1)[1] for b in benches_of(here(6), ["all_reduce"])} == {"2"}


def families(only: list[str]) -> set[Family]:
    return {
        family for bench in benches_of(here(), only) if isinstance(bench.asks, Work) for family in bench.asks.family
    }


def test_only_and_quick_choose_among_them() -> None:
    assert families(["copy"]) == {Family.COPY}
    assert families(["grouped_gemm"]) == {Family.GROUPED_GEMM, Family.ELEMENTWISE}  # timed together
    assert len(benches_of(here(2), ["all_reduce"], quick=True)) == 4  # as many as a fit needs
    assert len(benches_of(here(), quick=True)) < len(benches_of(here()))
    with pytest.raises(MeasuringError, match="only 'gem' is no family of kernels or kind of exchange: gemm, "):
        benches_of(here(), ["gem"])
    with pytest.raises(MeasuringError, match="only send: nothing on this machine is timed for it"):
        benches_of(here(1), ["send"])


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        (("h200", 1, False), "there is no GPU to measure: run on a machine with one, or try it out with --simulate"),
        (("h200", 17, True), r"gpus = 17: must be from 1 to 16, the devices that are here"),
        (("h200", 0, True), "gpus = 0: must be from 1 to 16"),
        ((None, 1, True), "'cpu' is no chip with a data file: say which it is like with --hardware, one of b200, "),
        (("h2000", 1, True), "hardware 'h2000': must be a chip, one of b200, "),
    ],
)
def test_a_machine_that_cannot_be_measured(asked: Any, complaint: str) -> None:
    with pytest.raises(MeasuringError, match=f"^{complaint}"):
        machine_here(*asked)


def test_chips_are_found_by_the_names_of_devices() -> None:
    class Device:
        device_kind = "NVIDIA H200"

    assert chip_of_device(Device()) == "h200"
    Device.device_kind = "NVIDIA RTX 4090"
    assert chip_of_device(Device()) is None


def test_a_device_of_16_bits_counts_what_one_rank_holds() -> None:
    """Own arguments that are drawn for several turns are counted a turn: 64 x 32 values of two bytes."""
    one = replace(bench("one", negated), own=lambda key: normal(key, (64, 32)))
    assert one.own_bytes == 64 * 32 * 2
    assert bench("none", negated).own_bytes == 0
    assert jnp.dtype(normal(jax.random.key(0), (2, 2)).dtype) == jnp.bfloat16
