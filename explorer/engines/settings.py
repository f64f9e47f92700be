"""What a server was told, in the words of this project: the middle between the flags of any engine and a layout."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from explorer.engines.command.launch import EngineName
from layouts.serving.reserve import Role


@dataclass(frozen=True)
class Degrees:
    """How a command cuts the model. `exchange` and `dcp_backend` are words of `layouts.layout`, None where the engine
    chooses; `vocab_in_group`: the head is cut over the attention group, not over all of tp;
    `dense_tp`: ranks that share a dense MLP, where they are not the attention group."""

    replicas: int = 1
    pp: int = 1
    tp: int = 1
    attn_dp: int = 1
    attn_cp: int = 1
    dcp: int = 1
    ep: int = 1
    moe_dp: int = 1
    exchange: str = "all_gather"
    dcp_backend: str | None = None
    vocab_in_group: bool = False
    dense_tp: int | None = None

    @property
    def gpus(self) -> int:
        """Of all replicas. `tp` counts the ranks of a stage: attn_dp x attn_tp x attn_cp."""
        return self.replicas * self.pp * self.tp


@dataclass(frozen=True)
class Pools:
    """What a command says of memory and concurrency; None where the engine decides. Tokens, requests, bytes.

    `share`: of free memory (SGLang) or of the whole GPU (vLLM) for the engine. `state_ratio`: bytes of state pools over
    bytes of KV; `state_slots`: slots of all attention groups; `state_strategy`: how the prefix cache keeps states.
    `redundant_experts`: of one layer, over all ranks. `exchange_buffer`: an exchange of rows keeps DeepEP's buffers.
    """

    share: float | None = None
    kv_bytes: int | None = None
    max_tokens: int | None = None
    max_running: int | None = None
    context_length: int | None = None
    page: int | None = None
    chunk: int | None = None
    graph_limit: int | None = None
    graph_sizes: tuple[int, ...] | None = None
    graphs: bool = True
    prefix_cache: bool = True
    overlap_schedule: bool = True
    state_ratio: float | None = None
    state_slots: int | None = None
    state_strategy: str | None = None
    replay_state: bool = False
    extra_slots: int | None = None
    dispatch_tokens: int | None = None
    low_latency: bool = True
    exchange_buffer: bool = True
    redundant_experts: int = 0
    window_ratio: float | None = None
    # vLLM's alone: blocks of a GPU's pool whatever memory is left; whether a step may hold a part of a prompt
    blocks: int | None = None
    chunked_prefill: bool = True


@dataclass(frozen=True)
class Speculation:
    """A draft beside the model: `verify` rows of a request in a step. `model`: where its weights come from."""

    algorithm: str
    verify: int
    model: str | None = None


@dataclass(frozen=True)
class Settings:
    """One server (or one group of hosts that is one). `formats` are changes such as kv -> fp8; `notes` say what was
    read with a grain of salt; `unmodelled` names flags that change memory or time in a way that nothing here knows."""

    engine: EngineName
    model: str | None
    degrees: Degrees = Degrees()
    pools: Pools = Pools()
    speculation: Speculation | None = None
    role: Role = Role.UNIFIED
    formats: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    notes: tuple[str, ...] = ()
    unmodelled: tuple[str, ...] = ()
