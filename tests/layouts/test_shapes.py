"""Byte figures of the articles and of public logs, by plain integers."""

from collections.abc import Iterable, Mapping

import pytest

from layouts.dense import Dense
from layouts.dsa import Indexer
from layouts.expression import Expr, total
from layouts.gqa import GQA
from layouts.kda import KDA
from layouts.mla import MLA
from layouts.models import load_model
from layouts.moe import MoE
from layouts.shapes import ShapeError
from layouts.symbols import MOE_SHARD, QUERY_TP, SHARED_TP
from layouts.tensor import FORMATS, Precision, Tensor

ALONE = {
    "attn_tp": 1, "dense_tp": 1, "shared_tp": 1, "kv_head_ranks": 1, "vocab_tp": 1, "expert_tp": 1, "query_tp": 1,
    "experts_rank": 1, "attention_shard": 1, "moe_shard": 1, "draft_shard": 1,
}  # fmt: skip
MIB, GIB = 2**20, 2**30


@pytest.fixture(scope="module")
def k3():
    return load_model("kimi-k3@article")


def sharded_bytes(tensors: Iterable[Tensor], precision: Precision) -> int:
    """What a weight shard divides: payloads, scales left out."""
    return sum(t.payload(precision).bytes(ALONE) for t in tensors if t.shard is not None)


def named(tensors: Iterable[Tensor], name: str) -> Tensor:
    (found,) = (t for t in tensors if t.name == name)
    return found


def kind(model, label: str):
    (found,) = (k for k in model.kinds if k.label == label)
    return found


def test_structure_of_k3(k3):
    counts = dict(zip((k.label for k in k3.kinds), k3.kind_counts, strict=True))
    assert counts == {"KDA + dense": 1, "KDA + LatentMoE": 68, "MLA + LatentMoE": 24}
    assert [i for i, k in enumerate(k3.kind_of_layer) if k == 2] == [*range(3, 92, 4), 92]


def test_weight_shard_bytes_of_each_layer(k3):  # K01, K02 and the facts' table
    kda, mla = kind(k3, "KDA + LatentMoE"), kind(k3, "MLA + LatentMoE")
    assert sharded_bytes(kda.attention.tensors(), k3.precision) == 443_547_648
    assert sharded_bytes(mla.attention.tensors(), k3.precision) == 204_472_320
    assert sharded_bytes(kda.ffn.tensors(), k3.precision) == 183_500_800
    assert sharded_bytes(kda.tensors(), k3.precision) == 627_048_448
    assert sharded_bytes(mla.tensors(), k3.precision) == 387_973_120
    assert sharded_bytes(k3.draft.layers[0].tensors(), k3.precision) == 675_282_944


def test_gathered_bytes_and_staging_pools(k3):  # K03 to K08
    layers = sum(
        n * sharded_bytes(k.tensors(), k3.precision)
        for k, n in zip(k3.kinds, k3.kind_counts, strict=True)
        if k.ffn.label != "dense"
    )
    draft = sum(sharded_bytes(layer.tensors(), k3.precision) for layer in k3.draft.layers)
    moe = sharded_bytes(kind(k3, "KDA + LatentMoE").ffn.tensors(), k3.precision)
    assert (layers + draft) * 7 // 8 == 48_411_181_056
    assert 92 * moe * 7 // 8 == 14_771_814_400
    largest = max(sharded_bytes(k.tensors(), k3.precision) for k in k3.kinds)
    assert 2 * largest / MIB == pytest.approx(1196, abs=0.5)
    assert 2 * moe / MIB == pytest.approx(350, abs=0.5)
    assert 2 * draft / 5 / MIB == pytest.approx(1288, abs=0.5)
    assert draft / GIB == pytest.approx(3.14, rel=5e-3)


def test_dense_layer_0_and_small_weights_are_never_sharded(k3):
    assert sharded_bytes(kind(k3, "KDA + dense").ffn.tensors(), k3.precision) == 0
    for layer in (*k3.kinds, *k3.draft.layers):
        small = {t.name for t in layer.tensors() if t.shard is None}
        assert small.isdisjoint({"g_proj", "q_b_proj", "o_proj", "shared_down_proj", "latent_up_proj"})
    never = {"f_a_proj", "b_proj", "conv1d", "router", "fused_qkv_a_proj", "w_kc", "w_vc", "input_norm"}
    sharded = {t.name for layer in k3.kinds for t in layer.tensors() if t.shard is not None}
    assert never.isdisjoint(sharded)
    assert {t.name for t in k3.draft.tensors() if t.shard is not None} == {"o_proj", "gate_up_proj", "down_proj"}


