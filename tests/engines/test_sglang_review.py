"""SGLang 0.5.23 in the corners: multimodal shares, other exchanges, chunks off, draft widths, DWDP, strategies."""

import json
from importlib.resources import files

import pytest

from explorer.cases.case import Server
from explorer.cases.quantities import QUANTITIES
from explorer.cases.subject import Subject
from explorer.engines.command import read_launches
from explorer.engines.resolution import state_cache
from explorer.engines.settings import Pools
from explorer.engines.setup import Asked, Setup, setup_of
from explorer.engines.startup import Startup, startup
from explorer.residents.lines import fixed_lines
from layouts.models import load_model
from layouts.serving.chunks import prefill_graph_count, prefill_graph_sizes
from layouts.serving.states import StateCache

SGLANG = "python3 -m sglang.launch_server --model-path "
V3 = SGLANG + "deepseek-ai/DeepSeek-V3 "
LLAMA = SGLANG + "meta-llama/Llama-3.1-8B "
K25 = SGLANG + "moonshotai/Kimi-K2.5 --tp 8 "
H200 = 143_771  # MiB
V3_RESERVE = 512 + 12_288 + 1024 + 1024 + 1536  # metadata, 1.5 x 8192, 8 ranks, 2 x 512 graphs, prefill of MLA


def setup(command: str, hardware: str = "h200", **asked) -> Setup:
    return setup_of(read_launches(command)[0], Asked(hardware, context=5120, **asked))


def started(command: str, hardware: str = "h200") -> Startup:
    return startup(setup(command, hardware))


def share(reserve: float, memory: int = H200) -> float:
    return (memory - reserve) / memory


# The share of a multimodal model: adjust_mem_fraction_for_vlm


def test_the_share_of_a_multimodal_model() -> None:
    """Kimi-K2.5: 27 layers of 1,152 are 27 x 1152^2 / (24 x 1024^2) = 1.42383 plain towers; 0.95 x (1 - 0.042383)."""
    assert started(K25).share == pytest.approx(0.909736 * round(share(V3_RESERVE), 3), abs=1e-3)


@pytest.mark.parametrize(
    ("model", "encoder"),
    [
        ("kimi-k2.5", (27, 1152)),  # by the names vt_
        ("qwen3.5-27b", (24, 1152)),  # `depth` is no name that the engine looks for
        ("deepseek-v3", None),
    ],
)
def test_the_sizes_that_the_engine_finds(model: str, encoder: tuple[int, int] | None) -> None:
    assert load_model(model).encoder == encoder


@pytest.mark.parametrize("flags", ["--language-only", "--language-model-only"])
def test_a_server_without_the_encoder_keeps_the_share(flags: str) -> None:
    assert started(K25 + flags).share == pytest.approx(share(V3_RESERVE), abs=1e-3)


def test_a_decode_server_keeps_the_share() -> None:
    """512 + 1.5 x 2048 + 1024 + 2 x 64, raised to the floor of 10 GiB."""
    decode = "--disaggregation-mode decode --max-running-requests 64"
    assert started(K25 + decode).share == pytest.approx(share(10_240), abs=1e-3)


def test_a_larger_tower_takes_more(tmp_path) -> None:
    """48 layers of 1,024 are twice the plain tower: 0.95 x 0.9 of the share."""
    config = json.loads((files("layouts.models") / "presets" / "kimi-k2.5.json").read_text(encoding="utf-8"))
    config["vision_config"] |= {"num_hidden_layers": 48, "hidden_size": 1024}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    assert load_model(str(path)).encoder == (48, 1024)
    up = startup(setup(K25, model=str(path)))
    assert up.share == pytest.approx(0.95 * 0.9 * round(share(V3_RESERVE), 3), abs=1e-3)


# Exchanges other than DeepEP

WIDE = V3 + "--tp 8 --attn-dp-size 8 --cuda-graph-max-bs-decode 64 --moe-a2a-backend "
WIDE_RESERVE = 512 + 12_288 + 1024 + 128 + 3 * 64 * 8


def test_only_deepep_reserves_for_deepep() -> None:
    """2 GiB for its buffers, and with captured prefill 1 GiB more beside the 1.5 GiB of MLA."""
    assert started(WIDE + "deepep").share == pytest.approx(share(WIDE_RESERVE + 1536 + 1024 + 2048), abs=1e-3)
    assert started(WIDE + "flashinfer").share == pytest.approx(share(WIDE_RESERVE + 1536), abs=1e-3)
    assert started(WIDE + "mooncake").share == pytest.approx(share(WIDE_RESERVE), abs=1e-3)  # prefill not captured


