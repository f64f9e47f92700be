"""Times worked out by hand, and what must hold for every input."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hw.arithmetic import Arithmetic, Exact, Smooth
from hw.compat import in_x64, x64
from hw.machine import COLLECTIVE_FIELDS, FAMILY_FIELDS, Machine, load_machine
from hw.programs import compiled
from hw.time import (
    collective_seconds,
    compute_seconds,
)
from hw.work import Collective, CollectiveKind, Family, Rate, Work

K = CollectiveKind
smooth = in_x64(Smooth)
B200 = load_machine("b200")
ENGINE = load_machine("b200", curves="b200@article")
GB200 = load_machine("gb200")


def ideal(machine: Machine) -> Machine:
    """The same datasheet with kernels that reach it: efficiencies 1, everything that takes time besides 0, whole waves,
    one protocol, and maxima that are sharp."""
    with x64():
        none = {name: 0.0 for name in (*FAMILY_FIELDS, *COLLECTIVE_FIELDS)}
        most = {"bandwidth_efficiency": 1.0, "flops_efficiency": 1.0, "waves": 1.0, "sharpness": 1e4}
        reached = {"link_efficiency": 1.0, "nic_efficiency": 1.0}
        full = {**none, **most, **reached}
        curves, exchange = (
            replace(old, **{name: jnp.full_like(getattr(old, name), full[name]) for name in fields})
            for old, fields in ((machine.curves, FAMILY_FIELDS), (machine.exchange, COLLECTIVE_FIELDS))
        )
        return eqx.tree_at(lambda m: (m.curves, m.exchange), machine, (curves, exchange))


def op(
    family: Family = Family.GEMM, flops: float = 0.0, moved: float = 0.0, ctas: float = 0.0, rate: Rate = Rate.FP8
) -> Work:
    with x64():
        return Work.of([family], [rate], *(jnp.array([x], dtype=float) for x in (flops, moved)), ctas=jnp.array([ctas]))


def exchange(kind: CollectiveKind, payload: float, size: float, stride: float = 1.0) -> Collective:
    with x64():
        return Collective.of([kind], *(jnp.array([x], dtype=float) for x in (payload, size, stride)))


def op_seconds(machine: Machine, work: Work, ar: Arithmetic | None = None) -> float:
    with x64():
        return float(compute_seconds(ar or Exact(), machine, work)[0])


def exchange_seconds(machine: Machine, collective: Collective, ar: Arithmetic | None = None) -> float:
    with x64():
        return float(collective_seconds(ar or Exact(), machine, collective)[0])


# ---- ops


def test_a_roofline() -> None:
    machine = ideal(B200)
    assert op_seconds(machine, op(flops=4.5e12, moved=7.7e9)) == pytest.approx(1e-3, rel=1e-3)
    assert op_seconds(machine, op(flops=9.0e12, moved=7.7e9)) == pytest.approx(2e-3)
    assert op_seconds(machine, op(flops=4.5e12, moved=23.1e9)) == pytest.approx(3e-3)
    assert op_seconds(machine, op(flops=4.5e12, rate=Rate.BF16)) == pytest.approx(2e-3)


def test_efficiency_and_latency() -> None:
    with x64():
        machine = eqx.tree_at(
            lambda m: (m.curves.bandwidth_efficiency, m.curves.latency),
            ideal(B200),
            (jnp.full((len(Family), 3), 0.5), jnp.full((len(Family), 3), 10e-6)),
        )
    assert op_seconds(machine, op(moved=7.7e9)) == pytest.approx(2e-3 + 10e-6)


@pytest.mark.parametrize(("ctas", "waves"), [(1, 1), (148, 1), (149, 2), (160, 2), (296, 2), (1280, 9)])
def test_waves_take_whole_waves(ctas: int, waves: int) -> None:
    """All CTAs are alike, so c CTAs in one wave take what 1/c of the work takes on one SM."""
    one_cta = 4.5e15 / 148 * 1e-3  # what one SM computes in 1 ms
    seconds = op_seconds(ideal(B200), op(Family.ATTENTION, flops=ctas * one_cta, ctas=ctas))
    assert seconds == pytest.approx(waves * 1e-3)


def mla_decode(requests: int, context: float, splits: int = 1) -> Work:
    """Kimi K3 at 5 verified tokens: 96 heads x 5 rows a request, grid (2, requests x 5, splits)."""
    rows = requests * 5
    return op(
        Family.ATTENTION,
        flops=rows * 96 * context * 2 * (576 + 512),
        moved=requests * context * 576,
        ctas=2 * rows * splits,
    )


@pytest.mark.parametrize(
    ("requests", "context", "expected"),
    [(16, 100_000, 1240e-6), (128, 12_500, 826e-6), (8, 100_000, 620e-6)],
)
def test_the_mla_kernel_of_article_000(requests: int, context: float, expected: float) -> None:
    """Claims S15 to S17, to which the engine's curve is fitted: 160 CTAs on 148 SMs are two waves, 1280 are nine."""
    assert op_seconds(ENGINE, mla_decode(requests, context)) == pytest.approx(expected, rel=0.07)


