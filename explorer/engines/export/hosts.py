"""Which hosts a server is spread over, and the flags that tell each of them its place."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from explorer.engines.command.launch import EngineName, Value
from explorer.engines.export.errors import ExportError
from layouts.layout import Layout

PORTS: Final = {EngineName.SGLANG: 30000, EngineName.VLLM: 8000}
"""Where clients are answered: the engines' defaults."""
RENDEZVOUS: Final = 20000
"""Where hosts of one server find each other."""


@dataclass(frozen=True)
class Hosts:
    """`count` hosts of `gpus` each; the host of rank 0 answers clients."""

    count: int
    gpus: int

    @property
    def all_gpus(self) -> int:
        return self.count * self.gpus


def hosts_of(gpus: int, gpus_per_host: int) -> Hosts:
    """The fewest hosts that share the GPUs evenly, none with more than it has."""
    count = -(-gpus // gpus_per_host)
    while gpus % count:
        count += 1
    return Hosts(count, gpus // count)


def check_places(engine: EngineName, layout: Layout, hosts: Hosts) -> None:
    """ExportError where ranks of the layout do not come to lie evenly on the hosts.

    SGLang gives a host whole pipeline stages or a stage whole hosts (0.5.23, `_calculate_rank_ranges`), vLLM a host
    whole data-parallel ranks or a rank whole hosts (0.33.0, `create_engine_config`).
    """
    if hosts.count == 1:
        return
    if engine is EngineName.SGLANG and hosts.count % layout.pp and layout.pp % hosts.count:
        raise ExportError(
            f"SGLang cannot spread pp={layout.pp} over {hosts.count} hosts: a host has whole stages, or a stage whole "
            "hosts; choose another pp"
        )
    rank = layout.pp * layout.attn_tp * layout.attn_cp
    if engine is EngineName.VLLM and rank % hosts.gpus and hosts.gpus % rank:
        raise ExportError(
            f"vLLM cannot spread data-parallel ranks of pp x attn_tp x attn_cp = {rank} GPUs over hosts of "
            f"{hosts.gpus}: one must divide the other; choose another attn_tp"
        )


def placed(
    engine: EngineName, layout: Layout, hosts: Hosts, rank: int | str, address: str, inferred: bool
) -> Mapping[str, Value]:
    """Flags that tell a host its place among several; none for one host.

    `rank` is a number, or what stands for one; `address` that of rank 0. `inferred`: the engine tells from the rank of
    a host which data-parallel ranks are there. ExportError where a data-parallel rank spans hosts and it does not.
    """
    if hosts.count == 1:
        return {}
    if engine is EngineName.SGLANG:
        return {"nnodes": hosts.count, "node_rank": rank, "dist_init_addr": f"{address}:{RENDEZVOUS}"}
    headless: dict[str, Value] = {} if rank == 0 else {"headless": True}
    if inferred:
        return {
            "nnodes": hosts.count, "node_rank": rank, "master_addr": address, "master_port": RENDEZVOUS, **headless
        }  # fmt: skip
    group = layout.pp * layout.attn_tp * layout.attn_cp
    if group > hosts.gpus:
        raise ExportError(
            f"this vLLM spreads a rank of {group} GPUs over hosts of {hosts.gpus} with Ray only: give a newer "
            "--engine-version, or a smaller attn_tp x pp"
        )
    local = hosts.gpus // group
    if not isinstance(rank, int) and local > 1:
        raise ExportError(
            f"this vLLM must be told the first of its {local} ranks on each host, which a pod cannot work out: give a "
            "newer --engine-version, or --format script"
        )
    start = {} if rank == 0 else {"data_parallel_start_rank": rank * local if isinstance(rank, int) else rank}
    return {
        "data_parallel_size_local": local,
        "data_parallel_address": address,
        "data_parallel_rpc_port": RENDEZVOUS,
        **start,
        **headless,
    }
