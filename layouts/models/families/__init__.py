"""Readers of model configs, one file for each family, and the table that picks one by architecture."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Final

from layouts.models.config import Config
from layouts.models.families import (
    bailing,
    deepseek,
    deepseek_v2,
    deepseek_v4,
    glm,
    glm4_moe,
    gpt_oss,
    kimi_linear,
    llama,
    mistral,
    mixtral,
    qwen3,
    qwen3_next,
)
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
    "BailingMoeV2ForCausalLM": bailing,
    "BailingMoeV3ForCausalLM": bailing,
    "DeepseekV2ForCausalLM": deepseek_v2,
    "DeepseekV3ForCausalLM": deepseek,
    "DeepseekV32ForCausalLM": deepseek,
    "DeepseekV4ForCausalLM": deepseek_v4,
    "Glm4MoeForCausalLM": glm4_moe,
    "GlmMoeDsaForCausalLM": glm,
    "GptOssForCausalLM": gpt_oss,
    "KimiK25ForConditionalGeneration": deepseek,
    "KimiK3ForConditionalGeneration": kimi_linear,
    "KimiLinearForCausalLM": kimi_linear,
    "LlamaForCausalLM": llama,
    "MiniMaxM2ForCausalLM": mixtral,
    "MistralForCausalLM": mistral,
    "MixtralForCausalLM": mixtral,
    "Qwen2ForCausalLM": mistral,
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
