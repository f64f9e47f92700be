"""A layout run for real: text from it, held against one device, and its step timed, on whatever devices there are."""

import pathlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from explorer.documents import Document, Schema, layout_entry, versions
from explorer.fitting import exhaustion_named, require_memory
from explorer.priced import priced
from explorer.request import PLAIN_BF16, make_request, of_program
from explorer.run_check import Checked, checked, move_weights
from explorer.run_request import RunError, RunRequest, make_run_request
from hw.compat import COMPILE_TO_RUN_ONCE
from hw.figures import program_curves
from hw.measuring.flight import Times
from layouts.decoder.choices import kernels_of
from layouts.decoder.drawn import drawn
from layouts.decoder.loading import loaded
from layouts.decoder.options import compiler_options
from layouts.decoder.program import Program
from layouts.generation import Capacity, Session, Text, generate
from layouts.kernels import Kernels
from layouts.layout import Layout
from layouts.models.scale import scaled_config

__all__ = ["Checked", "Ran", "RunError", "RunRequest", "first_process", "make_run_request", "run"]

Report = Callable[[str, float], None]


class Predicted(NamedTuple):
    """Seconds of a step in flight. `on_host`: the CPU that starts it takes longer than the devices."""

    low: float
    likely: float
    high: float
    on_host: bool

    def document(self) -> Document:
        """The `predicted_ms` of a `run/1` document."""
        return {"low": self.low * 1e3, "likely": self.likely * 1e3, "high": self.high * 1e3, "on_host": self.on_host}


@dataclass(frozen=True)
class Ran:
    """A run: text, seconds of its steps, a prediction of those in flight, and a check if asked for one."""

    request: RunRequest
    text: Text
    times: Times
    predicted: Predicted | None
    checked: Checked | None
    weights: str
    kernels: Kernels

    def document(self) -> Document:
        """The `run/1` document."""
        request, device = self.request, jax.devices()[0]
        return {
            "schema": str(Schema.RUN),
            "request": {
                "model": request.name,
                "scale": request.scale.size,
                "layers": len(request.model.layers),
                "experts": max(layer.experts for layer in request.model.layers),
                "requests": request.requests,
                "prompt_tokens": request.prompt,
                "tokens": request.tokens,
                "verify_width": request.width,
                "context": request.context,
                "dtype": request.dtype,
                "seed": request.seed,
            },
            "versions": versions(),
            "notes": [*_notes(self)],
            **layout_entry(request.layout, request.model),
            "devices": {"kind": device.device_kind, "platform": device.platform, "count": request.layout.gpus},
            "weights": self.weights,
            "text": {
                "tokens": [list(one) for one in self.text.tokens],
                "steps": self.text.steps,
                "drafted": self.text.drafted,
                "kept": self.text.kept,
                "accept_length": self.text.accept_length,
            },
            "step_ms": {
                "median": self.times.flight * 1e3,
                "low": self.times.least * 1e3,
                "high": self.times.most * 1e3,
                "waited": self.times.synced * 1e3,
                "call": self.times.host * 1e3,
            },
            "predicted_ms": None if self.predicted is None else self.predicted.document(),
            "check": None if self.checked is None else self.checked.document(),
        }


def run(request: RunRequest, check: bool, report: Report = lambda stage, fraction: None) -> Ran:
    """Generate, time the step, predict it where the chip is known, and hold it against one device if asked to.

    MemoryShortError where the devices have too little memory, CheckpointError for a folder whose weights are not the
    model's, RunError where a check has nothing to hold against.
    """
    # a GPU would round float32 operands to ten bits
    with jax.default_matmul_precision("highest" if request.dtype == "float32" else "default"), exhaustion_named():
        return _run(request, check, report)


def _run(request: RunRequest, check: bool, report: Report) -> Ran:
    report("weights", 0.1)
    session, weights = _session(request, request.layout, jax.devices())
    prompts = _prompts(request)
    report("text", 0.3)
    text = generate(session, prompts, request.tokens, request.width)
    compared = None
    if check:
        report("one device", 0.5)
        compared = _compared(request, session, prompts, text)
    report("timing", 0.8)
    times = session.timed(request.width)
    kernels = session.program.stages[0].kernels
    return Ran(request, text, times, _predicted(request), compared, weights, kernels)


def first_process() -> bool:
    """Whether this process is the one that prints."""
    return jax.process_index() == 0


