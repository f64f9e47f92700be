"""Tables of exchanges as rows: bytes and messages against hand arithmetic, and what is left out."""

import numpy as np
import pytest

from experiments.op_curves import deepep, nccl
from experiments.op_curves.rows import Group
from hw.work import CollectiveKind as K


def named(groups: list[Group], name: str) -> Group:
    (group,) = (g for g in groups if g.name == name)
    return group


@pytest.fixture(scope="module")
def nccl_groups() -> list[Group]:
    return nccl.groups()


@pytest.fixture(scope="module")
def deepep_groups() -> list[Group]:
    return deepep.groups()


def test_a_row_of_the_nccl_table(nccl_groups):
    group = named(nccl_groups, "nccl all_gather b200")
    (row,) = np.flatnonzero((group.features["payload"] == 2**29) & (group.features["size"] == 8))[:1]
    assert group.seconds[row] == pytest.approx(761.42e-6)
    assert group.features["sent"][row] == 2**29 * 7 / 8
    assert group.features["home"][row] == 2**26
    # half and int8 of one size are one problem; 2, 4 and 8 GPUs, 21 sizes
    assert len(np.unique(group.shape)) == 63
    assert len(group.seconds) == 126 - sum(group.flagged.values())


@pytest.mark.parametrize(("kind", "sent", "direct", "home"), [(K.ALL_REDUCE, 12, 24, 4), (K.REDUCE_SCATTER, 6, 6, 2)])
def test_an_all_reduce_sends_twice_or_hands_its_buffer_to_every_peer(kind, sent, direct, home):
    found = nccl.collective(kind, np.array([8.0]), np.array([4.0]))
    assert (found["sent"], found["direct"], found["home"]) == (sent, direct, home)


def test_only_what_a_larger_exchange_beats_by_a_fifth_counts_as_disturbed():
    payload, size = np.array([1.0, 2, 4, 8, 1]), np.array([2.0, 2, 2, 2, 4])
    seconds = np.array([1.19, 1.21, 1.0, 5.0, 9.0])
    assert nccl.disturbed(payload, size, seconds).tolist() == [False, True, False, False, False]


def test_rows_that_are_left_out_are_counted(nccl_groups, deepep_groups):
    custom = named(nccl_groups, "custom all_reduce h200")
    assert custom.flagged["launched one by one: the host's time"] == 69
    assert custom.flagged["over 8 MiB: handed to NCCL"] == 18  # six sizes, three numbers of GPUs
    assert custom.features["payload"].max() == 2**23
    assert (
        sum(g.flagged.get("slower than a larger exchange", 0) for g in nccl_groups) == 27
    )  # 25 of NCCL, 2 of 128 bytes
    hosts = named(deepep_groups, "deepep low latency hosts combine h200")
    assert sum(hosts.flagged.values()) == 15  # 1, 2 and 4 tokens on one host, 2 and 4 in the six other columns
    assert hosts.features["rows"].min() == 8


def test_a_low_latency_row_over_hosts(deepep_groups):
    group = named(deepep_groups, "deepep low latency hosts dispatch h200")
    f = group.features
    (row,) = np.flatnonzero((f["rows"] == 256) & (f["size"] == 64) & (f["experts"] == 288))
    assert group.seconds[row] == pytest.approx(303.73e-6)
    # 288 experts on 132 SMs: three groups of warps on each of 96
    assert (f["rounds"][row], f["sms"][row]) == (3, 96)
    assert f["row_bytes"][row] == 7168 + 4 * 56
    assert f["link"][row] == 256 * 8 * 7392 * 7 / 64
    assert f["nic"][row] == 256 * 8 * 7392 * 56 / 64
    assert f["outside"][row] == 56 / 64


def test_every_group_is_of_positive_times(nccl_groups, deepep_groups):
    for group in (*nccl_groups, *deepep_groups):
        assert len(group.seconds) > 15 and (group.seconds > 1e-6).all(), group.name
        assert all(np.isfinite(column).all() for column in group.features.values()), group.name