def test_the_verify_kernel_of_article_000() -> None:
    """Claim M14, to which it is fitted: 24 requests of 96 heads, 5 tokens verified, alone."""
    values = 24.0 * 96 * 128 * 128
    with x64():
        flops, moved, copied = (jnp.array([values * n]) for n in (35.0, 8.0, 4.0))
        verify = Work.of([Family.STATE], [Rate.BF16], flops, moved, steps=jnp.array([5.0]), copied=copied)
    assert op_seconds(ENGINE, verify) == pytest.approx(174.6e-6, rel=0.04)


def test_an_op_without_work_costs_nothing() -> None:
    for ar in (Exact(), smooth(0.1)):
        for family in Family:
            assert op_seconds(B200, op(family), ar) == pytest.approx(0.0, abs=1e-15)
    assert op_seconds(B200, op()) == 0.0


@pytest.mark.parametrize("tau", [0.25, 1e-4])
@pytest.mark.parametrize("work", [op(), op(moved=1e6), op(flops=1e9), op(Family.ATTENTION, 1e9, 1e6, 160.0)])
def test_slopes_of_an_op_are_finite(tau: float, work: Work) -> None:
    with x64():
        for ar in (Exact(), smooth(tau)):
            slopes = eqx.filter_grad(lambda both, ar=ar: compute_seconds(ar, *both).sum())((B200, work))
            assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))


def test_the_slope_by_bandwidth_is_that_of_bytes_over_bandwidth() -> None:
    with x64():
        slope = eqx.filter_grad(lambda machine: compute_seconds(Exact(), machine, op(moved=7.7e9)).sum())(ideal(B200))
        assert float(slope.hbm_bandwidth) == pytest.approx(-1e-3 / 7.7e12)
        assert float(slope.peak.sum()) == 0.0


@given(flops=st.floats(0, 1e15), moved=st.floats(0, 1e12), more=st.floats(0, 1e15), ctas=st.integers(0, 2000))
def test_more_work_takes_no_less_time(flops: float, moved: float, more: float, ctas: int) -> None:
    base = op_seconds(B200, op(Family.ATTENTION, flops, moved, ctas))
    assert op_seconds(B200, op(Family.ATTENTION, flops + more, moved, ctas)) >= base
    assert op_seconds(B200, op(Family.ATTENTION, flops, moved + more, ctas)) >= base


@given(
    flops=st.floats(1e6, 1e15), moved=st.floats(1e3, 1e12), ctas=st.integers(0, 2000), family=st.sampled_from(Family)
)
def test_the_sharpest_smooth_time_is_the_exact_one(flops: float, moved: float, ctas: int, family: Family) -> None:
    work = op(family, flops, moved, ctas)
    assert op_seconds(B200, work, smooth(1e-5)) == pytest.approx(op_seconds(B200, work), rel=1e-3)


def beside(*parts: float) -> float:
    return sum(part**6 for part in parts) ** (1 / 6)


