"""The tower that turns pictures into tokens, as bytes on each rank: nothing of it is priced.

Blocks and merger are cut over attention TP as both engines do it unless told to run the tower by data; norms, patch and
position embeddings are whole on every rank. Sources: SGLang 0.5.23 `models/qwen3_vl.py`, vLLM 0.33.0
`model_executor/models/qwen3_vl.py`.
"""

from typing import Final

from layouts.expression import ONE, Expr
from layouts.models.config import LARGEST_DEPTH, Config
from layouts.shapes import BF16
from layouts.symbols import ATTN_TP
from layouts.tensor import Tensor

_CHANNELS: Final = 3  # of a patch, where the config does not say
_FRAMES: Final = 2
_LAYERS: Final = 24  # of ViT-L/14
_WIDTH: Final = 1024
_SIZE_NAMES: Final = (("num_hidden_layers", "vt_num_hidden_layers"), ("hidden_size", "vt_hidden_size"))
_MOST_SIDE: Final = 1024  # pixels of a patch, patches of a merged one
# A config with all of these has a tower of the shape below; others have other blocks.
_KEYS: Final = ("depth", "num_position_embeddings", "out_hidden_size", "patch_size", "spatial_merge_size")


def encoder_size(config: Config) -> tuple[int, int] | None:
    """Layers and width that SGLang goes by, those of ViT-L/14 where it finds neither name of theirs; None without a
    tower. Source: SGLang 0.5.23, `adjust_mem_fraction_for_vlm`, and the classes of configs with the second name."""
    if not isinstance(config.values.get("vision_config"), dict):
        return None
    vision = config.section("vision_config")
    layers, width = (next((k for k in keys if vision.has(k)), keys[0]) for keys in _SIZE_NAMES)
    return vision.size(layers, _LAYERS, most=LARGEST_DEPTH), vision.size(width, _WIDTH)


def vision_tower(config: Config) -> tuple[Tensor, ...]:
    """Weights of the tower, all in bf16: checkpoints of other formats leave it as it is. Empty for a model without
    one, and for towers of another shape; raises ModelError for sizes that cannot be."""
    about = config.values.get("vision_config")
    if not isinstance(about, dict) or any(about.get(key) is None for key in _KEYS):
        return ()
    vision = config.section("vision_config")
    width, depth = vision.size("hidden_size"), vision.size("depth", most=LARGEST_DEPTH)
    frames = vision.size("temporal_patch_size", _FRAMES)
    patch = vision.size("in_channels", _CHANNELS) * frames * vision.size("patch_size", most=_MOST_SIDE) ** 2
    merged = width * vision.size("spatial_merge_size", most=_MOST_SIDE) ** 2
    out = vision.size("out_hidden_size")
    levels = vision.sizes("deepstack_visual_indexes", 0, depth) if vision.has("deepstack_visual_indexes") else ()
    return (
        _part("patch_embed", width, patch + 1),
        _part("pos_embed", vision.size("num_position_embeddings"), width),
        *_blocks(depth, width, vision.size("intermediate_size")),
        *_mergers("merger", 1, width, merged, out),
        # a merger of an inner block has its norm behind the merging
        *(_mergers("deepstack_merger", len(levels), merged, merged, out) if levels else ()),
    )


def _blocks(depth: int, width: int, inner: int) -> tuple[Tensor, ...]:
    """Attention and MLP. Biases of what is cut along its output are cut with it, the others are whole."""
    return (
        _part("norms", 4, width, depth),
        _part("qkv", 3 * width, width + 1, depth, ATTN_TP),
        _part("proj", width, width, depth, ATTN_TP),
        _part("fc1", inner, width + 1, depth, ATTN_TP),
        _part("fc2", width, inner, depth, ATTN_TP),
        _part("proj and fc2 bias", 2, width, depth),
    )


def _mergers(name: str, count: int, normed: int, merged: int, out: int) -> tuple[Tensor, ...]:
    return (
        _part(f"{name} norm", 2, normed, count),
        _part(f"{name} fc1", merged, merged + 1, count, ATTN_TP),
        _part(f"{name} fc2", out, merged, count, ATTN_TP),
        _part(f"{name} fc2 bias", 1, out, count),
    )


def _part(name: str, out: int, inp: int, count: int = 1, cut: Expr = ONE) -> Tensor:
    """`count` weights of (out, inp), a bias counted as one input more."""
    return Tensor(f"vision {name}", out, inp, "dense", None, cut, fixed=BF16, copies=Expr.of(count))
