"""Weights gathered under compute on two GPUs: the gather alone, the compute alone, and both.

    python -m experiments.bench_overlap --measure FILE     on a machine with two GPUs: check, time, write FILE
    python -m experiments.bench_overlap [FILE]             anywhere: what was measured

"plain": 24 layers of one product with a weight of 103 MB that lies by rows on both GPUs, brought together by
`layouts.weight_gather` a layer ahead. `rows` of activations make the product shorter or longer than the gather; `more`
weights of that size lie whole on each GPU and are only read. "step": a decode step of a slice of a model whose
attention weights lie by rows, against the same step with whole weights, and against its gathers alone.

Variants: XLA as it comes, our options (`layouts/decoder/options.toml`), and what `meshwright run` takes, our options
and blocks that ranks copy. Checked: both against the compute with whole weights, by the largest difference over the
largest value.

Expected on two H200s, with copies: 0.97 to 1.0 times the longer of the two where that is the gather, 1.12 to 1.13 where
it is products and 1.23 where layers only read weights. Takes three minutes. The stored results have no "step", which
was not reached; `notes` there were added by hand.
"""

import functools
import pathlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from experiments.h200_layouts.build import Built, build
from experiments.h200_layouts.points import Shape, Slice
from experiments.measured import ROUNDED, Judges, beyond, draw, here, keep, measure_or_show, stored
from hw.measuring import median_seconds
from hw.measuring.flight import times
from layouts.decoder import staging
from layouts.decoder.options import Options, compiler_options
from layouts.kernels import PLAIN, Choice
from layouts.layout import Layout, ShardedLayers
from layouts.linear import contract
from layouts.mesh import axes_of, mesh_of
from layouts.weight_gather.sharded import COPIES

RESULTS: Final = pathlib.Path(__file__).parent / "results" / "h200" / "overlap.json"
LAYOUT: Final = Layout(attn_dp=2, weight_shard=2, weight_shard_layers=ShardedLayers(0, 0))
LAYERS: Final = 24
WIDTH: Final = 7168
CALLS: Final = 8  # in flight
# largest difference over the largest value, of up to 120 products one behind the other
BOUNDS: Final = {"error": 16 * ROUNDED["bfloat16"]}
JUDGES: Final[Judges] = {"plain": lambda row: beyond(row, BOUNDS)}
# rows of activations, more weights a layer
PLAINS: Final = ((64, 0), (512, 0), (1024, 0), (2048, 0), (64, 4))
# a slice, its layout with whole weights, what puts them by rows, requests, tokens of each
STEPS: Final = ((Slice("deepseek-v3", 6, 16), "attn_dp=2,ep=2", ",weight_shard=2,weight_shard_layers=0-5", 64, 8192),)
Run = Callable[[], Any]


class Variant(NamedTuple):
    """How weights are brought together, and what the compiler is told."""

    form: str
    options: Options


def variants() -> dict[str, Variant]:
    """By name."""
    ours = compiler_options("gpu")
    return {"as it comes": Variant(PLAIN, {}), "options": Variant(PLAIN, ours), "copies": Variant(COPIES, ours)}


def layer(rows: jax.Array, weight: Any, more: list[jax.Array]) -> jax.Array:
    """A product, and one with each of the others, normed."""
    out = contract("ri,oi->ro", rows, weight)
    for one in more:
        out = out * 0.1 + contract("ri,oi->ro", out, one)
    return out * lax.rsqrt(jnp.mean(jnp.square(out.astype(jnp.float32)), -1, keepdims=True) + 1e-6).astype(out.dtype)


def both(form: str, rows: jax.Array, parts: list[jax.Array], more: list[list[jax.Array]]) -> jax.Array:
    """Every layer, its weight a layer ahead."""
    axes = axes_of(LAYOUT)
    staged = staging.arriving(parts[:1], (0,), axes, rows, form)
    for i in range(len(parts)):
        ahead = parts[i + 1 : i + 2]
        (weight,), staged = staged, staging.arriving(ahead, (0,) * len(ahead), axes, rows, form)
        rows, staged = staging.arrived(layer(rows, weight, more[i]), staged)
    return rows


