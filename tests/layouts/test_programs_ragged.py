"""Dispatch by a ragged exchange: its arithmetic against a simulation of the exchange, its sums against NumPy loops.

XLA has no ragged exchange for CPUs. Here it is stood in for by one made of all-gathers, which leaves NaN wherever the
real one writes nothing; on a machine with two GPUs `pytest --noconftest -k gpus` runs the real one.
"""

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import layouts.moe.ragged as ragged
from hw.compat import COMPILE_TO_RUN_ONCE
from hw.work import CollectiveKind
from layouts import collectives
from layouts.audit.count import count
from layouts.collectives import Slices
from layouts.dense.activation import ClampedSwiGLU, SiTU
from layouts.layout import Layout
from layouts.mesh import abstract_mesh_of, axes_of, mesh_of
from layouts.moe.dispatch import by_all_to_all
from layouts.moe.grouped import NOWHERE
from layouts.moe.ragged import by_ragged_all_to_all, slices, wanted_experts
from layouts.moe.reference import Experts
from layouts.moe.router import Routing
from layouts.moe.wire import Wire
from tests.layouts.moe_oracle import act

LEFT = -7  # what stands where nothing is written
mine, numbers = jax.jit(slices), jax.jit(wanted_experts, static_argnums=1)


def simulated(operands, outputs, every):
    """What the documentation of `jax.lax.ragged_all_to_all` says that each rank ends with; also that sizes match."""
    results = [output.copy() for output in outputs]
    for sender, sent in enumerate(every):
        for receiver, result in enumerate(results):
            start, size, place = (int(numbers[receiver]) for numbers in sent[:3])
            assert size == every[receiver].arriving[sender]
            assert 0 <= start <= start + size <= len(operands[sender])
            assert 0 <= place <= place + size <= len(result)
            result[place : place + size] = operands[sender][start : start + size]
    return results


def test_the_simulation_gives_the_documented_example():
    """The two ranks of JAX's docstring; its sizes of what arrives are checked with the rest."""
    every = [
        Slices(*map(jnp.array, ([0, 1], [1, 2], [0, 0], [1, 1]))),
        Slices(*map(jnp.array, ([0, 1], [1, 1], [1, 2], [2, 1]))),
    ]
    results = simulated([np.array([1, 2, 2]), np.array([3, 4, 0])], [np.zeros(4, int)] * 2, every)
    assert [result.tolist() for result in results] == [[1, 3, 0, 0], [2, 2, 4, 0]]


def counts(rows, columns):
    """Tables of few shapes: each is compiled for."""
    return st.lists(st.lists(st.integers(0, 4), min_size=columns, max_size=columns), min_size=rows, max_size=rows)


@given(st.sampled_from([1, 2, 5]).flatmap(lambda ranks: counts(ranks, ranks)))
def test_rows_arrive_by_sender_and_return_to_their_places(between):
    """Each row is (sender, receiver, which of them): what a rank gets is packed, and all of it finds back."""
    ranks = range(len(between))
    table = jnp.asarray(between, jnp.int32)
    messages = [np.array([(i, j, k) for j in ranks for k in range(between[i][j])] + [(LEFT,) * 3] * 3) for i in ranks]
    room = np.full((4 * len(between) + 2, 3), LEFT)
    arrived = simulated(messages, [room] * len(between), [mine(table, jnp.int32(i)) for i in ranks])
    for j, rows in enumerate(arrived):
        expected = [[i, j, k] for i in ranks for k in range(between[i][j])]
        assert rows.tolist() == expected + [[LEFT] * 3] * (len(room) - len(expected))
    empty = [np.full_like(message, LEFT) for message in messages]
    back = simulated(arrived, empty, [mine(table.T, jnp.int32(i)) for i in ranks])
    assert all((got == message).all() for got, message in zip(back, messages, strict=True))


@given(st.sampled_from([(1, 3), (4, 1), (3, 4)]).flatmap(lambda shape: counts(*shape)))
def test_counts_alone_say_which_expert_a_row_is_for(arriving):
    expected = [expert for sender in arriving for expert, rows in enumerate(sender) for _ in range(rows)]
    found = numbers(jnp.asarray(arriving, jnp.int32), 50)
    assert found.tolist() == expected + [NOWHERE] * (50 - len(expected))
    assert found.dtype == jnp.int32


@given(st.integers(0, 4), st.integers(0, 4), st.integers(0, 3))
def test_a_lone_rank_sends_to_itself(start, place, size):
    alone = Slices(*(jnp.array([number], jnp.int32) for number in (start, size, place, size)))
    x, onto = np.arange(14.0).reshape(7, 2), np.full((8, 2), np.nan)
    found = collectives.ragged_all_to_all(jnp.asarray(x, jnp.float32), jnp.asarray(onto, jnp.float32), alone, ())
    np.testing.assert_array_equal(found, simulated([x], [onto], [alone])[0])


# ------------------------------------------------------------------------------------------------- over a mesh

