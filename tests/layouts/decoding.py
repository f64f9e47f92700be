"""Decoders of the goldens under any layout: loaded from their checkpoint, fed with known tokens."""

import functools
import pathlib
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from hw.compat import COMPILE_TO_RUN_ONCE
from layouts.decoder.loading import loaded as load_weights
from layouts.decoder.program import Program
from layouts.generation import Capacity, Request, Session
from layouts.kernels import ALL_PLAIN, Kernels
from layouts.layout import Layout
from layouts.models import Model
from layouts.models.forms import Forms
from layouts.models.load import load_forms, load_model

DECODERS: Final = pathlib.Path(__file__).parents[1] / "goldens" / "decoders"
FAMILIES: Final = tuple(sorted(folder.name for folder in DECODERS.iterdir()))
SCORED: Final = 24  # last positions of a golden whose logits are known


@functools.cache
def golden(family: str) -> tuple[Model, Forms, np.ndarray, np.ndarray]:
    """Model, forms, tokens of two requests, and the logits of their last positions; `family` is the name of a golden,
    here and below, or the whole path of a folder like it."""
    path = DECODERS / family
    stored = np.load(path / "logits.npz")
    return load_model(str(path)), load_forms(str(path)), stored["tokens"], stored["logits"]


def program_of(
    family: str, layout: Layout, capacity: Capacity, interleaved_pages: bool = False, kernels: Kernels = ALL_PLAIN
) -> Program:
    model, forms, _, _ = golden(family)
    interleave = capacity.page if interleaved_pages else 1
    room = capacity.room(layout.dcp)
    options = COMPILE_TO_RUN_ONCE
    return Program.of(model, forms, layout, room, jax.devices(), interleave, options=options, kernels=kernels)


def loaded(family: str, program: Program) -> tuple[Any, ...]:
    """Parameters from the golden's checkpoint."""
    return load_weights(program, DECODERS / family, jnp.float32)


def session_of(
    family: str,
    layout: Layout,
    requests: int = 2,
    context: int = 48,
    interleaved_pages: bool = False,
    kernels: Kernels = ALL_PLAIN,
    page: int = 4,
) -> Session:
    """A session whose groups have room for `requests` each."""
    capacity = Capacity(requests, context, page=page, verify=context)
    program = program_of(family, layout, capacity, interleaved_pages, kernels)
    return Session(program, loaded(family, program), capacity, jnp.float32, interleaved_pages)


def teacher_forced(session: Session, tokens: np.ndarray, width: int) -> np.ndarray:
    """(requests, tokens, vocab): the logits behind every token, `width` of them a step, each step on what the steps
    before it cached. Requests go to the groups in turn."""
    requests, found = _admitted(session, tokens), []
    for start in range(0, tokens.shape[1], width):
        found.append(_verified(session, requests, tokens[:, start : start + width]))
        session.accept(dict.fromkeys(requests, width))
    return np.concatenate(found, axis=1)


def at_once(session: Session, tokens: np.ndarray) -> np.ndarray:
    """The same in one step, on nothing cached and with nothing kept: one program to compile."""
    return _verified(session, _admitted(session, tokens), tokens)


def _admitted(session: Session, tokens: np.ndarray) -> list[Request]:
    return [session.admit(i % len(session.pools)) for i in range(len(tokens))]


def _verified(session: Session, requests: list[Request], tokens: np.ndarray) -> np.ndarray:
    step = session.verify(dict(zip(requests, tokens.tolist(), strict=True)))
    return np.stack([step[request].logits for request in requests])


def error(found: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference over the largest expected value."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())
