"""Readers of model configs, one file for each family, and the table that picks one by architecture."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Final

from layouts.models.config import Config
from layouts.models.families import deepseek, glm, gpt_oss, kimi_linear, llama, qwen3, qwen3_next
from layouts.models.families.body import Body
from layouts.models.forms import Forms


@dataclass(frozen=True)
class Family:
    """How a family's config is read: shapes for every question, forms for programs."""

    read: Callable[[Config], Body]
    forms: Callable[[Config], Forms]

    @staticmethod
    def of(module: ModuleType) -> "Family":
        return Family(module.read, module.forms)


_MODULES: Final[Mapping[str, ModuleType]] = {
    "DeepseekV3ForCausalLM": deepseek,
    "DeepseekV32ForCausalLM": deepseek,
    "GlmMoeDsaForCausalLM": glm,
    "GptOssForCausalLM": gpt_oss,
    "KimiK25ForConditionalGeneration": deepseek,
    "KimiK3ForConditionalGeneration": kimi_linear,
    "KimiLinearForCausalLM": kimi_linear,
    "LlamaForCausalLM": llama,
    "Qwen3ForCausalLM": qwen3,
    "Qwen3MoeForCausalLM": qwen3,
    "Qwen3NextForCausalLM": qwen3_next,
    "Qwen3_5ForCausalLM": qwen3_next,
    "Qwen3_5ForConditionalGeneration": qwen3_next,
    "Qwen3_5MoeForCausalLM": qwen3_next,
    "Qwen3_5MoeForConditionalGeneration": qwen3_next,
}
FAMILIES: Final[Mapping[str, Family]] = {name: Family.of(module) for name, module in _MODULES.items()}

__all__ = ["FAMILIES", "Body", "Family"]
