"""What a deployment is asked to do in a step."""

import equinox as eqx
import numpy as np
from jaxtyping import ArrayLike, Float


class Load(eqx.Module):
    """Requests in flight and their shape; numbers may be traced, so that a sweep compiles once.

    `context`: mean tokens of a request (in prefill the length of its prompt). `concurrency`: requests that the whole
    instance runs. `verify`: tokens a request verifies in a decode step. `accept`: tokens it keeps of them on average.
    `graph_sizes`: captured decode batches of an attention group, ascending (repeats pad it to a common length).
    `chunk`: prompt tokens that a replica computes in one prefill step, all its attention groups together. `prefill`
    says which phase the step is of. `room`: tokens of a request that the tables of a program have room for, where those
    are more than its context.
    """

    context: Float[ArrayLike, ""]
    concurrency: Float[ArrayLike, ""]
    verify: Float[ArrayLike, ""] = 1.0
    accept: Float[ArrayLike, ""] = 1.0
    chunk: Float[ArrayLike, ""] = 8192.0
    graph_sizes: Float[ArrayLike, " sizes"] = eqx.field(default_factory=lambda: np.ones(1))
    prefill: bool = eqx.field(static=True, default=False)
    room: Float[ArrayLike, ""] = 0.0
