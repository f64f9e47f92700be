"""How the rows of the attention groups come to the experts and go back: DP gather and scatter.

A stage has attn_dp x attn_cp groups with rows of their own, `rows` of room in each, of which `counts[group]` hold a
token (every rank knows all counts: the engines exchange them each step). Before the experts a row is a sum of parts
over its attention group; after them it is a sum of parts over the ranks that share a copy of the experts.
"""

from dataclasses import dataclass
from enum import StrEnum

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from layouts.collectives import all_gather, all_gather_same, axis_index, psum, reduce_scatter, vary
from layouts.layout import Layout
from layouts.mesh import Axes, axes_of
from layouts.moe.wire import PLAIN, Wire
from layouts.residual.sharded import own_rows
from layouts.rules import LayoutError


class Form(StrEnum):
    """ALL_TO_ALL: each rank keeps its part of the group's rows. ONE_GROUP: all rows are there already, and only summed.
    MAX_LEN, EXACT, SUM_LEN: every rank gets the rows of all groups: padded to the longest and gathered; gathered
    without the padding; or added into one buffer of zeros, at the prefix sum of the counts."""

    ALL_TO_ALL = "all_to_all"
    ONE_GROUP = "one_group"
    MAX_LEN = "max_len"
    SUM_LEN = "sum_len"
    EXACT = "exact"


def form_of(layout: Layout) -> Form:
    """The form that a layout's dispatch, padding and degrees amount to."""
    if layout.dispatch == "all_to_all":
        return Form.ALL_TO_ALL
    if layout.attn_dp * layout.attn_cp * layout.moe_dp == 1:
        return Form.ONE_GROUP
    return Form(layout.padding) if layout.attn_dp * layout.attn_cp > 1 else Form.MAX_LEN