def test_single_weights(k3):  # K09 to K12
    kda, mla = kind(k3, "KDA + LatentMoE").attention, kind(k3, "MLA + LatentMoE").attention
    assert named(kda.tensors(), "qkv_proj").payload(k3.precision).bytes(ALONE) == 264_241_152
    q_b, w_kc = named(mla.tensors(), "q_b_proj"), named(mla.tensors(), "w_kc")
    assert q_b.payload(k3.precision).bytes(ALONE) == 28_311_552
    assert w_kc.payload(k3.precision).bytes(ALONE) == 12_582_912
    assert (q_b.work_cut, w_kc.work_cut) == (QUERY_TP, QUERY_TP)
    replicated = 24 * sum(t.payload(k3.precision).bytes(ALONE) for t in (q_b, w_kc))
    assert replicated / GIB == pytest.approx(0.914, rel=5e-4)
    assert q_b.payload(k3.precision).bytes({**ALONE, "attn_tp": 8}) == 3_538_944
    absorbed = w_kc.parameters + named(mla.tensors(), "w_vc").parameters
    assert mla.kv_b.parameters == absorbed == 96 * 256 * 512


def test_experts_of_ep16(k3):
    moe = kind(k3, "KDA + LatentMoE").ffn
    values = {**ALONE, "experts_rank": 56}
    routed = sum(t.resident(k3.precision).bytes(values) for t in moe.tensors() if t.name in ("w13", "w2"))
    assert routed == 56 * 17_547_264
    assert 92 * routed / GIB == pytest.approx(84.19, abs=0.005)


def test_cut_and_shard_divide_payload_but_shard_not_scales(k3):
    down = named(kind(k3, "KDA + LatentMoE").ffn.tensors(), "shared_down_proj")
    assert (down.cut, down.shard) == (SHARED_TP, MOE_SHARD)
    payload, scales = 7168 * 6144, 7168 * 6144 * 4 // 128**2
    assert down.resident(k3.precision).bytes({**ALONE, "moe_shard": 8}) == payload // 8 + scales
    assert down.resident(k3.precision).bytes({**ALONE, "shared_tp": 8}) == (payload + scales) // 8


def test_kda_state_and_replay(k3):  # K13 to K16
    kda = kind(k3, "KDA + dense").attention
    values = {"attn_tp": 1}
    state = {q: 69 * kda.state_bytes(q).bytes(values) for q in (5, 6)}
    assert state[5] == 69 * (96 * 128 * 128 * 4 + 6 * 3 * 36864 * 2)
    assert state[5] / GIB == pytest.approx(0.48958, abs=5e-6)
    assert 33 * state[5] / GIB == pytest.approx(16.16, rel=1e-3)
    assert 33 * state[6] / GIB == pytest.approx(16.62, rel=1e-3)
    replay = 69 * kda.replay_bytes(16).bytes(values)
    assert replay == 163_215_360
    assert (state[5] + replay) / GIB == pytest.approx(0.6416, abs=5e-5)
    shares = 69 * (kda.state_bytes(5) + kda.replay_bytes(16)).bytes({"attn_tp": 8})
    assert shares * 8 == state[5] + replay
    assert kda.state_bytes(Expr.symbol("verify")).bytes({"attn_tp": 1, "verify": 5}) * 69 == state[5]
    assert (kda.state_bytes(5).bytes(values) - kda.state_bytes(5, "bf16").bytes(values)) == 96 * 128 * 128 * 2


def test_conv_window_of_a_public_log():  # practitioner case A8: Kimi K3, TP8, 257 + 1 slots, 13.04 and 0.46 GiB
    kda = KDA(7168, 96, 128, 4, True)
    slots = 258 * 69
    state, windows = kda.state_bytes(-1).bytes({"attn_tp": 8}), kda.state_bytes(0).bytes({"attn_tp": 8})
    assert slots * state / GIB == pytest.approx(13.04, abs=0.005)
    assert slots * (windows - state) / GIB == pytest.approx(0.46, abs=0.005)


def kv_bytes(name: str, fmt: str, values: Mapping[str, int]) -> int:
    model = load_model(name)
    index = sum(a.indexer.key_bytes for la in model.layers if isinstance(a := la.attention, MLA) and a.indexer)
    return total(layer.attention.kv_bytes(fmt) for layer in model.layers).bytes(values) + index


