"""One shape of an op, the peers that can be asked for it, and what comes of asking."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import jax
import numpy as np

from experiments.bench_mla_decode import median
from experiments.peers.timing import Run, exact, torch_seconds

TOLERANCE: Final = 0.02  # of the norm: bf16 operands, whatever the order of the sum


class Case(NamedTuple):
    """A shape, the outputs of its first requests (or rows) in float64, and for each peer what prepares its call.

    A prepared call returns one array for each of `wanted`, of all requests.
    """

    op: str
    shape: Mapping[str, int]
    wanted: Sequence[np.ndarray]
    peers: Mapping[str, Callable[[], Run]]


def asked(case: Case, peer: str) -> dict[str, Any]:
    """Seconds and error of a peer, or why there are none: it refused, or was wrong."""
    row: dict[str, Any] = {"op": case.op, "shape": dict(case.shape), "peer": peer}
    try:
        run = case.peers[peer]()
        found = run()
        row["error"] = max(_error(one, wanted) for one, wanted in zip(found, case.wanted, strict=True))
        if not row["error"] <= TOLERANCE:
            return row | {"refused": f"wrong: off by {row['error']:.1e} of the norm"}
        if isinstance(found[0], jax.Array):
            row["seconds"], row["timed"] = median(run), "queued"
        else:
            row["seconds"], row["timed"] = torch_seconds(run)
    except Exception as error:  # whatever a library raises: a peer that refuses is a result
        lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        row["refused"] = lines[0][:200]
    return row


def _error(found: Any, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(exact(found[: len(wanted)]) - wanted) / np.linalg.norm(wanted))
