"""Requests with a past for the sparse attention programs: weights, caches, pools, and what the oracle expects."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

import layouts.dsa.reference as reference
import layouts.dsa.sharded as sharded
import layouts.mla.reference as mla_reference
from layouts.cache import Batch, KVPool
from layouts.dsa.form import IndexForm
from layouts.rotary import Rotation
from layouts.serving import owner as owners
from tests.layouts import dsa_oracle as oracle

EPS, TOPK, SCALE = 1e-5, 6, 0.3
# tokens that requests have after the step; None is an idle row. One has fewer than it may choose.
LENGTHS = (25, 3, None, 40)
# a row that may choose more than it sees, in a table whose last token is there but comes after it
SHORT = (7, 4, None, 3)


def indexer_of(shape):
    assert shape.indexer is not None
    return shape.indexer


def shared_of(shape):
    return dataclasses.replace(shape, indexer=dataclasses.replace(indexer_of(shape), shared=True))


def relative(found, expected):
    return np.abs(np.asarray(found, np.float64) - expected).max() / np.abs(expected).max()


def floats(tree):
    return {k: jnp.asarray(v, jnp.float32) for k, v in tree.items()}


def made_weights(shape, random):
    """Float64 weights of the oracle, and those of the programs."""
    sizes = sharded.weight_shapes(shape)
    del sizes["w_kc"], sizes["w_vc"]
    sizes["kv_b_proj"] = (shape.heads * (shape.nope + shape.v), shape.kv_lora)
    w = {
        name: random.normal(size=size) + 1 if len(size) == 1 else random.normal(size=size) / np.sqrt(size[-1])
        for name, size in sizes.items()
    }
    ours = {name: value for name, value in w.items() if name != "kv_b_proj"}
    ours["w_kc"], ours["w_vc"] = mla_reference.absorb(shape, jnp.asarray(w["kv_b_proj"], jnp.float32))
    return w, floats(ours)


class Problem:
    """A full layer and one that shares its choice, each with hidden states of its own, of requests with a past."""

    def __init__(self, shape, verify, turned, interleaved=False, lengths=LENGTHS):
        random = np.random.default_rng(3)
        self.shapes = shape, shared_of(shape)
        self.verify, self.turned, self.form = verify, turned, IndexForm(interleaved)
        self.lengths, self.context = lengths, max(length or 0 for length in lengths)
        self.checkpoints, self.weights = zip(*(made_weights(shape, random) for shape in self.shapes), strict=True)
        counts = [verify if length is None else length for length in self.lengths]
        self.hidden = [[random.normal(size=(n, shape.hidden)) for n in counts] for _ in self.shapes]
        self.starts = np.array([n - verify for n in counts], np.int32)

    @property
    def live(self):
        return np.array([length is not None for length in self.lengths])

    @property
    def rows(self):
        """Rows of the step, a layer."""
        return tuple(
            jnp.asarray(np.concatenate([h[-self.verify :] for h in layer]), jnp.float32) for layer in self.hidden
        )

    def angles(self, positions):
        return np.asarray(positions)[:, None] * 0.5 ** np.arange(2) if self.turned else None

    def rotation(self, positions):
        if (angles := self.angles(positions)) is None:
            return None
        return Rotation(jnp.asarray(np.cos(angles), jnp.float32), jnp.asarray(np.sin(angles), jnp.float32), True)

    @property
    def new_rotation(self):
        return self.rotation((self.starts[:, None] + np.arange(self.verify)).reshape(-1))

    @functools.cached_property
    def scores(self):
        """Of each request that is not idle: every new row's scores of the tokens that it sees."""
        out = []
        for hidden in itertools.compress(self.hidden[0], self.live):
            angles = self.angles(np.arange(len(hidden)))
            low, _ = oracle.low_rank(self.shapes[0], self.checkpoints[0], hidden, EPS)
            more = hidden, low, self.verify, angles, *self.form
            out.append(oracle.scores(indexer_of(self.shapes[0]), self.checkpoints[0], *more))
        return out

    @functools.cached_property
    def choices(self):
        """The same of the positions that it chooses."""
        return [oracle.choice(TOPK, scores) for scores in self.scores]

    def expected(self, layer):
        """Rows of a layer, of each request that is not idle."""
        live = itertools.compress(self.hidden[layer], self.live)
        return [
            oracle.attention(
                self.shapes[layer], self.checkpoints[layer], hidden, chosen, SCALE, EPS,
                self.angles(np.arange(len(hidden))), True,
            )
            for hidden, chosen in zip(live, self.choices, strict=True)
        ]  # fmt: skip

    @functools.cached_property
    def indexed(self):
        """What the indexer makes of all tokens, request after request."""
        shape = self.shapes[0]

        @jax.jit
        def made(weights, hidden, rotation):
            low, _ = mla_reference.low_rank(shape, weights, hidden, EPS)
            return reference.project_index(indexer_of(shape), weights, hidden, low, rotation, self.form)

        return made(self.weights[0], self.tokens(0), self.every_rotation)

    @functools.cached_property
    def cached(self):
        """What is cached of every token: latents of both layers and the index keys, a list of requests each."""
        latents = [
            jax.jit(mla_reference.project, static_argnums=(0, 4))(shape, w, self.tokens(i), self.every_rotation, EPS)[1]
            for i, (shape, w) in enumerate(zip(self.shapes, self.weights, strict=True))
        ]
        ends = np.cumsum([len(h) for h in self.hidden[0]])[:-1]
        return [np.split(np.asarray(values), ends) for values in (*latents, self.indexed.key)]

    def tokens(self, layer):
        """Hidden states of all tokens, request after request."""
        return jnp.asarray(np.concatenate(self.hidden[layer]), jnp.float32)

    @property
    def every_rotation(self):
        return self.rotation(np.concatenate([np.arange(len(h)) for h in self.hidden[0]]))

    def check(self, outputs, chosen):
        """Rows and choices of the requests that are not idle."""
        count = min(TOPK, self.context)
        assert chosen.shape[1:] == (self.verify, count)
        for found, choices in zip(np.asarray(chosen)[self.live], self.choices, strict=True):
            for row, want in zip(found, choices, strict=True):
                np.testing.assert_array_equal(np.sort(row), np.pad(want, (count - len(want), 0), constant_values=-1))
        for layer, output in enumerate(outputs):
            by_request = np.asarray(output).reshape(len(self.lengths), self.verify, -1)[self.live]
            for found, want in zip(by_request, self.expected(layer), strict=True):
                assert relative(found, want) < 2e-5


