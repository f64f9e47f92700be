"""Sparse attention inside `shard_map`: latents over dcp, and the index keys in one of two designs.

replicated: every rank keeps the index key of every token at its logical slot and chooses for itself; no exchange.
sharded: index keys lie beside the latents, token by token; a rank chooses the best of its own, and the candidates of
the DCP group, (score, position) pairs, are gathered and chosen from again. Both choose the same tokens, equal scores
by the lowest position, as the best of all are among the best of each share.

Each row then reads the chosen latents that its rank holds, and `combine` merges the ranks of the DCP group. A rank may
hold all that a row chooses, so the program gathers `topk` latents a row on every rank; on average 1 in dcp is real.
"""

import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from layouts.cache.batch import Batch, local_row, read, write
from layouts.collectives import AxisNames, all_gather, all_gather_same, axis_index
from layouts.combine.partial import visible
from layouts.combine.sharded import combine
from layouts.dsa.form import IndexForm
from layouts.dsa.reference import Indexed, best, handed_on, indexer_of, project_index, scores
from layouts.dsa.shape import Indexer
from layouts.mesh import Axes
from layouts.mla.reference import Weights, absorbed, attend_latents, low_rank, output
from layouts.mla.shape import MLA
from layouts.mla.sharded import weight_shapes as mla_shapes
from layouts.mla.sharded import weight_specs as mla_specs
from layouts.rotary import Rotation
from layouts.serving.errors import EngineRuleError

DESIGNS = ("replicated", "sharded")


def weight_shapes(mla: MLA) -> dict[str, tuple[int, ...]]:
    """Shape of every weight of one layer, whole, those of its index included."""
    return {**mla_shapes(mla), **_index_shapes(indexer_of(mla))}


def weight_specs(mla: MLA, axes: Axes, backend: str) -> dict[str, PartitionSpec]:
    """How whole weights are cut; those of the index are whole on every rank."""
    whole = {name: axes.spec(*(None for _ in shape)) for name, shape in _index_shapes(indexer_of(mla)).items()}
    return {**mla_specs(mla, axes, backend), **whole}


def index_pool_spec(axes: Axes, design: str) -> PartitionSpec:
    """How the index keys of all attention groups, (rows, index_dim), lie on the ranks: DCP cuts them or does not.

    replicated: as many rows as the group has logical slots; sharded: as many a rank as its pool of latents has.
    """
    return axes.spec("requests" if _is_replicated(design) else ("requests", "dcp"), None)


def decode(
    mla: MLA,
    weights: Weights,
    hidden: Float[Array, "requests*verify hidden"],
    pool: Float[Array, "pool_rows kv_values"],
    index_pool: Float[Array, "index_rows index_dim"],
    batch: Batch,
    axes: Axes,
    chosen: Int[Array, "requests verify count"] | None = None,
    *,
    backend: str,
    design: str,
    scale: float,
    eps: float,
    index_form: IndexForm,
    rotation: Rotation | None = None,
) -> tuple[
    Float[Array, "requests*verify hidden"],
    Float[Array, "pool_rows kv_values"],
    Float[Array, "index_rows index_dim"],
    Int[Array, "requests verify count"],
]:
    """This rank's partial sum over heads, as `layouts.mla.sharded.decode` gives it, its pools, and the rows' choice.

    `chosen` are positions, the same on all ranks of an attention group, -1 where a row sees fewer than
    min(topk, context) tokens. A full layer makes its own; a shared one takes those of the layer before and leaves
    `index_pool` alone. EngineRuleError for a shared layer without a choice, and for an unknown design or backend.
    """
    indexer = indexer_of(mla)
    low, latent = low_rank(mla, weights, hidden, eps)
    query, latent = absorbed(mla, weights, low, latent, rotation, eps)
    if indexer.shared:
        chosen = handed_on(chosen)
    else:
        indexed = project_index(indexer, weights, hidden, low, rotation, index_form)
        cut = () if _is_replicated(design) else axes["dcp"]
        index_pool, chosen = _choose(indexer, indexed, index_pool, batch, cut, axes.size("dcp") if cut else 1)
    rank, ranks = axis_index(axes["dcp"]), axes.size("dcp")
    pool = write(pool, batch.new_rows(chosen.shape[1], rank, ranks), latent)
    if backend == "ag_rs":
        query = all_gather(query, axes["dcp"], 1)
    rows, real = _local(batch, chosen, rank, ranks)
    part, lse = attend_latents(mla, scale, query[:, None], read(pool, rows), real[:, None])
    attended = combine(part[:, 0], lse[:, 0], axes["dcp"], backend)
    summand = output(mla, weights, hidden, attended)
    return summand, pool, index_pool, chosen


def _index_shapes(indexer: Indexer) -> dict[str, tuple[int, ...]]:
    return {w.name: (w.out,) if w.rows is None else (w.out, w.inp) for w in indexer.tensors()}


def _is_replicated(design: str) -> bool:
    if design not in DESIGNS:
        raise EngineRuleError(f"index design {design!r} is unknown: choose one of {', '.join(DESIGNS)}")
    return design == "replicated"


def _choose(
    indexer: Indexer,
    indexed: Indexed,
    pool: Float[Array, "index_rows index_dim"],
    batch: Batch,
    cut: AxisNames,
    ranks: int,
) -> tuple[Float[Array, "index_rows index_dim"], Int[Array, "requests verify count"]]:
    """The index pool with the new keys, and the choice of every row, over keys that are cut along `cut`."""
    verify = len(indexed.key) // len(batch.lengths)
    rank = axis_index(cut)
    pool = write(pool, batch.new_rows(verify, rank, ranks), indexed.key)
    held = batch.held(verify, rank, ranks)
    seen = visible(batch.positions(verify), held.positions) & held.real[:, None, :]
    score = scores(indexed, read(pool, held.rows), seen)
    positions = jnp.broadcast_to(held.positions[:, None, :], score.shape)
    own = best(score, positions, min(indexer.topk, score.shape[-1]))
    return pool, best(*_gathered(*own, cut), min(indexer.topk, batch.slots.shape[1]))[1] if cut else own[1]


def _gathered(
    score: Float[Array, "requests verify own"], positions: Int[Array, "requests verify own"], axes: AxisNames
) -> tuple[Float[Array, "requests verify candidates"], Int[Array, "requests verify candidates"]]:
    """The candidates of all ranks; score and position travel as two words of one message."""
    words = jnp.stack([lax.bitcast_convert_type(score, positions.dtype), positions])
    score_words, positions = all_gather_same(words, axes, 3)
    return lax.bitcast_convert_type(score_words, score.dtype), positions


def _local(
    batch: Batch, chosen: Int[Array, "requests verify count"], rank: Int[Array, ""], ranks: int
) -> tuple[Int[Array, "requests*verify count"], Bool[Array, "requests*verify count"]]:
    """Rows of this rank's pool that hold the chosen tokens, and which do: not those of others, nor where none is."""
    requests, _, count = chosen.shape
    # a negative index would count from the end of the line
    positions = jnp.where(chosen < 0, batch.slots.shape[1], chosen).reshape(requests, -1)
    slots = jnp.take_along_axis(batch.slots, positions, axis=1, mode="fill", fill_value=0)
    rows = local_row(slots, rank, ranks, batch.interleave).reshape(-1, count)
    return rows, rows > 0
