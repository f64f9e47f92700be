"""The program's small kernels around the experts, by hand, as they stand in programs compiled for two H200s."""

import pytest

from layouts.benching import BF16
from layouts.moe.shape import MoE
from layouts.moe.work import work
from layouts.op import Op
from layouts.program_side import as_program

# 160 rows a rank, 16 choices each, of 256 experts on two ranks
NUMBERS = {"moe_rows": 160, "ep": 2, "choices": 16}
TRAVEL = {"by_all_to_all": 1, "by_max_len": 0, "by_sum_len": 0, "by_one_group": 0}
STAY = TRAVEL | {"by_all_to_all": 0, "by_one_group": 1}
ROW = 3584 * 2


def ours() -> dict[str, Op]:
    moe = MoE(7168, 256, 16, 3072, 3584, 6144, False, True)
    ops = (as_program(op) for op in work(moe, moe.tensors(), BF16))
    return {op.name: op for op in ops if op is not None}


def test_a_row_that_travels_is_summed_on_each_rank_and_the_sums_where_it_came_from() -> None:
    ops = ours()
    assert ops["expert_sum"].bytes.evaluate(NUMBERS | TRAVEL) == 2 * 160 * (8 + 1) * ROW
    assert ops["expert_ranks_sum"].bytes.evaluate(NUMBERS) == 160 * (2 + 1) * ROW
    assert ops["expert_ranks_sum"].share.evaluate(STAY) == 0
    assert ops["expert_sum"].bytes.evaluate(NUMBERS | STAY) == 160 * (8 + 1) * ROW


def test_choices_of_all_rows_that_a_rank_has_are_ordered_by_expert() -> None:
    order = ours()["expert_order"].bytes
    assert order.evaluate(NUMBERS | TRAVEL) == 2 * 160 * 16 * 2 * 4
    assert order.evaluate(NUMBERS | STAY) == 160 * 16 * 2 * 4


@pytest.mark.parametrize(("where", "launches"), [(TRAVEL, 3), (STAY, 6)])
def test_sums_of_several_ranks_alone_are_joined_with_the_shared_experts(where: dict[str, int], launches: int) -> None:
    op = ours()["latent_norm"]
    assert op.shape["launches"].evaluate(where) == launches
    assert op.bytes.evaluate(NUMBERS | where) == launches * 160 * 2 * ROW
