"""KDA as programs: against models that nobody here wrote, each form against the recurrence, and cut over devices."""

import functools
import pathlib
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hw.compat import COMPILE_TO_RUN_ONCE
from hw.errors import MeshwrightError
from layouts.collectives import psum
from layouts.decoder.weights import is_shape
from layouts.kda import KDA, sharded
from layouts.kda.chunked import Writes, chunks, prefill
from layouts.kda.reference import Form, State, Tokens, Weights, attention, empty_state, recurrence
from layouts.kda.slots import Slots, Standing, states_at
from layouts.kda.verify import prefill as prefill_slots
from layouts.kda.verify import verify
from layouts.kernels import INTERPRETED, PLAIN
from layouts.layout import Layout
from layouts.mesh import abstract_mesh_of, axes_of, mesh_of

GOLDENS = np.load(pathlib.Path(__file__).parents[1] / "goldens" / "kda.npz")
SOFTPLUS, BOUNDED = Form(), Form(gate_lower_bound=-5.0)
jit = functools.partial(jax.jit, compiler_options=COMPILE_TO_RUN_ONCE)
STEP, VERIFY = jit(attention, static_argnums=3), jit(verify, static_argnums=(4, 5))
CHUNKS = jit(chunks, static_argnums=3)
PROMPT = 70  # of make_kda.py: the tokens after it went in one by one


