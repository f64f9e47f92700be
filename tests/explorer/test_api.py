"""The answers as functions."""

import pathlib

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


COMMAND = "vllm serve meta-llama/Llama-3.1-8B -tp 2 --max-num-seqs 4"


def test_a_launch_is_checked(tmp_path: pathlib.Path) -> None:
    """A command, or a file that holds one, with the load that was asked."""
    found = explorer.check(COMMAND, "h100", input_tokens=512, output_tokens=64, concurrency=2, advise=False)
    document = found.document()
    assert (document["schema"], document["layout_text"], found.starts) == ("check/1", "attn_dp=1", True)
    assert document["clients"] == {"input_tokens": 512, "output_tokens": 64, "clients": 2}
    assert [load.concurrency for load in found.loads] == [1, 2]
    file = tmp_path / "start.sh"
    file.write_text(COMMAND)
    again = explorer.check(file, "h100", input_tokens=512, output_tokens=64, concurrency=2, advise=False)
    assert again.start is not None and found.start is not None
    assert again.start.kv_tokens == found.start.kv_tokens
    with pytest.raises(MeshwrightError, match="starts 2 servers"):
        explorer.check(f"{COMMAND} & {COMMAND}", "h100")


def test_a_log_is_read_and_held_against_its_launch() -> None:
    """161,488 tokens of 70,272 B, as in sglang#6017."""
    file = pathlib.Path(__file__).parents[1] / "engines" / "logs" / "sglang_0.4.6_dp8.log"
    assert explorer.log(file).setup is None
    found = explorer.log(file, "h200")
    pool = next(line for line in found.lines if line.name == "KV pool")
    assert pool.predicted is not None and pool.predicted.bytes == 161_488 * 70_272
    command = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 4"
    other = explorer.log(file, "h200", command=command)
    assert other.setup is not None and other.setup.layout.attn_tp == 4
    with pytest.raises(MeshwrightError, match="hardware is missing"):
        explorer.log(file, command=command)
