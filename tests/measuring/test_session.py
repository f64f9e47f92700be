"""Benches are timed once, within the budget, and what cannot run says why."""

import pathlib
import time
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from explorer.measuring import session
from explorer.measuring.answer import Measured, answer
from explorer.measuring.asked import rows_needed
from explorer.measuring.errors import MeasuringError
from explorer.measuring.journal import BANDWIDTH, Journal
from explorer.measuring.listing import benches_of, curves_told
from explorer.measuring.machine import Here, chip_of_device, machine_here
from explorer.measuring.session import measure
from hw.measuring import Bench, exchanges, normal
from hw.work import CollectiveKind, Family, Rate, Work


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


def answered(kept: Journal) -> Measured:
    return answer(here().machine, here().surroundings, list(kept.rows.values()))


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


class Clock:
    """A clock on which each row takes ten seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now = 0.0
        monkeypatch.setattr(session, "time", self)
        monkeypatch.setattr(session, "_timed", self.timed)

    def monotonic(self) -> float:
        return self.now

    def timed(self, bench: Bench, compiled: Any) -> dict[str, Any]:
        self.now += 10.0
        return {"name": bench.name, "seconds": 1.0}


def test_no_row_of_a_batch_begins_behind_the_deadline(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second ends at 20 s and the third would begin then; all three are compiled in one batch."""
    Clock(monkeypatch)
    kept = journal(tmp_path)
    benches = [bench(name, negated) for name in ("one", "two", "three")]
    assert measure(here(), benches, kept, deadline=15.0) == ["three"]
    assert set(kept.rows) == {BANDWIDTH, "one", "two"}


def test_no_batch_begins_that_would_end_behind_the_deadline(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of one row takes 10 s: after the first, 9 s are left."""
    Clock(monkeypatch)
    monkeypatch.setattr(session, "_THREADS", 1)
    monkeypatch.setattr(session, "_BATCHES", 1)
    benches = [bench(name, negated) for name in ("one", "two")]
    assert measure(here(), benches, journal(tmp_path), deadline=19.0) == ["two"]


def test_what_fails_is_told_and_the_others_go_on(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(device: Any, small: bool) -> dict[str, float]:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory\nand more")

    monkeypatch.setattr(session, "bandwidths", full)
    kept = journal(tmp_path)
    measure(here(), [bench("bad", broken), bench("good", negated)], kept)
    assert kept.rows["bad"] == {"name": "bad", "error": "no such kernel"}
    assert kept.rows["good"]["seconds"] > 0
    document = answered(kept).document()
    assert "bad does not run here: no such kernel" in document["notes"]
    assert "copy bandwidth does not run here: RESOURCE_EXHAUSTED: Out of memory" in document["notes"]
    assert document["copy_bytes_per_s"] == {}
    assert set(journal(tmp_path).rows) == {"good"}  # and is tried again


def test_the_first_form_that_runs_is_timed(tmp_path: pathlib.Path) -> None:
    kept = journal(tmp_path)
    forms = {"fast": broken, "slow": negated, "slower": broken}
    measure(here(), [bench("one", forms), bench("2 rows", forms)], kept)
    assert (kept.rows["one"]["form"], kept.rows["one"]["tried"]) == ("slow", ["fast: no such kernel"])
    document = answered(kept).document()
    told = [line for line in document["notes"] if "slow was timed" in line]
    assert told == ["one: slow was timed, as fast: no such kernel"]  # once for rows of a family
    assert [set(row) for row in document["rows"]] == [{"name", "family", "rate", "bytes", "seconds", "form"}] * 2


def test_nothing_timed_is_no_answer() -> None:
    with pytest.raises(MeasuringError, match=r"^nothing could be timed: no such kernel: give more --seconds"):
        answer(here().machine, here().surroundings, [{"name": "bad", "error": "no such kernel"}])


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


@pytest.mark.parametrize(
    ("count", "sizes"),
    [(1, set()), (2, {2}), (3, {2, 3}), (4, {2, 4}), (5, {2, 4, 5}), (6, {2, 4, 6}), (7, {2, 4, 7}), (8, {2, 4, 8})],
)
def test_exchanges_among_all_devices_and_powers_of_two(count: int, sizes: set[int]) -> None:
    every: list[Any] = exchanges.benches(jax.devices()[:count], small=True)
    found = [b for b in every if b.asks.kind[0] == "all_reduce"]
    assert {int(b.name.rsplit(" ", 1)[1]) for b in found} == {int(b.asks.size[0]) for b in found} == sizes
    for b in found:
        groups = b.mesh.devices
        assert groups.shape == (count // groups.shape[1], groups.shape[1])


def test_an_exchange_among_three_devices_runs(tmp_path: pathlib.Path) -> None:
    """Groups of three, and of two beside which one is idle."""
    kept = journal(tmp_path)
    measure(here(3), [b for b in benches_of(here(3), ["all_to_all"]) if "1.00 KiB" in b.name], kept)
    rows = [row for row in kept.rows.values() if row.get("kind") == "all_to_all"]
    assert sorted(row["size"] for row in rows) == [2.0, 3.0]
    assert [row["payload"] for row in rows if row["size"] == 3.0] == [768.0]  # of 1024 bytes, whole rows a rank


def kind_of(owner: str) -> Family | CollectiveKind:
    name = owner.partition(".")[0]
    return Family(name) if name in tuple(Family) else CollectiveKind(name)


def families(only: list[str]) -> set[Family]:
    return {
        family for bench in benches_of(here(), only) if isinstance(bench.asks, Work) for family in bench.asks.family
    }


def test_only_and_quick_choose_among_them() -> None:
    assert families(["copy"]) == {Family.COPY}
    assert families(["grouped_gemm"]) == {Family.GROUPED_GEMM, Family.ELEMENTWISE}  # timed together
    assert len(benches_of(here(2), ["all_reduce"], quick=True)) == 4  # as many as a fit needs
    every, quick = (benches_of(here(2), quick=quick) for quick in (False, True))
    assert len(quick) < len(every)
    owners = {b.name: tuple(curves_told([b], ())) for b in every}
    for owner in set(owners.values()):
        fewest = max(rows_needed(kind_of(one)) for one in owner)
        assert sum(owners[b.name] == owner for b in quick) >= fewest, owner
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