def compute(rows: jax.Array, weights: list[jax.Array], more: list[list[jax.Array]]) -> jax.Array:
    """Every layer with whole weights."""
    for weight, others in zip(weights, more, strict=True):
        rows = layer(rows, weight, others)
    return rows


def gathers(form: str, parts: list[jax.Array]) -> jax.Array:
    """Gathers alone, one behind the other; a value of each, so that none is left out."""
    seen = jnp.float32(0)
    for part in parts:
        seen += _touched(staging.arriving([part], (0,), axes_of(LAYOUT), seen, form))
    return seen


def _touched(arrived: Any) -> jax.Array:
    """A value that needs every block."""
    return jnp.stack([leaf.reshape(-1)[0].astype(jnp.float32) for leaf in jax.tree.leaves(arrived)]).sum()


class Plain:
    """Arguments of the plain layers on two GPUs."""

    def __init__(self) -> None:
        self.mesh = mesh_of(LAYOUT, jax.devices())
        self.whole = NamedSharding(self.mesh, PartitionSpec())
        by_rows = NamedSharding(self.mesh, axes_of(LAYOUT).spec("weight_shard", None))
        self.parts = [self._drawn(i, WIDTH, by_rows) for i in range(LAYERS)]
        self.weights = [jax.device_put(part, self.whole) for part in self.parts]
        most = max(more for _, more in PLAINS)
        self.more = [[self._drawn(1000 + i * most + j, WIDTH, self.whole) for j in range(most)] for i in range(LAYERS)]

    def _drawn(self, seed: int, rows: int, sharding: NamedSharding) -> jax.Array:
        return _normal(rows, sharding)(jax.random.key(seed))

    def compiled(self, body: Callable[..., jax.Array], arguments: tuple[Any, ...], options: Options) -> Run:
        """A body over both GPUs; every argument as it lies."""
        specs = jax.tree.map(lambda x: x.sharding.spec, arguments)
        mapped = jax.shard_map(body, mesh=self.mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False)
        made = jax.jit(mapped, compiler_options=dict(options)).lower(*arguments).compile()
        return functools.partial(made, *arguments)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every case under every variant, all of them compiled at once."""
        with ThreadPoolExecutor() as pool:
            alone = {name: pool.submit(self._alone, variant) for name, variant in variants().items()}
            pairs = {(name, case): pool.submit(self._pair, variant, *case) for case in PLAINS
                     for name, variant in variants().items()}  # fmt: skip
        seconds = {name: median_seconds(made.result(), CALLS) for name, made in alone.items()}
        for (name, (rows, more)), made in pairs.items():
            whole, hidden = made.result()
            found, wanted = (np.asarray(run().astype(jnp.float32)) for run in (hidden, whole))
            error = float(np.abs(found - wanted).max() / np.abs(wanted).max())
            what = {"case": f"{rows} rows, {more} more", "variant": name, "error": error}
            yield {**what, **ratio(seconds[name], median_seconds(whole, CALLS), median_seconds(hidden, CALLS))}

    def _alone(self, variant: Variant) -> Run:
        return self.compiled(functools.partial(gathers, variant.form), (self.parts,), variant.options)

    def _pair(self, variant: Variant, rows: int, more: int) -> tuple[Run, Run]:
        """Compute alone, and under it the gathers."""
        entering, others = self._drawn(rows, rows, self.whole), [one[:more] for one in self.more]
        hidden = functools.partial(both, variant.form)
        return (
            self.compiled(compute, (entering, self.weights, others), variant.options),
            self.compiled(hidden, (entering, self.parts, others), variant.options),
        )


@functools.cache
def _normal(rows: int, sharding: NamedSharding) -> Callable[[jax.Array], jax.Array]:
    draw = functools.partial(jax.random.normal, shape=(rows, WIDTH), dtype=jnp.bfloat16)
    return jax.jit(lambda key: draw(key) / WIDTH**0.5, out_shardings=sharding)


def steps() -> Iterator[dict[str, Any]]:
    """Slices of models, weights by rows against whole ones."""
    for of, whole, by_rows, requests, context in STEPS:
        shapes = [Shape(of, layout, 2, requests, 1, (context,)) for layout in (whole, whole + by_rows)]
        first, second = (build(shape, jax.devices()) for shape in shapes)
        held, parts = first.weights(), second.weights()
        with ThreadPoolExecutor() as pool:
            made = {
                name: (
                    pool.submit(_step, first, variant), pool.submit(_step, second, variant),
                    pool.submit(_gathers, second, parts, variant),
                )
                for name, variant in variants().items()
            }  # fmt: skip
        for name, (alone, hidden, only) in made.items():
            gathered = median_seconds(functools.partial(only.result(), parts), CALLS)
            seconds = step_seconds(first, alone.result(), held), step_seconds(second, hidden.result(), parts)
            case = f"{of.model}, {of.layers} layers, {requests} x {context:,}"
            yield {"case": case, "variant": name, **ratio(gathered, *seconds)}


def _step(built: Built, variant: Variant) -> Any:
    kernels = built.stage.kernels._replace(weight_gather=Choice(variant.form))
    return replace(built, stage=replace(built.stage, options=variant.options, kernels=kernels)).lowered().compile()


def _gathers(built: Built, held: list[jax.Array], variant: Variant) -> Any:
    """What a step gathers, layer by layer and nothing else, as a function of its weights."""
    stage, axes = built.stage, built.stage.axes
    graph, specs = stage.module(stage.weight_specs())
    structure = jax.tree.structure(specs)

    def run(held: list[jax.Array]) -> jax.Array:
        module, seen = nnx.merge(graph, jax.tree.unflatten(structure, held)), jnp.float32(0)
        for one, along in zip(module.layers, module.along, strict=True):
            seen += _touched(staging.arriving(nnx.split(one)[1], along, axes, seen, variant.form))
        return seen

    places = jax.tree.leaves(specs)
    mapped = jax.shard_map(run, mesh=stage.mesh, in_specs=(places,), out_specs=PartitionSpec(), check_vma=False)
    return jax.jit(mapped, compiler_options=dict(variant.options)).lower(held).compile()


def step_seconds(built: Built, executable: Any, held: Any) -> float:
    """Of several in flight."""
    entering, step = built.placed(built.shape.longest)

    def run(caches: Any) -> tuple[Any, Any]:
        stepped = executable(held, entering, caches, step)
        return stepped.leaving, stepped.caches

    return times(run, built.caches())[0].flight


def ratio(alone: float, whole: float, hidden: float) -> dict[str, float]:
    """Milliseconds, and both over the longer of the two."""
    longer = hidden / max(alone, whole)
    return {"gather_ms": 1e3 * alone, "compute_ms": 1e3 * whole, "both_ms": 1e3 * hidden, "ratio": longer}


def measure(path: pathlib.Path) -> None:
    """Time everything, and keep what is done after each row."""
    rows = ((name, row) for name, found in (("plain", Plain().rows), ("step", steps)) for row in found())
    keep(path, here(), rows, JUDGES)


def show(path: pathlib.Path) -> None:
    """Every row, and the notes."""
    from rich.table import Table

    document = stored(path, JUDGES)
    title = f"Gather under compute, 2 x {document['device']}, jax {document['jax']}"
    table = Table("", "case", "variant", "gather ms", "compute ms", "both ms", "of the longer", title=title)
    for name in ("plain", "step"):
        for row in document.get(name, ()):
            figures = (f"{row[key]:.3f}" for key in ("gather_ms", "compute_ms", "both_ms", "ratio"))
            table.add_row(name, row["case"], row["variant"], *figures)
    draw(document, table)


if __name__ == "__main__":
    measure_or_show(__doc__ or "", RESULTS, measure, show, gpus=2)
