"""One shape of an op, the peers that can be asked for it, and what comes of asking."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench_mla_decode import CALLS
from experiments.peers.timing import Run, exact, torch_seconds
from hw.measuring import median_seconds

TOLERANCE: Final = 0.02  # of the norm: bf16 operands, whatever the order of the sum


class Case(NamedTuple):
    """A shape of an op: what draws its inputs, a first part of the outputs in float64, and what prepares each peer's
    call, both from those inputs.

    A prepared call returns whole outputs, an array for each that is `wanted`, of which that is the first requests,
    heads or rows.
    """

    op: str
    shape: Mapping[str, int]
    inputs: Callable[[], tuple[Any, ...]]
    wanted: Callable[..., Sequence[np.ndarray]]
    peers: Mapping[str, Callable[..., Run]]


def asked(case: Case, peers: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Seconds and error of each of these peers, or why there are none: it refused, or was wrong."""
    if not peers:
        return
    inputs = case.inputs()
    wanted = case.wanted(*inputs)
    for peer in peers:
        yield {"op": case.op, "shape": dict(case.shape), "peer": peer, **_asked(case.peers[peer], inputs, wanted)}
        jax.block_until_ready(jnp.ones(()) + 1)  # raises where a peer left the device in error: all after it would fail


def _asked(prepare: Callable[..., Run], inputs: tuple[Any, ...], wanted: Sequence[np.ndarray]) -> dict[str, Any]:
    try:
        run = prepare(*inputs)
        found = run()
        error = max(_error(one, part) for one, part in zip(found, wanted, strict=True))
        if not error <= TOLERANCE:
            return {"refused": f"wrong: off by {error:.1e} of the norm"}
        timed = (median_seconds(run, CALLS), "queued") if isinstance(found[0], jax.Array) else torch_seconds(run)
    except Exception as problem:  # whatever a library raises: a peer that refuses is a result
        lines = [line for line in str(problem).splitlines() if line.strip()] or [type(problem).__name__]
        return {"refused": lines[0][:200]}
    return {"error": error, "seconds": timed[0], "timed": timed[1]}


def _error(found: Any, wanted: np.ndarray) -> float:
    part = found[tuple(slice(size) for size in wanted.shape)]
    return float(np.linalg.norm(exact(part) - wanted) / np.linalg.norm(wanted))
