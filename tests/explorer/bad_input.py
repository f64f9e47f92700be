"""What a person may type wrongly: a name, the command line, and what its one line of error must mention.

`{folder}` stands for a folder that holds the files of `FILES`.
"""

import json
from typing import Final, NamedTuple


class Bad(NamedTuple):
    name: str
    arguments: str
    mentions: str


_LLAMA: Final = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
_WHOLE: Final = json.dumps(_LLAMA)

FILES: Final = {
    "truncated.json": _WHOLE[: len(_WHOLE) // 2],
    "empty.json": "",
    "list.json": "[1, 2]",
    "number.json": "7",
    "junk.json": "\x00\x01not json",
    "missing_key.json": json.dumps({k: v for k, v in _LLAMA.items() if k != "num_hidden_layers"}),
    "no_architecture.json": json.dumps({k: v for k, v in _LLAMA.items() if k != "architectures"}),
    "unknown_architecture.json": json.dumps(_LLAMA | {"architectures": ["MambaForCausalLM"]}),
    "string_size.json": json.dumps(_LLAMA | {"hidden_size": "4096"}),
    "negative_size.json": json.dumps(_LLAMA | {"intermediate_size": -1}),
    "nan_size.json": _WHOLE.replace("14336", "NaN"),
    "huge_size.json": json.dumps(_LLAMA | {"vocab_size": 10**30}),
    "true_size.json": json.dumps(_LLAMA | {"hidden_size": True}),
    "bad_quantization.json": json.dumps(_LLAMA | {"quantization_config": {"quant_method": "awq"}}),
    "draft.json": json.dumps({"architectures": ["OtherDraft"]}),
    "file": "not a folder",
}

_ASK: Final = "--model kimi-k3@article --hardware b200 --gpus 16"
_COST: Final = f"cost {_ASK} --layout attn_dp=2,dcp=8,ep=16"
_SMALL: Final = "cost --model llama-3.1-8b --hardware h100 --gpus 8 --layout"


def _model(file: str) -> str:
    return f"cost --model {{folder}}/{file} --hardware b200 --gpus 8 --layout attn_tp=8"


def _layout(text: str) -> str:
    return f"cost {_ASK} --layout {text}"


CASES: Final = (
    # the model
    Bad("unknown model", "plan --model gtp-9 --hardware b200 --gpus 16", "unknown model 'gtp-9'"),
    Bad("near miss", "plan --model kimi-k33 --hardware b200 --gpus 16", "did you mean 'kimi-k3'?"),
    Bad("empty model", "plan --model= --hardware b200 --gpus 16", "model"),
    Bad("unknown build", "plan --model kimi-k3@home --hardware b200 --gpus 16", "kimi-k3@home"),
    Bad("no such file", "plan --model {folder}/none.json --hardware b200 --gpus 16", "none.json"),
    Bad("folder without config", "plan --model {folder}/ --hardware b200 --gpus 16", "config.json"),
    Bad("name of a file too long", f"plan --model /{'a' * 4000}.json --hardware b200 --gpus 16", "too long"),
    Bad("home of nobody", "plan --model ~nobody9/x.json --hardware b200 --gpus 16", "~nobody9/x.json"),
    Bad("truncated JSON", _model("truncated.json"), "truncated.json"),
    Bad("empty file", _model("empty.json"), "empty.json"),
    Bad("JSON list", _model("list.json"), "list"),
    Bad("JSON number", _model("number.json"), "int"),
    Bad("no JSON", _model("junk.json"), "junk.json"),
    Bad("missing key", _model("missing_key.json"), "num_hidden_layers"),
    Bad("no architecture", _model("no_architecture.json"), "architectures"),
    Bad("unknown architecture", _model("unknown_architecture.json"), "MambaForCausalLM"),
    Bad("size as a string", _model("string_size.json"), "hidden_size"),
    Bad("negative size", _model("negative_size.json"), "intermediate_size"),
    Bad("NaN as a size", _model("nan_size.json"), "intermediate_size"),
    Bad("size beyond reason", _model("huge_size.json"), "vocab_size"),
    Bad("boolean as a size", _model("true_size.json"), "hidden_size"),
    Bad("unknown quantisation", _model("bad_quantization.json"), "awq"),
    # draft and precision
    Bad("unknown draft", f"{_COST} --draft eagle", "draft 'eagle'"),
    Bad("no MTP layers", f"{_COST} --draft mtp", "MTP"),
    Bad("draft of another kind", f"{_COST} --draft {{folder}}/draft.json", "OtherDraft"),
    Bad("no such draft file", f"{_COST} --draft {{folder}}/none.json", "none.json"),
    Bad("unknown component", f"{_COST} --precision atention=fp8", "did you mean 'attention'?"),
    Bad("unknown format", f"{_COST} --precision kv=fp3", "fp3"),
    Bad("component without format", f"{_COST} --precision kv", "'='"),
    Bad("component twice", f"{_COST} --precision kv=fp8,kv=bf16", "twice"),
    # the machine
    Bad("unknown chip", "plan --model kimi-k3 --hardware b2000 --gpus 16", "nearest is 'b200'"),
    Bad("no GPUs", "plan --model kimi-k3 --hardware b200 --gpus 0", "gpus"),
    Bad("negative GPUs", "plan --model kimi-k3 --hardware b200 --gpus -8", "gpus"),
    Bad("half a GPU", "plan --model kimi-k3 --hardware b200 --gpus 0.5", "whole number"),
    Bad("GPUs beyond reason", "plan --model kimi-k3 --hardware b200 --gpus 99999999", "gpus"),
    Bad("GPUs in words", "plan --model kimi-k3 --hardware b200 --gpus sixteen", "sixteen"),
    Bad("no GPUs a host", f"{_COST} --gpus-per-host 0", "gpus_per_host"),
    Bad("negative domain", f"{_COST} --domain -72", "domain"),
    # the load
    Bad("no context", f"{_COST} --context 0", "context"),
    Bad("negative context", f"{_COST} --context -5", "context"),
    Bad("NaN context", f"{_COST} --context nan", "context"),
    Bad("infinite context", f"{_COST} --context inf", "context"),
    Bad("context with an exponent", f"{_COST} --context 1e3", "'1e3' is not a whole number"),
    Bad("context beyond the model", f"{_COST} --context 1048577", "1048576"),
    Bad("context of 400 digits", f"{_COST} --context 1{'0' * 400}", "digits"),
    Bad("no requests", f"{_COST} --concurrency 0", "concurrency"),
    Bad("negative requests", f"{_COST} --concurrency -1", "concurrency"),
    Bad("requests beyond reason", f"{_COST} --concurrency 999999999999", "concurrency"),
    Bad("no rows", f"{_COST} --verify-width 0", "verify-width"),
    Bad("rows beyond reason", f"{_COST} --verify-width 65", "verify-width"),
    Bad("accepts more than it verifies", f"{_COST} --verify-width 2 --accept-length 3", "accept-length 3"),
    Bad("accepts nothing", f"{_COST} --accept-length 0", "accept-length"),
    Bad("accepts NaN", f"{_COST} --accept-length nan", "accept-length"),
    Bad("unknown phase", f"{_COST} --phase decoding", "phase 'decoding'"),
    Bad("no chunk", f"{_COST} --chunk 0", "chunk"),
    # limits and search
    Bad("unknown objective", f"{_COST} --objective fast", "objective 'fast'"),
    Bad("no memory", f"{_COST} --mem-fraction 0", "mem-fraction"),
    Bad("more than all memory", f"{_COST} --mem-fraction 1.5", "mem-fraction"),
    Bad("NaN of the memory", f"{_COST} --mem-fraction nan", "mem-fraction"),
    Bad("infinite latency", f"{_COST} --max-tpot-ms inf", "max-tpot-ms"),
    Bad("negative latency", f"{_COST} --max-tpot-ms -3", "max-tpot-ms"),
    Bad("negative slots", f"{_COST} --extra-slots -1", "extra-slots"),
    Bad("negative seed", f"{_COST} --seed -1", "seed"),
    # the layout
    Bad("unknown key", _layout("attn_pd=2"), "did you mean attn_"),
    Bad("key twice", _layout("ep=16,ep=8"), "twice"),
    Bad("key without value", _layout("attn_dp="), "attn_dp"),
    Bad("junk text", _layout(";;drop-table"), "layout key"),
    Bad("zero degree", _layout("attn_dp=0"), "attn_dp=0"),
    Bad("negative degree", _layout("ep=-4"), "ep=-4"),
    Bad("degree of many digits", _layout(f"ep={'9' * 30}"), "ep="),
    Bad("unknown alternative", _layout("dispatch=mail"), "all_to_all"),
    Bad("layers out of order", _layout("weight_shard_layers=9-1"), "FIRST-LAST"),
    Bad("not all GPUs", _layout("attn_dp=4,attn_tp=2"), "not the 16 GPUs"),
    Bad("more stages than layers", _SMALL + " pp=64", "pp"),
    Bad("dcp does not divide", _layout("attn_dp=4,dcp=8"), "dcp = 8 does not divide attn_tp = 4"),
    Bad("dcp in prefill", _layout("dcp=2") + " --phase prefill", "decode only"),
    Bad("attn_cp in decode", _layout("attn_cp=2"), "prefill only"),
    Bad("heads", "cost --model llama-3.1-8b --hardware h100 --gpus 6 --layout attn_tp=6", "heads (32)"),
    Bad("dcp under GQA", _SMALL + " attn_tp=8,dcp=2", "KV head"),
    Bad("experts", _layout("ep=3"), "ep"),
    Bad("experts of a dense model", _SMALL + " ep=8", "no routed experts"),
    Bad("all_to_all without ep", _layout("ep=8,dispatch=all_to_all"), "dispatch"),
    Bad("sum_len without all_gather", _layout("attn_dp=16,ep=16,padding=sum_len"), "padding"),
    Bad("shard without layers", _layout("attn_dp=16,ep=16,weight_shard=8,weight_shard_layers=none"), "both or neither"),
    Bad("shard past the last layer", _layout("attn_dp=16,ep=16,weight_shard_layers=1-93"), "last layer 92"),
    Bad("shard over hosts", _layout("attn_dp=16,ep=16,weight_shard=16"), "GPUs of a host"),
    Bad("vocabulary", _layout("vocab_tp=5"), "vocab_tp"),
    Bad("backend without its fabric", _layout("attn_dp=2,dcp=8,ep=16,dcp_backend=fi_a2a"), "NVLink"),
    Bad("one layout to compare", f"compare {_ASK} --layout attn_dp=16,ep=16", "two layouts"),
    Bad("three layouts to compare", f"compare {_ASK} ep=16 ep=8 --against ep=4", "two layouts"),
    Bad("second layout breaks a rule", f"compare {_ASK} ep=16 attn_dp=3", "attn_dp"),
    # what no layout can do
    Bad("no layout fits the GPUs", "plan --model kimi-k3 --hardware b200 --gpus 7", "7"),
    Bad("no memory for the model", "plan --model kimi-k3 --hardware h100 --gpus 1", "kimi-k3"),
    Bad("latency out of reach", f"plan {_ASK} --context 100000 --concurrency 64 --max-tpot-ms 0.01", "tpot"),
    # the command line itself
    Bad("unknown command", "plam", "plam"),
    Bad("unknown option", f"plan {_ASK} --modle x", "--modle"),
    Bad("missing option", "plan --model kimi-k3 --gpus 16", "--hardware"),
    Bad("option without value", "plan --model kimi-k3 --hardware b200 --gpus", "--gpus"),
    Bad("surplus argument", f"memory {_ASK} attn_dp=16", "attn_dp=16"),
    Bad("plot into a file", f"{_COST} --plot {{folder}}/file/plots", "file/plots"),
    Bad("plot onto a file", f"{_COST} --plot {{folder}}/file", "cannot write"),
    Bad("plot nowhere", f"{_COST} --plot /proc/none/plots", "cannot write"),
)  # fmt: skip