@pytest.mark.parametrize(("backend", "rows"), [("deepep", 128), ("mooncake", None), ("nixl", None)])
def test_only_deepep_has_its_buffer(backend: str, rows: int | None) -> None:
    found = setup(WIDE + backend)
    lines = fixed_lines(found.request.model, found.request.prefill, found.request.holding)
    assert any(line.name == "DeepEP buffer" for line in lines) == (rows is not None)
    assert found.request.dispatch_tokens == rows
    said = [what for what in found.settings.unmodelled if "buffers of" in what]
    assert said == ([] if rows else [f"--moe-a2a-backend: buffers of {backend}"])


# Chunks and captured prefill


@pytest.mark.parametrize(("flags", "rows"), [("", 16_384), ("--max-prefill-tokens 4096", 4096)])
def test_without_chunks_the_reserve_counts_a_prefill_batch(flags: str, rows: int) -> None:
    up = started(V3 + "--tp 8 --chunked-prefill-size -1 " + flags)
    assert up.share == pytest.approx(share(512 + 1.5 * rows + 1024 + 1024 + 1536), abs=1e-3)


@pytest.mark.parametrize(
    ("flags", "sizes"),
    [
        ("--cuda-graph-bs-prefill 512 1024 2048", 3),
        # 4 .. 32 by 4, 48 .. 256 by 16, 288 .. 512 by 32: 8 + 14 + 8
        ("--cuda-graph-max-bs-prefill 512", 30),
        ("--max-total-tokens 512", 30),
        ("--chunked-prefill-size -1", 0),
    ],
)
def test_captured_prefill_sizes(flags: str, sizes: int) -> None:
    """8 MiB a size without MLA; on an H100 (81,559 MiB): 512 + 1.5 x 16384 + 128 for one rank + 2 x 256."""
    rows = 16_384 if "-1" in flags else 8192 * 2
    chunk = "" if "-1" in flags else "--chunked-prefill-size 16384 "
    up = started(LLAMA + chunk + flags, "h100")
    assert up.share == pytest.approx(share(512 + 1.5 * rows + 128 + 512 + 8 * sizes, 81_559), abs=6e-4)


@pytest.mark.parametrize("limit", [1, 4, 33, 47, 48, 512, 1280, 4096, 4607, 4608, 16_384])
def test_sizes_are_counted_without_a_list(limit: int) -> None:
    assert prefill_graph_count(limit) == len(prefill_graph_sizes(limit))


def test_a_huge_limit_is_no_huge_list() -> None:
    assert prefill_graph_count(1 << 40) > 1 << 30


# Flags whose effect is not modelled


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--enable-layernorm-sp", "--enable-layernorm-sp"),
        ("--num-reserved-decode-tokens 1024", "--num-reserved-decode-tokens"),
        ("--enable-int8-mamba-checkpoint", "--enable-int8-mamba-checkpoint"),
        ("""--json-model-override-args '{"a": 1}'""", "--json-model-override-args"),
        ("--json-model-override-args '{}'", None),
        ("--cpu-offload-gb 1", "--cpu-offload-gb"),
        ("--cpu-offload-gb 0", None),
        ("--dwdp-size 1", None),
        ("--dwdp-size 8", "--dwdp-size"),
    ],
)
def test_what_is_not_modelled_is_named(flags: str, named: str | None) -> None:
    said = setup(V3 + "--tp 8 " + flags).settings.unmodelled
    assert [what.split(":")[0] for what in said] == ([named] if named else [])


# Drafts


@pytest.mark.parametrize(
    ("flags", "rows"),
    [
        ("NGRAM", 12),
        ("NGRAM --speculative-num-draft-tokens 6", 6),
        ("DFLASH", 16),
        ("EAGLE", 4),
        ("EAGLE --speculative-num-steps 2 --speculative-eagle-topk 1", 3),
    ],
)
def test_rows_verified(flags: str, rows: int) -> None:
    assert setup(V3 + "--tp 8 --speculative-algorithm " + flags).request.verify_width == rows


def test_ngram_has_no_draft_to_name() -> None:
    found = setup(V3 + "--tp 8 --speculative-algorithm NGRAM")
    assert found.request.model.draft is None
    assert not any("draft" in note for note in found.notes)
    assert any("DFLASH" in note for note in setup(V3 + "--tp 8 --speculative-algorithm DFLASH").notes)


