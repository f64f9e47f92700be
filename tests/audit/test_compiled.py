"""What XLA makes of the traced exchanges: the same programs, traced and compiled for 16 simulated CPU devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from hw.compat import COMPILE_TO_RUN_ONCE, automatic_mesh
from hw.work import CollectiveKind
from layouts import collectives
from layouts.audit import AuditError, Message, compiled_messages, count, differences, traced_messages
from layouts.audit.hlo import array_bytes

NAMES = ("a", "b", "c")
GATHER, SCATTER, REDUCE, EXCHANGE, SEND = (
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.SEND,
)


def both(body, dtype=jnp.float32):
    """Messages of a body that each rank runs on 4 x 8 values of its own, traced and compiled."""
    mesh = automatic_mesh(np.array(jax.devices()).reshape(2, 2, 4), NAMES)
    program = jax.shard_map(body, mesh=mesh, in_specs=P(NAMES), out_specs=P(NAMES), check_vma=False)
    traced = jax.jit(program, compiler_options=COMPILE_TO_RUN_ONCE).trace(jax.ShapeDtypeStruct((64, 8), dtype))
    text = traced.lower().compile().as_text()
    assert text is not None
    return traced_messages(count(traced.jaxpr)), compiled_messages(text)


def step(x):
    """Every exchange, some of them in a loop, in branches and in a function called twice."""
    layer = jax.jit(lambda y: collectives.psum(jnp.tanh(y) @ jnp.ones((8, 8), y.dtype), ("a",)))

    def turn(y, _):
        return collectives.all_to_all(collectives.psum(jnp.sin(y), ("c",)), ("b", "c"), 1, 0).reshape(4, 8), None

    x, _ = lax.scan(turn, layer(layer(x)), None, length=3)
    x = collectives.reduce_scatter(collectives.all_gather(x, ("b", "c"), 0), ("a", "b"), 0)[:4]
    x = lax.cond(x[0, 0] > 0, lambda y: lax.pmax(y, "b"), lambda y: lax.pmax(lax.pmin(y, "b"), ("a", "c")), x)
    return lax.ppermute(collectives.all_gather_same(x, NAMES, 1)[:, :8], "c", [(0, 1), (1, 2), (2, 3)])


@pytest.mark.smoke
def test_a_float32_program_sends_what_was_traced():
    traced, compiled = both(step)
    assert differences(traced, compiled) == ()
    assert compiled == {
        Message(REDUCE, 128, 2): 2 + 1,  # two layers, and pmin of the branch that counts
        Message(REDUCE, 128, 4): 3,
        Message(EXCHANGE, 128, 8): 3,
        Message(GATHER, 8 * 128, 8): 1,
        Message(SCATTER, 8 * 128, 4): 1,
        Message(REDUCE, 128, 8): 1,
        Message(GATHER, 16 * 128, 16): 1,
        Message(SEND, 128, 0): 1,
    }


@pytest.mark.parametrize(
    "dtype, wider",
    [
        (jnp.float16, 1),
        (jnp.int8, 1),
        (jnp.bfloat16, 2),
        (jnp.float8_e4m3fn, 2),
        (jnp.float8_e8m0fnu, 4),
        (jnp.float4_e2m1fn, 4),
        (jnp.int4, 2),
    ],
)
def test_the_cpu_sends_types_it_does_not_compute_in_wider(dtype, wider):
    """In every exchange alike, whether it adds or only moves."""
    bits = {jnp.float16: 16, jnp.bfloat16: 16, jnp.int4: 4, jnp.float4_e2m1fn: 4}.get(dtype, 8)
    held = 4 * 8 * bits // 8

    def body(x):
        x = collectives.psum(collectives.all_gather(x, ("c",), 0)[:4], ("a",))
        return collectives.all_to_all(x, ("b", "c"), 1, 0).reshape(4, 8)

    traced, compiled = both(body, dtype)
    assert traced == {Message(GATHER, 4 * held, 4): 1, Message(REDUCE, held, 2): 1, Message(EXCHANGE, held, 8): 1}
    assert compiled == {message._replace(payload=wider * message.payload): 1 for message in traced}
    found = differences(traced, compiled)
    assert len(found) == (0 if wider == 1 else 3) and not any(d.same_bytes for d in found)


@pytest.mark.parametrize("swapped", [False, True])
def test_the_worst_branch_counts(swapped):
    branches = (lambda x: lax.psum(x, "a"), lambda x: lax.psum(lax.psum(x, "a") * 2, "b"))
    traced, compiled = both(lambda x: lax.cond(x[0, 0] > 0, *(branches[::-1] if swapped else branches), x))
    assert traced == compiled == {Message(REDUCE, 128, 2): 2}


def test_a_loop_of_unknown_length_may_hold_what_does_not_count():
    traced, compiled = both(lambda x: lax.psum(lax.while_loop(lambda y: y.sum() < 9, lambda y: y + 1, x), "a"))
    assert traced == compiled == {Message(REDUCE, 128, 2): 1}


def test_sums_of_one_group_are_joined():
    traced, compiled = both(lambda x: collectives.psum(x, ("c",)) * collectives.psum(x * x, ("c",)))
    (found,) = differences(traced, compiled)
    assert found.same_bytes and (found.traced, found.compiled) == ({128: 2}, {256: 1})


def test_what_is_not_used_is_dropped():
    def body(x):
        collectives.psum(x, ("c",))
        return collectives.psum(x, ("a",))

    (found,) = differences(*both(body))
    assert str(found) == "all_reduce over 4: traced 1 x 128 B, compiled none"


def test_what_the_compiler_adds_is_listed():
    (found,) = differences({}, {Message(SEND, 64, 0): 2})
    assert str(found) == "send: traced none, compiled 2 x 64 B"


# Forms that the CPU backend does not write, after XLA's printer: asynchronous pairs, and groups as iota or mesh axes.
ASYNC = """HloModule jit_step, is_scheduled=true, num_partitions=8

