"""Attention programs: reference against the oracle, every way of cutting against both, on simulated devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import layouts.gqa.reference as gqa_reference
import layouts.gqa.sharded as gqa_sharded
import layouts.mla.reference as mla_reference
import layouts.mla.sharded as mla_sharded
from layouts.cache import Batch, KVPool
from layouts.collectives import psum
from layouts.gqa import GQA
from layouts.layout import Layout
from layouts.mesh import abstract_mesh_of, axes_of, mesh_of
from layouts.mla import MLA
from layouts.rotary import Rotation
from layouts.serving.owner import owner, row
from tests.layouts import attention_oracle as oracle

EPS, VERIFY, CONTEXT = 1e-5, 3, 40
SCALE = 0.3
# tokens that a request has after the step; None is an idle row. Attention groups have unequal loads.
LENGTHS = (25, 3, None, 40)
MLAS = {
    "gate": MLA(32, 16, 12, 16, 8, 4, 6, True, None),
    "rope": MLA(32, 16, 12, 16, 8, 4, 6, False, None),
    "full-rank query": MLA(32, 16, 0, 16, 8, 4, 6, False, None),
}
GQAS = {
    "gpt-oss": GQA(32, 16, 2, 8, 7, True, False, True),
    "qwen3": GQA(32, 16, 4, 8, 0, False, True),
    "sinks": GQA(32, 16, 1, 8, 0, True, False, True),
}


def relative(found, expected):
    return np.abs(np.asarray(found, np.float64) - expected).max() / np.abs(expected).max()


def mla_weights(shape, random):
    """Names to float64 arrays: those of the oracle, and those of the programs."""
    width, low = shape.heads * (shape.nope + shape.rope), shape.q_lora or shape.hidden
    w = {
        "kv_a_norm": random.normal(size=shape.kv_lora) + 1,
        "kv_b_proj": random.normal(size=(shape.heads * (shape.nope + shape.v), shape.kv_lora)) / 4,
        "o_proj": random.normal(size=(shape.hidden, shape.heads * shape.v)) / 10,
    }
    if shape.q_lora:
        w["fused_qkv_a_proj"] = random.normal(size=(low + shape.kv_values, shape.hidden)) / 6
        w["q_a_norm"] = random.normal(size=low) + 1
        w["q_b_proj"] = random.normal(size=(width, low)) / 3
    else:
        w["kv_a_proj"] = random.normal(size=(shape.kv_values, shape.hidden)) / 6
        w["q_proj"] = random.normal(size=(width, low)) / 6
    if shape.output_gate:
        w["gate_proj"] = random.normal(size=(shape.heads * shape.v, shape.hidden)) / 6
    ours = {k: v for k, v in w.items() if k != "kv_b_proj"}
    ours["w_kc"], ours["w_vc"] = mla_reference.absorb(shape, jnp.asarray(w["kv_b_proj"], jnp.float32))
    return w, floats(ours)


def gqa_weights(shape, random):
    heads = {"q": shape.heads, "k": shape.kv_heads, "v": shape.kv_heads}
    w = {f"{n}_proj": random.normal(size=(h * shape.head_dim, shape.hidden)) / 6 for n, h in heads.items()}
    w["o_proj"] = random.normal(size=(shape.hidden, shape.heads * shape.head_dim)) / 10
    if shape.bias:
        w |= {f"{n}_bias": random.normal(size=h * shape.head_dim) / 3 for n, h in heads.items()}
        w["o_bias"] = random.normal(size=shape.hidden)
    if shape.qk_norm:
        w["qk_norm"] = random.normal(size=2 * shape.head_dim) + 1
    if shape.sinks:
        w["sinks"] = random.normal(size=shape.heads)
    ours = {k: v for k, v in w.items() if k[:2] not in ("k_", "v_")}
    for part in ("proj", "bias") if shape.bias else ("proj",):
        pair = floats({"k": w[f"k_{part}"], "v": w[f"v_{part}"]})
        ours[f"kv_{part}"] = gqa_reference.grouped_kv(shape, pair["k"], pair["v"])
    return w, floats(ours)


def floats(tree):
    return {k: jnp.asarray(v, jnp.float32) for k, v in tree.items()}


def angles_of(positions, pairs):
    return np.asarray(positions)[:, None] * 0.5 ** np.arange(pairs)


class Problem:
    """Requests with a past, of one shape; `turns` pairs of values are rotated."""

    def __init__(self, shape, requests, turns, interleaved=False):
        random = np.random.default_rng(7)
        self.shape, self.turns, self.interleaved = shape, turns, interleaved
        self.lengths = [LENGTHS[i % len(LENGTHS)] for i in range(requests)]
        self.mla = isinstance(shape, MLA)
        self.checkpoint, self.weights = (mla_weights if self.mla else gqa_weights)(shape, random)
        self.hidden = [random.normal(size=(length or VERIFY, shape.hidden)) for length in self.lengths]

    @property
    def rows(self):
        return jnp.asarray(np.concatenate([h[-VERIFY:] for h in self.hidden]), jnp.float32)

    @property
    def live(self):
        """Rows of requests that are not idle."""
        return np.repeat([length is not None for length in self.lengths], VERIFY)

    @property
    def starts(self):
        return np.array([0 if length is None else length - VERIFY for length in self.lengths], np.int32)

    def rotation(self, positions):
        if not self.turns:
            return None
        angles = jnp.asarray(angles_of(positions, self.turns), jnp.float32)
        return Rotation(jnp.cos(angles), jnp.sin(angles), self.interleaved)

    @property
    def new_rotation(self):
        return self.rotation((self.starts[:, None] + np.arange(VERIFY)).reshape(-1))

    @functools.cached_property
    def expected(self):
        """Oracle outputs of all rows; those of idle requests are of no interest."""
        out = []
        for hidden in self.hidden:
            angles = angles_of(np.arange(len(hidden)), self.turns) if self.turns else None
            more = {"interleaved": self.interleaved} if self.mla else {}
            call = oracle.mla if self.mla else oracle.gqa
            out.append(call(self.shape, self.checkpoint, hidden, VERIFY, SCALE, EPS, angles, **more))
        return np.concatenate(out)

    @functools.cached_property
    def past(self):
        """What is cached of each request before the step, as the projections give it."""
        module = mla_reference if self.mla else gqa_reference
        hidden = jnp.asarray(np.concatenate(self.hidden), jnp.float32)
        positions = np.concatenate([np.arange(len(h)) for h in self.hidden])
        project = jax.jit(module.project, static_argnums=(0, 4))
        _, cached = project(self.shape, self.weights, hidden, self.rotation(positions), EPS)
        split = np.split(np.asarray(cached), np.cumsum([len(h) for h in self.hidden])[:-1])
        return [tokens[:start] for tokens, start in zip(split, self.starts, strict=True)]


@pytest.mark.parametrize("name", [*MLAS, *GQAS])
@pytest.mark.parametrize("turns", [0, 2])
def test_reference_equals_the_oracle(name, turns):
    problem = Problem((MLAS | GQAS)[name], 4, turns, interleaved=name == "rope")
    cache = np.zeros((4, CONTEXT, *problem.past[0].shape[1:]), np.float32)
    for line, past in zip(cache, problem.past, strict=True):
        line[: len(past)] = past
    module = mla_reference if problem.mla else gqa_reference
    decode = jax.jit(functools.partial(module.decode, problem.shape, scale=SCALE, eps=EPS))
    rotation = problem.new_rotation
    found, _ = decode(problem.weights, problem.rows, jnp.asarray(cache), jnp.asarray(problem.starts), rotation=rotation)
    assert relative(found[problem.live], problem.expected[problem.live]) < 2e-5


def laid_out(problem, layout, page_interleave, page=2):
    """Pools of all ranks with the past in them, NaN elsewhere, and the batch of each attention group, joined."""
    kv_heads = 1 if problem.mla else problem.shape.kv_heads
    own = max(1, kv_heads // layout.attn_tp)
    shape = (problem.past[0].shape[-1],) if problem.mla else (own, problem.past[0].shape[-1])
    groups, batches = [], []
    for group in range(layout.attn_dp):
        mine = [i for i in range(len(problem.lengths)) if i // (len(problem.lengths) // layout.attn_dp) == group]
        pool = KVPool(60, page, layout.dcp, len(mine), CONTEXT, page_interleave)
        memory = np.full((layout.attn_tp, pool.rows_a_rank, *shape), np.nan, np.float32)
        requests = []
        for i in mine:
            request = None if problem.lengths[i] is None else pool.admit()
            requests.append(request)
            if request is None:
                continue
            slots = pool.extend(request, problem.lengths[i])[: problem.starts[i]]
            where = owner(slots, layout.dcp, pool.interleave), row(slots, layout.dcp, pool.interleave)
            for rank in range(layout.attn_tp):
                held = where[0] == rank % layout.dcp
                past = problem.past[i][held]
                first = rank * kv_heads // layout.attn_tp
                memory[rank, where[1][held]] = past if problem.mla else past[:, first : first + own]
        groups.append(memory.reshape(-1, *memory.shape[2:]))
        batches.append(pool.batch(requests, VERIFY))
    slots, lengths = (jnp.concatenate([getattr(b, n) for b in batches]) for n in ("slots", "lengths"))
    return jnp.asarray(np.concatenate(groups)), Batch(slots, lengths, batches[0].interleave)


def program(shape, layout, mesh, weights, **kernel):
    """The sharded step over a mesh, and its weights as the ranks hold them."""
    axes = axes_of(layout)
    module, more = (mla_sharded, (layout.dcp_backend,)) if isinstance(shape, MLA) else (gqa_sharded, ())

    def body(weights, hidden, pool, batch, rotation):
        form = {"backend": layout.dcp_backend, "scale": SCALE, "eps": EPS, "rotation": rotation, **kernel}
        partial, pool = module.decode(shape, weights, hidden, pool, batch, axes, **form)
        return psum(partial, axes["attn_tp"]), pool

    rows, pool = axes.spec("attn_dp"), axes.spec(("attn_dp", "attn_tp"))
    specs = module.weight_specs(shape, axes, *more)
    assert set(specs) == set(weights)
    step = jax.shard_map(
        body, mesh=mesh, in_specs=(specs, rows, pool, rows, rows), out_specs=(rows, pool), check_vma=not kernel
    )
    return jax.jit(step)


def ranks_weights(problem, layout):
    if problem.mla:
        return problem.weights
    repeat = {"kv_proj", "kv_bias"}
    return {
        k: gqa_sharded.repeated_kv(problem.shape, v, layout.attn_tp) if k in repeat else v
        for k, v in problem.weights.items()
    }


def layout_of(degrees, backend):
    attn_dp, attn_tp, dcp = degrees
    return Layout(attn_dp=attn_dp, attn_tp=attn_tp, dcp=dcp, ep=attn_dp * attn_tp, dcp_backend=backend)


def check(problem, layout, page_interleave=False, page=2, **kernel):
    pool, batch = laid_out(problem, layout, page_interleave, page)
    step = program(problem.shape, layout, mesh_of(layout), problem.weights, **kernel)
    found, after = step(ranks_weights(problem, layout), problem.rows, pool, batch, problem.new_rotation)
    assert relative(found[problem.live], problem.expected[problem.live]) < 2e-5
    # what was cached is as it was
    kept = ~np.isnan(np.asarray(pool).reshape(len(pool), -1)).any(axis=1)
    np.testing.assert_array_equal(np.asarray(after)[kept], np.asarray(pool)[kept])
    # a rank writes nothing for the tokens of others, which row 0 would show
    first = np.asarray(after).reshape(layout.attn_dp * layout.attn_tp, -1, *after.shape[1:])[:, 0]
    assert np.isnan(first).all()


@pytest.mark.parametrize(
    ("name", "degrees", "backend", "turns", "page_interleave"),
    [
        ("gate", (1, 1, 1), "a2a", 0, False),
        ("gate", (2, 8, 8), "a2a", 0, False),
        ("gate", (2, 8, 8), "ag_rs", 0, True),
        ("rope", (1, 16, 4), "ag_rs", 2, False),  # four DCP groups in an attention group
        ("rope", (1, 16, 4), "a2a", 2, True),
        ("full-rank query", (4, 4, 2), "fi_a2a", 2, False),
        ("rope", (4, 4, 1), "a2a", 2, False),
        ("gate", (16, 1, 1), "a2a", 0, False),
    ],
)
def test_mla_in_every_cut(name, degrees, backend, turns, page_interleave):
    problem = Problem(MLAS[name], max(4, degrees[0]), turns, interleaved=True)
    check(problem, layout_of(degrees, backend), page_interleave)


@pytest.mark.parametrize(
    ("name", "degrees", "backend", "turns", "page_interleave"),
    [
        ("gpt-oss", (1, 1, 1), "a2a", 4, False),
        ("gpt-oss", (2, 8, 4), "a2a", 4, False),  # two KV heads, four copies of each
        ("gpt-oss", (1, 16, 4), "ag_rs", 4, True),
        ("sinks", (2, 8, 8), "ag_rs", 0, False),
        ("sinks", (1, 16, 2), "a2a", 2, True),
        ("qwen3", (4, 2, 1), "a2a", 4, False),  # two KV heads a rank
        ("qwen3", (1, 16, 4), "a2a", 4, False),
        ("qwen3", (16, 1, 1), "a2a", 4, False),
    ],
)
def test_gqa_in_every_cut(name, degrees, backend, turns, page_interleave):
    problem = Problem(GQAS[name], max(4, degrees[0]), turns)
    check(problem, layout_of(degrees, backend), page_interleave)


@pytest.mark.parametrize(
    ("name", "degrees", "backend", "page_interleave"),
    [
        ("gate", (2, 8, 2), "a2a", False),
        ("gate", (2, 8, 2), "ag_rs", True),
        ("gpt-oss", (1, 4, 2), "a2a", False),
        ("gpt-oss", (1, 4, 2), "ag_rs", True),
        ("qwen3", (4, 2, 1), "a2a", False),
    ],
)
def test_a_kernel_in_place_of_what_xla_reads(name, degrees, backend, page_interleave):
    """The paged kernel in interpret mode; pages of two runs, so that a rank's tokens lie in several places."""
    problem = Problem((MLAS | GQAS)[name], max(4, degrees[0]), 2)
    check(problem, layout_of(degrees, backend), page_interleave, page=8, form="interpreted", run=4)


