"""Ops priced and summed into a step: nothing is lost between the blocks and the schedule."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from explorer.evaluate import Case, Tables, timing
from explorer.schedule import Schedule
from hw.arithmetic import Exact
from hw.compat import COMPILE_TO_RUN_ONCE, x64
from hw.programs import kept
from hw.time import collective_seconds, compute_seconds
from hw.work import Collective, Work
from layouts.blocks import step_blocks
from layouts.cut import Cut, cut_of
from layouts.layout import Layout
from layouts.op import Stream
from tests.explorer.settings import ARTICLE, QWEN, V3, Setting, setting
from tests.layouts import oracle


@kept(COMPILE_TO_RUN_ONCE)
def _priced(tables: Tables, cut: Cut, case: Case) -> tuple[Array, Schedule]:
    values = tables.values(Exact(), cut, case.load, case.machine)
    seconds = tables.step.op_seconds(Exact(), case.machine, values)
    return seconds, timing(Exact(), tables, cut, case, values)


def priced(asked: Setting, layout: Layout) -> tuple[np.ndarray, Schedule]:
    """Seconds of each op and the schedule of streams that do not disturb each other, as NumPy."""
    with x64():
        return jax.tree.map(np.asarray, _priced(asked.tables, cut_of(layout), _undisturbed(asked.case)))


def _undisturbed(case: Case) -> Case:
    """The same on a machine whose streams take nothing from each other."""
    fields = (case.machine.curves.contention, case.machine.exchange.contention)
    with x64():
        none = tuple(map(jnp.zeros_like, fields))
    return eqx.tree_at(lambda c: (c.machine.curves.contention, c.machine.exchange.contention), case, none)


def by_hand(asked: Setting, layout: Layout) -> tuple[dict[tuple[int, str], float], list[float], list[float]]:
    """The same from the blocks, one op after the other: seconds by (block, op), and work and gather by position."""
    request = asked.request
    numbers = oracle.values(request.model, layout, asked.oracle_case)
    step = step_blocks(request.model, request.prefill)
    seconds: dict[tuple[int, str], float] = {}
    for place, block in enumerate(step.blocks):
        for op in block.ops:
            with x64():
                time = _op_seconds(asked, op, numbers)
            seconds[place, op.name] = time * float(op.share.evaluate(numbers))
    streams = [
        [
            sum(seconds[i, op.name] for op in block.ops if (op.stream is Stream.GATHER) == gathers)
            for i, block in enumerate(step.blocks)
        ]
        for gathers in (False, True)
    ]
    sharded = layout.weight_shard_layers
    gathering = [sharded.any and sharded.first <= p - step.target.start <= sharded.last for p in step.target]
    share = [0.0, *map(float, gathering), 0.0, *[float(sharded.any and sharded.draft)] * len(step.draft)]
    work, gather = ([stream[i] for i in step.sequence] for stream in streams)
    return seconds, work, [g * s for g, s in zip(gather, share, strict=True)]


def _op_seconds(asked: Setting, op, numbers: dict) -> float:
    def column(field: str) -> Array:
        return jnp.array([float(getattr(op, field).evaluate(numbers))])

    machine = asked.request.machine
    shapes = {name: jnp.array([float(value.evaluate(numbers))]) for name, value in op.shape.items()}
    if op.family is not None:
        work = Work.of([op.family], [op.rate], column("flops"), column("bytes"), **shapes)
        return float(compute_seconds(Exact(), machine, work)[0])
    sizes = column("payload"), column("size"), column("stride")
    return float(collective_seconds(Exact(), machine, Collective.of([op.collective], *sizes, **shapes))[0])


@pytest.mark.parametrize(
    ("model", "text", "options"),
    [
        (ARTICLE, "attn_dp=16,ep=16", {"context": 100_000, "concurrency": 256}),
        (ARTICLE, "attn_dp=2,dcp=8,ep=16", {"context": 100_000, "concurrency": 256}),
        (QWEN, "pp=2,attn_dp=2,attn_tp=4", {"concurrency": 50}),
        (V3, "attn_dp=2,ep=16", {"draft": "mtp", "verify_width": 3}),
        (V3, "attn_cp=2,attn_tp=8", {"phase": "prefill"}),
    ],
)
def test_a_step_is_the_sum_of_its_ops(model: str, text: str, options: dict[str, float | str]) -> None:
    asked = setting(model, **options)
    layout = asked.read(text)
    seconds, work, gather = by_hand(asked, layout)
    found, schedule = priced(asked, layout)
    table = asked.tables.step
    assert dict(zip(zip(table.block.tolist(), table.names, strict=True), found.tolist(), strict=True)) == pytest.approx(
        seconds, rel=1e-9, abs=1e-15
    )
    np.testing.assert_allclose(schedule.main, work, rtol=1e-9)
    np.testing.assert_allclose(schedule.gather, gather, rtol=1e-9, atol=1e-18)
    assert float(schedule.step) == pytest.approx(max(sum(work) + float(schedule.wait.sum()), float(schedule.host)))
    assert float(schedule.gpu) >= sum(work) * (1 - 1e-12)


def test_gathers_are_priced_only_where_weights_are_sharded() -> None:
    asked = setting(ARTICLE, context=100_000)
    step = asked.tables.step
    whole = priced(asked, asked.read("attn_dp=16,ep=16,weight_shard=1"))[1]
    assert whole.gather.sum() == whole.wait.sum() == 0
    some = priced(asked, asked.read("attn_dp=16,ep=16,weight_shard_layers=10-19"))[1]
    assert np.flatnonzero(some.gather).tolist() == [step.target.start + i for i in range(10, 20)]
    draft = priced(asked, asked.read("attn_dp=16,ep=16,weight_shard_layers=10-19+draft"))[1]
    assert [step.block_names[step.sequence[i]] for i in np.flatnonzero(draft.gather)[10:]] == [
        "draft GQA window + dense"
    ] * 5


@pytest.mark.parametrize("model", [ARTICLE, V3, QWEN])
def test_no_op_takes_negative_time_and_every_main_position_takes_some(model: str) -> None:
    asked = setting(model)
    for layout in asked.layouts(6, seed=2):
        seconds, schedule = priced(asked, layout)
        assert np.all(seconds >= 0)
        assert np.all(schedule.main > 0)
        assert np.all(np.isfinite(seconds))


def test_the_shared_expert_hides_under_the_combine_where_the_engine_runs_it_there() -> None:
    asked = setting(ARTICLE, context=100_000, concurrency=256)
    layout, table = asked.read("attn_dp=2,dcp=8,ep=16"), asked.tables.step
    under = replace(asked.case, overlap=np.float64(1.0))
    with x64():
        cut = cut_of(layout)
        (seconds, behind), (_, beside) = (
            jax.tree.map(np.asarray, _priced(asked.tables, cut, case))
            for case in (_undisturbed(asked.case), _undisturbed(under))
        )
    saved = behind.main - beside.main
    for position in table.target:
        block = table.sequence[position]
        of_block = {table.names[i]: seconds[i] for i in np.flatnonzero(table.block == block)}
        shared = sum(t for name, t in of_block.items() if name.startswith("shared_"))
        assert saved[position] == pytest.approx(min(shared, of_block.get("combine", 0.0)), rel=1e-9, abs=1e-15)
    assert saved.sum() > 0.0
