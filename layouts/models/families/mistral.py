"""Mistral and Qwen2: Llama's shapes, in a sliding window where Mistral has one; biases of Qwen2 are not counted."""

from layouts.models.config import LARGEST_CONTEXT, Config
from layouts.models.families import llama
from layouts.models.families.body import Body, depth
from layouts.models.families.deepseek import dense_mlp
from layouts.models.forms import unavailable
from layouts.models.layer import Layer

forms = unavailable


def read(config: Config) -> Body:
    """Layers of the config; raises ModelError."""
    if config.flag("use_sliding_window"):
        raise config.error("use_sliding_window = true is not supported for this architecture; set it to false")
    windowed = not config.has("use_sliding_window")  # the key of Qwen2, whose sliding_window then counts for nothing
    window = config.size("sliding_window", 0, least=0, most=LARGEST_CONTEXT) if windowed else 0
    return Body((Layer(llama.gqa(config, window), dense_mlp(config)),) * depth(config))
