"""The order of a step's blocks, and what holds for every op of every model."""

import dataclasses

import pytest

from hw.work import CollectiveKind, Rate
from layouts.blocks import StepBlocks, step_blocks
from layouts.models import load_model
from layouts.op import Op, Stream, elementwise
from tests.helpers import PRESETS
from tests.spaces import model_of

K3 = "kimi-k3@article"


def sequence(step: StepBlocks) -> list[str]:
    return [step.blocks[i].name for i in step.sequence]


def test_the_order_of_a_step() -> None:
    order = sequence(step_blocks(model_of(K3)))
    assert order[:2] == ["head", "KDA + dense"]
    assert [i for i, name in enumerate(order[1:94]) if name == "MLA + LatentMoE"] == [*range(3, 92, 4), 92]
    assert order[94:] == ["tail", "draft in", *["draft GQA window + dense"] * 5, "draft out"]


@pytest.mark.parametrize("verify", [2, 4])
def test_multi_token_prediction_runs_once_a_proposed_token(verify: int) -> None:
    model = load_model("deepseek-v3", "mtp")
    assert model.draft is not None
    step = step_blocks(dataclasses.replace(model, draft=model.draft.verifying(verify)))
    assert sequence(step)[63:] == ["draft in", "draft MLA + MoE", "draft out"] * (verify - 1)


@pytest.mark.parametrize("prefill", [False, True])
@pytest.mark.parametrize("name", PRESETS)
def test_ops_are_well_formed(name: str, prefill: bool) -> None:
    for block in step_blocks(model_of(name), prefill).blocks:
        assert len({op.name for op in block.ops}) == len(block.ops)
        for op in block.ops:
            assert (op.stream is Stream.GATHER) == op.name.startswith("weight_")
            assert bool(op.payload or op.program_payload) == (op.collective is not None)
            assert bool(op.bytes or op.program_bytes) == (op.family is not None)


def test_an_op_is_a_kernel_or_an_exchange() -> None:
    with pytest.raises(ValueError, match="must be a kernel or an exchange"):
        Op("neither")
    with pytest.raises(ValueError, match="must be a kernel or an exchange"):
        dataclasses.replace(elementwise("both", 1), collective=CollectiveKind.ALL_REDUCE)


def test_rates_follow_the_stored_format() -> None:
    """FP8 weights run at the FP8 rate, MXFP4 experts with 8-bit activations, what is left in bf16 at bf16."""
    rates = {op.name: op.rate for op in step_blocks(model_of(K3)).blocks[2].ops}
    assert (rates["qkv_proj"], rates["w13"], rates["f_b_proj"]) == (Rate.FP8, Rate.FP8, Rate.BF16)
