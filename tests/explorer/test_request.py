"""Questions, checked: what each option may be, what it defaults to, and what the refusal says."""

import math
from typing import Any

import numpy as np
import pytest

from explorer.request import Objective, Phase, Request, RequestError, make_request
from hw.errors import MeshwrightError
from layouts.rules import LayoutError
from layouts.text import LayoutTextError

ARTICLE, V3 = "kimi-k3@article", "deepseek-v3"


def ask(model: str = V3, hardware: str = "b200", gpus: Any = 16, **options: Any) -> Request:
    return make_request(model, hardware, gpus, **options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"model": "deepseek-v33"}, "unknown model 'deepseek-v33'"),
        ({"hardware": "b20"}, "unknown hardware 'b20': nearest is 'b200'"),
        ({"gpus": 0}, "gpus = 0 is out of range: give 1 to"),
        ({"gpus": -8}, "gpus = -8 is out of range"),
        ({"gpus": 1 << 20}, "gpus = 1048576 is out of range"),
        ({"gpus": 10**400}, "gpus = 1000"),
        ({"gpus": 7.5}, "gpus = 7.5 must be a whole number from 1 to"),
        ({"gpus": math.nan}, "gpus must be a number from 1 to"),
        ({"gpus": math.inf}, "gpus = inf is out of range"),
        ({"gpus": "16"}, "gpus must be a number from 1 to 65536, not '16'"),
        ({"gpus": True}, "gpus must be a number"),
        ({"gpus": None}, "gpus must be a number"),
        ({"context": -1}, "context = -1 is out of range"),
        ({"context": 0}, "context = 0 is out of range"),
        ({"context": math.nan}, "context must be a number"),
        ({"context": 1000.5}, "context = 1000.5 must be a whole number"),
        ({"context": 200_000}, "context 200000 exceeds the 163840 positions of deepseek-v3: shorten it"),
        ({"concurrency": 0}, "concurrency = 0 is out of range"),
        ({"concurrency": 1.5}, "concurrency = 1.5 must be a whole number"),
        ({"concurrency": 1 << 30}, "concurrency = 1073741824 is out of range"),
        ({"verify_width": 0}, "verify-width = 0 is out of range: give 1 to 64"),
        ({"verify_width": 65}, "verify-width = 65 is out of range"),
        ({"accept_length": 0.5}, "accept-length = 0.5 is out of range"),
        ({"accept_length": 2.5, "verify_width": 2}, "accept-length 2.5 exceeds verify-width 2"),
        ({"accept_length": 2}, "accept-length 2 exceeds verify-width 1: a step accepts what it verifies"),
        ({"mem_fraction": 0}, "mem-fraction = 0 is out of range: give 0.05 to 0.99"),
        ({"mem_fraction": 88}, "mem-fraction = 88 is out of range"),
        ({"max_tpot_ms": 0}, "max-tpot-ms = 0 is out of range"),
        ({"max_tpot_ms": math.nan}, "max-tpot-ms must be a number"),
        ({"extra_slots": -1}, "extra-slots = -1 is out of range"),
        ({"chunk": 0}, "chunk = 0 is out of range"),
        ({"seed": -1}, "seed = -1 is out of range"),
        ({"phase": "training"}, "phase 'training' is unknown: choose one of decode, prefill"),
        ({"objective": "latency"}, "objective 'latency' is unknown: choose one of step, throughput, kv, gpu-seconds"),
        ({"gpus_per_host": 0}, "gpus_per_host=0: must be a positive integer"),
        ({"domain": -1}, "domain=-1: must be a positive integer"),
        ({"draft": "eagle"}, "unknown draft 'eagle'"),
        ({"model": "llama-3.1-8b", "draft": "mtp"}, "has no MTP layers"),
        ({"precision": "attention=fp3"}, "fp3"),
        ({"precision": "atention=fp8"}, "atention"),
    ],
)
def test_a_refusal_names_the_option_and_what_would_do(options: dict[str, Any], says: str) -> None:
    with pytest.raises(MeshwrightError) as error:
        ask(**options)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_refusals_of_numbers_are_of_one_type() -> None:
    with pytest.raises(RequestError):
        ask(gpus=0)


def test_defaults_are_plain() -> None:
    found = ask()
    assert (found.phase, found.objective, found.concurrency) == (Phase.DECODE, Objective.STEP, 1)
    assert (found.context, found.verify_width, found.accept_length, found.chunk) == (8192, 1, 1.0, 8192)
    assert found.max_tpot is found.mem_fraction is found.extra_slots is found.dispatch_tokens is None
    assert (found.model.draft, found.seed, found.draft_window, found.prefill) == (None, 0, 1, False)


