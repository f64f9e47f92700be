"""A model under a layout as compiled programs over a device mesh: one for each pipeline stage."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from types import MappingProxyType
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from layouts.decoder import storage, weights
from layouts.decoder.cache import Room, cache_shapes, cache_specs
from layouts.decoder.modules import Carried
from layouts.decoder.options import Options
from layouts.decoder.processes import gathered, span_processes
from layouts.decoder.stage import Output, Part, Stage, Stepped, parts_of
from layouts.decoder.step import Phase, Step, step_specs
from layouts.kernels import ALL_PLAIN, Kernels
from layouts.layout import Layout
from layouts.mesh import Axes, abstract_mesh_of, axes_of, mesh_of
from layouts.mla import MLA
from layouts.models.forms import Forms
from layouts.models.model import Model
from layouts.residual.attention_residual import Stream

_WIDE: Final = frozenset({"recurrent", "writes"})  # what linear attention keeps in float32


@dataclass(frozen=True, eq=False)
class StageProgram:
    """One stage on its own devices. `mesh` may be abstract: then it can be traced, not run.

    `options` are those of XLA's compiler.
    `stored`: its weights are in the formats of the model's precision (`layouts.decoder.storage`), not plain arrays.
    `kernels`: the form of each op that has several.
    """

    model: Model
    forms: Forms
    part: Part
    room: Room
    interleave: int
    mesh: Mesh | AbstractMesh
    stored: bool = False
    options: Options = field(default_factory=lambda: MappingProxyType({}))
    kernels: Kernels = ALL_PLAIN

    @cached_property
    def axes(self) -> Axes:
        return axes_of(self.part.layout)

    def weight_shapes(self) -> Any:
        """Shapes of the weights that the stage holds, as a tree that `module` takes."""
        layers = [weights.layer_shapes(self.model.layers[i], self.part.layout) for i in self.part.layers]
        return {"layers": layers, **self.part.around(self.model, weights.model_shapes(self.model, self.part.layout))}

    def weight_specs(self) -> Any:
        """How they are cut."""
        layout, sharded = self.part.layout, self.part.sharded
        layers = [weights.layer_specs(self.model.layers[i], layout, self.axes, i in sharded) for i in self.part.layers]
        return {"layers": layers, **self.part.around(self.model, weights.model_specs(self.model, self.axes))}

    @cached_property
    def places(self) -> Any:
        """For each of its weights how it is stored, in the same tree."""
        return storage.places(self.model, self.part, self.axes, self.weight_shapes())

    def stored_shapes(self, dtype: jax.typing.DTypeLike | None = None) -> Any:
        """Shapes and dtypes of its weights as they are stored; `dtype`: of those without scales, None as stored."""
        return jax.tree.map(lambda place: place.described(dtype), self.places)

    def stored_specs(self) -> Any:
        """How they are cut. LayoutError where a cut falls inside a byte."""
        return jax.tree.map(lambda place, spec: place.specs(spec, self.axes), self.places, self.weight_specs())

    def held_specs(self) -> Any:
        """How the tree of weights that it takes is cut."""
        return self.stored_specs() if self.stored else self.weight_specs()

    def module(self, held: Any) -> tuple[Any, Any]:
        """Graph and parameters of the stage's module around a tree of weights (or of whatever stands for them)."""
        return nnx.split(Stage(self.model, self.forms, self.part, self.kernels, held))

    def cache_shapes(self) -> tuple[Any, ...]:
        """Shapes of the caches of its layers."""
        return tuple(
            cache_shapes(self.model.layers[i].attention, self.part.layout, self.room) for i in self.part.layers
        )

    def cache_specs(self) -> tuple[Any, ...]:
        """How they are cut."""
        return tuple(cache_specs(self.model.layers[i].attention, self.axes) for i in self.part.layers)

    def described_caches(self, dtype: jax.typing.DTypeLike) -> tuple[Any, ...]:
        """Shapes, dtypes and shardings of its caches: `dtype`, but float32 for recurrent states and their rings."""

        def described(path: Any, shape: tuple[int, ...], spec: PartitionSpec) -> jax.ShapeDtypeStruct:
            wide = any(getattr(key, "name", "") in _WIDE for key in path)
            return jax.ShapeDtypeStruct(shape, jnp.float32 if wide else dtype, sharding=self.sharding(spec))

        leaf = weights.is_shape
        return jax.tree_util.tree_map_with_path(described, self.cache_shapes(), self.cache_specs(), is_leaf=leaf)

    def entering_specs(self) -> Any:
        """How tokens, or what the stage before left, are cut."""
        return self.axes.spec("requests") if self.part.first else self.carried_specs(self.part.layers.start)

    def carried_specs(self, layer: int) -> Carried:
        """How what is carried to a layer is cut; how many blocks the stream then has, and whether tokens are chosen."""
        by_request: Any = self.axes.spec("requests", None)
        chosen: Any = self.axes.spec("requests", None, None)
        residual, before = self.model.residual, [la.attention for la in self.model.layers[:layer]]
        stream = Stream(by_request, (by_request,) * (0 if residual is None else residual.blocks_before(layer)))
        sparse = any(isinstance(attention, MLA) and attention.indexer for attention in before)
        return Carried(stream, chosen if sparse else None)

    def body(self, phase: Phase) -> Callable[..., Stepped]:
        """The stage as a function of whole arrays: parameters, what enters, caches, step."""
        graph, specs = self.module(self.held_specs())
        each, by_request = self.axes.spec("requests"), self.axes.spec("requests", None)
        leaving = Output(each, by_request) if self.part.last else self.carried_specs(self.part.layers.stop)  # pyright: ignore[reportArgumentType]

        def run(held: Any, entering: Any, caches: tuple[Any, ...], step: Step) -> Stepped:
            return nnx.merge(graph, held)(entering, caches, step, phase)

        return jax.shard_map(
            run,
            mesh=self.mesh,
            in_specs=(specs, self.entering_specs(), self.cache_specs(), step_specs(self.axes, self.interleave)),
            out_specs=Stepped(leaving, self.cache_specs()),
            check_vma=self.kernels.typed,
        )

    def compiled(self, phase: Phase) -> Callable[..., Stepped]:
        """The same, compiled; caches are updated in place. Parameters may be a list of their leaves: Flax's tree takes
        Python to take apart, in a small step most of the host's time."""
        if phase not in self._compiled:
            body, structure = self.body(phase), jax.tree.structure(self.module(self.held_specs())[1])

            def run(held: Any, entering: Any, caches: tuple[Any, ...], step: Step) -> Stepped:
                return body(jax.tree.unflatten(structure, jax.tree.leaves(held)), entering, caches, step)

            self._compiled[phase] = jax.jit(run, donate_argnums=2, compiler_options=dict(self.options))
        return self._compiled[phase]

    @cached_property
    def _compiled(self) -> dict[Phase, Callable[..., Stepped]]:
        """Here and not in a global cache, so that it goes with the stage and many stages do not push each other out."""
        return {}

    def place(self, tree: Any, specs: Any) -> Any:
        """Arrays on the stage's devices."""
        return jax.tree.map(lambda x, spec: _placed(x, self.sharding(spec)), tree, specs)

    def sharding(self, spec: PartitionSpec) -> NamedSharding:
        return NamedSharding(self.mesh, spec)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class Program:
    """Every stage of a layout. `weights` and `caches` are tuples with an entry a stage."""

    stages: tuple[StageProgram, ...]

    @staticmethod
    def of(
        model: Model,
        forms: Forms,
        layout: Layout,
        room: Room,
        devices: Sequence[Any] | None,
        interleave: int = 1,
        stored: bool = False,
        options: Options = MappingProxyType({}),
        kernels: Kernels = ALL_PLAIN,
    ) -> "Program":
        """That of a valid layout over these devices, or without any (None): to trace. LayoutError if too few.

        `stored`: weights are in the formats of the model's precision, with their scales. `options`: of the compiler.
        `kernels`: the form of each op that has several.
        """
        parts = parts_of(model, layout)
        by_stage = _devices_by_stage(layout, devices)
        return Program(
            tuple(
                StageProgram(model, forms, part, room, interleave, _mesh(part, chosen), stored, options, kernels)
                for part, chosen in zip(parts, by_stage, strict=True)
            )
        )

    @cached_property
    def spread(self) -> bool:
        """Whether devices of other processes are in it; all of them then take every step."""
        return any(span_processes(stage.mesh.devices.flat) for stage in self.stages if isinstance(stage.mesh, Mesh))

    def load(self, trees: Sequence[Any]) -> tuple[Any, ...]:
        """Parameters of every stage's module from its tree of placed weights."""
        return tuple(stage.module(tree)[1] for stage, tree in zip(self.stages, trees, strict=True))

    def empty_caches(self, dtype: jax.typing.DTypeLike) -> tuple[Any, ...]:
        """Pools and states of zeros on the devices; states in float32."""
        described = (stage.described_caches(dtype) for stage in self.stages)
        return jax.tree.map(lambda held: _zeros(held.shape, held.dtype, held.sharding)(), tuple(described))

    def step(
        self, held: Sequence[Any], caches: Sequence[Any], step: Step, phase: Phase
    ) -> tuple[Output, tuple[Any, ...]]:
        """One step through all stages: the output, and caches. The caches given are used up."""
        placed = self.placed(step)
        return self.through(held, caches, placed, placed[0].tokens, phase)

    def placed(self, step: Step) -> tuple[Step, ...]:
        """A step on the devices of each stage."""
        return tuple(stage.place(step, step_specs(stage.axes, stage.interleave)) for stage in self.stages)

    def through(
        self, held: Sequence[Any], caches: Sequence[Any], placed: Sequence[Step], entering: Any, phase: Phase
    ) -> tuple[Output, tuple[Any, ...]]:
        """`step` of what is on the devices already; `entering`: the tokens that the first stage is given."""
        after = []
        for stage, parameters, cache, local in zip(self.stages, held, caches, placed, strict=True):
            if self.spread and not stage.part.first:
                entering = jax.tree.map(gathered, entering)
            entering = stage.place(entering, stage.entering_specs())
            entering, cache = stage.compiled(phase)(parameters, entering, cache, local)
            after.append(cache)
        return entering, tuple(after)

    def behind(self, tokens: jax.Array, output: Output) -> jax.Array:
        """Tokens for the first stage that are there only once a step is through all of them, as the next step's are."""
        first = self.stages[0]
        said = gathered(output.tokens) if self.spread else output.tokens
        return _behind(tokens, first.place(said, first.entering_specs()))