def error(found: Any, expected: Any) -> float:
    """max|d| / max|expected|; NaN where either is not finite, which no bound admits."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def golden_layer(name: str) -> tuple[dict[str, np.ndarray], Weights]:
    """Arrays of a golden layer, and its tensors under our names."""
    arrays = {key.split("/")[1]: GOLDENS[key] for key in GOLDENS.files if key.startswith(f"layer_{name}/")}
    w = {key.removeprefix("weight.").removesuffix(".weight"): x for key, x in arrays.items()}
    dim, hidden, kernel = w["o_norm"].size, w["x"].shape[-1], w["conv1d"].shape[-1]
    by_head = {"g_proj": w["g_b_proj"]} if "g_a_proj" not in w else {"g_b_proj": w["g_b_proj"]}
    by_head["f_b_proj"] = w["forget_gate.f_b_proj"]
    tensors = {key: x.reshape(-1, dim, x.shape[-1]) for key, x in by_head.items()}
    if "g_a_proj" in w:
        tensors["g_a_proj"] = w["g_a_proj"]
    tensors |= {
        "qkv_proj": np.stack([w[f"{x}_proj"].reshape(-1, dim, hidden) for x in "qkv"]),
        "conv1d": w["conv1d"].reshape(3, -1, dim, kernel),
        "f_a_proj": w["forget_gate.f_a_proj"],
        "A_log": w["forget_gate.A_log"].reshape(-1),
        "dt_bias": w["forget_gate.dt_bias"].reshape(-1, dim),
        "b_proj": w["b_proj"],
        "o_norm": w["o_norm"],
        "o_proj": w["o_proj"].reshape(hidden, -1, dim),
    }
    return arrays, Weights(**{key: jnp.asarray(x) for key, x in tensors.items()})


def same_state(state: State, arrays: dict[str, np.ndarray]) -> None:
    assert error(state.recurrent, arrays["recurrent"]) < 2e-5
    heads, dim = state.recurrent.shape[1:3]
    assert error(state.window, arrays["window"].transpose(0, 2, 1).reshape(-1, 3, 3, heads, dim)) < 2e-5


@pytest.mark.parametrize(("name", "form"), [("softplus", SOFTPLUS), ("bounded", BOUNDED)])
def test_the_layer_of_transformers(name: str, form: Form) -> None:
    """Token by token; by chunks and then by one verification of which every token is accepted."""
    arrays, weights = golden_layer(name)
    x = jnp.asarray(arrays["x"])
    start = empty_state(weights, x.shape[0], x.dtype)
    rows, state = STEP(x, start, weights, form)
    assert error(rows, arrays["rows"]) < 2e-5
    same_state(state, arrays)
    every = jnp.full(x.shape[:1], PROMPT, jnp.int32)
    before, state = jit(prefill, static_argnums=4)(x[:, :PROMPT], start, every, weights, form)
    held, standing = slots_of_states(state, x.shape[1] - PROMPT), everyone(x.shape[0], 0)
    after, held = VERIFY(x[:, PROMPT:], held, standing, weights, form, PLAIN)
    assert error(jnp.concatenate([before, after], axis=1), arrays["rows"]) < 2e-5
    same_state(states_at(held, everyone(x.shape[0], x.shape[1] - PROMPT)), arrays)


def slots_of_states(state: State, ring: int) -> Slots:
    """Slot i + 1 has the state of request i; rings hold what nothing may read."""
    requests, heads, dim = state.recurrent.shape[:3]
    strange = jnp.full((requests + 1, ring, heads, dim), 7.0)
    recurrent = jnp.concatenate([jnp.full_like(state.recurrent[:1], 5.0), state.recurrent])
    window = jnp.concatenate([jnp.full_like(state.window[:1], 5.0), state.window])
    inputs = jnp.concatenate([window, jnp.full((requests + 1, ring, *window.shape[2:]), 7.0, window.dtype)], axis=1)
    return Slots(recurrent, Writes(strange, strange, strange), inputs)


def everyone(requests: int, pending: Any) -> Standing:
    """Every request in its slot, none of them new."""
    slots = jnp.arange(1, requests + 1, dtype=jnp.int32)
    return Standing(slots, jnp.broadcast_to(jnp.asarray(pending, jnp.int32), (requests,)), jnp.zeros(requests, bool))


def test_the_wrong_gate_is_seen() -> None:
    arrays, weights = golden_layer("softplus")
    x = jnp.asarray(arrays["x"])
    rows, _ = STEP(x, empty_state(weights, x.shape[0], x.dtype), weights, BOUNDED)
    assert error(rows, arrays["rows"]) > 1e-2


def test_the_recurrence_of_flash_linear_attention() -> None:
    """From a state that is not zero. Theirs scales q inside, ours before."""
    core = {key.split("/")[1]: jnp.asarray(GOLDENS[key]) for key in GOLDENS.files if key.startswith("core/")}
    tokens = Tokens(core["q"] * core["q"].shape[-1] ** -0.5, core["k"], core["v"], core["log_decay"], core["beta"])
    lengths = jnp.full(core["q"].shape[:1], core["q"].shape[1], jnp.int32)
    for rows, last in (jit(recurrence)(tokens, core["state"]), CHUNKS(tokens, core["state"], lengths)):
        assert error(rows, core["rows"]) < 2e-5
        assert error(last, core["last"]) < 2e-5


def random_tokens(seed: int, requests: int, count: int, strength: float, dim: int = 8) -> tuple[Tokens, jax.Array]:
    """Random inputs of the delta rule, with decays around exp(-strength), and a state to start from."""
    random = np.random.default_rng(seed)
    shape = (requests, count, 2, dim)
    q, k, v = (random.normal(size=shape) for _ in range(3))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    arrays = (q, k, v, -strength * random.random(shape), random.random(shape[:3]))
    tokens = Tokens(*(jnp.asarray(x, jnp.float32) for x in arrays))
    return tokens, jnp.asarray(random.normal(size=(requests, 2, dim, dim)), jnp.float32)


def plain(tokens: Tokens, state: jax.Array, length: int, request: int) -> tuple[np.ndarray, np.ndarray]:
    """The recurrence of one request in NumPy float64: outputs and last state of its first `length` tokens."""
    q, k, v, g, beta = (np.asarray(x, np.float64)[request] for x in jax.tree.leaves(tokens))
    held, outputs = np.array(state[request], np.float64), []
    for i in range(length):
        held = held * np.exp(g[i])[..., None]
        delta = beta[i][:, None] * (v[i] - np.einsum("hk,hkv->hv", k[i], held))
        held = held + k[i][..., None] * delta[:, None]
        outputs.append(np.einsum("hk,hkv->hv", q[i], held))
    return np.array(outputs), held


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**20),
    lengths=st.lists(st.integers(0, 75), min_size=2, max_size=2),
    strength=st.sampled_from([0.0, 0.1, 5.0, 200.0]),
    chunk=st.sampled_from([4, 32, 64]),
)
def test_chunks_equal_the_recurrence(seed: int, lengths: list[int], strength: float, chunk: int) -> None:
    """Over lengths, and decays from none to far beyond what exp of a float32 could undo."""
    tokens, state = random_tokens(seed, 2, 75, strength)
    found = CHUNKS(tokens, state, jnp.array(lengths, jnp.int32), chunk)
    for request, length in enumerate(lengths):
        rows, last = plain(tokens, state, length, request)
        assert error(found[1][request], last) < 1e-5
        if length:
            assert error(found[0][request, :length], rows) < 1e-5


def random_weights(seed: int, heads: int, full_rank: bool, hidden: int = 16, dim: int = 8, kernel: int = 4) -> Weights:
    random = np.random.default_rng(seed)

    def draw(*shape: int, scale: float = 0.4) -> jax.Array:
        return jnp.asarray(random.normal(size=shape) * scale, jnp.float32)

    low = {"g_a_proj": draw(dim, hidden), "g_b_proj": draw(heads, dim, dim)}
    return Weights(
        qkv_proj=draw(3, heads, dim, hidden),
        conv1d=draw(3, heads, dim, kernel),
        f_a_proj=draw(dim, hidden),
        f_b_proj=draw(heads, dim, dim),
        A_log=draw(heads),
        dt_bias=draw(heads, dim, scale=1.0),
        b_proj=draw(heads, hidden),
        o_norm=1 + draw(dim, scale=0.1),
        o_proj=draw(hidden, heads, dim),
        **({"g_proj": draw(heads, dim, hidden)} if full_rank else low),
    )


def shape_of(weights: Weights) -> KDA:
    _, heads, dim, hidden = weights.qkv_proj.shape
    return KDA(hidden, heads, dim, weights.conv1d.shape[-1], weights.g_proj is not None)


def rows_of(seed: int, requests: int, count: int, hidden: int = 16) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=(requests, count, hidden)), jnp.float32)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**20),
    rounds=st.lists(st.lists(st.integers(0, 5), min_size=2, max_size=2), min_size=1, max_size=4),
    form=st.sampled_from([SOFTPLUS, BOUNDED]),
    kernel=st.sampled_from([PLAIN, INTERPRETED]),
)
def test_verified_tokens_equal_the_recurrence(seed: int, rounds: list[list[int]], form: Form, kernel: str) -> None:
    """Rounds of five drafted tokens of which some are accepted; rejected ones leave no trace, in S or the window."""
    weights = random_weights(seed, 2, full_rank=form is BOUNDED)
    plain_state = empty_state(weights, 2, jnp.float32)
    held, accepted = slots_of_states(plain_state, 5), [0, 0]
    for number, following in enumerate(rounds):
        x = rows_of(seed + number, 2, 5)
        before = held
        rows, held = VERIFY(x, held, everyone(2, accepted), weights, form, kernel)
        expected, _ = STEP(x, plain_state, weights, form)
        assert error(rows, expected) < 2e-5
        assert_states(held.recurrent[1:], plain_state.recurrent)
        if not any(accepted):
            assert np.array_equal(held.recurrent[1:], before.recurrent[1:])
        accepted = following
        for request, count in enumerate(accepted):
            for i in range(count):
                one = jax.tree.map(lambda held, r=request: held[r : r + 1], plain_state)
                _, one = STEP(x[request : request + 1, i : i + 1], one, weights, form)
                plain_state = jax.tree.map(lambda held, new, r=request: held.at[r].set(new[0]), plain_state, one)
    found = states_at(held, everyone(2, accepted))
    jax.tree.map(assert_states, found, plain_state)


def assert_states(found: jax.Array, expected: jax.Array) -> None:
    assert np.abs(found - expected).max() <= 2e-5 * max(np.abs(expected).max(), 1e-30)


GROUPS = 16  # each with its four slots and three rows; a rank of attn_dp has one group or several
SLOTS, PROMPT_ROWS, WIDTH = 4, 9, 5
LENGTHS, ACCEPTED = (PROMPT_ROWS, 0, PROMPT_ROWS - 2), (WIDTH, 0, 2)


def serve(
    x: jax.Array, held: Slots, slots: jax.Array, counts: jax.Array, weights: Weights, form: Form, kernel: str
) -> Any:
    """A prompt, an accepted token, and a verification of which some are accepted, as a decoder takes them."""
    prompt, token, draft = jnp.split(x, [PROMPT_ROWS, PROMPT_ROWS + 1], axis=1)
    none, begins = jnp.zeros_like(slots), slots > 0
    first, held = prefill_slots(prompt, held, Standing(slots, none + 3, begins), counts[:, 0], weights, form)
    second, held = verify(token, held, Standing(slots, none, ~begins), weights, form, kernel)
    third, held = verify(draft, held, Standing(slots, jnp.where(begins, 1, 0), ~begins), weights, form, kernel)
    empty, held = prefill_slots(draft, held, Standing(slots, counts[:, 1], ~begins), none, weights, form)
    return jnp.concatenate([first, second, third], axis=1), held, empty


def on_mesh(layout: Layout, weights: Weights, form: Form, mesh: Any, kernel: str) -> Any:
    """`serve` under shard_map; partial rows are summed over attn_tp as a layer would."""
    axes = axes_of(layout)

    def body(x: jax.Array, held: Slots, slots: jax.Array, counts: jax.Array, weights: Weights) -> Any:
        rows, held, _ = serve(x, held, slots, counts, weights, form, kernel)
        return psum(rows, axes["attn_tp"]), held

    requests, states = axes.spec("attn_dp", None, None), sharded.slot_specs(axes)
    inputs = (
        requests,
        states,
        axes.spec("attn_dp"),
        axes.spec("attn_dp", None),
        sharded.weight_specs(shape_of(weights), axes),
    )
    mapped = jax.shard_map(body, mesh=mesh, in_specs=inputs, out_specs=(requests, states), check_vma=kernel == PLAIN)
    return jit(mapped)


def problem(full_rank: bool) -> tuple[jax.Array, Slots, jax.Array, Weights]:
    """Rows of every group, slots full of what other requests left, counts, and weights of eight heads."""
    weights = random_weights(7, 8, full_rank)
    shapes, random = sharded.slot_shapes(shape_of(weights), GROUPS * SLOTS, WIDTH), np.random.default_rng(9)
    pool = jax.tree.map(lambda shape: jnp.asarray(random.normal(size=shape), jnp.float32), shapes, is_leaf=is_shape)
    counts = jnp.tile(jnp.array([LENGTHS, ACCEPTED], jnp.int32).T, (GROUPS, 1))
    return rows_of(8, GROUPS * len(LENGTHS), PROMPT_ROWS + 1 + WIDTH), pool, counts, weights


def slots_of(attn_dp: int) -> jax.Array:
    """Each group uses its own slots 3 and 1, numbered within the rank; its padding row, the rank's slot 0."""
    first = SLOTS * (np.arange(GROUPS) % (GROUPS // attn_dp))
    return jnp.asarray(np.stack([first + 3, 0 * first, first + 1], axis=1).reshape(-1), jnp.int32)


@functools.cache
def expected(full_rank: bool, form: Form) -> tuple[dict[int, np.ndarray], dict[int, State]]:
    """By the recurrence, for the rows that have a request: its valid outputs, and its state after the accepted."""
    x, _, _, weights = problem(full_rank)
    valid, states = {}, {}
    for row in (0, 2):
        told = jnp.concatenate([x[row::3, : LENGTHS[row]], x[row::3, PROMPT_ROWS:]], axis=1)
        start = empty_state(weights, GROUPS, jnp.float32)
        valid[row], _ = STEP(told, start, weights, form)
        _, states[row] = STEP(told[:, : LENGTHS[row] + 1 + ACCEPTED[row]], start, weights, form)
    return valid, states


@pytest.mark.parametrize(
    ("attn_dp", "attn_tp", "full_rank", "form", "kernel"),
    [
        (1, 1, True, BOUNDED, PLAIN),
        (16, 1, False, SOFTPLUS, PLAIN),
        (8, 2, True, BOUNDED, INTERPRETED),
        (4, 4, False, SOFTPLUS, PLAIN),
        (2, 8, True, BOUNDED, PLAIN),
    ],
)
def test_every_cut_equals_one_device(attn_dp: int, attn_tp: int, full_rank: bool, form: Form, kernel: str) -> None:
    layout = Layout(attn_dp=attn_dp, attn_tp=attn_tp)
    x, pool, counts, weights = problem(full_rank)
    found = on_mesh(layout, weights, form, mesh_of(layout), kernel)(x, pool, slots_of(attn_dp), counts, weights)
    rows, after = jax.tree.map(np.asarray, found)
    valid, states = expected(full_rank, form)
    for row, slot in ((0, 3), (2, 1)):
        kept = np.concatenate([rows[row::3, : LENGTHS[row]], rows[row::3, PROMPT_ROWS:]], axis=1)
        assert error(kept, valid[row]) < 2e-5
        assert error(after.recurrent[slot::SLOTS], states[row].recurrent) < 2e-5
        assert error(after.inputs[slot::SLOTS, : after.taps], states[row].window) < 2e-5
    for held, left in zip(jax.tree.leaves(after), jax.tree.leaves(pool), strict=True):
        assert np.array_equal(held[2::SLOTS], left[2::SLOTS])  # nobody's slot


def test_the_article_traces_at_full_size_without_exchanging_anything() -> None:
    """Kimi K3, DP2 x DCP8, 128 requests of 5 rows a group in bf16: the body's only collective is the caller's sum."""
    layout = Layout(attn_dp=2, attn_tp=8, dcp=8)
    axes = axes_of(layout)
    bf16, f32, i32 = jnp.bfloat16, jnp.float32, jnp.int32
    hidden, heads, dim = 7168, 96, 128
    shapes = eqx.filter_eval_shape(random_weights, 0, 1, True)
    sizes = {1: heads, 8: dim, 16: hidden}
    weights = jax.tree.map(
        lambda w: jax.ShapeDtypeStruct(tuple(sizes.get(n, n) for n in w.shape), f32 if w.ndim == 1 else bf16), shapes
    )
    described = jax.ShapeDtypeStruct
    pool = jax.tree.map(
        lambda s: described(s, f32), sharded.slot_shapes(shape_of(weights), 2 * 209, WIDTH), is_leaf=is_shape
    )
    inputs: Any = described(pool.inputs.shape, bf16)
    pool = Slots(pool.recurrent, pool.writes, inputs)
    x = jax.ShapeDtypeStruct((256, PROMPT_ROWS + 1 + WIDTH, hidden), bf16)
    slots, counts = jax.ShapeDtypeStruct((256,), i32), jax.ShapeDtypeStruct((256, 2), i32)
    program = on_mesh(layout, weights, BOUNDED, abstract_mesh_of(layout), PLAIN).trace(x, pool, slots, counts, weights)
    rows, after = program.out_info
    assert (rows.shape, rows.dtype) == (x.shape, bf16)
    assert (
        jax.tree.leaves(jax.tree.map(lambda a, b: (a.shape, a.dtype) == (b.shape, b.dtype), after, pool)) == [True] * 5
    )
    text = str(program.jaxpr)
    assert text.count("psum") == 1
    assert not any(name in text for name in ("all_gather", "all_to_all", "ppermute", "reduce_scatter"))
    assert sharded.weight_specs(shape_of(weights), axes).f_a_proj == axes.spec(None, None)


def test_forms_that_make_no_sense_are_refused() -> None:
    with pytest.raises(MeshwrightError, match="gate_lower_bound=5 must be negative"):
        Form(gate_lower_bound=5)
    with pytest.raises(MeshwrightError, match="norm_eps=0"):
        Form(norm_eps=0)
    tokens, state = random_tokens(0, 1, 3, 1.0)
    with pytest.raises(MeshwrightError, match="a chunk of 40 tokens is not a multiple of 16"):
        chunks(tokens, state, jnp.array([3], jnp.int32), 40)
    low = random_weights(0, 2, full_rank=False)
    with pytest.raises(MeshwrightError, match="give g_proj, or both"):
        Weights(**{**vars(low), "g_b_proj": None})
    with pytest.raises(MeshwrightError, match="give g_proj, or both"):
        Weights(**{**vars(low), "g_proj": low.g_b_proj})
