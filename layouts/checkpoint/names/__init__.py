"""Which checkpoint tensors make each weight of a program: one line for each architecture, over shared parts."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from layouts.checkpoint.errors import CheckpointError
from layouts.checkpoint.folder import Folder
from layouts.checkpoint.names.attention import attention
from layouts.checkpoint.names.claims import Claims
from layouts.checkpoint.names.ffn import MoENames, feed_forward, interleaved_experts
from layouts.checkpoint.names.naming import Naming
from layouts.checkpoint.views import Padded, View
from layouts.models.config import read_json
from layouts.models.layer import Layer
from layouts.models.model import Model
from layouts.residual.shape import ATTENTION, FFN, OUTPUT, AttentionResidual

# The decoder of a multimodal model stands beside what turns pictures into embeddings.
_PICTURES: Final = (re.compile(r"^(vision_tower|mm_projector)\."),)
# Tables of angles that older checkpoints carry along; programs compute them.
_ANGLES: Final = re.compile(r"\.rotary_emb\.inv_freq$")
_USUAL: Final = Naming(partial(feed_forward, MoENames()))
_W123: Final = partial(feed_forward, MoENames("block_sparse_moe.", "gate", ("w1", "w3", "w2")))

# Names: `save_pretrained` of the classes in transformers 5.24; of wrappers, the loaders of SGLang's models/kimi_k25.py
# and models/kimi_k3.py.
NAMINGS: Final[Mapping[str, Naming]] = {
    "DeepseekV3ForCausalLM": _USUAL,
    "DeepseekV32ForCausalLM": _USUAL,
    "GlmMoeDsaForCausalLM": _USUAL,
    "GptOssForCausalLM": Naming(interleaved_experts),
    "KimiK25ForConditionalGeneration": Naming(_USUAL.ffn, "language_model.", _PICTURES),
    "KimiK3ForConditionalGeneration": Naming(_W123, "language_model.", _PICTURES),
    "KimiLinearForCausalLM": Naming(_W123),
    "LlamaForCausalLM": _USUAL,
    "Qwen3ForCausalLM": _USUAL,
    "Qwen3MoeForCausalLM": _USUAL,
}


def architecture_of(folder: Folder) -> str:
    """What the folder's own config.json calls its outermost class, which decides the names. Raises MeshwrightError."""
    config = read_json(folder.path / "config.json")
    named = config.values.get("architectures")
    known = [name for name in named if name in NAMINGS] if isinstance(named, list) else []
    if not known:
        raise CheckpointError(f"{config.source}: architectures = {named!r} is none of {', '.join(NAMINGS)}")
    return known[0]


def views(model: Model, folder: Folder, architecture: str, *, attn_tp: int, vocab_tp: int) -> dict[str, Any]:
    """A view for every weight of the model's program, in the tree in which the decoder holds them.

    {embed_tokens, final_norm, lm_head unless tied, layers: [{input_norm, attention, post_attention_norm, ffn}]}; KV
    heads repeated to `attn_tp`, the vocabulary padded with zero rows to a multiple of `vocab_tp`. With attention
    residuals there is a `residual` in each layer and beside the layers. Nothing is read. Raises CheckpointError naming
    every tensor that is missing, of another shape, or not the model's.
    """
    naming, claims = NAMINGS[architecture], Claims(folder)
    body, head = f"{naming.prefix}model.", f"{naming.prefix}lm_head.weight"

    def vocabulary(name: str) -> View:
        held = claims.tensor(name, (model.vocab, model.hidden))
        rows = -(-model.vocab // vocab_tp) * vocab_tp
        return held if rows == model.vocab else Padded(held, rows)

    made: dict[str, Any] = {
        "embed_tokens": vocabulary(f"{body}embed_tokens.weight"),
        "final_norm": claims.tensor(f"{body}norm.weight", (model.hidden,)),
        **({} if model.tied else {"lm_head": vocabulary(head)}),
        **_residual(claims, body, model.residual, OUTPUT),
        "layers": [
            _layer(claims, naming, f"{body}layers.{i}.", layer, attn_tp) for i, layer in enumerate(model.layers)
        ],
    }
    claims.check(_ignored(model, claims, naming, body, head))
    return made


def _layer(claims: Claims, naming: Naming, name: str, layer: Layer, attn_tp: int) -> dict[str, Any]:
    norms = [f"{name}{which}_layernorm.weight" for which in ("input", "post_attention")]
    return {
        "input_norm": claims.tensor(norms[0], (layer.hidden,)),
        "attention": attention(claims, f"{name}self_attn.", layer.attention, attn_tp),
        "post_attention_norm": claims.tensor(norms[1], (layer.hidden,)),
        "ffn": naming.ffn(claims, name, layer.ffn),
        **_residual(claims, name, layer.residual, ATTENTION, FFN),
    }


def _residual(claims: Claims, name: str, residual: AttentionResidual | None, *reads: str) -> dict[str, Any]:
    """Weights of the reads of attention residuals, if there are any."""
    if residual is None:
        return {}
    shapes = {"norm": (residual.hidden,), "proj": (1, residual.hidden)}
    tensors = {
        f"{read}_{part}": claims.tensor(f"{name}{read}_{part}.weight", shape)
        for read in reads
        for part, shape in shapes.items()
    }
    return {"residual": tensors}


def _ignored(model: Model, claims: Claims, naming: Naming, body: str, head: str) -> Callable[[str], bool]:
    """Tensors that the decoder of the model does without: angles, pictures, a tied head's copy, and MTP layers.

    A head that is not tied has been asked for. An MTP layer is one past the model's last that has the projection of
    embedding and hidden state, `eh_proj`.
    """
    layer_of = re.compile(rf"^{re.escape(body)}layers\.(\d+)\.")

    def ignored(name: str) -> bool:
        if name == head or _ANGLES.search(name) or any(pattern.search(name) for pattern in naming.others):
            return True
        layer = layer_of.match(name)
        return layer is not None and int(layer[1]) >= len(model.layers) and claims.has(f"{layer[0]}eh_proj.weight")

    return ignored
