"""Which layouts are valid, for a model on a machine.

A rule is one condition, written over a layout's fields: it is read for one layout (with a message that states the
values) and for arrays of thousands (`layouts.enumerate`), so that search and error message cannot disagree.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from hw.errors import MeshwrightError
from layouts.csa import CSA
from layouts.dense import Dense
from layouts.gqa import GQA
from layouts.kda import KDA
from layouts.layout import Layout
from layouts.models.model import Model
from layouts.moe import MoE


class LayoutError(MeshwrightError):
    """A layout breaks a rule of the engines."""


@dataclass(frozen=True)
class Site:
    """What a layout is checked against. `redundant_experts`: second copies of experts, which `ep` divides with them."""

    model: Model
    gpus: int
    gpus_per_host: int
    domain: int
    prefill: bool = False
    redundant_experts: int = 0

    @property
    def heads(self) -> tuple[int, ...]:
        """Distinct head counts of the attention layers, those of fewer key heads of linear attention among them, and
        the groups of heads that a low-rank output keeps together."""
        attentions = [layer.attention for layer in self.model.layers]
        keys = {a.keys for a in attentions if isinstance(a, KDA)}
        return tuple(
            sorted({a.heads for a in attentions} | keys | {a.groups for a in attentions if isinstance(a, CSA)})
        )

    @property
    def kv_heads(self) -> tuple[int, ...]:
        """Distinct KV head counts of the model's own grouped-query layers."""
        attentions = (layer.attention for layer in self.model.layers)
        return tuple(sorted({a.kv_heads for a in attentions if isinstance(a, GQA)}))

    @property
    def moes(self) -> tuple[MoE, ...]:
        return tuple({layer.ffn: None for layer in self.model.layers if isinstance(layer.ffn, MoE)})

    @property
    def experts(self) -> tuple[int, ...]:
        """Experts that ranks hold of each feed-forward layer with experts, copies included."""
        return tuple(moe.experts + self.redundant_experts for moe in self.moes)

    @property
    def dense_widths(self) -> tuple[int, ...]:
        return tuple(sorted({la.ffn.intermediate for la in self.model.layers if isinstance(la.ffn, Dense)}))

    @property
    def recurrent(self) -> bool:
        """Whether some layers carry a state from token to token."""
        return any(isinstance(layer.attention, KDA) for layer in self.model.layers)

    @property
    def compressed(self) -> bool:
        """Whether some layers keep one row for several tokens."""
        return any(isinstance(layer.attention, CSA) for layer in self.model.layers)


# A condition over the fields of one layout (a bool) or of arrays of layouts (an array of bool).
Condition = Callable[[Any, Site], Any]


@dataclass(frozen=True)
class Rule:
    """`holds` decides, `says` states the rule with the values of a layout that breaks it. `keys` are those it reads."""

    keys: tuple[str, ...]
    holds: Condition
    says: Callable[[Layout, Site], str]


def _all(conditions: list[Any]) -> Any:
    return np.logical_and.reduce(conditions) if conditions else True


def _divides(part: Any, wholes: tuple[int, ...]) -> Any:
    return _all([whole % part == 0 for whole in wholes])


def _kv_heads_fit(layout: Any, site: Site) -> Any:
    return _all([(kv % layout.attn_tp == 0) | (layout.attn_tp % kv == 0) for kv in site.kv_heads])


