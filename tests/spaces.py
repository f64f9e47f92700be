"""Valid layouts for tests to draw from, and the slow way to find them."""

import dataclasses
import functools
from collections.abc import Iterator
from itertools import product

import hypothesis.strategies as st

from layouts.enumerate import Space, enumerate_layouts
from layouts.layout import DCP_BACKENDS, DISPATCHES, PADDINGS, Layout, ShardedLayers, default_sharded_layers
from layouts.models import Model, load_model
from layouts.rules import Site, broken


@functools.cache
def model_of(name: str) -> Model:
    """A shipped model, loaded once."""
    return load_model(name)


@functools.cache
def space(name: str, gpus: int, host: int = 8, domain: int = 8, prefill: bool = False) -> Space:
    """Every valid layout for a named model."""
    found = enumerate_layouts(Site(model_of(name), gpus, host, domain, prefill))
    assert found is not None
    return found


@st.composite
def layouts(draw: st.DrawFn, name: str, gpus: int, prefill: bool = False) -> Layout:
    """Valid layouts with any range of sharded layers, on a domain wider than its hosts: no alternative is out."""
    valid = space(name, gpus, 4, 16, prefill)
    layout = valid.layout(draw(st.integers(0, len(valid) - 1)))
    if layout.weight_shard == 1:
        return layout
    last = len(model_of(name).layers) - 1
    first, end = sorted((draw(st.integers(0, last)), draw(st.integers(0, last))))
    layers = ShardedLayers(first, end, layout.weight_shard_layers.draft)
    return dataclasses.replace(layout, weight_shard_layers=layers)


_CUTS = ("replicas", "pp", "attn_dp", "attn_tp", "attn_cp", "dcp", "ep", "expert_tp", "moe_dp")


def slowly(site: Site) -> Iterator[Layout]:
    """Every combination of degrees that divide the GPUs and of alternatives, checked one by one."""
    some, divisors = default_sharded_layers(site.model), [d for d in range(1, site.gpus + 1) if site.gpus % d == 0]
    drafts = (False, True) if site.model.draft is not None else (False,)
    sharded = [ShardedLayers(some.first, some.last, draft) for draft in drafts]
    for degrees in product(divisors, repeat=len(_CUTS)):
        bare = Layout(**dict(zip(_CUTS, degrees, strict=True)))
        if bare.gpus == site.gpus and not broken(bare, site):
            for vocab_tp, width, backend, dispatch, padding in product(
                divisors, divisors, DCP_BACKENDS, DISPATCHES, PADDINGS
            ):
                for layers in sharded if width > 1 else [ShardedLayers()]:
                    layout = dataclasses.replace(
                        bare,
                        weight_shard=width,
                        weight_shard_layers=layers,
                        vocab_tp=vocab_tp,
                        dcp_backend=backend,
                        dispatch=dispatch,
                        padding=padding,
                    )
                    if not broken(layout, site):
                        yield layout
