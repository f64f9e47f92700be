"""Readers of model configs, one file for each family, and the table that picks one by architecture."""

from collections.abc import Callable
from typing import Final

from layouts.models.config import Config
from layouts.models.families import deepseek, glm, gpt_oss, kimi_linear, llama, qwen3
from layouts.models.families.body import Body

READERS: Final[dict[str, Callable[[Config], Body]]] = {
    "DeepseekV3ForCausalLM": deepseek.read,
    "DeepseekV32ForCausalLM": deepseek.read,
    "GlmMoeDsaForCausalLM": glm.read,
    "GptOssForCausalLM": gpt_oss.read,
    "KimiK25ForConditionalGeneration": deepseek.read,
    "KimiK3ForConditionalGeneration": kimi_linear.read,
    "KimiLinearForCausalLM": kimi_linear.read,
    "LlamaForCausalLM": llama.read,
    "Qwen3ForCausalLM": qwen3.read,
    "Qwen3MoeForCausalLM": qwen3.read,
}

__all__ = ["READERS", "Body"]
