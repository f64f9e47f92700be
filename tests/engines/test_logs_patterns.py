"""Every pattern of `patterns.toml` reads a line in the format of the source or the log that it cites."""

import re

import pytest

from explorer.engines.logs.entries import Event, Reading
from explorer.engines.logs.patterns import Pattern, all_patterns
from tests.engines.readings import is_reading

GIB = 2**30


def size(number: float, decimals: int = 2) -> Reading:
    return Reading(number * GIB, 0.5 * 10**-decimals * GIB)


# Event, line, figures. Lines follow the print statements of SGLang 0.5.23 and vLLM 0.33.0, or the cited logs; numbers
# that no source gives are arbitrary.
LINES = [
    (Event.SERVER_ARGS, "server_args=ServerArgs(model_path='m')", {"text": "ServerArgs(model_path='m')"}),
    (Event.SERVER_ARGS, "server_args={'model_path': 'm'}", {"text": "{'model_path': 'm'}"}),
    (
        Event.DISTRIBUTED_END,
        "Init torch distributed ends. elapsed=3.21 s, mem usage=1.77 GB",
        {"used": size(1.77), "elapsed": Reading(3.21, 0.005)},
    ),
    (Event.DISTRIBUTED_END, "Init torch distributed ends. mem usage=2.01 GB", {"used": size(2.01)}),
    (Event.LOAD_BEGIN, "Load weight begin. avail mem=175.34 GB", {"free": size(175.34)}),
    (
        Event.LOAD_END,
        "Load weight end. elapsed=228.09 s, type=GlmMoeDsaForCausalLM, dtype=torch.bfloat16, avail mem=194.04 GB, "
        "mem usage=89.58 GB.",
        {
            "free": size(194.04),
            "used": size(89.58),
            "elapsed": Reading(228.09, 0.005),
            "model": "GlmMoeDsaForCausalLM",
            "dtype": "torch.bfloat16",
        },
    ),
    (
        Event.LOAD_END,
        "Load weight end. type=Qwen3_5Moe, quant=compressed-tensors, avail mem=91.18 GB, mem usage=23.36 GB.",
        {"free": size(91.18), "used": size(23.36), "model": "Qwen3_5Moe", "quant": "compressed-tensors"},
    ),
    (
        Event.LOAD_END,
        "Load weight end. type=MistralForCausalLM, dtype=torch.bfloat16, avail mem=9.69 GB",
        {"free": size(9.69), "model": "MistralForCausalLM", "dtype": "torch.bfloat16"},
    ),
    (
        Event.SHARED_EXPERT,
        "Cloning 8 replicas of the shared expert into MoE: 100%|████| 58/58 [00:00<00:00, 15639.32it/s]",
        {"replicas": 8},
    ),
    (
        Event.DEEPEP_BUFFER,
        "Initialized DeepEP v2 ElasticBuffer: world_size=16 hidden_size=7168 num_topk=8 "
        "max_dispatch_tokens_per_rank=128 use_fp8_dispatch=True allow_hybrid_mode=False num_bytes=1234567890",
        {"used": Reading(1234567890, 0.5), "tokens": 128, "world": 16},
    ),
    (Event.DEEPEP_BUFFER, "low latency: num_rdma_bytes=34603008000", {"used": Reading(34603008000, 0.5)}),
    (
        Event.STATE_POOL,
        "Mamba Cache is allocated. max_mamba_cache_size: 64, conv_state size: 0.07GB, ssm_state size: 3.05GB "
        "intermediate_ssm_state_cache size: 48.75GB intermediate_conv_window_cache size: 0.43GB ",
        {
            "slots": 64,
            "conv": size(0.07),
            "ssm": size(3.05),
            "intermediate_ssm": size(48.75),
            "intermediate_conv": size(0.43),
        },
    ),
    (
        Event.STATE_POOL,  # case A8: Kimi-K3, TP8
        "Mamba Cache is allocated. max_mamba_cache_size: 257, conv_state size: 0.46GB, ssm_state size: 13.04GB ",
        {"slots": 257, "conv": size(0.46), "ssm": size(13.04)},
    ),
    (
        Event.REPLAY_POOL,
        "GDN ReplaySSM ring buffers allocated (record_len=16, fold=True): d=0.123GB, k=0.456GB, g=0.007GB "
        "rawv=0.100GB, rawk=0.200GB, beta=0.001GB ",
        {
            "record": 16,
            **{name: size(n, 3) for name, n in (("d", 0.123), ("k", 0.456), ("g", 0.007))},
            **{name: size(n, 3) for name, n in (("rawv", 0.1), ("rawk", 0.2), ("beta", 0.001))},
        },
    ),
    (
        Event.KV_POOL,
        "KV Cache is allocated. #tokens: 524288, KV size: 17.16 GB",
        {"tokens": 524288, "kv": size(17.16)},
    ),
    (
        Event.KV_POOL,
        "Full KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 367404, K size: 8.23 GB, V size: 8.23 GB",
        {
            "label": "Full",
            "dtype": "torch.float8_e4m3fn",
            "tokens": 367404,
            "keys": size(8.23),
            "values": size(8.23),
        },
    ),
    (
        Event.KV_POOL,
        "KV Cache is allocated. K size: 27.13 GB, V size: 27.13 GB.",
        {"keys": size(27.13), "values": size(27.13)},
    ),
    (
        Event.KV_RESERVED,
        "KV Cache VA upper bound. dtype: torch.bfloat16, #tokens: 900, KV size: 45.00 GB",
        {"tokens": 900, "kv": size(45.0)},
    ),
    (
        Event.KV_RESERVED,
        "KV Cache VA upper bound. dtype: torch.bfloat16, #tokens: 900, K size: 22.00 GB, V size: 23.00 GB",
        {"tokens": 900, "keys": size(22.0), "values": size(23.0)},
    ),
    (
        Event.KV_RESIZED,
        "Post-capture KV sizing: KV cache allocated. dtype: torch.bfloat16, #tokens: 800, KV size: 40.00 GB, "
        "avail mem=7.90 GB",
        {"dtype": "torch.bfloat16", "tokens": 800, "kv": size(40.0), "free": size(7.9)},
    ),
    (
        Event.KV_RESIZED,
        "Post-capture KV sizing: draft KV cache allocated. dtype: torch.bfloat16, #tokens: 800, KV size: 1.00 GB",
        {"label": "draft", "dtype": "torch.bfloat16", "tokens": 800, "kv": size(1.0)},
    ),
    (
        Event.SWA_POOL,
        "SWAKVPool mem usage: 79.94 GB, swa size: 798276, full size: 997846",
        {"kv": size(79.94), "window_tokens": 798276, "full_tokens": 997846},
    ),
    (
        Event.POOL_SIZES,
        "Use sliding window memory pool. full_layer_tokens=997846, swa_layer_tokens=798276",
        {"full_tokens": 997846, "window_tokens": 798276},
    ),
    (
        Event.POOL_SIZES,
        "DSV4 pool sizes: full=5491200, swa=13312, c4=1372800, c128=42900, c4_state=1664, c128_state=0",
        {
            "full_tokens": 5491200,
            "window_tokens": 13312,
            "c4_tokens": 1372800,
            "c128_tokens": 42900,
            "c4_states": 1664,
            "c128_states": 0,
        },
    ),
    (
        Event.POOL_BUDGET,
        "DSV4 memory calculation: bytes_per_full_token=1670.75, available_bytes=8.84 GB, c128_state_fixed=0.00 GB, "
        "swa_fixed=0.30 GB, full_token=5491200",
        {
            "token": Reading(1670.75, 0.005),
            "available": size(8.84),
            "c128_states": size(0.0),
            "window": size(0.3),
            "full_tokens": 5491200,
        },
    ),
    (
        Event.POOL_BUDGET,
        "DSV4 memory calculation: unified=True, unified_fp8=False, dspark_draft_bf16=False, "
        "bytes_per_full_token=1670.75, available_bytes=8.84 GB, c128_state_fixed=0.01 GB, c2_state_fixed=0.02 GB, "
        "swa_fixed=0.30 GB, swa_ring_fixed=0.04 GB, full_token=5491200",
        {
            "token": Reading(1670.75, 0.005),
            "available": size(8.84),
            "c128_states": size(0.01),
            "c2_states": size(0.02),
            "window": size(0.3),
            "window_ring": size(0.04),
            "full_tokens": 5491200,
        },
    ),
    (
        Event.POOL_BUDGET,
        "Reserving 0.10 GB of the KV budget for post-sizing multimodal allocations (feature-transport pools + "
        "embedding cache).",
        {"multimodal": size(0.1)},
    ),
    (Event.POOL_END, "Memory pool end. avail mem=21.23 GB", {"free": size(21.23)}),
    (
        Event.GRAPH_BEGIN,
        "Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, avail mem=26.27 GB",
        {"graph": "target decode", "request_tokens": 1, "free": size(26.27)},
    ),
    (
        Event.GRAPH_BEGIN,
        "Capture target verify CUDA graph begin. backend=full, num_tokens_per_req=4, bs=[1, 2], avail mem=26.27 GB",
        {"graph": "target verify", "request_tokens": 4, "batches": "[1, 2]", "free": size(26.27)},
    ),
    (
        Event.GRAPH_BEGIN,
        "Capture draft extend cuda graph begin. This can take up to several minutes. avail mem=5.37 GB",
        {"graph": "draft extend", "free": size(5.37)},
    ),
    (
        Event.GRAPH_END,
        "Capture target decode CUDA graph end. bs=[1, 2], elapsed=22.18 s, mem usage=1.91 GB, avail mem=14.18 GB.",
        {
            "graph": "target decode",
            "batches": "[1, 2]",
            "elapsed": Reading(22.18, 0.005),
            "used": size(1.91),
            "free": size(14.18),
        },
    ),
    (
        Event.GRAPH_END,
        "Capture piecewise CUDA graph end. Time elapsed: 9.00 s. mem usage=8.00 GB. avail mem=6.70 GB.",
        {"graph": "piecewise", "elapsed": Reading(9.0, 0.005), "used": size(8.0), "free": size(6.7)},
    ),
    (Event.GRAPH_SIZES, "Capture cuda graph bs [1, 2, 4, 8]", {"batches": "[1, 2, 4, 8]"}),
    (
        Event.MAX_TOTAL_TOKENS,
        "max_total_num_tokens=298447, chunked_prefill_size=2048, max_prefill_tokens=16384, "
        "max_running_requests=3730, context_len=40960, available_gpu_mem=2.82 GB",
        {
            "tokens": 298447,
            "chunk": 2048,
            "prefill_tokens": 16384,
            "requests": 3730,
            "context": 40960,
            "free": size(2.82),
        },
    ),
    (
        Event.CAPPED,
        "max_running_requests is capped to 51 by the mamba state cache (max_mamba_cache_size=257, 5 state slots per "
        "request). To raise it: increase --mamba-full-memory-ratio",
        {"requests": 51, "slots": 257, "request_slots": 5},
    ),
    (
        Event.CAPPED,
        "max_running_requests was reduced from the requested 256 to 85 (per dp worker) due to the available KV cache "
        "capacity.",
        {"asked": 256, "requests": 85},
    ),
    (Event.CAPPED, "Post-capture KV sizing: max_running_requests 48 -> 32", {"asked": 48, "requests": 32}),
    (Event.INIT_END, "The server is fired up and ready to roll!", {}),
    (Event.SERVER_ARGS, "non-default args: {'model': 'm'}", {"text": "{'model': 'm'}"}),
    (Event.SERVER_ARGS, "args: Namespace(model='m', host=None)", {"text": "Namespace(model='m', host=None)"}),
    (
        Event.ENGINE_CONFIG,
        "Initializing a V1 LLM engine (v0.11.1rc2.dev141+g38f225c2a) with config: model='m', seed=0",
        {"version": "0.11.1rc2.dev141+g38f225c2a", "text": "model='m', seed=0"},
    ),
    (Event.VERSION, "vLLM API server version 0.6.4.post1", {"version": "0.6.4.post1"}),
    (Event.VERSION, "vLLM server version 0.33.0, serving model m", {"version": "0.33.0"}),
    (Event.VERSION, " ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.25.0", {"version": "0.25.0"}),
    (
        Event.LOAD_END,
        "Model loading took 38.2 GiB memory and 226.512052 seconds",
        {"used": size(38.2), "elapsed": Reading(226.512052, 5e-7)},
    ),
    (Event.LOAD_END, "Loading model weights took 67.7229 GB", {"used": size(67.7229, 4)}),
    (
        Event.PROFILE,
        "Memory profiling results: duration=18.41 seconds, total_gpu_memory=191.98GiB, initial_memory_usage=71.40GiB, "
        "peak_torch_memory=86.79GiB, memory_usage_post_profile=73.77GiB, non_torch_memory=6.07GiB, "
        "kv_cache_size=95.28GiB, gpu_memory_utilization=0.98.",
        {
            "total": size(191.98),
            "initial": size(71.4),
            "peak_torch": size(86.79),
            "non_torch": size(6.07),
            "kv": size(95.28),
            "utilization": Reading(0.98, 0.005),
        },
    ),
    (
        Event.PROFILE_BUDGET,
        "the current vLLM instance can use total_gpu_memory (79.22GiB) x gpu_memory_utilization (0.90) = 71.29GiB",
        {"total": size(79.22), "utilization": Reading(0.9, 0.005), "budget": size(71.29)},
    ),
    (
        Event.PROFILE,
        "model weights take 19.86GiB; non_torch_memory takes 0.16GiB; PyTorch activation peak memory takes 36.63GiB; "
        "the rest of the memory reserved for KV Cache is 14.65GiB.",
        {"weights": size(19.86), "non_torch": size(0.16), "activation": size(36.63), "kv": size(14.65)},
    ),
    (
        Event.PROFILE,
        "Memory profiling takes 11.20 seconds. Total non KV cache memory: 20.19GiB; torch peak memory increase: "
        "1.42GiB; non-torch forward increase memory: 0.51GiB; weights memory: 18.26GiB.",
        {"not_kv": size(20.19), "activation": size(1.42), "non_torch": size(0.51), "weights": size(18.26)},
    ),
    (
        Event.PROFILE,
        "Memory profiling takes 3.00 seconds. Total non KV cache memory: 20.1GiB; torch peak memory increase: 1.4GiB; "
        "total consumed (from mem_get_info): 18.7GiB; weights memory: 18.2GiB.",
        {"not_kv": size(20.1), "activation": size(1.4), "consumed": size(18.7), "weights": size(18.2)},
    ),
    (
        Event.PROFILE_BUDGET,
        "Free memory on device (15.89/16.0 GiB) on startup. Desired GPU memory utilization is (0.95, 15.2 GiB). "
        "Actual usage is 0.88 GiB for weight",
        {"free": size(15.89), "total": size(16.0), "utilization": Reading(0.95), "budget": size(15.2)},
    ),
    (
        Event.PROFILE,
        "Actual usage is 171.25 GiB for consumed memory (weights + non-torch), 36.74 GiB for peak activation, and "
        "8.57 GiB for CUDAGraph memory. Current kv cache memory in use is 46.5 GiB.",
        {"consumed": size(171.25), "activation": size(36.74), "graphs": size(8.57), "kv": size(46.5)},
    ),
    (
        Event.PROFILE,
        "Actual usage is 0.88 GiB for weight, 0.26 GiB for peak activation, 0.16 GiB for non-torch memory, and 0.24 "
        "GiB for CUDAGraph memory. Current kv cache memory in use is 13.33 GiB.",
        {
            "weights": size(0.88),
            "activation": size(0.26),
            "non_torch": size(0.16),
            "graphs": size(0.24),
            "kv": size(13.33),
        },
    ),
    (
        Event.PROFILE,
        "Actual usage is 27.72 GiB for weight, 1.4 GiB for peak activation, 0.21 GiB for non-torch memory, and 3.45 "
        "GiB for CUDAGraph memory. Current kv cache memory in use is 11423138508 bytes.",
        {
            "weights": size(27.72),
            "activation": size(1.4),
            "non_torch": size(0.21),
            "graphs": size(3.45),
            "kv": Reading(11423138508, 0.5),
        },
    ),
    (Event.KV_AVAILABLE, "Available KV cache memory: 8.11 GiB", {"kv": size(8.11)}),
    (
        Event.KV_AVAILABLE,
        "Initial free memory 23.05 GiB, reserved 4.0 GiB memory for KV Cache as specified by kv_cache_memory_bytes "
        "config and skipped memory profiling.",
        {"free": size(23.05), "kv": size(4.0)},
    ),
    (Event.KV_SIZE, "GPU KV cache size: 11,577,333 tokens", {"tokens": 11577333}),
    (Event.KV_SIZE, "GPU + host KV cache size: 1,000 tokens, Maximum", {"tokens": 1000}),
    (
        Event.CONCURRENCY,
        "Maximum concurrency for 32,768 tokens per request: 9.90x",
        {"context": 32768, "requests": Reading(9.9, 0.005)},
    ),
    (Event.BLOCKS, "# GPU blocks: 1207, # CPU blocks: 1365", {"gpu": 1207, "host": 1365}),
    (Event.BLOCKS, "# CUDA blocks: 6001, # CPU blocks: 1638", {"gpu": 6001, "host": 1638}),
    (Event.BLOCKS, "# GPU blocks: 1381", {"gpu": 1381}),
    (Event.GRAPH_ESTIMATE, "Estimated CUDA graph memory: 1.10 GiB total", {"used": size(1.1)}),
    (
        Event.GRAPH_POOL,
        "CUDA graph pool memory: 2.51 GiB (actual), 2.44 GiB (estimated), difference: 0.07 GiB (2.8%).",
        {"used": size(2.51), "estimated": size(2.44)},
    ),
    (
        Event.GRAPH_END,
        "Graph capturing finished in 18 secs, took 0.96 GiB",
        {"elapsed": Reading(18, 0.5), "used": size(0.96)},
    ),
    (
        Event.INIT_END,
        "init engine (profile, create kv cache, warmup model) took 70.62 s (compilation: 42.18 s)",
        {"elapsed": Reading(70.62, 0.005)},
    ),
    (
        Event.ERROR,
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 1.17 GiB. GPU 0 has a total capacity of 7.63 GiB "
        "of which 512.00 MiB is free.",
        {
            "kind": "out of memory",
            "tried": size(1.17),
            "total": size(7.63),
            "free": Reading(512 * 2**20, 0.005 * 2**20),
            "text": "HIP out of memory. Tried to allocate 1.17 GiB. GPU 0 has a total capacity of 7.63 GiB "
            "of which 512.00 MiB is free.",
        },
    ),
    (
        Event.ERROR,
        "torch.AcceleratorError: CUDA error: out of memory",
        {"kind": "out of memory", "text": "CUDA error: out of memory"},
    ),
    (
        Event.ERROR,
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: "
        "mem_fraction_static=0.7",
        {
            "kind": "no room for the pools",
            "fraction": Reading(0.7),
            "text": "Not enough memory. Please try to increase --mem-fraction-static. Current value: "
            "mem_fraction_static=0.7",
        },
    ),
    (
        Event.ERROR,
        "Exception: Capture cuda graph failed: no kernel",
        {"kind": "graph capture", "text": "Capture cuda graph failed: no kernel"},
    ),
    (
        Event.ERROR,
        "Scheduler hit an exception: Traceback (most recent call last):",
        {"kind": "stopped", "text": "Scheduler hit an exception: Traceback (most recent call last):"},
    ),
    (
        Event.ERROR,
        "ValueError: No available memory for the cache blocks. Try increasing",
        {"kind": "no room for the pools", "text": "No available memory for the cache blocks. Try increasing"},
    ),
    (
        Event.ERROR,
        "ValueError: To serve at least one request with the model's max seq len (131072), (16.0 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (7.7 GiB). Based on the available memory, the "
        "estimated maximum model length is 63072. Try",
        {
            "kind": "longest request",
            "context": 131072,
            "needed": size(16.0),
            "kv": size(7.7),
            "fits": 63072,
            "text": "To serve at least one request with the model's max seq len (131072), (16.0 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (7.7 GiB). Based on the available memory, the "
            "estimated maximum model length is 63072. Try",
        },
    ),
    (
        Event.ERROR,
        "ValueError: The model's max seq len (30000) is larger than the maximum number of tokens that can be stored in "
        "KV cache (19632).",
        {
            "kind": "longest request",
            "context": 30000,
            "fits": 19632,
            "text": "The model's max seq len (30000) is larger than the maximum number of tokens that can be stored in "
            "KV cache (19632).",
        },
    ),
    (
        Event.ERROR,
        "ValueError: Free memory on device cuda:1 (15.64/95.01 GiB) on startup is less than desired GPU memory "
        "utilization (0.9, 85.51 GiB). Decrease",
        {
            "kind": "memory taken by others",
            "free": size(15.64),
            "total": size(95.01),
            "utilization": Reading(0.9),
            "budget": size(85.51),
            "text": "Free memory on device cuda:1 (15.64/95.01 GiB) on startup is less than desired GPU memory "
            "utilization (0.9, 85.51 GiB). Decrease",
        },
    ),
    (
        Event.ERROR,
        "EngineCore failed to start.",
        {"kind": "stopped", "text": "EngineCore failed to start."},
    ),
    (Event.ERROR, "AssertionError: 129 > 128", {"kind": "assertion", "text": "AssertionError: 129 > 128"}),
]