%wrapped (p.1: f32[16,4]) -> f32[4,4] {
  %p.1 = f32[16,4]{1,0} parameter(0)
  ROOT %rs = f32[4,4]{1,0} reduce-scatter(%p.1), channel_id=2, replica_groups=[2,4]<=[8], dimensions={0}, to_apply=%add
}, execution_thread="main"

%turn (t: (s32[], bf16[8])) -> (s32[], bf16[8]) {
  %t = (s32[], bf16[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %v = bf16[8]{0:T(256)(128)(2,1)S(1)} get-tuple-element(%t), index=1
  %s = bf16[8]{0} all-reduce(%v), channel_id=3, replica_groups={}, use_global_device_ids=true, to_apply=%add
  ROOT %next = (s32[], bf16[8]{0}) tuple(%i, %s)
}

%more (u: (s32[], bf16[8])) -> pred[] {
  %u = (s32[], bf16[8]{0}) parameter(0)
  ROOT %go = pred[] constant(true)
}

ENTRY %main (x: f32[16,4], h: s4[3], z: (s32[], bf16[8])) -> f32[4,4] {
  %x = f32[16,4]{1,0} parameter(0)
  %h = s4[3]{0:E(4)} parameter(1)
  %z = (s32[], bf16[8]{0}) parameter(2)
  %ags = ((f32[16,4]{1,0}, s4[3]{0:E(4)}), (f32[64,4]{1,0}, s4[12]{0:E(4)})) all-gather-start(%x, /*index=1*/%h), \
channel_id=1, replica_groups=[4,2]<=[2,4]T(1,0), dimensions={0}
  %agd = (f32[64,4]{1,0}, s4[12]{0:E(4)}) all-gather-done(%ags)
  %cps = (f32[16,4]{1,0}, f32[16,4]{1,0}, u32[], u32[]) collective-permute-start(%x), source_target_pairs={{0,1},{1,0}}
  %cpd = f32[16,4]{1,0} collective-permute-done(%cps)
  %rss = ((f32[16,4]{1,0}), f32[4,4]{1,0}) async-start(%x), calls=%wrapped
  %rsd = f32[4,4]{1,0} async-done(%rss), calls=%wrapped
  %one = f32[16,4]{1,0} all-reduce(%x), replica_groups={{0},{1},{2},{3},{4},{5},{6},{7}}, to_apply=%add
  %o = s32[2]{0} constant({0, 1})
  %ragged = f32[16,4]{1,0} ragged-all-to-all(%x, %one, %o, %o, %o, %o), replica_groups={{0,1},{2,3},{4,5},{6,7}}
  %a2a = f32[16,4]{1,0} all-to-all(%one), replica_groups=mesh['a'=2,'b'=4] {'a','b':(1)2}, dimensions={0}
  %w = (s32[], bf16[8]{0}) while(%z), condition=%more, body=%turn, backend_config={"known_trip_count":{"n":"7"}}
  ROOT %out = f32[4,4]{1,0} copy(%rsd)
}
"""


def test_bytes_of_shapes():
    assert array_bytes("pred[3]{0}") == 3
    assert array_bytes("(f8e4m3fn[2,3]{1,0:T(8,128)}, s4[3]{0:E(4)}, token[], bf16[])") == 6 + 2 + 0 + 2


def test_replicas_are_ranks_too():
    found = compiled_messages(ASYNC.replace("num_partitions=8", "replica_count=2, num_partitions=8"))
    assert found[Message(REDUCE, 16, 16)] == 7


def test_asynchronous_pairs_count_once_and_every_form_of_group_is_read():
    assert compiled_messages(ASYNC) == {
        Message(GATHER, 2 * (16 * 4 * 4 + 2), 2): 1,  # three values of four bits take two bytes
        Message(SEND, 256, 0): 1,
        Message(SCATTER, 256, 4): 1,
        Message(EXCHANGE, 256, 2): 1,
        Message(EXCHANGE, 256, 4): 1,
        Message(REDUCE, 16, 8): 7,
    }


@pytest.mark.parametrize(
    "old, new, message",
    [
        ('backend_config={"known_trip_count":{"n":"7"}}', 'metadata={op_name="w"}', "w: a while of unknown length"),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", "replica_groups={{0,1,2},{3,4,5,6,7}}", "ags: its replica groups"),
        (" all-to-all(", " collective-broadcast(", "a2a: a collective broadcast"),
        ("ENTRY ", "", "no ENTRY"),
    ],
)
def test_what_cannot_be_read_is_named(old, new, message):
    assert old in ASYNC
    with pytest.raises(AuditError, match=message):
        compiled_messages(ASYNC.replace(old, new))
