"""Embedding, logits and greedy sampling over a cut vocabulary, against NumPy: narrower and wider than a group."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hw.compat import COMPILE_TO_RUN_ONCE
from layouts.layout import Layout
from layouts.mesh import Axes, axes_of, mesh_of
from layouts.vocab import reference
from layouts.vocab.sharded import embed, greedy, groups_axes, logits, whole_logits

VOCAB, HIDDEN, ROWS = 64, 8, 5
# vocab_tp beside attn_tp: equal, narrower (copies in a group), wider (groups share one), whole, everything
LAYOUTS = [
    Layout(attn_dp=2, attn_tp=8, ep=16, vocab_tp=8),
    Layout(attn_dp=2, attn_tp=8, ep=16, vocab_tp=2),
    Layout(attn_dp=16, ep=16, vocab_tp=8),
    Layout(attn_dp=4, attn_tp=2, ep=8, vocab_tp=8),
    Layout(attn_dp=2, attn_tp=4, ep=8),
    Layout(attn_tp=4, expert_tp=4, vocab_tp=4, replicas=2, pp=2),
]


def over(layout: Layout, body, *arrays, vocab_rows=()):
    """(replicas, groups, ranks of a group, ...): what each rank gets from its group's rows and its vocabulary part."""
    axes = axes_of(layout)
    ranks = axes.spec(("replicas", "pp"), "attn_dp", "attn_tp")
    specs = tuple(axes.spec("vocab_tp") if i in vocab_rows else axes.spec("attn_dp") for i in range(len(arrays)))

    def local(*parts):
        taken = [part if i in vocab_rows else part[0] for i, part in enumerate(parts)]
        return jax.tree.map(lambda x: x[None, None, None], body(*taken, axes))

    program = jax.shard_map(local, mesh=mesh_of(layout), in_specs=specs, out_specs=ranks)
    found = jax.jit(program, compiler_options=COMPILE_TO_RUN_ONCE)(*arrays)
    return jax.tree.map(lambda x: np.asarray(x).swapaxes(1, 2).reshape(-1, layout.attn_dp, *x.shape[3:]), found)


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_embedding_and_sampling(layout):
    table, hidden = normal(VOCAB, HIDDEN), normal(layout.attn_dp, ROWS, HIDDEN)
    tokens = np.random.default_rng(1).integers(0, VOCAB, (layout.attn_dp, ROWS)).astype(np.int32)
    tokens[0, :2] = 0, VOCAB - 1

    def body(tokens, hidden, table, axes: Axes):
        part = logits(hidden, table, axes)
        results = embed(table, tokens, axes), whole_logits(part, axes), greedy(part, axes)
        for result in results:
            assert not set(axes["attn_tp"]) & set(jax.typeof(result).manual_axis_type.varying)
        return results

    embedded, scores, best = over(layout, body, tokens, hidden, table, vocab_rows=(2,))
    expected = hidden @ table.T
    for rank in range(len(embedded)):
        np.testing.assert_array_equal(embedded[rank], table[tokens])
        np.testing.assert_allclose(scores[rank], expected, atol=2e-5)
        np.testing.assert_array_equal(best[rank], expected.argmax(axis=-1))
    np.testing.assert_array_equal(reference.embed(jnp.asarray(table), jnp.asarray(tokens[0])), table[tokens[0]])
    np.testing.assert_array_equal(reference.greedy(reference.logits(hidden[0], jnp.asarray(table))), best[0, 0])


@pytest.mark.parametrize("layout", [LAYOUTS[1], LAYOUTS[3]])
def test_ties_go_to_the_lowest_token(layout):
    """Equal best scores on the same rank, on neighbours, on the first and last rank; and all equal."""
    ties = [(3, 4), (31, 32), (0, 63), (20, 40), tuple(range(64))]
    scores = np.zeros((layout.attn_dp, ROWS, VOCAB), np.float32)
    for row, tied in enumerate(ties):
        scores[:, row, list(tied)] = 1.0

    def body(scores, axes: Axes):
        every = jax.lax.all_gather(scores, groups_axes(axes), tiled=True) if groups_axes(axes) else scores
        width = VOCAB // axes.size("vocab_tp")
        index = jax.lax.axis_index(axes["vocab_tp"])
        return greedy(jax.lax.dynamic_slice_in_dim(every, index * width, width, 1), axes)

    found = over(layout, body, scores)
    assert (found == np.array([min(tied) for tied in ties])).all()


def test_a_padded_vocabulary_is_never_sampled():
    """61 tokens over 8 ranks: three rows of the head are padding, and would win."""
    layout, head = LAYOUTS[0], np.abs(normal(VOCAB, HIDDEN))
    head[61:] = 100.0
    hidden = np.abs(normal(2, ROWS, HIDDEN))
    best = over(layout, lambda h, w, axes: greedy(logits(h, w, axes, vocab=61), axes), hidden, head, vocab_rows=(1,))
    np.testing.assert_array_equal(best[0], (hidden @ head[:61].T).argmax(axis=-1))
    padded = over(layout, lambda h, w, axes: greedy(logits(h, w, axes), axes), hidden, head, vocab_rows=(1,))
    assert (padded >= 61).all()


def test_scores_and_embeddings_have_the_dtype_of_the_activations():
    table = jnp.asarray(normal(VOCAB, HIDDEN), jnp.bfloat16)
    body = functools.partial(lambda t, w, axes: (logits(embed(w, t, axes), w, axes), embed(w, t, axes)))
    scores, embedded = over(LAYOUTS[0], body, np.zeros((2, ROWS), np.int32), table, vocab_rows=(1,))
    assert scores.dtype == jnp.bfloat16
    assert embedded.dtype == jnp.bfloat16
