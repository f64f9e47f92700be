"""Which layouts are valid, for a model on a machine: one rule a function, each stated with its values when broken."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from hw.errors import MeshwrightError
from layouts.dense.shape import Dense
from layouts.gqa.shape import GQA
from layouts.layout import Layout
from layouts.models.model import Model
from layouts.moe.shape import MoE


class LayoutError(MeshwrightError):
    """A layout breaks a rule of the engines."""


@dataclass(frozen=True)
class Site:
    """What a layout is checked against."""

    model: Model
    gpus: int
    gpus_per_host: int
    domain: int
    prefill: bool = False


Rule = Callable[[Layout, Site], Iterator[str]]


def _world(layout: Layout, site: Site) -> Iterator[str]:
    if layout.gpus != site.gpus:
        yield (
            f"replicas x pp x attn_dp x attn_tp x attn_cp = {layout.replicas} x {layout.pp} x {layout.attn_dp} x "
            f"{layout.attn_tp} x {layout.attn_cp} = {layout.gpus}, not the {site.gpus} GPUs"
        )


def _stages(layout: Layout, site: Site) -> Iterator[str]:
    if layout.pp > len(site.model.layers):
        yield f"pp = {layout.pp} exceeds the {len(site.model.layers)} layers"


def _context_axes(layout: Layout, site: Site) -> Iterator[str]:
    if layout.attn_tp % layout.dcp:
        yield f"dcp = {layout.dcp} does not divide attn_tp = {layout.attn_tp}"
    if layout.dcp > 1 and site.prefill:
        yield f"dcp = {layout.dcp} cuts decode only; prefill cuts tokens with attn_cp"
    if layout.attn_cp > 1 and not site.prefill:
        yield f"attn_cp = {layout.attn_cp} cuts prefill only; decode cuts tokens with dcp"
    sparse = any(getattr(layer.attention, "indexer", None) for layer in site.model.layers)
    if sparse and layout.attn_cp > 1 and layout.attn_dp > 1:
        yield "attn_cp > 1 under sparse attention refuses attn_dp > 1"


def _heads(layout: Layout, site: Site) -> Iterator[str]:
    for attention in {layer.attention for layer in site.model.layers}:
        if attention.heads % layout.attn_tp:
            yield f"attn_tp = {layout.attn_tp} does not divide the {attention.heads} heads"
        if isinstance(attention, GQA):
            yield from _kv_heads(layout, attention.kv_heads)


def _kv_heads(layout: Layout, kv_heads: int) -> Iterator[str]:
    if kv_heads % layout.attn_tp and layout.attn_tp % kv_heads:
        yield f"attn_tp = {layout.attn_tp} and the {kv_heads} KV heads do not divide each other"
    elif layout.dcp > 1 and (layout.attn_tp // kv_heads) % layout.dcp:
        copies = max(layout.attn_tp // kv_heads, 1)
        yield f"dcp = {layout.dcp} does not divide the {copies} copies of each KV head (attn_tp / kv heads)"


def _experts(layout: Layout, site: Site) -> Iterator[str]:
    product = layout.ep * layout.expert_tp * layout.moe_dp
    if product != layout.tp:
        yield (
            f"ep x expert_tp x moe_dp = {layout.ep} x {layout.expert_tp} x {layout.moe_dp} = {product}, "
            f"not tp = {layout.tp}"
        )
    moes = {layer.ffn for layer in site.model.layers if isinstance(layer.ffn, MoE)}
    if not moes and (layout.ep > 1 or layout.moe_dp > 1):
        yield f"ep = {layout.ep}, moe_dp = {layout.moe_dp}: the model has no routed experts"
    for moe in moes:
        if moe.experts % layout.ep:
            yield f"ep = {layout.ep} does not divide the {moe.experts} experts"
        block = site.model.precision["experts"].block
        if moe.intermediate % (layout.expert_tp * block):
            yield (
                f"expert_tp = {layout.expert_tp} cuts the expert width {moe.intermediate} "
                f"inside a quantisation block of {block}"
            )


def _dense_width(layout: Layout, site: Site) -> Iterator[str]:
    for width in {layer.ffn.intermediate for layer in site.model.layers if isinstance(layer.ffn, Dense)}:
        if width % layout.attn_tp:
            yield f"attn_tp = {layout.attn_tp} does not divide the MLP width {width}"


def _dispatch(layout: Layout, site: Site) -> Iterator[str]:
    if layout.dispatch == "all_to_all" and (layout.ep != layout.tp or layout.tp == 1):
        yield f"dispatch = all_to_all needs ep = tp > 1, and ep = {layout.ep}, tp = {layout.tp}"
    if layout.padding == "sum_len" and (layout.dispatch != "all_gather" or layout.attn_dp == 1):
        yield "padding = sum_len needs dispatch = all_gather and attn_dp > 1"


def _weight_shard(layout: Layout, site: Site) -> Iterator[str]:
    width, layers = layout.weight_shard, layout.weight_shard_layers
    if layout.tp % width or site.gpus_per_host % width:
        yield f"weight_shard = {width} does not divide tp = {layout.tp} and the {site.gpus_per_host} GPUs of a host"
    if (width > 1) != layers.any:
        yield f"weight_shard = {width} with weight_shard_layers = {layers}: both or neither"
    if layers.any and layers.last >= len(site.model.layers):
        yield f"weight_shard_layers = {layers} goes past the last layer {len(site.model.layers) - 1}"
    if layers.draft and site.model.draft is None:
        yield f"weight_shard_layers = {layers}: the model has no draft"
    if width > 1 and layout.attn_tp > 1 and layout.dispatch != "all_to_all":
        yield (
            f"weight_shard = {width} shards weights that run TP1, and none does under "
            f"attn_tp = {layout.attn_tp}, dispatch = {layout.dispatch}"
        )


def _vocabulary(layout: Layout, site: Site) -> Iterator[str]:
    if layout.tp % layout.vocab_tp:
        yield f"vocab_tp = {layout.vocab_tp} does not divide tp = {layout.tp}"


def _backend(layout: Layout, site: Site) -> Iterator[str]:
    if layout.dcp_backend == "fi_a2a" and (layout.dcp > site.domain or site.domain <= site.gpus_per_host):
        yield f"dcp_backend = fi_a2a needs multi-node NVLink; the domain is {site.domain} GPUs"
    if layout.dcp == 1 and layout.dcp_backend != "a2a":
        yield f"dcp_backend = {layout.dcp_backend} needs dcp > 1"


RULES: Final[tuple[Rule, ...]] = (
    _world, _stages, _context_axes, _heads, _experts, _dense_width, _dispatch, _weight_shard, _vocabulary, _backend,
)  # fmt: skip


def broken(layout: Layout, site: Site) -> list[str]:
    """Every rule that the layout breaks, stated with its values; empty for a valid layout."""
    return [message for rule in RULES for message in rule(layout, site)]


def checked(layout: Layout, site: Site) -> Layout:
    """The layout itself if it is valid; LayoutError with rule, values and nearest valid layouts if not."""
    messages = broken(layout, site)
    if messages:
        near = nearest(layout, site)
        hint = f"nearest valid: {' or '.join(near)}" if near else "no layout of these GPUs is valid for this model"
        raise LayoutError(f"layout {text_of(layout, site.model)}: {'; '.join(messages)}; {hint}")
    return layout
