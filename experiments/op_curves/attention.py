"""Public tables of attention kernels as rows for the time model: MLA and grouped-query decode, prefill, sparse index.

FLOPs and bytes are those of the layouts' own ops. Families are apart because their kernels are: a decode step streams
the KV cache, a prefill chunk is bound by the tensor cores, and an index scores without a softmax.
"""

from collections.abc import Mapping

import numpy as np

from experiments.op_curves.columns import Column, evaluate, named, numbers, read, shapes
from experiments.op_curves.rows import Group
from hw.arithmetic import Exact
from hw.figures import read_chip
from layouts.dsa.shape import Indexer
from layouts.dsa.work import decode_scores, prefill_scores
from layouts.gqa import work as gqa_work
from layouts.gqa.shape import GQA
from layouts.mla import work as mla_work
from layouts.mla.shape import MLA
from layouts.op import Op
from layouts.quantities import query_tiles, split_kv
from layouts.tensor import FORMATS, Precision

# A split takes at least this many KV tokens. Of 128 and 256, the one that predicts held-out rows better.
SPLIT_TOKENS = 256
_TOPK = 2048

_GQA_HEADS = ((16, 2), (32, 2), (64, 2), (128, 2), (256, 2), (32, 4), (32, 8))  # query heads, KV heads

_AIC = "mla_generation_b200_h200_sglang0514"
_ONE = {"attn_tp": 1.0, "dcp": 1.0, "kv_head_ranks": 1.0, "verify": 1.0}


def groups() -> list[Group]:
    """Every attention group of the shipped tables, one for each chip, kernel and KV format."""
    return [*_served_mla(), _h800_mla(), _h800_gqa(), _prefill(), _sparse_decode(), _index_prefill(), _index_decode()]


def mla(heads: int, indexer: Indexer | None = None) -> MLA:
    """The MLA of every table: latent 512, rotary 64, no-position and value width 128."""
    return MLA(7168, heads, 1536, 512, 128, 64, 128, output_gate=False, indexer=indexer)


def indexer(topk: int = _TOPK) -> Indexer:
    """The index of every table: 64 heads of 128."""
    return Indexer(7168, 1536, 64, 128, topk, shared=False)


def splits(sms: int, requests: Column, tiles: Column, tokens: Column) -> Column:
    """KV splits of a decode step: the published rule, and no split below `SPLIT_TOKENS` tokens."""
    rule = np.asarray(split_kv(Exact(), sms, requests, tiles))
    return np.minimum(rule, np.ceil(tokens / SPLIT_TOKENS))


def _group(
    name: str,
    chip: str,
    family: str,
    rate: str,
    work: Mapping[str, Column],
    seconds: Column,
    problem: tuple[Column, ...],
    source: str,
    flagged: Mapping[str, int] | None = None,
) -> Group:
    blank = np.zeros(len(seconds))
    features = {"resident": blank, "ctas": blank, "splits": blank + 1, "steps": blank, **work}
    return Group(name, chip, family, rate, features, seconds, shapes(*problem), source, flagged or {})


def _served_mla() -> list[Group]:
    table = read(_AIC)
    kept = []
    for system, chip in (("b200_sxm", "b200"), ("h200_sxm", "h200")):
        for kv, form in (("bfloat16", "bf16"), ("fp8", "fp8")):
            rows = [r for r in table if r["system"] == system and r["kv_cache_dtype"] == kv]
            if (chip, form) == ("h200", "fp8"):
                continue  # counted beside the rows that it would spoil
            heads, requests = numbers(rows, "num_heads"), numbers(rows, "batch_size")
            tokens = numbers(rows, "isl") + numbers(rows, "step")
            reason = "fp8 KV on H200: the software of the table falls back, four times slower than bf16"
            dropped = sum(r["system"] == system and r["kv_cache_dtype"] == "fp8" for r in table)
            flagged = {reason: dropped} if chip == "h200" else {}
            work = _mla_decode(_sms(chip), form, heads, requests, tokens)
            seconds, name = numbers(rows, "latency") * 1e-3, f"mla_decode {chip} {form}"
            problem = (heads, requests, tokens)
            kept.append(_group(name, chip, "attention", form, work, seconds, problem, _AIC, flagged))
    return kept


def _h800_mla() -> Group:
    name = "mla__decode__h800__128-512-64"
    rows = read(name)
    requests, tokens = numbers(rows, "batch_size"), numbers(rows, "kv_len")
    work = _mla_decode(_sms("h800"), "bf16", np.full(len(rows), 128.0), requests, tokens)
    seconds = numbers(rows, "latency_us") * 1e-6
    return _group("mla_decode h800 bf16", "h800", "attention", "bf16", work, seconds, (requests, tokens), name)


def _mla_decode(sms: int, form: str, heads: Column, requests: Column, tokens: Column) -> dict[str, Column]:
    """FLOPs, bytes and grid of absorbed decode; `resident` is what a repeated launch may find in the L2 cache."""
    precision = Precision({"kv": FORMATS[form]})
    values = {**_ONE, "kv_tokens": requests * tokens, "rows": requests}
    work = {n: np.zeros(len(heads)) for n in ("flops", "bytes")}
    for count in np.unique(heads):
        op = named(mla_work.decode(mla(int(count)), (), precision), "mla_decode")
        priced = _priced(op, values)
        work = {n: np.where(heads == count, priced[n], work[n]) for n in work}
    tiles = np.asarray(query_tiles(Exact(), heads, np.ones(len(heads))))
    split = splits(sms, requests, tiles, tokens)
    cache = requests * tokens * float(mla(1).kv_bytes(form).evaluate({}))
    return {**work, "ctas": 2.0 * requests * tiles * split, "splits": split, "resident": cache}


