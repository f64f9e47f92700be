"""Arrays between the processes of a multi-host run, by way of their hosts: XLA moves none between meshes of different
devices there, and a process may have no device of a pipeline stage."""

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils


def span_processes(devices: Iterable[Any]) -> bool:
    """Whether some of the devices are another process's."""
    return any(device.process_index != jax.process_index() for device in devices)


def gathered(x: jax.Array) -> np.ndarray:
    """The whole of an array on every host; all processes of the run must call it."""
    own = np.zeros(x.shape, x.dtype)
    for shard in x.addressable_shards:
        if shard.replica_id == 0:
            own[shard.index] = shard.data
    return multihost_utils.process_allgather(own).sum(axis=0, dtype=own.dtype)