@pytest.mark.parametrize(
    ("name", "fmt", "ranks", "expected"),
    [
        ("kimi-k3", "fp8", 1, 13_824),  # K18
        ("deepseek-v3", "bf16", 8, 70_272),  # D01 and case A5: attention TP does not divide a latent
        ("deepseek-v3", "fp8", 1, 61 * 576),  # case A16
        ("deepseek-v3.2", "fp8", 1, 61 * (656 + 132)),  # case A6
        ("kimi-k2.5", "bf16", 1, 70_272),  # case A5
        ("qwen3-235b-a22b", "bf16", 4, 48_128),  # case A22
        ("qwen3-235b-a22b", "fp8", 4, 24_064),
        ("llama-3.1-8b", "bf16", 1, 131_072),
        ("glm-5.2", "fp8", 1, 78 * (656 + 132)),  # G07: pools keep index keys for layers that share them, too
    ],
)
def test_kv_bytes_a_token(name, fmt, ranks, expected):
    assert kv_bytes(name, fmt, {"kv_head_ranks": ranks}) == expected


def test_draft_kv(k3):  # K24
    assert k3.draft.kv_bytes("fp8").bytes({"kv_head_ranks": 1}) == 10_240
    assert k3.draft.kv_bytes("fp8").bytes({"kv_head_ranks": 8}) == 1_280


def test_a_shared_indexer_holds_keys_but_no_weights():
    full = Indexer(6144, 2048, 32, 128, 2048, shared=False)
    shared = Indexer(6144, 2048, 32, 128, 2048, shared=True)
    assert (full.key_bytes, shared.key_bytes) == (132, 132)
    assert shared.tensors() == ()
    assert sum(t.parameters for t in full.tensors()) == 4096 * 2048 + 128 * 6144 + 32 * 6144 + 256


def test_low_rank_and_full_rank_variants():
    gate = {t.name: (t.out, t.inp) for t in KDA(2304, 32, 128, 4, False).tensors()}
    assert (gate["g_a_proj"], gate["g_b_proj"]) == ((128, 2304), (4096, 128))
    query = {t.name: (t.out, t.inp) for t in MLA(2304, 32, 0, 512, 128, 64, 128, False, None).tensors()}
    assert (query["q_proj"], query["kv_a_proj"]) == ((32 * 192, 2304), (576, 2304))
    assert "q_b_proj" not in query and "gate_proj" not in query


def test_names_are_unique_within_a_layer(k3):
    for layer in (*k3.kinds, *load_model("gpt-oss-120b").kinds, *load_model("glm-5.2").kinds, k3.draft.layers[0]):
        names = [t.name for t in layer.tensors()]
        assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Dense(0, 1), "intermediate|hidden"),
        (lambda: Dense(8, -1), "intermediate"),
        (lambda: MoE(8, 4, 5, 8, 0, 0, False), "topk = 5 must not exceed experts = 4"),
        (lambda: MoE(8, 4, 2, 8, -1, 0, False), "latent"),
        (lambda: GQA(8, 6, 4, 2, 0, False, False), "heads = 6 must be a multiple of kv_heads = 4"),
        (lambda: GQA(8, 4, 4, 2, -1, False, False), "window"),
        (lambda: MLA(8, 4, 0, 0, 1, 1, 1, False, None), "kv_lora"),
        (lambda: KDA(8, 4, True, 4, True), "head_dim"),
        (lambda: Indexer(8, 0, 4, 8, 0, False), "topk"),
        (lambda: GQA(8, 4, 4, 2, 0, False, False).kv_bytes("int4"), "bf16, fp8"),
        (lambda: KDA(8, 4, 8, 4, True).state_bytes(1, "fp8"), "fp32, bf16"),
        (lambda: KDA(8, 4, 8, 4, True).replay_bytes(-1), "ring"),
    ],
)
def test_impossible_sizes(build, words):
    with pytest.raises(ShapeError, match=words):
        build()


def test_formats_of_single_weights(k3):
    fp32 = {t.name for k in k3.kinds for t in k.tensors() if t.format(k3.precision) == FORMATS["fp32"]}
    assert fp32 == {"A_log", "dt_bias", "correction_bias"}
    bf16 = {t.name for t in kind(k3, "KDA + LatentMoE").tensors() if t.format(k3.precision) == FORMATS["bf16"]}
    assert {"f_a_proj", "f_b_proj", "b_proj", "router"} < bf16
    assert bf16.isdisjoint({"qkv_proj", "o_proj", "latent_down_proj", "shared_gate_up_proj", "w13"})