@jax.jit
def _behind(tokens: jax.Array, said: jax.Array) -> jax.Array:
    return tokens + 0 * said


def _devices_by_stage(layout: Layout, devices: Sequence[Any] | None) -> list[list[Any] | None]:
    """Devices of each stage in rank order: a replica's stages stand side by side."""
    if devices is None:
        return [None] * layout.pp
    if len(devices) < layout.gpus:
        mesh_of(layout, devices)  # raises
    grid = np.array(devices[: layout.gpus]).reshape(layout.replicas, layout.pp, layout.tp)
    return [list(grid[:, stage].reshape(-1)) for stage in range(layout.pp)]


def _placed(x: Any, sharding: NamedSharding) -> jax.Array:
    """An array on the devices of a sharding; what every process has on its host needs no exchange."""
    if isinstance(x, jax.Array):
        return jax.device_put(x, sharding)
    return jax.make_array_from_callback(x.shape, sharding, lambda part: x[part], dtype=x.dtype)


def _mesh(part: Part, devices: list[Any] | None) -> Mesh | AbstractMesh:
    return abstract_mesh_of(part.layout) if devices is None else mesh_of(part.layout, devices)


@lru_cache(maxsize=256)
def _zeros(shape: tuple[int, ...], dtype: jnp.dtype, sharding: NamedSharding) -> Callable[[], jax.Array]:
    return jax.jit(partial(jnp.zeros, shape, dtype), out_shardings=sharding)
