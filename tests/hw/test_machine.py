"""Machines: figures of the datasheets, overrides, ranges, and where a number comes from."""

import jax
import numpy as np
import pytest

from hw.compat import in_x64, x64
from hw.errors import MeshwrightError
from hw.figures import Provenance, chip_names
from hw.machine import COLLECTIVE_FIELDS, FAMILY_FIELDS, Machine, load_machine
from hw.programs import compiled
from hw.units import GIB
from hw.work import CollectiveKind, Family, Rate


@pytest.mark.parametrize(
    ("name", "gib", "tb_s", "bf16", "fp8", "link", "nic", "sms", "host", "domain"),
    [
        ("b200", 180.0, 7.7, 2.25, 4.5, 900, 100, 148, 8, 8),
        ("b300", 268.6, 7.75, 2.25, 4.5, 900, 100, 148, 8, 8),
        ("gb200", 185.0, 8.0, 2.5, 5.0, 900, 100, 148, 4, 72),
        ("gb300", 277.5, 8.0, 2.5, 5.0, 900, 100, 148, 4, 72),
        ("h200", 140.4, 4.8, 0.989, 1.979, 450, 50, 132, 8, 8),
        ("h100", 79.6, 3.35, 0.989, 1.979, 450, 50, 132, 8, 8),
        ("rtx-pro-6000", 95.6, 1.792, 0.468, 0.936, 64, 50, 188, 8, 8),
    ],
)
def test_the_datasheets(
    name: str, gib: float, tb_s: float, bf16: float, fp8: float, link: int, nic: int, sms: int, host: int, domain: int
) -> None:
    machine = load_machine(name)
    assert float(machine.memory_bytes) / GIB == pytest.approx(gib, abs=0.06)
    assert float(machine.hbm_bandwidth) == tb_s * 1e12
    np.testing.assert_allclose(machine.peak[:2], [bf16 * 1e15, fp8 * 1e15])
    assert (float(machine.link_bandwidth), float(machine.nic_bandwidth)) == (link * 1e9, nic * 1e9)
    assert (float(machine.sms), float(machine.gpus_per_host), float(machine.domain)) == (sms, host, domain)


def test_a_b200_starts_with_the_memory_that_article_000_saw() -> None:
    machine = load_machine("b200")
    assert float(machine.free_bytes) / GIB == pytest.approx(177.7, abs=1e-6)


@pytest.mark.parametrize("name", chip_names())
def test_every_chip_loads_in_64_bits_and_every_number_is_a_positive_leaf(name: str) -> None:
    leaves = jax.tree_util.tree_leaves_with_path(load_machine(name))
    assert len(leaves) == 9 + len(FAMILY_FIELDS) + 1 + len(COLLECTIVE_FIELDS) + 1
    for path, leaf in leaves:
        assert leaf.dtype == np.float64, path
        assert np.isfinite(leaf).all(), path
        assert (np.asarray(leaf) >= 0).all(), path


@pytest.mark.parametrize("name", ["B200", "b20", "", "tpu-v5"])
def test_an_unknown_chip_names_the_nearest_and_all_that_are_known(name: str) -> None:
    with pytest.raises(MeshwrightError, match=rf"unknown hardware '{name}': nearest is '.+'; known are b200, b300"):
        load_machine(name)


def test_the_nearest_chip_is_the_nearest() -> None:
    with pytest.raises(MeshwrightError, match="nearest is 'gb200'"):
        load_machine("gb20")


@pytest.mark.parametrize("size", [0, -8, 2.5, True, "8", float("nan")])
def test_sizes_are_positive_integers(size: object) -> None:
    with pytest.raises(MeshwrightError, match=r"gpus_per_host=.*positive integer"):
        load_machine("b200", gpus_per_host=size)  # pyright: ignore[reportArgumentType]
    with pytest.raises(MeshwrightError, match=r"domain=.*positive integer"):
        load_machine("gb200", domain=size)  # pyright: ignore[reportArgumentType]


def test_a_domain_that_is_the_host_follows_it_and_a_rack_does_not() -> None:
    assert float(load_machine("b200", gpus_per_host=4).domain) == 4
    assert float(load_machine("b200", gpus_per_host=4, domain=8).domain) == 8
    assert float(load_machine("gb200", gpus_per_host=2).domain) == 72
    assert load_machine("gb200", domain=36).figure("domain").source == "given with the request"


@in_x64
def test_ranges_scale_every_time_and_stop_at_the_datasheet() -> None:
    machine = load_machine("b200")
    slow, fast = machine.slower(), machine.faster()
    spread = machine.figure("grouped_gemm.spread.fp8").value
    at = list(Family).index(Family.GROUPED_GEMM), list(Rate).index(Rate.FP8)
    np.testing.assert_allclose(slow.curves.latency[at], machine.curves.latency[at] * (1 + spread))
    np.testing.assert_allclose(
        slow.curves.bandwidth_efficiency[at], machine.curves.bandwidth_efficiency[at] / (1 + spread)
    )
    np.testing.assert_allclose(fast.curves.latency[at], machine.curves.latency[at] / (1 + spread))
    assert float(np.max(fast.curves.bandwidth_efficiency)) == 1.0  # 0.9874 x 1.07 would be beyond it
    assert (np.asarray(fast.exchange.link_efficiency) >= np.asarray(machine.exchange.link_efficiency)).all()


def test_provenance_is_that_of_the_weakest_figure() -> None:
    b200 = load_machine("b200")
    assert b200.family_provenance(Family.GEMM, Rate.FP8) is Provenance.FITTED
    assert b200.family_provenance(Family.GEMM, Rate.FP4) is Provenance.ASSUMED
    assert b200.family_provenance(Family.ELEMENTWISE, Rate.BF16) is Provenance.ASSUMED
    assert load_machine("b300").family_provenance(Family.GEMM, Rate.FP8) is Provenance.ASSUMED
    assert b200.collective_provenance(CollectiveKind.ALL_GATHER) is Provenance.FITTED
    assert b200.collective_provenance(CollectiveKind.ALL_GATHER, crosses=True) is Provenance.ASSUMED


def test_the_curves_of_a_deployment_stand_on_those_of_its_chip() -> None:
    """What the deployment's file does not state is the chip's, of the chip's own provenance."""
    engine, chip = load_machine("b200", curves="b200@article"), load_machine("b200")
    assert engine.figure("state.contention").source.startswith("article 000, claims M14")
    assert engine.figure("gemm.bandwidth_efficiency.fp8").provenance is Provenance.FITTED
    assert engine.figure("gemm.bandwidth_efficiency.bf16") == chip.figure("gemm.bandwidth_efficiency.bf16")
    assert float(engine.hbm_bandwidth) == float(chip.hbm_bandwidth)


def test_contention_says_nothing_of_an_op_that_runs_alone() -> None:
    b200 = load_machine("b200")
    assert b200.figure("gemm.contention").provenance is Provenance.ASSUMED
    assert b200.family_provenance(Family.GEMM, Rate.FP8) is Provenance.FITTED


def test_a_missing_figure_is_named() -> None:
    with pytest.raises(MeshwrightError, match="b200: no figure 'colour'"):
        load_machine("b200").figure("colour")


def test_two_loads_of_a_chip_compile_once() -> None:
    traces = 0

    @compiled
    def total(machine: Machine) -> jax.Array:
        nonlocal traces
        traces += 1
        return machine.hbm_bandwidth * machine.domain

    with x64():
        assert float(total(load_machine("b200"))) == 7.7e12 * 8
        assert float(total(load_machine("b200", domain=4))) == 7.7e12 * 4
    assert traces == 1