@dataclass(frozen=True)
class Exchange:
    """The exchange of one layer, inside `shard_map`: `keep` sums the attention's parts into the stream, `spread` brings
    what was read of it to the experts, `leave` adds what they return.

    `whole`: what the experts return is summed already over the ranks that share them, as on a latent width, whose norm
    wants the sum (not so under ALL_TO_ALL, where it always is). `packed` is the room of a buffer without padding
    (SUM_LEN, EXACT): at least the sum of the counts of the groups that share it. `wire`: what rows travel as on the way
    to the experts (fp8 under ALL_TO_ALL and EXACT only).

    Raises LayoutError for rows that attn_tp does not divide, for a buffer of no rows, for EXACT under attn_tp > 1, and
    for an fp8 wire under a form that has none.
    """

    axes: Axes
    form: Form
    rows: int
    packed: int = 0
    whole: bool = False
    wire: Wire = PLAIN

    def __post_init__(self) -> None:
        attn_tp = self.axes.size("attn_tp")
        if self.rows < 1 or self.rows % attn_tp:
            raise LayoutError(
                f"rows = {self.rows} of an attention group must be a multiple of attn_tp = {attn_tp}: pad them"
            )
        if self.form in (Form.SUM_LEN, Form.EXACT) and self.packed < 1:
            raise LayoutError(f"padding = {self.form} needs the rows of its buffer: give packed, the sum of the counts")
        if self.form is Form.EXACT and attn_tp > 1:
            raise LayoutError(f"padding = exact gathers whole groups, and attn_tp = {attn_tp}: use max_len or sum_len")
        if self.wire.fp8 and self.form not in (Form.ALL_TO_ALL, Form.EXACT):
            raise LayoutError(
                f"an fp8 wire needs all_to_all or exact, and padding = {self.form}: send rows as they are"
            )

    @staticmethod
    def of(layout: Layout, rows: int, packed: int = 0, whole: bool = False) -> "Exchange":
        """That of a layout, on a plain wire; `rows`, `packed` and `whole` as the fields."""
        return Exchange(axes_of(layout), form_of(layout), rows, packed, whole)

    @property
    def sharers(self) -> tuple[str, ...]:
        """Mesh axes of the ranks that share one copy of the experts."""
        return self.axes["ep"] + self.axes["expert_tp"]

    @property
    def _sharer_count(self) -> int:
        return self.axes.size("ep") * self.axes.size("expert_tp")

    @property
    def own(self) -> int:
        """Rows of a group that one of its ranks keeps where they are scattered."""
        return self.rows // self.axes.size("attn_tp")

    @property
    def scattered(self) -> bool:
        """Whether a rank keeps its part of the group's rows between attention and experts, or all of them."""
        if self.form is Form.ALL_TO_ALL:
            return True
        return self.form in (Form.MAX_LEN, Form.EXACT) and not self.whole

    def kept(self, rows: Float[Array, "rows hidden"]) -> Float[Array, "kept hidden"]:
        """What a rank keeps of rows that the whole attention group has."""
        return own_rows(rows, self.axes["attn_tp"]) if self.scattered else rows

    def keep(
        self, parts: Float[Array, "rows hidden"], onto: Float[Array, "rows hidden"]
    ) -> Float[Array, "kept hidden"]:
        """The rows that a rank keeps of the stream: those of `onto`, and the sum over attn_tp of `parts`."""
        group = self.axes["attn_tp"]
        parts = vary(parts, group)
        return self.kept(onto) + (reduce_scatter(parts, group, 0) if self.scattered else psum(parts, group))

    def spread(
        self, read: Float[Array, "kept hidden"], counts: Int[Array, " groups"]
    ) -> Float[Array, "moe_rows hidden"]:
        """The rows that a rank brings to the experts, from those that every rank keeps."""
        if self.form in (Form.ONE_GROUP, Form.ALL_TO_ALL):
            return read
        if self.form is Form.SUM_LEN:
            return self._add_into_buffer(read, counts)
        own = read if self.scattered else own_rows(read, self.axes["attn_tp"])
        every = self.wire.decode(all_gather(self.wire.encode(own), self.sharers, 0), own.dtype)
        return self._pack(every, counts) if self.form is Form.EXACT else every

    def leave(
        self,
        out: Float[Array, "moe_rows hidden"],
        counts: Int[Array, " groups"],
        stream: Float[Array, "kept hidden"],
    ) -> Float[Array, "rows hidden"]:
        """The stream's rows of a rank's own attention group, on each of its ranks (and typed as equal on them).

        `out`: parts of a sum over the ranks that share the experts, or the sum (`whole`, and under ALL_TO_ALL).
        `stream`: what `keep` returned. Rows without a token hold no defined value.
        """
        if self.form is Form.ALL_TO_ALL:
            return self._to_whole_group(stream + out)
        if self.form in (Form.ONE_GROUP, Form.SUM_LEN):
            summed = out if self.whole else psum(vary(out, self.sharers), self.sharers)
            return stream + (summed if self.form is Form.ONE_GROUP else summed[self._packed_places(counts)])
        if self.form is Form.EXACT:
            out = self._unpack(out, counts)
        if self.whole:
            return stream + self._rows_of_group(out)
        return self._to_whole_group(stream + reduce_scatter(vary(out, self.sharers), self.sharers, 0))

    def real(self, counts: Int[Array, " groups"]) -> Bool[Array, " moe_rows"]:
        """Which of the rows that `spread` returns hold a token."""
        if self.form in (Form.SUM_LEN, Form.EXACT):
            return jnp.arange(self.packed) < self._sharing_counts(counts).sum()
        if self.form is Form.ONE_GROUP:
            return jnp.arange(self.rows) < counts[0]
        gathered = 1 if self.form is Form.ALL_TO_ALL else self._sharer_count
        rank = axis_index(self.axes["tp"]) // gathered * gathered + jnp.arange(gathered, dtype=jnp.int32)
        group, part = rank // self.axes.size("attn_tp"), rank % self.axes.size("attn_tp")
        position = part[:, None] * self.own + jnp.arange(self.own, dtype=jnp.int32)[None, :]
        return (position < counts[group][:, None]).reshape(-1)

    def _to_whole_group(self, own: Array) -> Array:
        return all_gather_same(vary(own, self.axes["attn_tp"]), self.axes["attn_tp"], 0)

    @property
    def _buffer_axes(self) -> tuple[str, ...]:
        """Ranks that add into one buffer: whole attention groups, and whole copies of the experts."""
        return self.sharers if self._sharer_count >= self.axes.size("attn_tp") else self.axes["attn_tp"]

    @property
    def _sharing(self) -> int:
        """Attention groups whose rows stand in one buffer."""
        return max(self._sharer_count // self.axes.size("attn_tp"), 1)

    def _group(self) -> Array:
        """This rank's attention group: the same number, and typed so, on all its ranks."""
        return axis_index(tuple(name for name in self.axes["tp"] if name not in self.axes["attn_tp"]))

    def _sharing_counts(self, counts: Array) -> Array:
        return lax.dynamic_slice_in_dim(counts, self._group() // self._sharing * self._sharing, self._sharing)

    def _packed_places(self, counts: Array) -> Array:
        """Where each row of a rank's group stands in the buffer; past its end for a row without a token."""
        sharing, group = self._sharing_counts(counts), self._group() % self._sharing
        start, position = (jnp.cumsum(sharing) - sharing)[group], jnp.arange(self.rows, dtype=counts.dtype)
        return jnp.where(position < sharing[group], start + position, self.packed)

    def _add_into_buffer(self, rows: Array, counts: Array) -> Array:
        """SUM_LEN: an all-reduce stands in for the gather; one rank of each group brings its rows."""
        mine = jnp.where(axis_index(self.axes["attn_tp"]) == 0, rows, jnp.zeros_like(rows))
        empty = jnp.zeros((self.packed, rows.shape[1]), rows.dtype)
        buffer = empty.at[self._packed_places(counts)].set(mine, mode="drop")
        return psum(vary(buffer, self._buffer_axes), self._buffer_axes)

    def _rows_of_group(self, out: Array) -> Array:
        """The rows of a rank's own group out of those of all groups that share the experts; where these ranks are but
        a part of the group, what each part has is gathered."""
        if self._sharing > 1:
            return lax.dynamic_slice_in_dim(out, self._group() % self._sharing * self.rows, self.rows)
        rest = tuple(name for name in self.axes["attn_tp"] if name not in self.sharers)
        return all_gather_same(vary(out, rest), rest, 0)

    def _places_in_padded(self, counts: Array) -> Array:
        """For each row of the packed buffer its place among the padded rows of all groups; past the end if empty."""
        sharing = self._sharing_counts(counts)
        ends, row = jnp.cumsum(sharing), jnp.arange(self.packed, dtype=counts.dtype)
        group = (row[:, None] >= ends[None, :]).sum(axis=1, dtype=counts.dtype)
        inside = jnp.minimum(group, self._sharing - 1)
        place = inside * self.rows + row - (ends - sharing)[inside]
        return jnp.where(group < self._sharing, place, self._sharing * self.rows)

    def _pack(self, every: Array, counts: Array) -> Array:
        return jnp.take(every, self._places_in_padded(counts), axis=0, mode="fill", fill_value=0)

    def _unpack(self, y: Array, counts: Array) -> Array:
        padded = jnp.zeros((self._sharing * self.rows, y.shape[1]), y.dtype)
        return padded.at[self._places_in_padded(counts)].set(y, mode="drop")
