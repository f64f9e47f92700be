"""A layout: how many ways each logical axis of a model is cut, and which alternative each exchange uses."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from layouts.models.model import Model

DCP_BACKENDS: Final = ("ag_rs", "a2a", "fi_a2a")
DISPATCHES: Final = ("all_gather", "all_to_all")
PADDINGS: Final = ("max_len", "sum_len")


@dataclass(frozen=True)
class ShardedLayers:
    """Which layers keep 1/weight_shard of their TP1 weights: 0-based `first` to `last`, and perhaps the draft.

    Text form `1-92`, `1-92+draft`, or `none`.
    """

    first: int = 0
    last: int = -1
    draft: bool = False

    @property
    def any(self) -> bool:
        return self.last >= self.first

    def __str__(self) -> str:
        return (f"{self.first}-{self.last}" + ("+draft" if self.draft else "")) if self.any else "none"


@dataclass(frozen=True)
class Layout:
    """Degrees in SGLang's sense, resolved: nothing is left to derive. `layouts.rules` says which ones are valid."""

    replicas: int = 1
    pp: int = 1
    attn_dp: int = 1
    attn_tp: int = 1
    attn_cp: int = 1
    dcp: int = 1
    ep: int = 1
    expert_tp: int = 1
    moe_dp: int = 1
    weight_shard: int = 1
    weight_shard_layers: ShardedLayers = ShardedLayers()
    vocab_tp: int = 1
    dcp_backend: str = "a2a"
    dispatch: str = "all_gather"
    padding: str = "max_len"

    @property
    def tp(self) -> int:
        """Ranks of one pipeline stage of one replica (SGLang's tp_size)."""
        return self.attn_dp * self.attn_tp * self.attn_cp

    @property
    def gpus(self) -> int:
        return self.replicas * self.pp * self.tp

    def as_dict(self) -> dict[str, int | str]:
        """Key to resolved value, in the order of the key table; what the JSON documents hold."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {k: str(v) if isinstance(v, ShardedLayers) else v for k, v in values.items()}


@dataclass(frozen=True)
class Given:
    """What a derivation may look at: the keys that were written, the GPUs, the model."""

    keys: Mapping[str, int | str | ShardedLayers]
    gpus: int
    model: Model

    def degree(self, name: str, default: int = 1) -> int:
        value = self.keys.get(name, default)
        assert isinstance(value, int)
        return value

    def rest(self, total: int, *names: str) -> int:
        """What is left of `total` once the named degrees have taken their share (at least 1; rules catch the rest)."""
        for name in names:
            total //= max(self.degree(name), 1)
        return max(total, 1)

    @property
    def tp(self) -> int:
        return self.rest(self.gpus, "replicas", "pp")

    @property
    def attn_tp(self) -> int:
        return self.degree("attn_tp", self.rest(self.tp, "attn_dp", "attn_cp"))


@dataclass(frozen=True)
class Key:
    """One line of the key table: how a value that is left out is derived, and the rule it obeys."""

    name: str
    derive: Callable[[Given], int | str | ShardedLayers]
    derivation: str
    rule: str
    choices: tuple[str, ...] = ()


def _attn_dp(given: Given) -> int:
    return given.rest(given.tp, "attn_tp", "attn_cp") if "attn_tp" in given.keys else 1


def _ep(given: Given) -> int:
    return given.rest(given.tp, "expert_tp", "moe_dp") if "expert_tp" in given.keys else 1


def _vocab_tp(given: Given) -> int:
    """A build may cut it over some ranks, where that makes whole attention groups or whole parts of one."""
    preset = math.gcd(int(given.model.defaults.get("vocab_tp", 0)), given.tp)
    if "vocab_tp" in given.model.defaults and (preset % given.attn_tp == 0 or given.attn_tp % preset == 0):
        return preset
    return given.attn_tp if given.degree("attn_dp", _attn_dp(given)) > 1 else given.tp


def _dispatch(given: Given) -> str:
    ep = given.degree("ep", _ep(given))
    return "all_to_all" if ep > 1 and ep == given.tp else "all_gather"


def _weight_shard(given: Given) -> int:
    """A build may shard by default, where there are TP1 weights to shard."""
    preset = int(given.model.defaults.get("weight_shard", 1))
    runs_whole = given.attn_tp == 1 or given.keys.get("dispatch", _dispatch(given)) == "all_to_all"
    return preset if runs_whole and given.tp % preset == 0 else 1


def _weight_shard_layers(given: Given) -> ShardedLayers:
    """The draft is sharded where it too would be whole on every rank."""
    if given.degree("weight_shard", _weight_shard(given)) <= 1:
        return ShardedLayers()
    layers = default_sharded_layers(given.model)
    return dataclasses.replace(layers, draft=given.model.draft is not None and given.attn_tp == 1)


def default_sharded_layers(model: Model) -> ShardedLayers:
    """Every layer from the first with experts (the engines' default leaves the dense ones whole)."""
    sparse = [i for i, layer in enumerate(model.layers) if layer.experts]
    return ShardedLayers(sparse[0], sparse[-1]) if sparse else ShardedLayers(0, len(model.layers) - 1)


KEYS: Final[tuple[Key, ...]] = (
    Key("replicas", lambda g: 1, "1", "replicas x pp x attn_dp x attn_tp x attn_cp = GPUs"),
    Key("pp", lambda g: 1, "1", "at most one stage a layer"),
    Key("attn_dp", _attn_dp, "1, or what attn_tp leaves", "replicas x pp x attn_dp x attn_tp x attn_cp = GPUs"),
    Key("attn_tp", lambda g: g.attn_tp, "what the other attention degrees leave", "divides the attention heads"),
    Key("attn_cp", lambda g: 1, "1", "prefill only"),
    Key("dcp", lambda g: 1, "1", "divides attn_tp; under GQA also attn_tp / kv heads; decode only"),
    Key("ep", _ep, "1, or what expert_tp leaves", "ep x expert_tp x moe_dp = tp; divides the routed experts"),
    Key("expert_tp", lambda g: g.rest(g.tp, "ep", "moe_dp"), "tp / (ep x moe_dp)", "keeps whole quantisation blocks"),
    Key("moe_dp", lambda g: 1, "1", "ep x expert_tp x moe_dp = tp"),
    Key("weight_shard", _weight_shard, "1, or the build's", "divides tp and the GPUs of a host"),
    Key("weight_shard_layers", _weight_shard_layers, "none, or every layer with experts", "a range of layers"),
    Key("vocab_tp", _vocab_tp, "attn_tp under attention DP, else tp", "divides tp"),
    Key("dcp_backend", lambda g: "a2a", "a2a", "one of the choices; fi_a2a needs one scale-up domain", DCP_BACKENDS),
    Key("dispatch", _dispatch, "all_to_all where ep = tp > 1", "all_to_all needs ep = tp > 1", DISPATCHES),
    Key("padding", lambda g: "max_len", "max_len", "sum_len needs dispatch = all_gather, attn_dp > 1", PADDINGS),
)


def resolve(keys: Mapping[str, int | str | ShardedLayers], gpus: int, model: Model) -> Layout:
    """Fill in what was left out. The result may still break a rule: `layouts.rules.check` says which."""
    given = Given(keys, gpus, model)
    return Layout(**{key.name: keys.get(key.name, key.derive(given)) for key in KEYS})  # pyright: ignore[reportArgumentType]
