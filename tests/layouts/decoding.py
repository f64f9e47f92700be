"""Decoders of the goldens under any layout: loaded from their checkpoint, fed with known tokens."""

import functools
import pathlib
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from hw.compat import COMPILE_TO_RUN_ONCE
from layouts.checkpoint import architecture_of, open_folder, place, views
from layouts.decoder.program import Program
from layouts.generation import Capacity, Session
from layouts.layout import Layout
from layouts.models import Model
from layouts.models.forms import Forms
from layouts.models.load import load_forms, load_model

DECODERS: Final = pathlib.Path(__file__).parents[1] / "goldens" / "decoders"
FAMILIES: Final = tuple(sorted(folder.name for folder in DECODERS.iterdir()))
SCORED: Final = 24  # last positions of a golden whose logits are known


@functools.cache
def golden(family: str) -> tuple[Model, Forms, np.ndarray, np.ndarray]:
    """Model, forms, tokens of two requests, and the logits of their last positions."""
    path = DECODERS / family
    stored = np.load(path / "logits.npz")
    return load_model(str(path)), load_forms(str(path)), stored["tokens"], stored["logits"]


def program_of(family: str, layout: Layout, capacity: Capacity, interleaved_pages: bool = False) -> Program:
    model, forms, _, _ = golden(family)
    interleave = capacity.page if interleaved_pages else 1
    room = capacity.room(layout.dcp)
    return Program.of(model, forms, layout, room, jax.devices(), interleave, options=COMPILE_TO_RUN_ONCE)


def loaded(family: str, program: Program) -> tuple[Any, ...]:
    """Parameters from the golden's checkpoint."""
    folder, trees = open_folder(DECODERS / family), []
    for stage in program.stages:
        layout, model = stage.part.layout, stage.model
        held = views(model, folder, architecture_of(folder), attn_tp=layout.attn_tp, vocab_tp=layout.vocab_tp)
        held["layers"] = [held["layers"][i] for i in stage.part.layers]
        shardings = jax.tree.map(stage.sharding, stage.weight_specs())
        trees.append(place(held, shardings, jnp.float32))
    return program.load(trees)


def session_of(
    family: str, layout: Layout, requests: int = 2, context: int = 48, interleaved_pages: bool = False
) -> Session:
    """A session whose groups have room for `requests` each."""
    capacity = Capacity(requests, context, page=4)
    program = program_of(family, layout, capacity, interleaved_pages)
    return Session(program, loaded(family, program), capacity, jnp.float32, interleaved_pages)


def teacher_forced(session: Session, tokens: np.ndarray, width: int) -> np.ndarray:
    """(requests, tokens, vocab): the logits behind every token, `width` of them a step, each step on what the steps
    before it cached. Requests go to the groups in turn."""
    requests = [session.admit(i % len(session.pools)) for i in range(len(tokens))]
    found: list[np.ndarray] = []
    for start in range(0, tokens.shape[1], width):
        step = session.verify({r: tokens[i, start : start + width].tolist() for i, r in enumerate(requests)})
        session.accept(dict.fromkeys(requests, width))
        found.append(np.stack([step[r].logits for r in requests]))
    return np.concatenate(found, axis=1)


def error(found: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference over the largest expected value."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())