def test_full_size_traces_without_devices():
    """Kimi K3 under TP64 / DP4 / DCP8, 48 requests a group of 100k tokens, in bf16 with fp8 latents."""
    shape = MLA(7168, 96, 1536, 512, 128, 64, 128, True, None)
    layout = Layout(attn_dp=4, attn_tp=16, dcp=8, ep=64)
    sizes = {
        "fused_qkv_a_proj": (2112, 7168), "q_a_norm": (1536,), "q_b_proj": (18432, 1536), "kv_a_norm": (512,),
        "w_kc": (96, 512, 128), "w_vc": (96, 128, 512), "gate_proj": (12288, 7168), "o_proj": (7168, 12288),
    }  # fmt: skip
    weights = {name: jax.ShapeDtypeStruct(size, jnp.bfloat16) for name, size in sizes.items()}
    batch = jax.eval_shape(lambda: Batch(jnp.zeros((4 * 48, 100_000), jnp.int32), jnp.zeros(4 * 48, jnp.int32)))
    hidden = jax.ShapeDtypeStruct((4 * 48 * 5, 7168), jnp.bfloat16)
    pool = jax.ShapeDtypeStruct((64 * 1_000_000, 576), jnp.float8_e4m3fn)
    traced = jax.eval_shape(
        program(shape, layout, abstract_mesh_of(layout), weights), weights, hidden, pool, batch, None
    )
    assert [(x.shape, x.dtype) for x in traced] == [(hidden.shape, hidden.dtype), (pool.shape, pool.dtype)]