def _sms(chip: str) -> int:
    """SMs that the published split rule divides."""
    return int(read_chip(chip)["sms"].value)


def _priced(op: Op, values: Mapping[str, Column | float]) -> dict[str, Column]:
    return {"flops": np.asarray(evaluate(op.flops, values)), "bytes": np.asarray(evaluate(op.bytes, values))}


def _h800_gqa() -> Group:
    """Seven head counts in one group. The first call of one file is a warm-up."""
    works: list[dict[str, Column]] = []
    times: list[Column] = []
    problems: list[Column] = []
    flagged = 0
    for heads, pairs in _GQA_HEADS:
        rows = read(f"mha__decode__h800__{heads}-{pairs}-128")
        requests, tokens = numbers(rows, "batch_size"), numbers(rows, "kv_len")
        seconds = numbers(rows, "latency_us") * 1e-6
        steady = seconds < 100e-6  # of a KV cache below 4 MB: 25 to 45 us everywhere but in one first row
        kept = steady | (requests * tokens > 1024)
        flagged += int((~kept).sum())
        gqa = GQA(4096, heads, pairs, 128, 0, bias=False, qk_norm=False)
        op = named(gqa_work.decode(gqa, (), Precision({"kv": FORMATS["bf16"]})), "gqa_decode")
        work = _priced(op, {**_ONE, "kv_tokens": requests * tokens, "rows": requests})
        work["resident"] = requests * tokens * float(gqa.kv_bytes("bf16").evaluate({"kv_head_ranks": 1}))
        problem = np.stack([np.full(len(rows), heads), np.full(len(rows), pairs), requests, tokens], axis=1)
        works.append({n: c[kept] for n, c in work.items()})
        times.append(seconds[kept])
        problems.append(problem[kept])
    joined = {n: np.concatenate([w[n] for w in works]) for n in works[0]}
    columns = tuple(np.concatenate(problems).T)
    reason = {"first call of a file, ten times the next: warm-up": flagged}
    name, source, family = "gqa_decode h800", "mha__decode__h800__*", "attention_heads"
    return _group(name, "h800", family, "bf16", joined, np.concatenate(times), columns, source, reason)


def _prefill() -> Group:
    """Dense prefill with expanded heads, and sparse prefill over 2048 chosen latents."""
    dense, sparse = read("mla__prefill__h800__128-128-64"), read("dsa__prefill__h800__attn-128-576-2048")
    precision = Precision({"kv": FORMATS["bf16"]})
    length = numbers(dense, "seq_len")
    one = _priced(
        named(mla_work.prefill(mla(128), (), precision), "mla_prefill"),
        {**_ONE, "rows": length, "prefix_tokens": length / 2, "kv_tokens": length},
    )
    queries, keys = numbers(sparse, "s_q"), numbers(sparse, "s_kv")
    two = _priced(
        named(mla_work.prefill(mla(128, indexer()), (), precision), "mla_prefill"),
        {**_ONE, "rows": queries, "sparse_prefix_tokens": _TOPK + 0 * queries, "kv_tokens": keys},
    )
    work = {n: np.concatenate([one[n], two[n]]) for n in one}
    seconds = np.concatenate([numbers(t, "latency_us") for t in (dense, sparse)]) * 1e-6
    problem = (np.concatenate([length, queries]), np.concatenate([0 * length, keys]))
    source = "mla__prefill__h800__*, dsa__prefill__h800__attn-*"
    return _group("mla_prefill h800", "h800", "attention_prefill", "bf16", work, seconds, problem, source)


def _sparse_decode() -> Group:
    """Decode over 2048 chosen tokens, bf16 arithmetic on fp8 KV: time does not depend on the context."""
    name = "dsa__decode__h800__attn-128-576-2048"
    rows = read(name)
    whole = [r for r in rows if int(r["kv_len"]) >= _TOPK]
    requests, tokens = numbers(whole, "batch_size"), numbers(whole, "kv_len")
    op = named(mla_work.decode(mla(128, indexer()), (), Precision({"kv": FORMATS["fp8"]})), "mla_decode")
    work = _priced(op, {**_ONE, "sparse_tokens": requests * _TOPK, "rows": requests})
    reason = {"context below the 2048 tokens that the kernel reads: it pads": len(rows) - len(whole)}
    seconds = numbers(whole, "latency_us") * 1e-6
    return _group(
        "dsa_decode h800", "h800", "attention_sparse", "bf16", work, seconds, (requests, tokens), name, reason
    )


def _index_prefill() -> Group:
    name = "dsa__prefill__h800__logits-64-128"
    rows = read(name)
    queries, keys = numbers(rows, "s_q"), numbers(rows, "s_kv")
    values = {**_ONE, "rows": queries, "prefix_tokens": keys - queries / 2, "kv_tokens": keys}
    work = _priced(named(prefill_scores(indexer()), "index_scores"), values)
    seconds = numbers(rows, "latency_us") * 1e-6
    return _group("index_prefill h800", "h800", "index_prefill", "fp8", work, seconds, (queries, keys), name)


def _index_decode() -> Group:
    name = "dsa__decode__h800__logits-64-128"
    rows = read(name)
    requests, verify = numbers(rows, "batchsize"), numbers(rows, "next_n")
    tokens = numbers(rows, "s_kv")
    values = {**_ONE, "index_tokens": requests * tokens, "verify": verify}
    work = _priced(named(decode_scores(indexer()), "index_scores"), values)
    seconds = numbers(rows, "latency_us") * 1e-6
    problem = (requests, verify, tokens)
    return _group("index_decode h800", "h800", "index", "fp8", work, seconds, problem, name)