def test_inside_a_domain() -> None:
    machine = ideal(B200)
    assert exchange_seconds(machine, exchange(K.ALL_GATHER, 8e9, 8)) == pytest.approx(7e9 / 900e9)
    assert exchange_seconds(machine, exchange(K.ALL_REDUCE, 8e9, 8)) == pytest.approx(14e9 / 900e9)
    assert exchange_seconds(machine, exchange(K.ALL_TO_ALL, 8e9, 8)) == pytest.approx(7e9 / 900e9)
    assert exchange_seconds(machine, exchange(K.SEND, 9e9, 2)) == pytest.approx(10e-3)


def test_across_two_hosts_the_nic_binds() -> None:
    """Rings share eight NICs of 100 GB/s; an exchange sends 8/16 of its payload over its own. Link and NIC run beside
    each other: the sixth root of the sum of their sixth powers."""
    machine = ideal(B200)
    ring = (15e9 / 8 / 100e9, 15e9 / 900e9)
    assert exchange_seconds(machine, exchange(K.ALL_GATHER, 16e9, 16)) == pytest.approx(beside(*ring))
    rows = (8e9 / 100e9, 7e9 / 900e9)
    assert exchange_seconds(machine, exchange(K.DISPATCH, 16e9, 16)) == pytest.approx(beside(*rows))
    assert exchange_seconds(machine, exchange(K.SEND, 1e9, 2, stride=8)) == pytest.approx(1e9 / 100e9)


def test_a_ring_of_one_rank_a_host_sends_everything_over_its_nic() -> None:
    assert exchange_seconds(ideal(B200), exchange(K.REDUCE_SCATTER, 4e9, 4, stride=8)) == pytest.approx(3e9 / 100e9)


def test_a_rack_is_a_domain_and_a_host_is_not() -> None:
    """16 ranks of GB200 are four hosts but one scale-up domain; cut to its hosts they cross NICs."""
    group = exchange(K.ALL_TO_ALL, 16e9, 16)
    assert exchange_seconds(ideal(GB200), group) == pytest.approx(15e9 / 900e9)
    assert exchange_seconds(ideal(load_machine("gb200", domain=4)), group) == pytest.approx(12e9 / 100e9)


def test_stride_decides_who_shares_a_domain() -> None:
    """Four ranks, one a host of eight, against four neighbours."""
    neighbours, apart = exchange(K.ALL_TO_ALL, 4e9, 4), exchange(K.ALL_TO_ALL, 4e9, 4, stride=8)
    assert exchange_seconds(ideal(B200), neighbours) == pytest.approx(3e9 / 900e9)
    assert exchange_seconds(ideal(B200), apart) == pytest.approx(3e9 / 100e9)


def test_copy_engines_fetch_one_peer_after_the_other() -> None:
    """Claim S37: 7 copies of 22.9 MB at 620 GB/s with gaps of 3 us, to which the curve is fitted."""
    assert exchange_seconds(ENGINE, exchange(K.COPY_GATHER, 183_500_800, 8)) == pytest.approx(7 * 40e-6, rel=0.02)
    with x64():
        machine = eqx.tree_at(lambda m: m.exchange.latency, ideal(B200), jnp.full(len(K), 10e-6))
    assert exchange_seconds(machine, exchange(K.COPY_GATHER, 8e9, 8)) == pytest.approx(7 * 10e-6 + 7e9 / 900e9)


def test_dispatch_and_combine_of_article_000() -> None:
    """Claim S30, to which they are fitted: 32.2 ms a step over 92 layers; 80 rows, top-16, FP8 with scales and BF16."""
    with x64():
        payload, rows = jnp.array([80.0 * 16 * (3584 + 112), 80.0 * 16 * 2 * 3584]), jnp.full(2, 80.0)
        ranks, experts = jnp.full(2, 16.0), jnp.full(2, 896.0)
        both = Collective.of([K.DISPATCH, K.COMBINE], payload, ranks, rows=rows, experts=experts)
        out, back = map(float, collective_seconds(Exact(), ENGINE, both))
    assert 92 * (out + back) == pytest.approx(32.2e-3, rel=0.02)