ROWS, TOPK, HIDDEN, INNER = 6, 3, 8, 4
KIND = "softmax of chosen, biases"
GPUS = jax.device_count() if jax.default_backend() == "gpu" else 0
OPTIONS = None if GPUS else COMPILE_TO_RUN_ONCE
exchanging = functools.partial(Layout, dispatch="all_to_all")
# layout, experts of a rank: fewer than a row chooses, as many, more
CUTS = [
    (exchanging(attn_dp=16, ep=16), 1),
    (exchanging(attn_dp=2, attn_tp=8, ep=16), 2),  # over two mesh axes
    (exchanging(attn_dp=4, attn_tp=2, ep=8, replicas=2), 2),
    (exchanging(attn_dp=4, ep=2, moe_dp=2), 3),
    (exchanging(attn_dp=2, ep=2), 6),
    (Layout(), 5),
]


def stand_in(x, onto, slices, axes):
    """`ragged_all_to_all` of gathered operands; NaN (zero bytes of a fp8 wire) wherever nothing arrives."""
    if not axes:
        return collectives.ragged_all_to_all(x, onto, slices, axes)
    operands, starts, places = (lax.all_gather(numbers, axes) for numbers in (x, slices.starts, slices.places))
    own, result = lax.axis_index(axes), jnp.full_like(onto, jnp.nan if jnp.issubdtype(onto.dtype, jnp.floating) else 0)
    for sender in range(len(operands)):
        nth = jnp.arange(len(onto), dtype=jnp.int32) - places[sender, own]
        inside = (nth >= 0) & (nth < slices.arriving[sender])
        rows = jnp.take(operands[sender], starts[sender, own] + nth, axis=0, mode="clip")
        result = jnp.where(inside[:, None], rows, result)
    return result


def problem(layout, held, hidden=HIDDEN, skewed=False):
    """Rows of every rank, NaN where there is no token, their choices, and the experts of one copy."""
    random, ranks = np.random.default_rng(1), layout.gpus
    experts = held * layout.ep
    topk = min(TOPK, experts)
    x = random.normal(size=(ranks, ROWS, hidden))
    real = random.random((ranks, ROWS)) < 0.7
    real[1:2], real[2:3] = False, True  # a rank that sends nothing, one that sends all
    x[~real] = np.nan
    chosen = np.argsort(random.random((ranks, ROWS, experts)), axis=-1)[..., :topk]
    if skewed:
        chosen = np.broadcast_to(np.arange(topk), chosen.shape)  # all to the first ranks, which get the most they can
    shares = random.dirichlet(np.ones(topk), (ranks, ROWS))
    shapes = ((experts, 2, INNER, hidden), (experts, hidden, INNER), (experts, 2, INNER), (experts, hidden))
    weights = Experts(*(jnp.asarray(random.normal(size=shape), jnp.float32) for shape in shapes))
    routing = Routing(jnp.asarray(chosen, jnp.int32), jnp.asarray(shares, jnp.float32))
    return jnp.asarray(x, jnp.float32), routing, jnp.asarray(real), weights


def program(op, layout):
    """What every rank ends with, (ranks, rows, hidden), of a problem."""
    axes = axes_of(layout)
    rank, of = axes.spec(("replicas", "tp")), axes.spec("ep")

    def body(x, routing, real, experts):
        chosen, weights = (part[0] for part in routing)
        return op(x[0], Routing(chosen, weights), real[0], experts, ClampedSwiGLU(0.5), axes)[None]

    mapped = jax.shard_map(body, mesh=mesh_of(layout), in_specs=(rank, rank, rank, of), out_specs=rank)
    return jax.jit(mapped, compiler_options=OPTIONS)


def oracle(x, routing, real, experts):
    """Row by row and choice by choice, float64; zeros for rows without a token."""
    x, chosen, weights, experts = jax.tree.map(lambda a: np.asarray(a, np.float64), (x, *routing, experts))
    out = np.zeros_like(x)
    for rank, row in zip(*np.nonzero(real), strict=True):
        for expert, share in zip(chosen[rank, row].astype(int), weights[rank, row], strict=True):
            gate, up = experts.w13[expert] @ x[rank, row] + experts.w13_bias[expert]
            out[rank, row] += share * (experts.w2[expert] @ act(KIND, gate, up) + experts.w2_bias[expert])
    return out


def check(layout, held):
    """Choices at random, and all on the first ranks."""
    run = program(by_ragged_all_to_all, layout)
    for skewed in (False, True):
        given = problem(layout, held, skewed=skewed)
        np.testing.assert_allclose(run(*given), oracle(*given), atol=2e-5)


@pytest.mark.parametrize(("layout", "held"), CUTS)
def test_every_row_gets_the_sum_of_its_experts(layout, held, monkeypatch):
    monkeypatch.setattr(ragged, "ragged_all_to_all", stand_in)
    check(layout, held)


