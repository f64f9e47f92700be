"""Lines of SGLang 0.5.23's print statements or of the logs that `patterns.toml` cites: event, line, figures. Numbers
that no source gives are arbitrary."""

from explorer.engines.logs.entries import Event, Reading
from tests.engines.readings import size

SGLANG = [
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
]
