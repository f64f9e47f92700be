"""Counts of toy programs against figures worked out by hand, over a mesh of 2 x 2 x 4 ranks named a, b, c."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec as P

from hw.compat import abstract_mesh, automatic_mesh
from hw.work import CollectiveKind
from layouts import collectives
from layouts.audit import AuditError, Exchanged, count
from layouts.audit.sizes import array_bytes

SIZES, NAMES = (2, 2, 4), ("a", "b", "c")
MESH = abstract_mesh(SIZES, NAMES)
GATHER, SCATTER, REDUCE, EXCHANGE, SEND = (
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.SEND,
)


def mapped(body, mesh=MESH, check_vma=False):
    return jax.shard_map(body, mesh=mesh, in_specs=P(NAMES), out_specs=P(NAMES), check_vma=check_vma)


def counted(body, rows=4, columns=8, dtype=jnp.float32, names=None, **options):
    """Counts of a body that each of the 16 ranks runs on rows x columns of its own."""
    argument = jax.ShapeDtypeStruct((16 * rows, columns), dtype)
    return count(jax.make_jaxpr(mapped(body, **options))(argument), names)


def only(counts):
    (one,) = counts.collectives
    return one


# A rank holds 4 x 8 float32 = 128 bytes.
HAND = {
    "all_gather": (lambda x: collectives.all_gather(x, ("b", "c"), 0), Exchanged(GATHER, 1024, 8, 1, ("b", "c"), "")),
    "all_gather_same": (
        lambda x: x + collectives.all_gather_same(x[:2], ("b",), 0),
        Exchanged(GATHER, 128, 2, 4, ("b",), ""),
    ),
    "psum": (lambda x: collectives.psum(x, ("a",)), Exchanged(REDUCE, 128, 2, 8, ("a",), "")),
    "pmax": (lambda x: collectives.pmax(x, ("a", "b")), Exchanged(REDUCE, 128, 4, 4, ("a", "b"), "")),
    "reduce_scatter": (
        lambda x: collectives.reduce_scatter(x, ("c",), 0),
        Exchanged(SCATTER, 128, 4, 1, ("c",), ""),
    ),
    "all_to_all": (
        lambda x: collectives.all_to_all(x, ("b", "c"), 1, 0),
        Exchanged(EXCHANGE, 128, 8, 1, ("b", "c"), ""),
    ),
    "axes apart": (lambda x: collectives.psum(x, ("a", "c")), Exchanged(REDUCE, 128, 8, 1, ("a", "c"), "")),
    "as named": (lambda x: collectives.psum(x, ("b", "a")), Exchanged(REDUCE, 128, 4, 4, ("b", "a"), "")),
    "send": (lambda x: lax.ppermute(x, "b", [(0, 1), (1, 0)]), Exchanged(SEND, 128, 2, 4, ("b",), "")),
    "pmin": (lambda x: lax.pmin(x, "c"), Exchanged(REDUCE, 128, 4, 1, ("c",), "")),
    "not tiled": (lambda x: lax.all_gather(x, "c").sum(0), Exchanged(GATHER, 512, 4, 1, ("c",), "")),
}


@pytest.mark.smoke
@pytest.mark.parametrize("check_vma", [False, True])
@pytest.mark.parametrize("name", HAND)
def test_each_exchange_is_the_one_worked_out_by_hand(name, check_vma):
    body, expected = HAND[name]
    assert only(counted(lambda x: collectives.vary(body(x), NAMES), check_vma=check_vma)) == expected


def test_devices_make_no_difference():
    body, expected = HAND["reduce_scatter"]
    mesh = automatic_mesh(np.array(jax.devices()).reshape(SIZES), NAMES)
    assert only(counted(body, mesh=mesh)) == expected


def test_a_ragged_exchange_counts_its_operand():
    def body(x):
        room, of = jnp.zeros((9, 8), x.dtype), jnp.ones(4, jnp.int32)
        return lax.ragged_all_to_all(x, room, of, of, of, of, axis_name="c")

    assert only(counted(body)) == Exchanged(EXCHANGE, 128, 4, 1, ("c",), "")


def test_ranks_numbers_and_marks_move_nothing():
    def body(x):
        return collectives.vary(x[:1] * 0 + collectives.axis_index(("a", "c")), NAMES)

    assert counted(body, dtype=jnp.int32, check_vma=True).collectives == ()


def test_groups_of_one_exchange_nothing():
    single = abstract_mesh((16, 1), ("a", "b"))
    program = jax.shard_map(lambda x: lax.psum(x, "b"), mesh=single, in_specs=P("a"), out_specs=P("a"))
    assert count(jax.make_jaxpr(program)(jax.ShapeDtypeStruct((16,), jnp.float32))).collectives == ()


@pytest.mark.parametrize(
    "dtype, expected",
    [
        (jnp.float32, 64 * 4),
        (jnp.bfloat16, 64 * 2),
        (jnp.float8_e4m3fn, 64),
        (jnp.int8, 64),
        (jnp.int4, 32),
        (jnp.float4_e2m1fn, 32),
        (jnp.bool_, 64),
    ],
)
def test_bytes_of_each_dtype(dtype, expected):
    gathered = counted(lambda x: lax.all_gather(x, "c", tiled=True), rows=4, columns=4, dtype=dtype)
    assert only(gathered).payload == expected


def test_half_a_byte_is_a_whole_one():
    assert array_bytes(jax.ShapeDtypeStruct((3,), jnp.int4)) == 2


def flops(f, *shapes, dtype=jnp.float32):
    return count(jax.make_jaxpr(f)(*(jax.ShapeDtypeStruct(s, dtype) for s in shapes))).total_flops


def test_products():
    assert flops(jnp.dot, (3, 5), (5, 7)) == 2 * 3 * 5 * 7
    assert flops(lambda x, y: jnp.einsum("bik,bkj->bij", x, y), (2, 3, 5), (2, 5, 7)) == 2 * 2 * 3 * 5 * 7
    assert flops(jax.vmap(jnp.dot), (2, 3), (2, 3)) == 2 * 2 * 3

    def ragged(x, w):
        return lax.ragged_dot(x, w, jnp.array([1, 2], jnp.int32))

    assert flops(ragged, (6, 5), (2, 5, 7)) == 2 * 6 * 5 * 7  # room for six rows, three of them in a group
    backward = jax.grad(lambda w, x: ragged(x, w).sum())  # forward, and a gradient that groups divide as they contract
    assert flops(backward, (2, 5, 7), (6, 5)) == 2 * (2 * 6 * 5 * 7)

    def conv(x, kernel):
        numbers = ("NWC", "OIW", "NWC")
        return lax.conv_general_dilated(x, kernel, (1,), "VALID", dimension_numbers=numbers, feature_group_count=2)

    assert flops(conv, (1, 10, 4), (6, 2, 3)) == 2 * (8 * 6) * (2 * 3)  # 8 positions, 6 channels; 2 channels, 3 taps

    def scaled(x, y):
        scales = jnp.ones((8, 2), jnp.float8_e8m0fnu)
        return lax.scaled_dot(x, y, lhs_scale=scales, rhs_scale=scales[:5].T, preferred_element_type=jnp.float32)

    assert flops(scaled, (8, 64), (64, 5), dtype=jnp.float8_e4m3fn) == 2 * 8 * 64 * 5


def test_a_dot_under_shard_map_is_one_ranks():
    assert counted(lambda x: x @ x.T).flops == {"": 2 * 4 * 8 * 4}


def test_loops_multiply_and_repeats_merge():
    def body(x):
        def turn(y, _):
            return lax.psum(y, "c") @ jnp.ones((8, 8), y.dtype), None

        x, _ = lax.scan(turn, x, None, length=5)
        return lax.fori_loop(0, 3, lambda i, y: lax.psum(y, "c"), lax.psum(x, "c"))

    found = counted(body)
    assert found.collectives == (Exchanged(REDUCE, 128, 4, 1, ("c",), "", 5 + 3 + 1),)
    assert found.flops == {"": 5 * 2 * 4 * 8 * 8}
    assert found.payload(REDUCE) == found.payload() == 9 * 128
    assert found.payload(GATHER) == 0


def test_loops_in_loops_multiply():
    def body(x):
        def outer(y, _):
            return lax.scan(lambda z, _: (lax.psum(z, "a"), None), y, None, length=3)

        return lax.scan(outer, x, None, length=7)[0]

    assert only(counted(body)).count == 21


def test_a_loop_that_does_not_turn_counts_nothing():
    found = counted(lambda x: lax.scan(lambda y, _: (lax.psum(y @ y.T @ y, "a"), None), x, None, length=0)[0])
    assert found.collectives == () and found.flops == {}


def test_the_worst_branch_counts_and_a_note_says_so():
    def body(x):
        branches = (lambda y: lax.psum(y, "a"), lambda y: lax.psum(lax.psum(y, "a"), "b"), lambda y: y @ y.T @ y)
        return lax.switch(jnp.int32(x[0, 0]), branches, x)

    found = counted(body)
    assert [(e.axes, e.count) for e in found.collectives] == [(("a",), 1), (("b",), 1)]
    assert found.total_flops == 2 * 4 * 8 * 4 + 2 * 4 * 4 * 8
    assert found.notes == ("a cond's branches exchange 128, 256, 0 bytes in different ways: counted as the most",)


def test_what_branches_hold_inside_is_told_too():
    def inner(x):
        y = lax.cond(x[0, 0] > 1, lambda y: lax.psum(y, "a"), lambda y: y, x)
        return jax.pure_callback(np.sin, y, y)

    found = counted(lambda x: lax.cond(x[0, 0] > 0, inner, inner, x))
    assert found.left_out == ("pure_callback",)
    assert found.notes == ("a cond's branches exchange 0, 128 bytes in different ways: counted as the most",)


def test_branches_that_exchange_alike_need_no_note():
    found = counted(lambda x: lax.cond(x[0, 0] > 0, lambda y: lax.psum(y, "a"), lambda y: lax.psum(2 * y, "a"), x))
    assert only(found).count == 1 and found.notes == ()


def test_while_is_refused_only_if_it_holds_something_that_counts():
    def looping(step):
        return lambda x: lax.while_loop(lambda y: y.sum() < 9, step, x)

    assert counted(looping(lambda y: y + jnp.sort(jnp.cumsum(y, 0)))).total_flops == 0
    for step in (lambda y: y @ y.T @ y, lambda y: lax.psum(y, "a"), lambda y: jax.pure_callback(np.sin, y, y)):
        with pytest.raises(AuditError, match="a while holds"):
            counted(looping(step))


def test_labels_are_the_innermost_scopes():
    layer = jax.jit(lambda x, w: jax.checkpoint(lambda y: lax.psum(y @ w, "a"))(x))

    def body(x):
        w = jnp.ones((8, 8), x.dtype)
        with jax.named_scope("first"):
            x = layer(x, w)
            with jax.named_scope("inside"):
                x = lax.scan(lambda y, _: (jax.nn.relu(layer(y, w)), None), x, None, length=2)[0]
        with jax.named_scope("second"):
            return jnp.einsum("ij,jk->ik", layer(x, w), w)

    once = 2 * 4 * 8 * 8
    found = counted(body)
    assert found.flops == {"first": once, "inside": 2 * once, "second": once, "ij,jk->ik": once}
    assert [(e.label, e.count) for e in found.collectives] == [("first", 1), ("inside", 2), ("second", 1)]
    named = counted(body, names={"first", "second"})
    assert named.flops == {"first": 3 * once, "second": 2 * once}
    assert [(e.label, e.count) for e in named.collectives] == [("first", 3), ("second", 1)]


def test_custom_derivatives_are_walked():
    @jax.custom_vjp
    def square(x):
        return lax.psum(x @ x.T, "a")

    square.defvjp(lambda x: (square(x), x), lambda x, g: (g @ x,))
    custom = jax.custom_jvp(lambda x: lax.psum(x, "b"))
    custom.defjvps(lambda t, out, x: t)
    found = counted(lambda x: square(custom(x)))
    assert found.total_flops == 2 * 4 * 8 * 4
    assert Counter(e.axes for e in found.collectives) == {("a",): 1, ("b",): 1}


def test_kernels_and_callbacks_are_listed():
    from jax.experimental import pallas

    def kernel(source, target):
        target[...] = source[...] @ jnp.ones((8, 8), jnp.float32)

    def program(x):
        call = jax.jit(pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((4, 8), jnp.float32), name="mine"))
        return jax.ffi.ffi_call("theirs", jax.ShapeDtypeStruct((4, 8), jnp.float32))(call(call(x)))

    found = count(jax.make_jaxpr(program)(jnp.ones((4, 8))))
    assert found.left_out == ("pallas_call mine", "ffi_call theirs") and found.flops == {}


@pytest.mark.parametrize(
    "body, message",
    [
        (lambda x: lax.all_gather(x, "c", axis_index_groups=[[0, 1], [2, 3]]), "axis_index_groups"),
        (lambda x: lax.pbroadcast(x, "c", 0), "pbroadcast over mesh axes .'c',. is no exchange"),
        (
            lambda x: lax.custom_linear_solve(lambda v: v @ jnp.eye(8), x, lambda f, b: f(b)),
            "custom_linear_solve holds",
        ),
    ],
)
def test_what_cannot_be_counted_is_named(body, message):
    with pytest.raises(AuditError, match=message):
        counted(body)


def test_every_axis_must_be_taken():
    program = jax.shard_map(lambda x: x @ x.T, mesh=MESH, in_specs=P("a"), out_specs=P("a"), axis_names={"a"})
    with pytest.raises(AuditError, match=r"leaves mesh axes \['b', 'c'\]"):
        count(jax.make_jaxpr(program)(jax.ShapeDtypeStruct((4, 8), jnp.float32)))


def test_an_axis_of_one_rank_may_be_left():
    single = abstract_mesh((16, 1), ("a", "b"))
    program = jax.shard_map(lambda x: x @ x.T, mesh=single, in_specs=P("a"), out_specs=P("a"), axis_names={"a"})
    assert count(jax.make_jaxpr(program)(jax.ShapeDtypeStruct((64, 8), jnp.float32))).total_flops == 2 * 4 * 8 * 4


def test_one_program_under_two_meshes_has_two_sizes():
    closed = jax.make_jaxpr(mapped(lambda x: lax.psum(x, "c")))(jax.ShapeDtypeStruct((64, 8), jnp.float32))
    (first,) = closed.jaxpr.eqns
    second = first.replace(params={**first.params, "mesh": abstract_mesh((4, 2, 2), NAMES)})
    found = count(closed.jaxpr.replace(eqns=[first, second]))
    assert [(e.size, e.count) for e in found.collectives] == [(4, 1), (2, 1)]


def test_an_exchange_outside_any_mesh_is_an_error():
    program = jax.make_jaxpr(lambda x: lax.psum(x, "z"), axis_env=[("z", 4)])(jnp.ones(3))
    with pytest.raises(AuditError, match="trace it inside shard_map"):
        count(program)


def test_many_calls_of_one_layer_are_walked_once():
    """Doubling by nesting: 2^40 calls, which only a walk of distinct programs can end."""

    def twice(f):
        inner = jax.jit(f)
        return lambda x: inner(inner(x))

    def program(x):
        return lax.psum(x @ jnp.ones((8, 8), x.dtype), "c")

    for _ in range(40):
        program = twice(program)
    found = counted(program)
    assert only(found).count == 2**40
    assert found.total_flops == 2**40 * 2 * 4 * 8 * 8


STEPS = st.sampled_from(["gather", "scatter", "sum", "exchange", "dot", "loop"])


@given(st.lists(st.tuples(STEPS, st.sampled_from([("a",), ("c",), ("b", "c"), ("a", "b", "c")])), max_size=8))
def test_chains(steps):
    """Any chain of products and exchanges on 16 x 16 values of bfloat16 a rank, against sums kept in plain Python."""
    sizes = dict(zip(NAMES, SIZES, strict=True))
    expected: Counter = Counter()
    expected_flops = 0
    for step, axes in steps:
        n, whole = int(np.prod([sizes[a] for a in axes])), 16 * 16 * 2
        if step == "gather":
            expected[GATHER, whole * n, n] += 1
        elif step in ("scatter", "sum", "exchange"):
            expected[{"scatter": SCATTER, "sum": REDUCE, "exchange": EXCHANGE}[step], whole, n] += 1
        elif step == "loop":
            expected[REDUCE, whole, n] += 3
            expected_flops += 3 * 2 * 16**3
        else:
            expected_flops += 2 * 16**3

    found = counted(lambda x: chain(x, steps), rows=16, columns=16, dtype=jnp.bfloat16)
    amounts: Counter = Counter()
    for e in found.collectives:
        amounts[e.kind, e.payload, e.size] += e.count
    assert amounts == expected
    assert found.total_flops == expected_flops


def chain(x, steps):
    for step, axes in steps:
        if step == "gather":
            x = collectives.all_gather(x, axes, 0)[:16]
        elif step == "scatter":
            x = jnp.resize(collectives.reduce_scatter(x, axes, 0), (16, 16))
        elif step == "exchange":
            x = collectives.all_to_all(x, axes, 1, 0).reshape(16, 16)
        elif step == "sum":
            x = collectives.psum(x, axes)
        elif step == "loop":
            x = lax.scan(lambda y, _, over=axes: (collectives.psum(y @ y, over), None), x, None, length=3)[0]
        else:
            x = x @ x
    return x
