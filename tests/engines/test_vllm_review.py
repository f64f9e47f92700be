"""What vLLM makes of flags that change its pools, its steps and its drafts, by its rules worked by hand."""

import pytest

from explorer.engines import vllm
from explorer.engines.command import read_launches
from explorer.engines.settings import Settings, Speculation
from explorer.engines.setup import Asked, Setup, setup_of
from explorer.engines.startup import Startup, startup
from explorer.engines.startup.parts import Parts
from explorer.engines.startup.vllm import planned
from layouts.serving.vllm_pages import Kind

pytestmark = pytest.mark.smoke
LLAMA = "vllm serve meta-llama/Llama-3.1-8B --max-model-len 8192 "
V3 = "vllm serve deepseek-ai/DeepSeek-V3 "
HYBRID = "vllm serve moonshotai/Kimi-K3 -tp 16 --max-model-len 100000 --no-enable-prefix-caching "
DRAFTS = """--speculative-config '{"method": "dspark", "num_speculative_tokens": 3}'"""
GIB = 2**30


def read(command: str) -> Settings:
    return vllm.read(read_launches(command)[0])


def setup(command: str, hardware: str = "h100", **asked) -> Setup:
    return setup_of(read_launches(command)[0], Asked(hardware, **asked))


def started(command: str, hardware: str = "h100") -> Startup:
    return startup(setup(command, hardware))


def state_blocks(command: str) -> set[int]:
    found = setup(command, "b200")
    held = planned(found, Parts(found), 64 * GIB)
    return {cache.slots for group in held.groups for cache in group.caches if cache.kind is Kind.STATE}


@pytest.mark.parametrize(
    ("flags", "blocks"),
    [
        ("", 1),
        (DRAFTS, 4),  # one more for each draft
        (DRAFTS + " --use-replayssm", 1),  # none of them with ReplaySSM: `MambaBase.get_kv_cache_spec`
    ],
)
def test_state_blocks_of_a_request(flags: str, blocks: int) -> None:
    assert state_blocks(HYBRID + flags) == {blocks}


def test_a_pool_has_as_many_blocks_as_it_is_told() -> None:
    """1000 blocks of 16 tokens, a GPU of 80 GiB or not: requests of 512 blocks fit once, the null block aside."""
    up = started(LLAMA + "--num-gpu-blocks-override 1000 --block-size 16")
    assert (up.kv_bytes, up.running, up.kv_tokens) == (1000 * 16 * 131_072, 1, 1000 * 16)
    assert "num_gpu_blocks_override is 0" in str(started(LLAMA + "--num-gpu-blocks-override 0").refusal)


@pytest.mark.parametrize(
    ("flags", "graphs"),
    [
        ("", True),
        ("--enforce-eager", False),
        ("""--compilation-config '{"cudagraph_mode": "NONE"}'""", False),
        ("""--compilation-config '{"cudagraph_mode": "none"}'""", False),
        ("""--compilation-config '{"cudagraph_mode": "FULL"}'""", True),
        ("""--compilation-config '{"cudagraph_mode": null}'""", True),
        ("""--compilation-config '{"mode": 3}'""", True),
    ],
)
def test_switches_of_graphs(flags: str, graphs: bool) -> None:
    assert read(LLAMA + flags).pools.graphs is graphs


@pytest.mark.parametrize(
    ("flags", "exchange"),
    [
        ("-dcp 4", "ag_rs"),  # `ParallelConfig.set_dcp_defaults`
        ("-dcp 4 --dcp-comm-backend ag_rs", "ag_rs"),
        ("-dcp 4 --dcp-comm-backend a2a", "a2a"),
        ("", "a2a"),  # no exchange: the layout's own word
    ],
)
def test_how_dcp_ranks_exchange(flags: str, exchange: str) -> None:
    assert setup(V3 + "-tp 8 " + flags, "h200").layout.dcp_backend == exchange


