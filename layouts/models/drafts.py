"""Where a draft comes from: the multi-token-prediction layers of the model, or the config of a block draft."""

import os
import pathlib

from layouts.dense import Dense
from layouts.models import presets
from layouts.models.config import LARGEST_DEPTH, Config, read_json
from layouts.models.draft import BlockDraftLayer, Draft, MTPLayer
from layouts.models.families import llama
from layouts.models.families.body import Body, depth
from layouts.precision import Quantization
from layouts.shapes import vector
from layouts.symbols import DRAFT_ROWS, ROWS
from layouts.tensor import FORMATS, Component, Precision, Tensor

_BLOCK_DRAFTS = ("DSparkDraftModel",)


def mtp_draft(
    config: Config, body: Body, quantization: Quantization, precision: Precision
) -> tuple[Draft, tuple[str, ...]]:
    """The MTP layers that the checkpoint holds, and notes on their format; raises ModelError if it holds none.

    Source of the extra weights: DeepSeek-V3's MTP module joins the normed hidden state and the normed embedding of the
    next token (eh_proj, 2 hidden -> hidden); embedding and head are the model's.
    """
    if not body.mtp:
        known = ", ".join(presets.draft_names())
        raise config.error(f"has no MTP layers (num_nextn_predict_layers is 0); drafts: {known}, or none")
    component, notes = _stored_as(body, quantization, precision)
    hidden = body.mtp[0].hidden
    extra = (
        Tensor("eh_proj", hidden, 2 * hidden, "draft", DRAFT_ROWS),
        vector("mtp_norms", 3 * hidden, "draft"),
    )
    layers = tuple(MTPLayer(layer.attention, layer.ffn, component=component) for layer in body.mtp)
    return Draft("mtp", layers, len(layers), len(layers), extra * len(layers), "token"), notes


def _stored_as(
    body: Body, quantization: Quantization, precision: Precision
) -> tuple[Component | None, tuple[str, ...]]:
    """Quantised checkpoints may leave the MTP layers in bf16: then all of their weights are the draft's."""
    modules = [m for i, layer in enumerate(body.mtp) for m in body.layer_modules(len(body.layers) + i, layer)]
    stored = {quantization.format_of(module.name) for module in modules}
    if all(quantization.format_of(module.name) == precision[module.component] for module in modules):
        return None, ()
    if stored == {FORMATS["bf16"]}:
        return "draft", ("the MTP layers are stored in bf16, unlike the model's; their weights count as draft",)
    return None, ("the MTP layers are stored in other formats than the model's; taken as the model's",)


def block_draft(name: str, model_name: str, hidden: int, vocab: int) -> Draft:
    """A draft that proposes a block in one pass, by preset name, its beginning (`dspark`), or path."""
    config = read_json(_find(name, model_name))
    architecture = _first_architecture(config)
    if architecture not in _BLOCK_DRAFTS:
        raise config.error(
            f"draft architecture {architecture!r} is not supported; supported: {', '.join(_BLOCK_DRAFTS)}"
        )
    for key, expected in (("hidden_size", hidden), ("vocab_size", vocab)):
        if config.size(key) != expected:
            raise config.error(f"{key} = {config.size(key)} is not the {expected} of {model_name}; use its own draft")
    layer = BlockDraftLayer(
        llama.gqa(config, config.size("sliding_window", 0, least=0)), Dense(hidden, config.size("intermediate_size"))
    )
    block = config.size("block_size", most=LARGEST_DEPTH)
    return Draft(
        pathlib.Path(config.source).stem,
        (layer,) * depth(config),
        1,
        block,
        _block_extra(config, hidden, vocab),
        "window",
    )


def _block_extra(config: Config, hidden: int, vocab: int) -> tuple[Tensor, ...]:
    """fc: the hidden states of some target layers -> hidden, on the verified rows. Markov head: a low-rank bias of the
    logits by the token before, embedding and projection."""
    states = config.size("num_target_hidden_states", most=LARGEST_DEPTH)
    rank = config.size("markov_rank", 0, least=0)
    markov = (
        Tensor("markov_embed", vocab, rank, "draft", None),
        Tensor("markov_head", vocab, rank, "draft", DRAFT_ROWS),
    )
    fc = Tensor("fc", hidden, states * hidden, "draft", ROWS)
    return (fc, *(markov if rank else ()), vector("draft_norms", 2 * hidden, "draft"))


def _find(name: str, model_name: str) -> pathlib.Path:
    if presets.looks_like_path(name):
        return pathlib.Path(os.path.expanduser(name))
    base = model_name.partition("@")[0]
    for candidate in (name.lower(), f"{name.lower()}-{base}"):
        if candidate in presets.draft_names():
            return presets.DRAFTS / f"{candidate}.json"
    raise presets.unknown("draft", name, ("none", "mtp", *presets.draft_names()), "the path of a draft's config.json")


def _first_architecture(config: Config) -> str:
    names = config.values.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise config.error("key 'architectures' must be a list that starts with a name")
    return names[0]