@pytest.mark.parametrize(("event", "line", "values"), LINES)
def test_a_line_is_read(event, line, values):
    (found,) = [read.values for read in all_patterns().read(line) if read.event is event]
    assert found is not None and set(found) == set(values)
    for name, value in values.items():
        if isinstance(value, Reading):
            assert is_reading(found[name], value.value, value.half_width), name
        else:
            assert found[name] == value


def all_of(event: Event) -> tuple[Pattern, ...]:
    return all_patterns().by_event[event]


def test_every_pattern_has_a_line_that_it_is_the_first_to_read():
    units: dict[str, float] = dict.fromkeys(("GiB", "MiB", "KiB", "B", "bytes", "s", "ratio"), 1.0)
    firsts = {
        (event, next(n for n, pattern in enumerate(all_of(event)) if pattern.read(line, units) is not None))
        for event, line, _ in LINES
    }
    assert firsts == {(event, n) for event in Event for n in range(len(all_of(event)))}


def test_every_figure_is_read_of_some_line():
    read = {(event, name) for event, _, values in LINES for name in values}
    assert {(event, name) for event in Event for p in all_of(event) for name in p.figures} <= read


def test_every_event_has_a_pattern_and_says_where_it_was_read():
    assert all(all_of(event) for event in Event)
    assert all(source for event in Event for pattern in all_of(event) for source in pattern.read_in)


