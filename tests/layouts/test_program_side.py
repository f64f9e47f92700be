"""A step as the program takes it: which ops it has, with which bytes and launches, by hand."""

import dataclasses
import itertools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hw.arithmetic import Exact
from hw.compat import in_x64
from hw.machine import load_machine
from hw.time import compute_seconds
from hw.work import CollectiveKind, Family, Rate, Work
from layouts import benching
from layouts.blocks import step_blocks
from layouts.expression import ONE, ZERO
from layouts.layout import Layout
from layouts.models import load_model
from layouts.op import Op, elementwise, exchange, passes
from layouts.program_side import as_program, program_quantities
from layouts.symbols import CHOICES, EP, EXPERTS_RANK, MOE_ROWS, ROWS
from layouts.traits import traits_of
from tests.layouts.oracle import Case, values

DP2 = Layout(attn_dp=2, ep=2, dispatch="all_to_all")
LOAD = Case(4096, 32, 1, (16,), 132)  # 16 requests a group


def ours(name: str) -> dict[str, dict[str, Op]]:
    """Ops of the program by block and name."""
    return {
        block.name: {op.name: op for op in block.ops} for block in step_blocks(load_model(name), program=True).blocks
    }


def test_an_engines_kernel_is_not_in_the_program() -> None:
    assert as_program(dataclasses.replace(elementwise("engine", ROWS), program=False)) is None


def test_an_op_of_the_program_alone_costs_an_engine_nothing_and_the_program_its_bytes() -> None:
    op = passes("some", ROWS * 4, 3)
    found = as_program(op)
    assert op.bytes == ZERO and found is not None
    assert found.bytes == ROWS * 4 and found.shape["launches"].evaluate({}) == 3


def test_messages_are_those_of_static_operands_sent_by_the_programs_exchanges() -> None:
    found = as_program(exchange("go", CollectiveKind.DISPATCH, ROWS * 1, EP, program_payload=ROWS * 2))
    assert found is not None and found.collective is CollectiveKind.ALL_GATHER and found.payload == ROWS * 2


def test_each_row_goes_to_every_rank_once_and_may_choose_all_that_one_holds() -> None:
    """16 rows a rank, 8 of 256 experts, two ranks that can hold all 8: 2 x 16 rows of 7168 bf16 values, and for each
    choice a number and a weight of four bytes; room for 2 x 16 x 8 products."""
    model = load_model("deepseek-v3", draft="none", precision="experts=bf16")
    numbers = values(model, DP2, LOAD)
    numbers |= {
        name: int(value)
        for name, value in program_quantities(Exact(), _scalars(numbers), traits_of(model), 132).items()
    }
    ops = ours("deepseek-v3")["MLA + MoE"]
    assert ops["dispatch"].payload.evaluate(numbers) == 2 * 16 * 7168 * 2
    assert ops["dispatch_numbers"].payload.evaluate(numbers) == 2 * 16 * 8 * (4 + 4)
    assert ops["combine"].payload.evaluate(numbers) == 2 * 16 * 7168 * 2
    assert (MOE_ROWS * CHOICES).evaluate(numbers) == 16 * 8


def _scalars(numbers: dict) -> dict:
    return {name: jnp.asarray(float(value)) for name, value in numbers.items()}


def test_the_grouped_gemm_ends_with_the_activation_and_copies_no_rows() -> None:
    ops = ours("deepseek-v3")["MLA + MoE"]
    assert "expert_activation" not in ops
    assert ops["w13"].shape["copied"] == ZERO and ops["w13"].shape["groups"] != ZERO


def test_a_single_part_needs_no_merge() -> None:
    (block,) = (ops for ops in ours("llama-3.1-8b").values() if "attention_merge" in ops)
    launches = block["attention_merge"].shape["launches"]
    assert [launches.evaluate({"attention_parts": n}) for n in (1, 2)] == [0, Fraction(1, 2)]


def test_latents_are_scheduled_and_merged_in_two_kernels_unless_an_index_chooses_them() -> None:
    """Sixteen rows of 128 heads on a rank, half of whose requests are cut, all together in three pieces a request."""
    model = load_model("deepseek-v3", draft="none")
    numbers = values(model, DP2, LOAD) | {"attention_parts": 3, "attention_cut": Fraction(1, 2)}
    ops = ours("deepseek-v3")["MLA + MoE"]
    merge = ops["attention_merge"]
    assert merge.shape["launches"].evaluate(numbers) == 2
    assert merge.bytes.evaluate(numbers) == 16 * 4 + 3 * 16 * 128 * 512 * (4 + 4)
    assert ops["mla_decode"].shape["copied"].evaluate(numbers) == 16 * 128 * 512 // 2
    assert not any("attention_merge" in block for block in ours("deepseek-v3.2").values())