def test_a_draft_that_is_taken_for_the_models_own_is_noted() -> None:
    command = V3 + "--tp 8 --speculative-algorithm EAGLE"
    path = " --speculative-draft-model-path "
    assert any("some/other-draft" in note for note in setup(command + path + "some/other-draft").notes)
    assert not any("MTP layers" in note for note in setup(command).notes)
    assert not any("MTP layers" in note for note in setup(command + path + "deepseek-ai/DeepSeek-V3").notes)


# DWDP: every rank is a group that gathers expert weights


def test_dwdp_makes_each_rank_a_group() -> None:
    found = setup(V3 + "--tp 8 --dwdp-size 8 --moe-a2a-backend deepep --disaggregation-mode prefill")
    layout, degrees = found.layout, found.settings.degrees
    assert (layout.attn_dp, layout.attn_tp, layout.ep, layout.dispatch) == (8, 1, 8, "all_gather")
    assert (layout.vocab_tp, degrees.dense_tp, degrees.gpus) == (1, 1, 8)
    assert found.request.holding.dense_ranks == 1
    assert any(what.startswith("--dwdp-size") for what in found.settings.unmodelled)


def test_dwdp_has_no_replicas() -> None:
    found = setup(V3 + "--tp 8 --dp-size 8 --dwdp-size 8")
    assert (found.layout.gpus, found.layout.attn_dp, found.broken) == (8, 8, ())


def test_dwdp_over_other_ranks_breaks_its_own_rule_alone() -> None:
    (rule,) = [rule for rule in setup(V3 + "--tp 8 --dwdp-size 3").broken if "--dwdp-size" in rule]
    assert rule == "--dwdp-size 3 must be --tp-size 8: make them equal"
    assert setup(V3 + "--tp 8 --dwdp-size 3").layout.gpus == 8


# One answer to how states are cached


@pytest.mark.parametrize(
    ("pools", "cache"),
    [
        (Pools(), StateCache.EXTRA_BUFFER),
        (Pools(state_strategy="auto"), StateCache.EXTRA_BUFFER),
        (Pools(overlap_schedule=False), StateCache.NO_BUFFER),
        (Pools(overlap_schedule=False, page=64), StateCache.EXTRA_BUFFER),
        (Pools(state_strategy="no_buffer"), StateCache.NO_BUFFER),
        (Pools(state_strategy="extra_buffer_lazy"), StateCache.EXTRA_BUFFER_LAZY),
        (Pools(state_strategy="extra_buffer", prefix_cache=False), StateCache.OFF),
    ],
)
def test_how_states_are_cached(pools: Pools, cache: StateCache) -> None:
    assert state_cache(pools) is cache


def test_a_case_may_say_auto() -> None:
    """A request of a model with states holds three slots and two that track: 100 slots run 20 of them."""
    command = SGLANG + "moonshotai/Kimi-K3 --tp 8 --mamba-radix-cache-strategy auto"
    subject = Subject(Server(command), {"state_slots": 100})
    assert QUANTITIES["running_requests"].predict(subject) == 20


def test_windows_without_a_prefix_cache_are_those_of_the_requests_that_may_run() -> None:
    """64 requests: each a window of 128, 128 between evictions, a page of 1 and what a step takes, 1; two chunks of
    8,192 in flight and a page. What is left of the budget goes to the layers that attend to everything."""
    command = "python -m sglang.launch_server --model-path openai/gpt-oss-120b --tp 1 --max-running-requests 64 "
    up = started(command + "--disable-radix-cache --chunked-prefill-size 8192")
    token = 18 * 2 * 8 * 64 * 2
    assert up.window_bytes == (64 * 258 + 2 * 8192 + 1) * token
    assert up.kv_bytes == (up.budget - up.window_bytes) // token * token
    assert started(command).window_bytes == int(0.8 * started(command).kv_tokens) * token


def test_slots_of_requests_on_their_way_come_out_of_the_reserve() -> None:
    """Kimi K3 decodes 16 requests with 32 slots on their way: 48 states beside a pool of 16 (no prefix cache)."""
    command = (
        "python -m sglang.launch_server --model-path moonshotai/Kimi-K3 --tp 16 --disaggregation-mode decode "
        "--max-running-requests 16"
    )
    few, many = (started(f"{command} --disaggregation-decode-extra-slots {extra}", "b200") for extra in (0, 32))
    assert few.state_slots == many.state_slots == 16
    assert few.parts.state is not None
    assert few.left - many.left == 32 * few.parts.state.bytes
