"""What a command's flags mean together: values that SGLang changes on its own before it checks them.

Plain settings by the words of the command line; the rules that it refuses by are in `flag_rules`. SGLang 0.5.23.
"""

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from layouts.serving.chunks import group_chunk
from layouts.serving.disaggregation import extra_request_slots
from layouts.serving.errors import require_positive
from layouts.serving.requests import SPECULATIVE_MAX_RUNNING
from layouts.serving.reserve import Role
from layouts.serving.states import StateCache

# Exchanges of experts whose group is all of TP: `_A2A_EP_SPANNING_BACKENDS`.
SPANNING_EXCHANGES: Final = frozenset(
    {
        "ascend_fuseep",
        "deepep",
        "deepep_v2",
        "flashinfer",
        "flashinfer_megamoe",
        "megamoe",
        "mooncake",
        "mori",
        "nixl",
        "pplx",
    }
)
# Drafts of a given number of steps, as `--speculative-algorithm` names them: `_handle_eagle_family`.
CHAIN_DRAFTS: Final = frozenset({"EAGLE", "EAGLE3", "NEXTN", "STANDALONE"})


@dataclass(frozen=True)
class Flags:
    """Settings of one server as its command gives them; None where it does not. Defaults are the engine's.

    `dp` counts whole replicas and `attn_dp` groups inside one (older commands: `--dp-size` with
    `--enable-dp-attention`). `exchange` is `--moe-a2a-backend`; `verify_width` `--speculative-num-draft-tokens`, the
    rows verified; `hosts` `--nnodes`; `vocab_in_group` `--enable-dp-lm-head`; `dispatch_tokens` the environment's cap
    of rows that a rank dispatches; `state_cache` is set for models with recurrent state, OFF without a prefix cache.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    attn_dp: int = 1
    attn_cp: int = 1
    prefill_cp: bool = False
    cp_strategy: str | None = None
    dcp: int = 1
    dcp_exchange: str | None = None
    dcp_replicate_q: bool = False
    ep: int = 1
    moe_dp: int = 1
    dense_tp: int | None = None
    vocab_in_group: bool = False
    vocab_all_to_all: bool = False
    hosts: int = 1
    weight_shard: int = 1
    exchange: str = "none"
    deepep_mode: str = "auto"
    dispatch_tokens: int = 128
    balance_experts: bool = False
    chunk: int | None = None
    page: int = 1
    role: Role = Role.UNIFIED
    transfer: str = "mooncake"
    extra_slots: int | None = None
    max_running: int | None = None
    graph_batch: int | None = None
    decode_graphs: bool = True
    prefix_cache: bool = True
    decode_prefix_cache: bool = False
    overlap: bool = True
    hierarchical_cache: bool = False
    state_cache: StateCache | None = None
    track_interval: int = 256
    window_ratio: float | None = None
    speculative: str | None = None
    speculative_steps: int | None = None
    speculative_topk: int | None = None
    verify_width: int | None = None

    def __post_init__(self) -> None:
        require_positive(tp=self.tp, pp=self.pp, dp=self.dp, attn_dp=self.attn_dp, attn_cp=self.attn_cp, dcp=self.dcp)
        require_positive(ep=self.ep, moe_dp=self.moe_dp, hosts=self.hosts, weight_shard=self.weight_shard)
        require_positive(page=self.page, dispatch_tokens=self.dispatch_tokens, track_interval=self.track_interval)


class Change(NamedTuple):
    """A setting that the engine gives another value than the command does, and why."""

    flag: str
    given: str
    used: str
    why: str


def settled(flags: Flags) -> tuple[Flags, tuple[Change, ...]]:
    """The settings that the engine runs with, and every change it makes to what the command says.

    Only flags are looked at, neither the model nor the chip; the chunk is changed where it is given.
    Source: SGLang 0.5.23, `pd_disaggregation_hook`, `parallel_hook`, `moe_hook`, `speculative_hook`, `overrides`.
    """
    new, why = flags, dict[str, str]()

    def put(reason: str, **values: object) -> None:
        nonlocal new
        why.update({name: reason for name, value in values.items() if getattr(new, name) != value})
        new = replace(new, **values)  # pyright: ignore[reportArgumentType]

    if flags.role is Role.DECODE:
        put("a decode server runs without a prefix cache unless asked", prefix_cache=flags.decode_prefix_cache)
        if flags.extra_slots is None:
            slots = extra_request_slots(flags.max_running, flags.dp * flags.attn_dp)
            put("slots for requests that arrive: twice the limit of a rank up to 32", extra_slots=slots)
    if not new.prefix_cache and new.state_cache is not None:
        put("states are kept by the prefix cache only", state_cache=StateCache.OFF)
    if flags.pp > 1 or new.state_cache is StateCache.NO_BUFFER:
        put("pipeline stages and no_buffer run without overlap", overlap=False)
    if flags.weight_shard > 1:
        put(
            "gathered expert weights replace the exchange of rows",
            attn_dp=flags.weight_shard,
            dp=1,
            ep=flags.weight_shard,
            moe_dp=1,
            dense_tp=1,
            exchange="none",
            vocab_in_group=True,
            decode_graphs=False,
        )
    if new.dp * new.attn_dp == 1:
        put("there is one group", vocab_in_group=False)
    if new.exchange in SPANNING_EXCHANGES:
        put(f"{new.exchange} exchanges rows among all of tp", ep=new.tp)
    if new.exchange == "deepep" and flags.deepep_mode == "normal":
        put("deepep_mode normal cannot be captured", decode_graphs=False)
    if new.attn_dp > 1 and flags.chunk is not None:
        put("the attention groups share the chunk", chunk=group_chunk(flags.chunk, new.attn_dp))
    if flags.speculative is not None:
        if flags.max_running is None:
            put("the limit of a server that speculates", max_running=SPECULATIVE_MAX_RUNNING)
        chain = flags.speculative.upper() in CHAIN_DRAFTS and flags.speculative_topk == 1
        if chain and flags.speculative_steps is not None:
            put("a chain of drafts verifies one row more than its steps", verify_width=flags.speculative_steps + 1)
    changes = (Change(name, str(getattr(flags, name)), str(getattr(new, name)), reason) for name, reason in why.items())
    return new, tuple(changes)


def rows_dispatched(flags: Flags) -> int:
    """Rows that a rank dispatches in the largest captured decode step: requests x rows verified / ranks of the group.

    0 where neither the graphs nor the limit say how many requests. `flags` are settled ones.
    Source: SGLang 0.5.23, `_decode_graph_dispatch_tokens_per_rank`; a group's rows are spread over its ranks first.
    """
    shares = [max(1, flags.max_running // flags.attn_dp)] if flags.max_running is not None else []
    shares += [flags.graph_batch] if flags.graph_batch is not None and flags.decode_graphs else []
    if flags.role is Role.PREFILL or not shares:
        return 0
    width = (flags.verify_width or 1) if flags.speculative else 1
    return -(-min(shares) * width // max(1, flags.tp // (flags.attn_dp * flags.attn_cp)))