@pytest.mark.parametrize(
    ("objective", "concurrency"), [("step", 1), ("kv", 1), ("throughput", None), ("gpu-seconds", None)]
)
def test_concurrency_is_free_where_it_pays(objective: str, concurrency: int | None) -> None:
    assert ask(objective=objective).concurrency == concurrency


def test_a_build_brings_its_own_defaults() -> None:
    found = ask(ARTICLE)
    assert (found.verify_width, found.accept_length, found.draft_window, found.dispatch_tokens) == (5, 3.5, 4753, 144)
    assert found.graphs[:6].tolist() == [1, 2, 4, 8, 16, 24]
    assert found.model.draft is not None
    assert found.model.draft.block == 4


def test_a_default_gives_way_to_what_is_given() -> None:
    """Two verified rows accept two tokens at most, though the build accepts 3.5."""
    found = ask(ARTICLE, verify_width=2)
    assert (found.verify_width, found.accept_length) == (2, 2.0)
    assert found.model.draft is not None
    assert found.model.draft.block == 1
    assert ask(ARTICLE, accept_length=4).accept_length == 4.0


def test_multi_token_prediction_runs_once_a_proposed_token() -> None:
    draft = ask(draft="mtp", verify_width=4).model.draft
    assert draft is not None
    assert (draft.block, draft.passes) == (3, 3)


def test_limits_of_time_are_seconds_inside() -> None:
    assert ask(max_tpot_ms=40).max_tpot == 0.04


@pytest.mark.parametrize(
    ("hardware", "options", "host", "domain"),
    [("b200", {}, 8, 8), ("gb200", {}, 4, 72), ("b200", {"gpus_per_host": 4}, 4, 4), ("gb200", {"domain": 36}, 4, 36)],
)
def test_hosts_and_domains(hardware: str, options: dict[str, Any], host: int, domain: int) -> None:
    site = ask(hardware=hardware, **options).site
    assert (site.gpus_per_host, site.domain) == (host, domain)


def test_a_build_shards_over_the_hosts_of_the_machine() -> None:
    """The article's hosts hold 8 cards, those of GB200 four: the same text is valid on both."""
    for hardware, width in (("b200", 8), ("gb200", 4)):
        assert ask(ARTICLE, hardware).layout("attn_dp=16,ep=16").weight_shard == width


def test_numbers_of_numpy_are_numbers() -> None:
    found = ask(gpus=np.int64(16), context=np.float64(4096), concurrency=np.int32(8))
    assert (found.gpus, found.context, found.concurrency) == (16, 4096, 8)
    assert all(type(n) is int for n in (found.gpus, found.context, found.concurrency))


def test_graph_sizes_ascend_and_have_one_length() -> None:
    plain, drafted = ask().graphs, ask(draft="mtp", verify_width=2).graphs
    assert len(plain) == len(drafted) == len(ask(ARTICLE).graphs)
    for sizes in (plain, drafted):
        assert np.all(np.diff(sizes) >= 0)
        assert sizes[-1] == 512
    assert 3 in drafted
    assert 3 not in plain


def test_the_case_holds_the_question() -> None:
    found = ask(context=1000, concurrency=20, mem_fraction=0.8, extra_slots=4).case()
    assert (found.load.context, found.load.concurrency, found.load.chunk) == (1000, 20, 8192)
    assert (found.budget.mem_fraction, found.budget.extra_slots) == (0.8, 4)
    assert np.isnan(ask().case().budget.mem_fraction)
    assert ask(objective="throughput").case(33).load.concurrency == 33
    assert ask(phase="prefill").case().load.prefill


def test_layouts_are_checked_against_the_question() -> None:
    found = ask(ARTICLE)
    assert found.layout("attn_dp=2,dcp=8,ep=16").attn_tp == 8
    with pytest.raises(LayoutError, match="dcp = 16 does not divide attn_tp = 8"):
        found.layout("attn_dp=2,dcp=16")
    with pytest.raises(LayoutTextError, match="did you mean attn_dp"):
        found.layout("atn_dp=2")
    with pytest.raises(LayoutError, match="prefill cuts tokens with attn_cp"):
        ask(ARTICLE, phase="prefill").layout("dcp=8,attn_dp=2,ep=16")
