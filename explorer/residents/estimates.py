"""Lines of the ledger that no rule gives, from `estimates.toml`: sizes with the range that they were seen in."""

import pathlib
import tomllib
from math import ceil
from typing import Any, Final

from explorer.residents.line import Group, Line
from hw.units import GIB, MIB
from layouts.expression import Expr, total
from layouts.models.model import Model
from layouts.symbols import GRAPH_ROWS, HAS_TP, PROCESS_GROUPS, ROWS, layers_of

_READ: Final[dict[str, dict[str, Any]]] = tomllib.loads(
    (pathlib.Path(__file__).parent / "estimates.toml").read_text(encoding="utf-8")
)


GRAPHS: Final = "CUDA graphs"


def process_groups() -> Line:
    """NCCL keeps channel buffers and proxies for every communicator."""
    size = PROCESS_GROUPS * _READ["process_groups"]["bytes_a_communicator"]
    return _line("process groups", Group.START, size, "process_groups")


def cuda_graphs(model: Model) -> Line:
    """Through the two sizes that were read: the part that grows with the rows follows the hidden width; the rest,
    buffers of captured exchanges, follows the layers and is absent on a single rank."""
    read = _READ["cuda_graphs"]
    (few, many), (small, large) = read["rows"], read["gib"]
    a_value = round((large - small) * GIB / (many - few) / read["hidden"])
    alone = int(read["single_rank_gib"] * GIB)
    a_layer = int(small * GIB - alone - few * a_value * read["hidden"]) // read["layers"]
    layers = total(layers_of(k) for k in range(len(model.kinds)))
    size = GRAPH_ROWS * (a_value * model.hidden) + layers * HAS_TP * a_layer + alone
    return _line(GRAPHS, Group.RESERVE, size, "cuda_graphs")


def workspaces() -> Line:
    """Of attention and GEMM kernels."""
    return _line("workspaces", Group.RESERVE, Expr.of(int(_READ["workspaces"]["gib"] * GIB)), "workspaces")


def activations() -> Line:
    """Of a prefill chunk."""
    size = ROWS * int(_READ["activations"]["mib_a_row"] * MIB)
    return _line("activations", Group.RESERVE, size, "activations")


def trial_step(rows: int) -> tuple[int, int]:
    """Bytes at the peak of a step of `rows` that vLLM tries before it sizes its pools: as estimated, and at most."""
    read = _READ["trial_step"]
    size = int(rows * read["mib_a_row"] * MIB)
    return size, ceil(size * read["high"])


def prompts(rows: int) -> tuple[int, int]:
    """Bytes that a step of `rows` prompt tokens takes in SGLang: at least, and at most, which is what it reserves."""
    read = _READ["activations"]
    size = rows * read["mib_a_row"] * MIB
    return int(size * read["low"]), ceil(size * read["high"])


def _line(name: str, group: Group, size: Expr, key: str) -> Line:
    read = _READ[key]
    return Line(name, group, size, read["source"], exact=False, low=read["low"], high=read["high"])