def _session(request: RunRequest, layout: Layout, devices: Sequence[Any]) -> tuple[Session, str]:
    """A session with the model's weights: of its folder where there are any, else pseudo-random ones."""
    verify = max(request.width, request.tokens - 1)  # the text is scored in one step
    capacity = Capacity(request.requests, request.context, verify=verify)
    if layout != request.layout:
        groups = request.layout.replicas * request.layout.attn_dp
        capacity = Capacity(request.requests * groups, request.context, verify=verify)
    platform = devices[0].platform
    options = COMPILE_TO_RUN_ONCE if platform == "cpu" else compiler_options(platform)
    room = capacity.room(layout.dcp)
    dtype = jnp.dtype(request.dtype)
    kernels = kernels_of(request.model, layout, devices, dtype)
    program = Program.of(request.model, request.forms, layout, room, devices, options=options, kernels=kernels)
    require_memory(program, dtype, devices[: layout.gpus], alone=layout != request.layout)
    path = pathlib.Path(request.name)
    if request.scale.whole and path.is_dir() and any(path.glob("*.safetensors")):
        return Session(program, loaded(program, path, dtype), capacity, dtype), str(path)
    return Session(program, drawn(program, dtype, request.seed), capacity, dtype), f"pseudo-random, seed {request.seed}"


def _prompts(request: RunRequest) -> list[list[int]]:
    """Random tokens, the same for every layout of as many requests."""
    count = request.requests * request.layout.replicas * request.layout.attn_dp
    draw = np.random.default_rng(request.seed)
    return draw.integers(0, request.model.vocab, (count, request.prompt)).tolist()


def _compared(request: RunRequest, session: Session, prompts: Sequence[Sequence[int]], text: Text) -> Checked:
    """Both score the prompts and the generated tokens behind them, in two steps."""
    alone, _ = _session(request, Layout(), [_other_device(request.layout)])
    found, expected = (_scored(one, prompts, text) for one in (session, alone))
    if not np.isfinite(expected).all():
        raise RunError(f"logits of {request.name} on one device are not finite: check config.json and weights")

    def moved() -> np.ndarray:
        move_weights(alone)
        return _scored(alone, prompts, text)

    same = (expected.argmax(axis=-1) == np.array(text.tokens)).all()
    return checked(found, expected, same, request.dtype, moved)


def _other_device(layout: Layout) -> Any:
    """One device to hold the layout against: for a layout of one, that of another kind, which has other kernels.
    RunError where there is none."""
    try:
        return jax.local_devices(backend="cpu")[0] if layout.gpus == 1 else jax.local_devices()[0]
    except RuntimeError:
        raise RunError(
            "a check of one device is made on the CPU, which JAX_PLATFORMS leaves out: add cpu to it"
        ) from None


def _scored(session: Session, prompts: Sequence[Sequence[int]], text: Text) -> np.ndarray:
    """(requests, tokens, vocab): float32 logits that the generated tokens were chosen from, were these the context."""
    requests = [session.admit() for _ in prompts]
    first = session.prefill(dict(zip(requests, prompts, strict=True)))
    logits = [np.stack([first[r].logits for r in requests])]
    if text.tokens[0][1:]:
        rows = {r: list(tokens[:-1]) for r, tokens in zip(requests, text.tokens, strict=True)}
        behind = session.verify(rows)
        session.accept({})
        logits.append(np.stack([behind[r].logits for r in requests]))
    for request in requests:
        session.release(request)
    return np.concatenate(logits, axis=1).astype(np.float32)


def _predicted(request: RunRequest) -> Predicted | None:
    """What the cost model says of this program's step in flight, in the formats that it ran in."""
    if request.hardware is None or request.dtype != "bfloat16":
        return None
    with tempfile.TemporaryDirectory() as folder:
        scale = request.scale
        name = request.name if scale.whole else str(scaled_config(request.name, scale, pathlib.Path(folder)))
        groups = request.layout.replicas * request.layout.attn_dp
        asked = make_request(
            name,
            request.hardware,
            request.layout.gpus,
            context=request.context,
            concurrency=request.requests * groups,
            verify_width=request.width,
            draft="none",
            precision=PLAIN_BF16,
        )
        found = priced(of_program(asked), request.layout)
    return Predicted(found.faster, found.step, found.slower, found.on_host)


def _notes(ran: Ran) -> list[str]:
    same = ran.checked is not None and ran.request.layout.gpus == 1 and jax.devices()[0].platform == "cpu"
    notes = ["the layout is one device itself: the check can only repeat it"] if same else []
    notes += ran.kernels.notes()
    if ran.predicted is None:
        return [*notes, "no prediction: it is made for a known chip and bfloat16"]
    name = program_curves(ran.request.hardware or "") or ran.request.hardware
    curves = f"the curves of {name}; `meshwright measure` makes its own"
    return [*notes, f"the prediction is for this program, by {curves}"]
