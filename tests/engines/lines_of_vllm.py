"""Lines of vLLM 0.33.0's print statements or of the logs that `patterns.toml` cites, and errors of both engines: event,
line, figures. Numbers that no source gives are arbitrary."""

from explorer.engines.logs.entries import Event, Reading
from tests.engines.readings import size

VLLM = [
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