def test_copied_query_projections_are_not_modelled() -> None:
    assert [line.split(":")[0] for line in read(V3 + "-tp 8 -dcp 4 --dcp-q-replicate").unmodelled] == [
        "--dcp-q-replicate"
    ]


@pytest.mark.parametrize(
    ("config", "expected", "notes"),
    [
        ('{"method": "mtp", "num_speculative_tokens": 2}', Speculation("MTP", 3), 0),
        ('{"method": "deepseek_mtp", "num_speculative_tokens": 1}', Speculation("MTP", 2), 0),
        ('{"method": "qwen3_next_mtp", "num_speculative_tokens": 2}', Speculation("MTP", 3), 0),
        ('{"method": "mtp"}', Speculation("MTP", 2), 1),  # as many as there are MTP layers, here one
        ('{"method": "eagle3", "model": "a/b"}', None, 1),  # the engine takes the draft's own number, or refuses
        ('{"method": "mtp", "num_speculative_tokens": null}', Speculation("MTP", 2), 1),
    ],
)
def test_drafts(config: str, expected: Speculation | None, notes: int) -> None:
    found = read(V3 + f"-tp 8 --speculative-config '{config}'")
    assert (found.speculation, len(found.notes)) == (expected, notes)


def test_a_draft_of_unsaid_width_counts_and_is_told() -> None:
    found = setup(V3 + """-tp 8 --speculative-config '{"method": "deepseek_mtp"}'""", "h200")
    assert (found.request.verify_width, found.request.model.draft is not None) == (2, True)
    assert "'mtp' drafts, num_speculative_tokens unsaid: taken to be 1, of one MTP layer" in found.notes


@pytest.mark.parametrize(
    "flags",
    [
        "--use-replayssm",
        "--num-gpu-blocks-override 1000",
        "--enforce-eager",
        "--no-enable-chunked-prefill",
        "--no-enable-prefix-caching",
    ],
)
def test_what_is_read_is_written(flags: str) -> None:
    (launch,) = read_launches(LLAMA + flags)
    name = flags.split()[0].removeprefix("--").removeprefix("no-").replace("-", "_")
    assert vllm.write(vllm.read(launch))[0][name] == launch.values[name]


@pytest.mark.parametrize(
    ("command", "hardware", "chunk", "largest"),
    [
        # `get_batch_defaults`: 8192 tokens and 1024 requests from 70 GiB; graphs of 512 tokens at most
        (LLAMA, "h100", 8192, 512),
        (LLAMA + "-tp 2 -dp 4", "h100", 8192, 512),  # groups of a dense model share nothing
        (LLAMA + "-tp 2 -dp 4 --max-num-batched-tokens 4096", "h100", 4096, 512),
        (LLAMA + "--max-num-seqs 16", "h100", 8192, 32),  # twice the requests
        (LLAMA + "--max-num-seqs 16 --max-cudagraph-capture-size 8", "h100", 8192, 8),
        (LLAMA + "--no-enable-chunked-prefill --max-model-len 20000", "h100", 20_000, 512),  # a whole prompt a step
        (V3 + "-dp 8 --enable-expert-parallel", "h200", 8 * 8192, 512),
        # `DEFAULT_MAX_NUM_BATCHED_TOKENS_FOR_BATCHED_DP`: 256 tokens of each group
        (V3 + "-dp 8 --enable-expert-parallel --all2all-backend deepep_low_latency", "h200", 8 * 256, 256),
        # drafts: 512 tokens are 256 requests of two tokens
        (V3 + """-tp 8 --speculative-config '{"method": "mtp", "num_speculative_tokens": 1}'""", "h200", 8192, 256),
    ],
)
def test_a_step_of_vllm(command: str, hardware: str, chunk: int, largest: int) -> None:
    found = setup(command, hardware)
    assert (found.request.chunk, found.request.graphs.max()) == (chunk, largest)
