"""A layout as a device mesh: one mesh of which attention, expert, vocabulary and weight-shard groups are views.

Ranks of a pipeline stage are numbered from the inside out: the DCP group, the attention group around it, its prefill
context group, the attention groups; and the same ranks again as expert_tp, ep, moe_dp. The mesh has one axis for each
step between two of these nested group sizes, so that every group is a product of neighbouring axes.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from hw.compat import abstract_mesh, automatic_mesh
from layouts.layout import Layout
from layouts.rules import LayoutError


@dataclass(frozen=True)
class Axes:
    """Mesh axes of a layout, outermost first, and the mesh axes that each logical axis spans."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    logical: Mapping[str, tuple[str, ...]]

    def __getitem__(self, logical: str) -> tuple[str, ...]:
        """Axis names to name in collectives: `lax.psum(x, axes["attn_tp"])`. Empty for an axis of size one."""
        return self.logical[logical]

    def size(self, logical: str) -> int:
        """Ranks of one group along a logical axis."""
        return math.prod(self.sizes[self.names.index(name)] for name in self.logical[logical])

    def spec(self, *logical: str | tuple[str, ...] | None) -> PartitionSpec:
        """PartitionSpec of an array whose dimensions are cut along logical axes, or whole (None)."""
        return PartitionSpec(*(self._entry(axis) for axis in logical))

    def _entry(self, logical: str | tuple[str, ...] | None) -> tuple[str, ...] | None:
        chosen = () if logical is None else (logical,) if isinstance(logical, str) else logical
        return tuple(name for axis in chosen for name in self.logical[axis]) or None


def axes_of(layout: Layout) -> Axes:
    """The mesh axes of a valid layout; LayoutError where its groups do not nest (3 of one within 2 of another)."""
    tp = layout.tp
    # the same ranks, grouped in four ways; each from the inside out
    stacks = (
        (
            ("dcp", layout.dcp),
            ("dcp_groups", layout.attn_tp // layout.dcp),
            ("attn_cp", layout.attn_cp),
            ("attn_dp", layout.attn_dp),
        ),
        (("expert_tp", layout.expert_tp), ("ep", layout.ep), ("moe_dp", layout.moe_dp)),
        (("vocab_tp", layout.vocab_tp),),
        (("weight_shard", layout.weight_shard),),
    )
    bounds: dict[str, tuple[int, int]] = {}
    for stack in stacks:
        inner = 1
        for name, size in stack:
            bounds[name] = (inner, inner * size)
            inner *= size
    bounds |= {"attn_tp": (1, layout.attn_tp), "tp": (1, tp), "pp": (tp, tp * layout.pp)}
    bounds["replicas"] = (tp * layout.pp, layout.gpus)
    edges = sorted({edge for pair in bounds.values() for edge in pair})
    for inner, outer in itertools.pairwise(edges):
        if outer % inner:
            raise LayoutError(f"groups of {inner} and of {outer} ranks do not nest: choose degrees that divide another")
    steps = [(inner, outer // inner) for inner, outer in itertools.pairwise(edges)]
    names = {inner: f"r{inner}" for inner, _ in steps}
    logical = {
        name: tuple(names[inner] for inner, _ in reversed(steps) if low <= inner < high)
        for name, (low, high) in bounds.items()
    }
    # groups of requests: each has a share of them, and pools of its own on every rank
    logical["requests"] = logical["replicas"] + logical["attn_dp"]
    logical["pools"] = logical["requests"] + logical["attn_tp"]
    return Axes(
        names=tuple(names[inner] for inner, _ in reversed(steps)) or ("r1",),
        sizes=tuple(size for _, size in reversed(steps)) or (1,),
        logical=logical,
    )


def mesh_of(layout: Layout, devices: Sequence[Any] | None = None) -> Mesh:
    """The layout's mesh over the first of the devices, in rank order; LayoutError where there are too few."""
    devices = jax.devices() if devices is None else devices
    if len(devices) < layout.gpus:
        raise LayoutError(f"the layout needs {layout.gpus} devices and there are {len(devices)}: simulate or add some")
    axes = axes_of(layout)
    return automatic_mesh(np.array(devices[: layout.gpus]).reshape(axes.sizes), axes.names)


def abstract_mesh_of(layout: Layout) -> AbstractMesh:
    """The same mesh without devices: to trace at any size."""
    axes = axes_of(layout)
    return abstract_mesh(axes.sizes, axes.names)