def _kv_copies_fit(layout: Any, site: Site) -> Any:
    """DCP cuts tokens among the ranks that hold copies of the same KV head."""
    return _all([(layout.dcp == 1) | (np.maximum(layout.attn_tp // kv, 1) % layout.dcp == 0) for kv in site.kv_heads])


def _whole_blocks(layout: Any, site: Site) -> Any:
    block = site.model.precision["experts"].block
    return _all([moe.intermediate % (layout.expert_tp * block) == 0 for moe in site.moes])


def _copies_nest(layout: Any, site: Site) -> Any:
    """Rows go from attention groups to whole copies of the experts, or copies stand inside one group."""
    sharing = layout.ep * layout.expert_tp
    return (sharing % layout.attn_tp == 0) | (layout.attn_tp % sharing == 0)


def _backend_fits(layout: Any, site: Site) -> Any:
    return (layout.dcp_backend != "fi_a2a") | ((layout.dcp <= site.domain) & (site.domain > site.gpus_per_host))


def _some_runs_whole(layout: Any, site: Site) -> Any:
    return (layout.weight_shard == 1) | (layout.attn_tp == 1) | (layout.dispatch == "all_to_all")


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        ("replicas", "pp", "attn_dp", "attn_tp", "attn_cp"),
        lambda la, s: la.gpus == s.gpus,
        lambda la, s: (
            f"replicas x pp x attn_dp x attn_tp x attn_cp = {la.replicas} x {la.pp} x {la.attn_dp} x {la.attn_tp} x "
            f"{la.attn_cp} = {la.gpus}, not the {s.gpus} GPUs"
        ),
    ),
    Rule(
        ("pp",),
        lambda la, s: la.pp <= len(s.model.layers),
        lambda la, s: f"pp = {la.pp} exceeds the {len(s.model.layers)} layers",
    ),
    Rule(
        ("attn_tp", "dcp"),
        lambda la, s: la.attn_tp % la.dcp == 0,
        lambda la, s: f"dcp = {la.dcp} does not divide attn_tp = {la.attn_tp}",
    ),
    Rule(
        ("dcp",),
        lambda la, s: (la.dcp == 1) | (not s.prefill),
        lambda la, s: f"dcp = {la.dcp} cuts decode only; prefill cuts tokens with attn_cp",
    ),
    Rule(
        ("dcp",),
        lambda la, s: (la.dcp == 1) | (not s.compressed),
        lambda la, s: f"dcp = {la.dcp} cuts a compressed context, which SGLang 0.5.23 and vLLM 0.33.0 do not",
    ),
    Rule(
        ("attn_cp",),
        lambda la, s: (la.attn_cp == 1) | s.prefill,
        lambda la, s: f"attn_cp = {la.attn_cp} cuts prefill only; decode cuts tokens with dcp",
    ),
    Rule(
        ("attn_cp",),
        lambda la, s: (la.attn_cp == 1) | (not s.recurrent),
        lambda la, s: f"attn_cp = {la.attn_cp} cuts a prompt, and linear attention computes it in order",
    ),
    Rule(
        ("attn_cp", "attn_dp"),
        lambda la, s: (la.attn_cp == 1) | (la.attn_dp == 1) | (not s.model.sparse),
        lambda la, s: f"attn_cp = {la.attn_cp} under sparse attention refuses attn_dp = {la.attn_dp}",
    ),
    Rule(
        ("attn_tp",),
        lambda la, s: _divides(la.attn_tp, s.heads),
        lambda la, s: f"attn_tp = {la.attn_tp} does not divide the heads ({', '.join(map(str, s.heads))})",
    ),
    Rule(
        ("attn_tp",),
        _kv_heads_fit,
        lambda la, s: (
            f"attn_tp = {la.attn_tp} and the KV heads ({', '.join(map(str, s.kv_heads))}) do not divide each other"
        ),
    ),
    Rule(
        ("attn_tp", "dcp"),
        _kv_copies_fit,
        lambda la, s: (
            f"dcp = {la.dcp} does not divide the copies of each KV head (attn_tp / KV heads = "
            f"{la.attn_tp} / {', '.join(map(str, s.kv_heads))})"
        ),
    ),
    Rule(
        ("attn_tp",),
        lambda la, s: _divides(la.attn_tp, s.dense_widths),
        lambda la, s: f"attn_tp = {la.attn_tp} does not divide the MLP width ({', '.join(map(str, s.dense_widths))})",
    ),
    Rule(
        ("attn_dp", "attn_tp", "attn_cp", "ep", "expert_tp", "moe_dp"),
        lambda la, s: la.ep * la.expert_tp * la.moe_dp == la.tp,
        lambda la, s: (
            f"ep x expert_tp x moe_dp = {la.ep} x {la.expert_tp} x {la.moe_dp} = {la.ep * la.expert_tp * la.moe_dp}, "
            f"not tp = {la.tp}"
        ),
    ),
    Rule(
        ("ep", "moe_dp"),
        lambda la, s: bool(s.moes) | ((la.ep == 1) & (la.moe_dp == 1)),
        lambda la, s: f"ep = {la.ep}, moe_dp = {la.moe_dp}: the model has no routed experts",
    ),
    Rule(
        ("ep",),
        lambda la, s: _divides(la.ep, s.experts),
        lambda la, s: f"ep = {la.ep} does not divide the experts ({', '.join(str(experts) for experts in s.experts)})",
    ),
    Rule(
        ("expert_tp",),
        _whole_blocks,
        lambda la, s: (
            f"expert_tp = {la.expert_tp} cuts the expert width ({', '.join(str(m.intermediate) for m in s.moes)}) "
            f"inside a quantisation block of {s.model.precision['experts'].block}"
        ),
    ),
    Rule(
        ("attn_tp", "ep", "expert_tp"),
        _copies_nest,
        lambda la, s: (
            f"ep x expert_tp = {la.ep} x {la.expert_tp} = {la.ep * la.expert_tp} and attn_tp = {la.attn_tp} do not "
            "divide each other"
        ),
    ),
    Rule(
        ("attn_dp", "attn_tp", "attn_cp", "weight_shard"),
        lambda la, s: (la.tp % la.weight_shard == 0) & (s.gpus_per_host % la.weight_shard == 0),
        lambda la, s: (
            f"weight_shard = {la.weight_shard} does not divide tp = {la.tp} and the {s.gpus_per_host} GPUs of a host"
        ),
    ),
    Rule(
        ("weight_shard", "weight_shard_layers"),
        lambda la, s: (la.weight_shard > 1) == la.weight_shard_layers.any,
        lambda la, s: (
            f"weight_shard = {la.weight_shard} with weight_shard_layers = {la.weight_shard_layers}: both or neither"
        ),
    ),
    Rule(
        ("weight_shard_layers",),
        lambda la, s: la.weight_shard_layers.last < len(s.model.layers),
        lambda la, s: (
            f"weight_shard_layers = {la.weight_shard_layers} goes past the last layer {len(s.model.layers) - 1}"
        ),
    ),
    Rule(
        ("attn_tp", "weight_shard_layers"),
        lambda la, s: np.logical_not(la.weight_shard_layers.draft) | ((s.model.draft is not None) & (la.attn_tp == 1)),
        lambda la, s: (
            f"weight_shard_layers = {la.weight_shard_layers} needs a draft that is whole on each rank: "
            f"draft = {s.model.draft.name if s.model.draft else 'none'}, attn_tp = {la.attn_tp}"
        ),
    ),
    Rule(
        ("attn_dp", "attn_tp", "attn_cp", "vocab_tp"),
        lambda la, s: la.tp % la.vocab_tp == 0,
        lambda la, s: f"vocab_tp = {la.vocab_tp} does not divide tp = {la.tp}",
    ),
    Rule(
        ("attn_tp", "vocab_tp"),
        lambda la, s: (la.vocab_tp % la.attn_tp == 0) | (la.attn_tp % la.vocab_tp == 0),
        lambda la, s: f"vocab_tp = {la.vocab_tp} and attn_tp = {la.attn_tp} do not divide each other",
    ),
    Rule(
        ("dcp", "dcp_backend"),
        lambda la, s: (la.dcp > 1) | (la.dcp_backend == "a2a"),
        lambda la, s: f"dcp_backend = {la.dcp_backend} needs dcp > 1",
    ),
    Rule(
        ("dcp", "dcp_backend"),
        _backend_fits,
        lambda la, s: f"dcp_backend = {la.dcp_backend} needs multi-node NVLink: the domain is {s.domain} GPUs",
    ),
    Rule(
        ("attn_dp", "attn_tp", "attn_cp", "ep", "dispatch"),
        lambda la, s: (la.dispatch != "all_to_all") | ((la.ep == la.tp) & (la.tp > 1)),
        lambda la, s: f"dispatch = {la.dispatch} needs ep = tp > 1, and ep = {la.ep}, tp = {la.tp}",
    ),
    Rule(
        ("attn_dp", "dispatch", "padding"),
        lambda la, s: (la.padding != "sum_len") | ((la.dispatch == "all_gather") & (la.attn_dp > 1)),
        lambda la, s: f"padding = {la.padding} needs dispatch = all_gather and attn_dp > 1",
    ),
    Rule(
        ("padding",),
        lambda la, s: (la.padding != "sum_len") | s.prefill,
        lambda la, s: f"padding = {la.padding}: a captured decode graph has fixed shapes and pads to max_len",
    ),
    Rule(
        ("attn_tp", "weight_shard", "dispatch"),
        _some_runs_whole,
        lambda la, s: (
            f"weight_shard = {la.weight_shard} shards weights that run TP1, and none does under "
            f"attn_tp = {la.attn_tp}, dispatch = {la.dispatch}"
        ),
    ),
)


def broken(layout: Layout, site: Site) -> list[str]:
    """Every rule that the layout breaks, stated with its values; empty for a valid layout."""
    return [rule.says(layout, site) for rule in RULES if not rule.holds(layout, site)]