def test_a_program_has_no_draft_that_an_engine_lacks_nor_another_order() -> None:
    model = load_model("kimi-k3", draft="none")
    engine, program = step_blocks(model), step_blocks(model, program=True)
    assert program.sequence == engine.sequence
    for block, mine in zip(engine.blocks, program.blocks, strict=True):
        order = {op.name: place for place, op in enumerate(block.ops)}
        places = [order[op.name] for op in mine.ops]
        assert places == sorted(places)


@pytest.mark.parametrize("launches", [1.0, 4.0])
def test_each_launch_takes_the_familys_latency(launches: float) -> None:
    machine = load_machine("h200")
    latency = machine.figure("elementwise.latency.bf16").value

    @in_x64
    def seconds(count: float) -> float:
        work = Work.of([Family.ELEMENTWISE], [Rate.BF16], jnp.zeros(1), jnp.ones(1), launches=jnp.full(1, count))
        return float(compute_seconds(Exact(), machine, work)[0])

    assert seconds(launches) - seconds(0.0) == pytest.approx(launches * latency)


def test_quantities_of_a_rank_with_few_experts() -> None:
    traits = traits_of(load_model("deepseek-v3"))
    held = {"experts_rank": 4.0, "experts_touched": 4.0, "ep": 64.0}
    held |= {"context": 10.0, "verify": 1.0, "batch": 16.0, "dcp": 1.0, "attn_tp": 2.0}
    found = program_quantities(Exact(), _scalars(held), traits, 132)
    assert (float(found["choices"]), float(found["chosen_tokens"])) == (4.0, 10.0)
    assert float(found["attention_blocks"]) == 16 and float(found["attention_cut"]) == 0  # ten tokens are a tile
    assert ONE.evaluate({}) == 1 and EXPERTS_RANK.names == {"experts_rank"}


BUSY = [(256, 8, 16, 2), (128, 8, 16, 4), (384, 8, 64, 8), (384, 8, 64, 64), (256, 8, 128, 32), (128, 8, 64, 64)]


@pytest.mark.parametrize(("experts", "topk", "tokens", "ranks"), BUSY)
def test_the_busiest_rank_reads_as_many_experts_as_chance_gives_it(
    experts: int, topk: int, tokens: int, ranks: int
) -> None:
    """Against 400 draws of tokens that choose different experts, each as likely as another."""
    random = np.random.default_rng(0)
    drawn = random.random((400, tokens, experts)).argsort(axis=2)[:, :, :topk]
    touched = np.zeros((400, experts), bool)
    np.put_along_axis(touched, drawn.reshape(400, -1), True, axis=1)
    by_rank = touched.reshape(400, ranks, -1).sum(axis=2)
    held = {"experts_rank": experts / ranks, "ep": float(ranks)}
    found = _busiest(held, by_rank.mean())
    assert found == pytest.approx(by_rank.max(axis=1).mean(), rel=0.012 if experts / ranks > 8 else 0.04)
    assert by_rank.mean() < found <= experts / ranks


def test_a_rank_alone_and_one_whose_experts_are_all_read_wait_for_nobody() -> None:
    assert _busiest({"experts_rank": 64.0, "ep": 1.0}, 20.0) == pytest.approx(20.0)
    assert _busiest({"experts_rank": 64.0, "ep": 8.0}, 64.0) == pytest.approx(64.0)


def _busiest(held: dict[str, float], touched: float) -> float:
    case = {"context": 10.0, "verify": 1.0, "batch": 16.0, "dcp": 1.0, "attn_tp": 2.0, "experts_touched": touched}
    traits = traits_of(load_model("deepseek-v3"))
    return float(program_quantities(Exact(), _scalars(case | held), traits, 132)["experts_busiest"])


@pytest.mark.parametrize("width", [64, 128, 256])
@pytest.mark.parametrize(("heads", "kv_heads"), [(64, 4), (64, 8), (16, 1), (6, 2)])
def test_blocks_of_attention_over_pairs_are_those_of_the_kernel(heads: int, kv_heads: int, width: int) -> None:
    """The cost side does not import the kernel: rows, tiles and parts are held against its here."""
    from layouts.paged.block import Entry
    from layouts.paged.tiling import tiling_of

    pool = jax.ShapeDtypeStruct((1, kv_heads, 2 * width), jnp.bfloat16)
    for requests, verify, tokens in itertools.product((1, 16), (1, 5, 8), (1024, 32768)):
        tiling = tiling_of((requests, verify, heads, width), pool, Entry(width, width, width), tokens, 132)
        case = benching.Case(requests, tokens, verify, kv_heads=kv_heads, group=heads // kv_heads, key=width)
        found = benching.values_of(case, 132)
        group = verify * heads // kv_heads
        blocks = -(-group // tiling.rows)
        assert found["attention_parts"] == tiling.splits
        assert found["attention_blocks"] == requests * kv_heads * blocks * tiling.splits
        assert found["attention_padding"] == pytest.approx(blocks * tiling.rows / group)