def test_a_line_that_is_cut_names_its_event_and_no_figure():
    (read,) = all_patterns().read("Load weight end. type=DeepseekV3ForCausalLM, dtype=torch.bfl")
    assert read.event is Event.LOAD_END and read.values is None


def test_lines_of_a_serving_engine_are_no_events():
    for line in (
        "Decode batch. #running-req: 31, #token: 129488, token usage: 0.80, gen throughput (token/s): 1290.67",
        "Engine 000: Avg prompt throughput: 115.2 tokens/s, Running: 1 reqs, GPU KV cache usage: 2.6%",
        "Loading weights took 9.23 seconds",
        "self = run_scheduler_process(server_args=server_args, port_args=port_args)",
    ):
        assert not list(all_patterns().read(line))


def test_no_expression_repeats_without_a_bound_before_its_end():
    """What a line says is anyone's: a free repetition inside an expression can make it quadratic in the line."""
    for event in Event:
        for pattern in all_of(event):
            for figure in pattern.figures.values():
                plain = re.sub(r"\[[^\]]*\]", "c", re.sub(r"\\.", "c", figure.find.pattern))
                inner = re.sub(r"(\.\*|c\+)\)$", ")", plain)
                assert not re.search(r"[*+]", inner), (event, figure.find.pattern)
