"""The answers as functions."""

import pytest

import explorer
from hw.errors import MeshwrightError

ASKED = ("llama-3.1-8b", "h100", 2)


def test_each_answer_is_the_document_of_its_command() -> None:
    plan = explorer.plan(*ASKED, context=4096, concurrency=8)
    layout = plan.document()["best"]["layout_text"]
    answers = [
        plan,
        explorer.cost(*ASKED, layout, context=4096, concurrency=8),
        explorer.memory(*ASKED, layout, context=4096, concurrency=8),
        explorer.compare(*ASKED, "attn_dp=2", layout, context=4096, concurrency=8),
        explorer.sensitivity(*ASKED, layout, context=4096, concurrency=8),
    ]
    schemas = [answer.document()["schema"] for answer in answers]
    assert schemas == ["plan/1", "cost/1", "memory/1", "compare/1", "sensitivity/1"]
    assert answers[1].step_seconds == pytest.approx(plan.best.step_seconds, rel=1e-12)


def test_what_cannot_be_is_one_error() -> None:
    with pytest.raises(MeshwrightError, match="unknown"):
        explorer.plan("llama-3.1-9b", "h100", 2)
    with pytest.raises(AttributeError, match="plot"):
        _ = explorer.plot