@pytest.mark.parametrize("kind", K)
@pytest.mark.parametrize(("payload", "size"), [(0.0, 8.0), (1e9, 1.0), (0.0, 1.0), (0.0, 16.0)])
def test_nothing_to_exchange_costs_nothing(kind: CollectiveKind, payload: float, size: float) -> None:
    group = exchange(kind, payload, size)
    assert exchange_seconds(B200, group) == 0.0
    assert exchange_seconds(B200, group, smooth(0.1)) == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize("kind", K)
@pytest.mark.parametrize("payload", [0.0, 1e6])
@pytest.mark.parametrize("size", [1.0, 2.0, 8.0, 16.0])
def test_slopes_of_an_exchange_are_finite(kind: CollectiveKind, payload: float, size: float) -> None:
    group = exchange(kind, payload, size)
    with x64():
        for ar in (Exact(), smooth(0.25), smooth(1e-4)):
            slopes = eqx.filter_grad(lambda both, ar=ar: collective_seconds(ar, *both).sum())((B200, group))
            assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))


@pytest.mark.parametrize("kind", K)
def test_at_one_rank_a_wider_group_already_costs(kind: CollectiveKind) -> None:
    """Descent that starts at one rank must feel the price of the second."""
    with x64():
        slope = eqx.filter_grad(lambda group: collective_seconds(smooth(0.1), B200, group).sum())
        assert float(slope(exchange(kind, 1e6, 1.0)).size[0]) > 1e-6


@given(
    kind=st.sampled_from(K),
    payload=st.floats(1.0, 1e10),
    more=st.floats(0.0, 1e10),
    log_size=st.integers(0, 8),
    log_stride=st.integers(0, 5),
)
def test_more_payload_or_a_wider_group_takes_no_less_time(
    kind: CollectiveKind, payload: float, more: float, log_size: int, log_stride: int
) -> None:
    size, stride = 2.0**log_size, 2.0**log_stride
    base = exchange_seconds(B200, exchange(kind, payload, size, stride))
    assert exchange_seconds(B200, exchange(kind, payload + more, size, stride)) >= base
    if kind is not K.SEND and kind in (K.ALL_TO_ALL, K.DISPATCH, K.COMBINE):
        assert exchange_seconds(B200, exchange(kind, payload, 2 * size, stride)) >= base * (1 - 1e-12)


@given(kind=st.sampled_from(K), payload=st.floats(1.0, 1e10), log_size=st.integers(0, 8), log_stride=st.integers(0, 5))
def test_the_sharpest_smooth_exchange_is_the_exact_one(
    kind: CollectiveKind, payload: float, log_size: int, log_stride: int
) -> None:
    group = exchange(kind, payload, 2.0**log_size, 2.0**log_stride)
    exact = exchange_seconds(B200, group)
    assert exchange_seconds(B200, group, smooth(1e-5)) == pytest.approx(exact, rel=1e-3, abs=1e-15)


def test_the_range_brackets_the_time() -> None:
    work, group = op(flops=1e12, moved=1e9), exchange(K.ALL_GATHER, 1e8, 8)
    assert op_seconds(B200.faster(), work) < op_seconds(B200, work) < op_seconds(B200.slower(), work)
    spread = B200.figure("all_gather.spread").value
    slow = exchange_seconds(B200.slower(), group)
    assert slow == pytest.approx((1 + spread) * exchange_seconds(B200, group))
    assert exchange_seconds(B200.faster(), group) < exchange_seconds(B200, group)


def test_thousands_of_layouts_at_once() -> None:
    """One vmapped call prices what single calls price."""
    kinds = (K.ALL_GATHER, K.DISPATCH, K.COPY_GATHER)
    with x64():
        payload = jnp.linspace(1e3, 1e9, 3000).reshape(1000, 3)
        size, stride = jnp.full((1000, 3), 16.0), jnp.ones((1000, 3))
        batch = compiled(jax.vmap(lambda p, n, s: collective_seconds(Exact(), B200, Collective.of(kinds, p, n, s))))(
            payload, size, stride
        )
        assert batch.shape == (1000, 3)
        for row in (0, 999):
            for column, kind in enumerate(kinds):
                alone = exchange_seconds(B200, exchange(kind, float(payload[row, column]), 16.0))
                assert float(batch[row, column]) == pytest.approx(alone, rel=1e-12)