@pytest.mark.skipif(GPUS < 2, reason="needs two GPUs: pytest --noconftest -k gpus")
def test_two_gpus_give_the_same():
    with jax.default_matmul_precision("highest"):
        check(exchanging(attn_dp=2, ep=2), 6)


def test_rows_without_a_token_are_not_sent(monkeypatch):
    """Four of a lone rank's rows hold one, and travel for each of three choices: out, and back."""
    seen = []

    def noted(x, onto, slices, axes):
        seen.append((slices.sizes, slices.arriving))
        return collectives.ragged_all_to_all(x, onto, slices, axes)

    def sizes(x, chosen, weights, real, experts):
        by_ragged_all_to_all(x[0], Routing(chosen[0], weights[0]), real, experts, ClampedSwiGLU(0.5), axes_of(Layout()))
        return seen

    monkeypatch.setattr(ragged, "ragged_all_to_all", noted)
    x, routing, _, experts = problem(Layout(), 5)
    real = jnp.array([True, False, True, True, False, True])
    found = jax.jit(sizes, compiler_options=OPTIONS)(x, *routing, real, experts)
    assert np.ravel(found).tolist() == [4 * 3] * 4


def test_what_arrives_may_differ_wherever_the_rows_or_the_ranks_do():
    """In a group of two of eight ranks, onto zeros, which are the same on all."""
    layout = exchanging(attn_dp=8, ep=2, moe_dp=4)
    axes = axes_of(layout)

    def body(x):
        of = jnp.ones(2, jnp.int32)
        found = collectives.ragged_all_to_all(x, jnp.zeros((4, 3), x.dtype), Slices(of, of, of, of), axes["ep"])
        assert set(jax.typeof(found).manual_axis_type.varying) == set(axes["tp"])
        return found

    spec = axes.spec("tp")
    mapped = jax.shard_map(body, mesh=abstract_mesh_of(layout), in_specs=spec, out_specs=spec)
    jax.jit(mapped).trace(jax.ShapeDtypeStruct((32, 3), jnp.float32))


def test_the_fp8_wire_carries_what_the_other_form_does(monkeypatch):
    monkeypatch.setattr(ragged, "ragged_all_to_all", stand_in)
    layout = exchanging(attn_dp=2, ep=2)
    given = problem(layout, 3, hidden=128)
    small = functools.partial(by_ragged_all_to_all, wire=Wire(fp8=True))
    expected = program(functools.partial(by_all_to_all, wire=Wire(fp8=True)), layout)(*given)
    found = program(small, layout)(*given)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(found - oracle(*given)).max() > 1e-3


def traced(layout, rows):
    """A layer's routed experts of Kimi K3 (896, 16 a token, on a latent width of 3584), traced without devices."""
    axes = axes_of(layout)
    of: Any = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)
    rank, spec = axes.spec(("replicas", "tp")), axes.spec("ep")

    def body(x, chosen, weights, real, experts):
        return by_ragged_all_to_all(x, Routing(chosen, weights), real, experts, SiTU(4.0, 25.0), axes)

    program = jax.shard_map(
        body, mesh=abstract_mesh_of(layout), in_specs=(rank, rank, rank, rank, spec), out_specs=rank
    )
    total = layout.gpus * rows
    return jax.jit(program).trace(
        of((total, 3584)),
        jax.ShapeDtypeStruct((total, 16), jnp.int32),
        jax.ShapeDtypeStruct((total, 16), jnp.float32),
        jax.ShapeDtypeStruct((total,), bool),
        Experts(of((896, 2, 3072, 3584)), of((896, 3584, 3072))),
    )


@pytest.mark.parametrize(("groups", "ranks", "most"), [(2, 16, 16), (16, 128, 7)])
def test_full_size_counts_the_choices_on_the_way_out_and_the_room_on_the_way_back(groups, ranks, most):
    """120 rows of 16 choices, 2 bytes a value. A rank of 16 holds 56 experts and may get all 16 choices of every row,
    one of 128 holds 7. The counts of 896 experts come from all."""
    trace = traced(exchanging(attn_dp=groups, attn_tp=8, ep=ranks), 120)
    assert trace.out_info.shape == (ranks * 120, 3584)
    row = 3584 * 2
    assert {(e.kind, e.payload, e.size) for e in count(trace.jaxpr).collectives} == {
        (CollectiveKind.ALL_GATHER, ranks * 896 * 4, ranks),
        (CollectiveKind.ALL_TO_ALL, 120 * 16 * row, ranks),
        (CollectiveKind.ALL_TO_ALL, ranks * 120 * most * row, ranks),
    }


@pytest.mark.smoke
def test_a_group_over_two_mesh_axes_counts_its_ranks_from_the_outermost():
    lowered = traced(exchanging(attn_dp=4, attn_tp=2, ep=8, replicas=2), 4).lower(lowering_platforms=("cuda",))
    groups = re.findall(r"@ragged_all_to_all.*replica_groups = dense<(.*?)>", lowered.as_text())
    assert groups == [str([list(range(8)), list(range(8, 16))])] * 2
