"""Calls into PyTorch on a GPU: arrays of ours as its tensors, and how long a call takes there."""

from collections.abc import Callable
from typing import Any, Final

import jax
import numpy as np

from experiments.peers.installed import module

Run = Callable[[], Any]
CALLS: Final = 20
REPEATS: Final = 7
_WARM: Final = 3


def tensor(array: jax.Array) -> Any:
    """The same memory as a tensor."""
    return module("torch").from_dlpack(jax.block_until_ready(array))


def exact(found: Any) -> np.ndarray:
    """An output of either library in float64."""
    if isinstance(found, jax.Array):
        return np.asarray(found.astype("float32")).astype(np.float64)
    return found.detach().double().cpu().numpy()


def torch_seconds(run: Run) -> tuple[float, str]:
    """Median seconds of a call, and how it was timed: by events around replays of a graph of 20 calls, or around 20
    calls one after another where they cannot be captured."""
    torch = module("torch")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=stream):
            _several(run)
    except Exception as error:  # whatever a library does that a capture forbids
        torch.cuda.synchronize()
        return _by_events(lambda: _several(run)), f"queued: {str(error).splitlines()[0]}"
    return _by_events(graph.replay), "graph"


def _several(run: Run) -> None:
    for _ in range(CALLS):
        run()


def _by_events(run: Run) -> float:
    torch = module("torch")
    run()
    times = []
    for _ in range(REPEATS):
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        started.record()
        run()
        ended.record()
        torch.cuda.synchronize()
        times.append(started.elapsed_time(ended) * 1e-3 / CALLS)
    return float(np.median(times))
