"""Pools of runs as layouts, formats and drafts; what is refused, and with which words."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from explorer.fidelity.runs import Pool, Run
from explorer.request import Phase, make_request
from explorer.service import pools
from explorer.service.pools import Refused, for_prompts, has_experts, priced, question, worker
from explorer.service.predict import predict
from hw.errors import MeshwrightError

DENSE = Run(
    *("a", "file", "llama-3.1-8b", "L", "h100"), engine="sglang", concurrency=8, pool=Pool(1, 2), input_tokens=1000,
    output_tokens=200,
)  # fmt: skip
MIXTURE = replace(DENSE, model="deepseek-v3", hardware="h200", pool=Pool(1, 8, 1, 1, 8, 1))
TEXT = replace(DENSE, pool=None, layout="attn_tp=2", stated_gpus=2)


def layout(run: Run) -> str:
    return question(run, run.pool, Phase.DECODE).layout


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (replace(DENSE, concurrency=None), "concurrency is not stated"),
        (replace(DENSE, input_tokens=None), "neither input tokens nor a context"),
        (replace(DENSE, hardware="h999"), "h999"),
        (replace(DENSE, model="gtp-9"), "unknown model 'gtp-9'"),
        (replace(DENSE, pool=Pool(1, 3)), "attn_tp"),
        (replace(DENSE, pool=Pool(1)), "tp is blank"),
        (replace(DENSE, pool=None), "no layout is stated"),
        (replace(TEXT, stated_gpus=None), "no layout is stated"),
        (replace(TEXT, layout="attn_tp=4"), "not the 2 GPUs"),
        (replace(DENSE, gemm="int3"), "int3"),
        (replace(DENSE, input_tokens=10**6), "131072 positions"),
        (replace(MIXTURE, hardware="h100"), "leave no room"),
        (replace(DENSE, measured={"power": 1.0}), "power in phase serve is not predicted"),
    ],
)
def test_what_is_refused_says_why(run: Run, reason: str) -> None:
    with pytest.raises(MeshwrightError, match=reason) as caught:
        predict(run)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        (Pool(1, 8, moe_tp=8, moe_ep=1), "pp=1,attn_dp=1,attn_tp=8,ep=1,expert_tp=8,dispatch=all_gather"),
        # one group keeps its rows: all ranks have them, whatever the experts are cut by
        (Pool(1, 8, moe_ep=8), "pp=1,attn_dp=1,attn_tp=8,ep=8,expert_tp=1,dispatch=all_gather"),
        (Pool(1, 2, 1, 8, 1, 16), "pp=1,attn_dp=8,attn_tp=2,ep=16,expert_tp=1,dispatch=all_to_all"),
        (Pool(1, 1, 1, 8, 4, 2), "pp=1,attn_dp=8,attn_tp=1,ep=2,expert_tp=4,dispatch=all_gather"),
        (Pool(1, 4, 2, 1, 1, 4), "pp=2,attn_dp=1,attn_tp=4,ep=4,expert_tp=1,dispatch=all_gather"),
    ],
)
def test_layouts_of_a_mixture(pool: Pool, expected: str) -> None:
    assert layout(replace(MIXTURE, pool=pool)) == expected


def test_a_dense_model_has_no_experts_to_cut() -> None:
    assert has_experts("deepseek-v3") and not has_experts("llama-3.1-8b")
    assert layout(replace(DENSE, pool=Pool(3, 4, 2, 2))) == "pp=2,attn_dp=2,attn_tp=4"
    assert question(replace(DENSE, pool=Pool(3, 4, 2, 2)), Pool(3, 4, 2, 2), Phase.DECODE).gpus == 16


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {}),
        ({"kv": "fp8"}, {"kv": "fp8"}),
        ({"gemm": "fp8_block", "moe": "fp4"}, {"attention": "fp8", "dense": "fp8", "experts": "nvfp4", "kv": "fp8"}),
        ({"gemm": "FP8"}, {"experts": "fp8", "shared": "fp8", "kv": "fp8"}),
        ({"gemm": "bfloat16"}, {"attention": "bf16", "kv": "bf16"}),
        ({"gemm": "fp8", "kv": "float16"}, {"attention": "fp8", "kv": "bf16"}),
    ],
)
def test_formats_are_those_stated(changes: dict[str, str], expected: dict[str, str]) -> None:
    """A cache of 8 bits beside weights of 8 bits or fewer; head and draft stay as the model has them."""
    text = question(replace(MIXTURE, **changes), MIXTURE.pool, Phase.DECODE).precision
    found = {} if text is None else dict(part.split("=") for part in text.split(","))
    assert {name: found[name] for name in expected} == expected
    assert not {"head", "draft"} & set(found)
    assert bool(found) == bool(changes)


def test_lengths_are_means_of_what_is_drawn() -> None:
    """0.9 of 1000 and of 200 tokens; half of the answer is there on average. A stated context counts as it is."""
    run = replace(DENSE, shortest=0.8)
    decode, prefill = (question(run, run.pool, phase) for phase in Phase)
    assert (decode.prompt, decode.context, prefill.prompt) == (900, 990, 900)
    assert question(replace(run, context=5000), run.pool, Phase.DECODE).context == 5000
    only = question(replace(run, input_tokens=None, context=500), run.pool, Phase.PREFILL)
    assert only.prompt == 450


@pytest.mark.parametrize(
    ("model", "verify", "draft"),
    [("deepseek-v3", 1, None), ("deepseek-v3", 4, "mtp"), ("llama-3.1-8b", 4, None), ("kimi-k3", 5, "dspark-kimi-k3")],
)
def test_drafts_are_the_model_s_own_or_named_after_it(model: str, verify: int, draft: str | None) -> None:
    """Without any, the rows that are verified cost what they cost."""
    request = pools._request(model, "b300", 8, None, verify, Phase.DECODE)
    found = request.model.draft
    assert (None if found is None else found.name) == draft
    assert request.verify_width == verify


def test_prompts_are_not_verified() -> None:
    run = replace(MIXTURE, verify_width=4)
    assert [question(run, run.pool, phase).verify for phase in (Phase.DECODE, Phase.PREFILL)] == [4, 1]


def test_equal_questions_are_priced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(pools, "steps", lambda *args: calls.append(args))
    asked = question(replace(DENSE, input_tokens=1234), DENSE.pool, Phase.DECODE)
    other = question(replace(DENSE, input_tokens=1234, concurrency=77, id="b"), DENSE.pool, Phase.DECODE)
    priced.cache_clear()
    assert priced(asked) is priced(other) and len(calls) == 1
    priced(replace(asked, context=999))
    assert len(calls) == 2
    priced.cache_clear()


def test_a_worker_is_a_replica() -> None:
    options: dict[str, Any] = {"context": 4096, "concurrency": 8}
    request = make_request("llama-3.1-8b", "h100", 8, **options)
    both = worker(request, request.layout("replicas=2,pp=2,attn_dp=2"))
    assert (both.gpus, both.groups, both.stages, both.replicas) == (4, 2, 2, 2)
    assert len(both.steps.loads) == len(pools.BATCHES)
    prompts = worker(replace(request, phase=Phase.PREFILL), request.layout("attn_tp=8"))
    np.testing.assert_array_equal(prompts.steps.loads, pools.CHUNKS)


def test_prompts_leave_out_what_cuts_decode_alone() -> None:
    request = make_request("deepseek-v3", "b200", 8)
    cut = request.layout("attn_tp=8,dcp=8,ep=8")
    assert for_prompts(cut) == request.layout("attn_tp=8,ep=8")
    with pytest.raises(MeshwrightError, match="decode only"):
        replace(request, phase=Phase.PREFILL).layout("attn_tp=8,dcp=8,ep=8")


def test_a_refusal_is_an_error_of_the_user() -> None:
    assert issubclass(Refused, MeshwrightError)
