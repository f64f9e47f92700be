"""Pools and tables: states, rings, KV, drafts, request tables, slot maps, the DeepEP buffer."""

from dataclasses import replace

from experiments.seed_claims.answer import Answer, Topic, answer
from experiments.seed_claims.article import BOTH, DP2, DP16, FULL, Deployment, price, step
from experiments.seed_claims.weights import exact, model
from hw.units import GIB
from layouts.expression import Expr
from layouts.kda import KDA
from layouts.serving.buffers import slot_map_bytes

# MLA KV pool of a card, bytes: article 000, start-up logs. Inputs: the budget rule does not give them.
KV_POOL = {DP16.name: 41.1 * GIB, DP2.name: 34.6 * GIB}
DISPATCH_TOKENS = (144, 120)  # article 000: the setting of both builds, and what DP16 needs
FEWER_EXTRA = 2  # article 000: extra slots at which DP16 keeps the headroom of DP2
STATE, RING, DRAFT = "linear-attention state", "ReplaySSM ring", "draft KV"


def line(deployment: Deployment, name: str, verify: int = 5) -> float:
    """A ledger line in GiB at full load."""
    return step(deployment, FULL, verify=verify).lines[name] / GIB


def slots(deployment: Deployment) -> float:
    """State slots of a rank at full load."""
    return float(step(deployment, FULL).memory.slots)


def slot_gib(deployment: Deployment) -> float:
    """State and ring of one slot, GiB."""
    return (line(deployment, STATE) + line(deployment, RING)) / slots(deployment)


def rank_tokens(deployment: Deployment) -> int:
    """KV tokens of a rank's pool."""
    return int(KV_POOL[deployment.name] // float(step(deployment, FULL).memory.kv_bytes_a_token))


def group_tokens(deployment: Deployment) -> int:
    """KV tokens of an attention group: DCP ranks hold different ones."""
    return rank_tokens(deployment) * deployment.layout.dcp


def instance_tokens(deployment: Deployment) -> int:
    """KV tokens of the instance."""
    return group_tokens(deployment) * deployment.layout.attn_dp * deployment.layout.replicas


def pools(deployment: Deployment) -> float:
    """All state pools of a card, GiB: the given KV pool and the three that the ledger derives."""
    return KV_POOL[deployment.name] / GIB + sum(line(deployment, name) for name in (STATE, RING, DRAFT))


def verify_windows() -> Answer:
    """K15: convolution windows kept for verification, the base window left out."""
    kda = [layer.attention for layer in model().layers if isinstance(layer.attention, KDA)]

    def copies(verify: int) -> float:
        kept = sum((a.state_bytes(verify) + a.state_bytes(0) * -1 for a in kda), start=Expr.of(0))
        return float(exact(kept, DP16)) * slots(DP16) / GIB

    return answer(copies(5), copies(6))


def draft_slot(deployment: Deployment) -> float:
    """Bytes of draft KV in one window slot."""
    draft = model().draft
    assert draft is not None
    return float(exact(draft.kv_bytes(model().precision["kv"].name), deployment))


def deepep() -> Answer:
    """K26: the ledger's DeepEP buffer at both settings."""
    lines = [
        price(replace(DP16.request, dispatch_tokens=tokens), DP16.layout, FULL).lines["DeepEP buffer"] / GIB
        for tokens in DISPATCH_TOKENS
    ]
    return answer(*lines)


def fewer_extra_slots() -> Answer:
    """K28: state and ring of the slots that 8 -> 2 extra slots free."""
    fewer = price(replace(DP16.request, extra_slots=FEWER_EXTRA), DP16.layout, FULL)
    freed = {name: line(DP16, name) - fewer.lines[name] / GIB for name in (STATE, RING, DRAFT)}
    return answer(freed[STATE] + freed[RING], note=f"the draft KV of these slots is another {freed[DRAFT]:.2f} GiB")


def state_ratio() -> Answer:
    """K29: state bytes of live requests a card, DP16 over DP2, at 256 requests of the instance."""
    kda = sum((la.attention.state_bytes(5) for la in model().layers if isinstance(la.attention, KDA)), start=Expr.of(0))
    live = [exact(kda, d) * round(float(step(d, 256).values["requests"])) for d in BOTH]
    return answer(float(live[0] / live[1]))


def kv_ratio() -> Answer:
    """K30: MLA KV bytes of live requests a card, DP16 over DP2."""
    held = [step(d, 256).values["kv_tokens"] * step(d, 256).memory.kv_bytes_a_token for d in BOTH]
    return answer(float(held[0] / held[1]))


CLAIMS: Topic = {
    "K13": lambda: answer(line(DP16, STATE)),
    "K14": lambda: answer(line(DP16, STATE, verify=6)),
    "K15": verify_windows,
    "K16": lambda: answer(*map(slot_gib, BOTH)),
    "K17": lambda: answer(*map(slots, BOTH)),
    "K18": lambda: answer(float(step(DP16, FULL).memory.kv_bytes_a_token)),
    "K19": lambda: answer(rank_tokens(DP16) / 1e6),
    "K20": lambda: answer(group_tokens(DP2) / 1e6),
    "K21": lambda: answer(*(instance_tokens(d) / 1e6 for d in BOTH)),
    "K22": lambda: answer(*(line(d, "req_to_token") for d in BOTH)),
    "K23": lambda: answer(*(slot_map_bytes(group_tokens(d)) / GIB for d in (DP2, DP16))),
    "K24": lambda: answer(*map(draft_slot, BOTH)),
    "K25": lambda: answer(*(line(d, DRAFT) for d in BOTH)),
    "K26": deepep,
    "K27": lambda: answer(pools(DP16) - pools(DP2), note="from the given KV pools"),
    "K28": fewer_extra_slots,
    "K29": state_ratio,
    "K30": kv_ratio,
}
