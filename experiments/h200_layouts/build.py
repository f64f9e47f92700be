"""A shape as a compiled step, and its arguments on the devices: random weights, random caches, tables that are full."""

import pathlib
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from threading import Lock
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from experiments.h200_layouts.points import Shape, Slice
from hw.compat import COMPILE_TO_RUN_ONCE
from layouts.cache import Batch
from layouts.decoder import weights
from layouts.decoder.choices import kernels_of
from layouts.decoder.drawn import drawn, noise
from layouts.decoder.options import compiler_options
from layouts.decoder.program import Program, StageProgram
from layouts.decoder.step import Step, step_specs
from layouts.generation import Capacity
from layouts.kernels import Kernels
from layouts.layout import Layout
from layouts.models.forms import Forms
from layouts.models.load import load_forms, load_model
from layouts.models.model import Model
from layouts.models.scale import Scale, scaled_config
from layouts.text import parse

DTYPE: Final = jnp.bfloat16
PAGE: Final = 64
_WORKERS: Final = 8
_STATE: Final = 0.02  # size of the random values of a recurrent state


@dataclass(frozen=True)
class Built:
    """A shape's program of one stage over the first of the devices."""

    shape: Shape
    layout: Layout
    capacity: Capacity
    stage: StageProgram
    program: Program

    @cached_property
    def groups(self) -> int:
        return self.layout.replicas * self.layout.attn_dp

    def lowered(self) -> Any:
        """The step lowered from shapes alone."""
        stage = self.stage
        described = jax.tree.map(
            lambda shape, spec: jax.ShapeDtypeStruct(shape, DTYPE, sharding=stage.sharding(spec)),
            stage.weight_shapes(), stage.weight_specs(), is_leaf=weights.is_shape,
        )  # fmt: skip
        step = jax.tree.map(
            lambda x, spec: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=stage.sharding(spec)),
            self._step(self.shape.longest), step_specs(stage.axes, stage.interleave),
        )  # fmt: skip
        entering = stage.entering_specs()
        tokens = jax.ShapeDtypeStruct(step.tokens.shape, step.tokens.dtype, sharding=stage.sharding(entering))
        compiled: Any = stage.compiled("verify")
        held = jax.tree.leaves(stage.module(described)[1])
        return compiled.lower(held, tokens, stage.described_caches(DTYPE), step)

    def weights(self) -> Any:
        """Pseudo-random ones. Biases that steer the choice of experts are equal: loads are even, as training leaves
        them, and as the prediction takes them to be."""
        (held,) = drawn(self.program, DTYPE)
        return jax.tree.leaves(jax.tree_util.tree_map_with_path(_even, held))

    def caches(self) -> Any:
        """Random entries and states."""
        described = self.stage.described_caches(DTYPE)
        leaves, tree = jax.tree.flatten(described)
        makers = [_random(leaf.shape, leaf.dtype, leaf.sharding) for leaf in leaves]
        with ThreadPoolExecutor(_WORKERS if jax.default_backend() != "cpu" else 1) as pool:  # each is compiled first
            made = pool.map(lambda make, number: make(jnp.uint32(number)), makers, range(len(makers)))
            return jax.tree.unflatten(tree, list(made))

    def placed(self, context: int) -> tuple[Any, Step]:
        """What enters, and a step of full groups whose requests have `context` tokens, the verified ones included."""
        stage, step = self.stage, self._step(context)
        entering = stage.place(step.tokens, stage.entering_specs())
        return entering, stage.place(step, step_specs(stage.axes, stage.interleave))

    def _step(self, context: int) -> Step:
        requests, verify = self.capacity.requests, self.shape.verify
        every = self.groups * requests
        tokens = np.random.default_rng(0).integers(0, self.stage.model.vocab, every * verify).astype(np.int32)
        lengths = np.full(every, context - verify, np.int32)
        batch: Any = Batch(np.tile(_table(self.capacity, self.layout.dcp), (self.groups, 1)), lengths)  # pyright: ignore[reportArgumentType]
        counts: Any = np.full((self.layout.replicas, self.layout.attn_dp), requests * verify, np.int32)
        slots: Any = np.tile(np.arange(1, requests + 1, dtype=np.int32), self.groups)
        new: Any = np.full(every, verify, np.int32)
        begins: Any = np.zeros(every, np.bool_)
        # all tokens of the step before were accepted
        return Step(tokens, batch, counts, slots, new, begins, new)  # pyright: ignore[reportArgumentType]


def build(shape: Shape, devices: Sequence[Any], size: str = "full") -> Built:
    """The program of a shape over the first of the devices, in the forms and with the compiler's options that
    `meshwright run` takes; but for probes of the forms nothing is compiled. `size`: of its slice, for tests."""
    model, forms = load_slice(shape.slice, size)
    layout = parse(shape.layout, shape.gpus, model)
    options = compiler_options(devices[0].platform) or COMPILE_TO_RUN_ONCE
    kernels = _kernels(shape.slice, size, shape.layout, tuple(devices[: shape.gpus]))
    each = -(-shape.requests // (layout.replicas * layout.attn_dp))
    capacity = Capacity(each, shape.longest, PAGE, verify=shape.verify)
    room = capacity.room(layout.dcp)
    program = Program.of(model, forms, layout, room, devices[: shape.gpus], options=options, kernels=kernels)
    return Built(shape, layout, capacity, program.stages[0], program)


@lru_cache(maxsize=16)
def load_slice(of: Slice, size: str = "full") -> tuple[Model, Forms]:
    """A slice as a model, without its draft."""
    with tempfile.TemporaryDirectory() as folder:
        cut = Scale(size, of.layers, of.experts)
        name = str(scaled_config(of.model, cut, pathlib.Path(folder)))
        return load_model(name, draft="none"), load_forms(name)


def _kernels(of: Slice, size: str, text: str, devices: tuple[Any, ...]) -> Kernels:
    """The forms of a layout: found once, by the first of the threads that ask."""
    with _asking(of, text):
        return _probed(of, size, text, devices)


@lru_cache(maxsize=64)
def _asking(of: Slice, text: str) -> Lock:
    return Lock()


@lru_cache(maxsize=64)
def _probed(of: Slice, size: str, text: str, devices: tuple[Any, ...]) -> Kernels:
    model, _ = load_slice(of, size)
    return kernels_of(model, parse(text, len(devices), model), devices, DTYPE)


@lru_cache(maxsize=64)
def _table(capacity: Capacity, ranks: int) -> np.ndarray:
    """Slots of as many full requests as there is room for."""
    pool = capacity.pool(ranks)
    for _ in range(capacity.requests):
        pool.extend(pool.admit(), capacity.context)
    return pool.table


def _even(path: Any, leaf: jax.Array) -> jax.Array:
    named = "correction_bias" in jax.tree_util.keystr(path)
    return jnp.ones_like(leaf) if named else leaf


@lru_cache(maxsize=64)
def _random(shape: tuple[int, ...], dtype: Any, sharding: Any) -> Any:
    """Values around 0, those of recurrent states small."""
    size = _STATE if jnp.dtype(dtype) == jnp.float32 else 1.0
    return jax.jit(lambda stream: (noise(shape, stream) * size).astype(dtype), out_shardings=sharding)
