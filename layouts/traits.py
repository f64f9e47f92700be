"""The few numbers of a model on which the quantities of a step depend."""

from layouts.csa import CSA
from layouts.gqa import GQA
from layouts.mla import MLA
from layouts.models.model import Model
from layouts.moe import MoE
from layouts.quantities import Traits


def traits_of(model: Model) -> Traits:
    """The numbers of a model on which quantities depend."""
    layers = model.layers
    grouped = [la.attention for la in layers if isinstance(la.attention, GQA)]
    latent = [la.attention for la in layers if isinstance(la.attention, MLA)]
    windows = [la.attention.window for la in layers if isinstance(la.attention, GQA | CSA) and la.attention.window]
    reaches = [la.attention.reach for la in layers if isinstance(la.attention, CSA)]
    moe = next((la.ffn for la in layers if isinstance(la.ffn, MoE)), None)
    indexer = next((a.indexer for a in latent if a.indexer), None)
    draft = model.draft
    window = draft is not None and draft.kv == "window"
    drafted = [la.attention.window for la in draft.layers if isinstance(la.attention, GQA)] if draft and window else []
    return Traits(
        heads=latent[0].heads if latent else 1,
        kv_heads=model.kv_heads,
        experts=moe.experts if moe else 0,
        topk=moe.topk if moe else 0,
        index_topk=indexer.topk if indexer else max(reaches, default=0),
        window=max(windows, default=0),
        draft_rows=draft.block if draft and window else 1,
        draft_window=max(drafted, default=0),
        group=max((a.heads // a.kv_heads for a in grouped), default=1),
        key=max((a.head_dim for a in grouped), default=1),
    )