def placed(values, counts, lines, rows, copies, ranks, interleave):
    """Memory of the ranks of a group, one after another, with the first of each request's values; else NaN."""
    memory = np.full((copies, rows, values[0].shape[-1]), np.nan, np.float32)
    for tokens, count, slots in zip(values, counts, lines, strict=True):
        where, index = (f(slots[:count], ranks, interleave) for f in (owners.owner, owners.row))
        for rank in range(copies):
            memory[rank, index[where == rank % ranks]] = tokens[:count][where == rank % ranks]
    return memory


def laid_out(problem, layout, design, page_interleave):
    """The three pools before the step, after it, and the batch of each attention group, joined."""
    before, after, batches = [], [], []
    own = len(problem.lengths) // layout.attn_dp
    cut = layout.dcp if design == "sharded" else 1
    for first in range(0, len(problem.lengths), own):
        mine = slice(first, first + own)
        pool = KVPool(60, 2, layout.dcp, own, problem.context, page_interleave)
        requests = [None if length is None else pool.admit() for length in problem.lengths[mine]]
        lines = [
            np.zeros(0, np.int32) if r is None else pool.extend(r, length)
            for r, length in zip(requests, problem.lengths[mine], strict=True)
        ]
        rows = pool.rows_a_rank
        latents, keys = (rows, layout.attn_tp, layout.dcp), (rows * layout.dcp // cut, cut, cut)
        ends = [len(line) for line in lines]
        for pools, counts in ((before, np.minimum(problem.starts[mine], ends)), (after, ends)):
            pools.append(
                [placed(values[mine], counts, lines, *kind, pool.interleave)
                for values, kind in zip(problem.cached, (latents, latents, keys), strict=True)]
            )  # fmt: skip
        batches.append(pool.batch(requests, problem.verify))
    slots, lengths = (jnp.concatenate([getattr(b, n) for b in batches]) for n in ("slots", "lengths"))
    joined = ([np.stack(group) for group in zip(*pools, strict=True)] for pools in (before, after))
    return *joined, Batch(slots, lengths, batches[0].interleave)
