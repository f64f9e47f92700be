"""Weights of a decoder from a folder of safetensors, on its devices."""

import pathlib
from typing import Any

import jax

from layouts.checkpoint import Folder, architecture_of, open_folder, place, views
from layouts.decoder.program import Program, StageProgram


def loaded(program: Program, path: pathlib.Path, dtype: jax.typing.DTypeLike) -> tuple[Any, ...]:
    """Parameters of every stage; a process reads the slices of its own devices. CheckpointError before any is read
    where a tensor is missing, of another shape or not the model's, or a file is cut short."""
    folder = open_folder(path)
    return program.load([loaded_stage(stage, folder, dtype) for stage in program.stages])


def loaded_stage(stage: StageProgram, folder: Folder, dtype: jax.typing.DTypeLike) -> Any:
    """The tree of weights of one stage."""
    layout, model = stage.part.layout, stage.model
    held = views(model, folder, architecture_of(folder), attn_tp=layout.attn_tp, vocab_tp=layout.vocab_tp)
    layers = held.pop("layers")
    mine = {"layers": [layers[i] for i in stage.part.layers], **stage.part.around(model, held)}
    return place(mine, jax.tree.map(stage.sharding, stage.weight_specs()), dtype)
