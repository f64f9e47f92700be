"""A layout run for real: text from it, held against one device, and its step timed, on whatever devices there are."""

import math
import pathlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from explorer.costing import cost
from explorer.documents import Document, Schema, layout_entry, versions
from explorer.fitting import exhaustion_named, require_memory
from explorer.request import make_request, whole
from hw.compat import COMPILE_TO_RUN_ONCE
from hw.errors import MeshwrightError
from hw.figures import chip_names
from hw.machine import load_machine
from layouts.decoder.drawn import drawn
from layouts.decoder.loading import loaded
from layouts.decoder.program import Program
from layouts.enumerate import checked
from layouts.generation import Capacity, Session, Text, generate
from layouts.layout import Layout
from layouts.models.forms import Forms
from layouts.models.load import load_forms, load_model
from layouts.models.model import Model
from layouts.models.scale import Scale, scaled_config
from layouts.rules import Site
from layouts.text import parse

# Largest difference of a logit over the largest logit. Another batch or layout adds in another order; norms of small
# values and recurrent states make up to fifty times as much of a float32's rounding, bf16 rounds in every layer.
BOUNDS: Final = {"float32": 1e-4, "bfloat16": 5e-2}
MOST_TOKENS: Final = 1 << 20
_REPEATS: Final = 10
_PLAIN: Final = ("attention", "latent", "shared", "dense", "experts", "head", "kv")  # run in one dtype, all of them
Report = Callable[[str, float], None]


class RunError(MeshwrightError):
    """A run that cannot be made with what is here."""


@dataclass(frozen=True)
class RunRequest:
    """What to run. `name` is a preset, a config.json, or a folder that may hold weights; `gpus` of all processes.

    `requests` in each attention group, of `prompt` random tokens; `tokens` are generated behind each, `width` rows
    verified a step; tables have room for `context` tokens. `hardware`: the chip to predict for, None without one.
    """

    name: str
    model: Model
    forms: Forms
    layout: Layout
    scale: Scale
    requests: int
    prompt: int
    tokens: int
    width: int
    context: int
    dtype: str
    hardware: str | None
    seed: int


@dataclass(frozen=True)
class Checked:
    """The layout's logits against those of one device: largest difference over the largest, and whether greedy text is
    the same."""

    error: float
    bound: float
    same_text: bool

    @property
    def passes(self) -> bool:
        return self.error <= self.bound and (self.same_text or self.bound > BOUNDS["float32"])

    def document(self) -> Document:
        """The `check` of a `run/1` document; JSON has no NaN."""
        error = self.error if math.isfinite(self.error) else None
        return {"error": error, "bound": self.bound, "same_text": self.same_text, "passes": self.passes}


@dataclass(frozen=True)
class Ran:
    """A run: text, seconds of its steps, a prediction (seconds: low, likely, high), and a check if asked for one."""

    request: RunRequest
    text: Text
    step_seconds: Float[np.ndarray, " repeats"]
    predicted: tuple[float, float, float] | None
    checked: Checked | None
    weights: str

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
                "median": float(np.median(self.step_seconds) * 1e3),
                "low": float(self.step_seconds.min() * 1e3),
                "high": float(self.step_seconds.max() * 1e3),
            },
            "predicted_ms": None
            if self.predicted is None
            else dict(zip(("low", "likely", "high"), (s * 1e3 for s in self.predicted), strict=True)),
            "check": None if self.checked is None else self.checked.document(),
        }


def make_run_request(
    model: str,
    layout: str,
    folder: pathlib.Path,
    *,
    gpus: int | None = None,
    scale: str = "full",
    layers: int | None = None,
    experts: int | None = None,
    requests: int = 2,
    prompt_tokens: int = 16,
    tokens: int = 16,
    verify_width: int = 1,
    context: int | None = None,
    dtype: str | None = None,
    hardware: str | None = None,
    seed: int = 0,
) -> RunRequest:
    """Check every option against the devices that are here; `folder` is where a scaled config is written.

    The dtype is float32 on CPUs and bfloat16 elsewhere if left out; the chip is found by the device's name. Raises
    MeshwrightError with one line: the option, its value, the rule, what would do.
    """
    cut = Scale(scale, layers, experts)
    name = model if cut.whole else str(scaled_config(model, cut, folder))
    loaded, devices = load_model(name, draft="none"), _devices()
    count = whole("gpus", gpus, len(devices), 1, len(devices))
    if len({device.process_index for device in devices[:count]}) < jax.process_count():
        raise RunError(
            f"gpus = {count} leaves processes of the run without any: start fewer, or use all {len(devices)}"
        )
    site = Site(loaded, count, max(jax.local_device_count(), 1), count)
    chosen = dtype or ("float32" if devices[0].platform == "cpu" else "bfloat16")
    if chosen not in BOUNDS:
        raise RunError(f"dtype {chosen!r} is unknown: choose one of {', '.join(BOUNDS)}")
    prompt, wanted = (
        whole(n, v, None, 1, MOST_TOKENS) for n, v in (("prompt-tokens", prompt_tokens), ("tokens", tokens))
    )
    width = whole("verify-width", verify_width, None, 1, 64)
    needed = prompt + wanted + width
    if needed > loaded.context_limit:
        raise RunError(
            f"prompt-tokens {prompt}, tokens {wanted} and verify-width {width} need room for {needed} tokens and "
            f"{model} has {loaded.context_limit} positions: lower one of them"
        )
    if hardware is not None:
        load_machine(hardware)
    return RunRequest(
        name=model,
        model=loaded,
        forms=load_forms(name),
        layout=checked(parse(layout, count, loaded), site, layout),
        scale=cut,
        requests=whole("requests", requests, None, 1, 4096),
        prompt=prompt,
        tokens=wanted,
        width=width,
        context=whole("context", context, needed, needed, loaded.context_limit),
        dtype=chosen,
        hardware=hardware or _chip(devices[0]),
        seed=whole("seed", seed, None, 0, 2**31 - 1),
    )


def _devices() -> list[Any]:
    """All devices of all processes; RunError where JAX finds none of the kind that was asked for."""
    try:
        return jax.devices()
    except (RuntimeError, AssertionError) as error:  # JAX asserts that a kind it could not wake up was not the only one
        reason = (str(error).splitlines() or ["JAX_PLATFORMS names none that is here"])[0]
        raise RunError(f"there is no device to run on ({reason}): unset JAX_PLATFORMS, or --simulate some") from None


def _chip(device: Any) -> str | None:
    """The chip whose name stands in that of the device."""
    kind = device.device_kind.lower()
    return next((name for name in sorted(chip_names(), key=len, reverse=True) if name in kind.split()), None)


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
    seconds = np.array(session.timed(request.width, _REPEATS))
    return Ran(request, text, seconds, _predicted(request), compared, weights)


def first_process() -> bool:
    """Whether this process is the one that prints."""
    return jax.process_index() == 0


def _session(request: RunRequest, layout: Layout, devices: Sequence[Any]) -> tuple[Session, str]:
    """A session with the model's weights: of its folder where there are any, else pseudo-random ones."""
    capacity = Capacity(request.requests, request.context)
    if layout != request.layout:
        groups = request.layout.replicas * request.layout.attn_dp
        capacity = Capacity(request.requests * groups, request.context)
    options = COMPILE_TO_RUN_ONCE if devices[0].platform == "cpu" else {}
    room = capacity.room(layout.dcp)
    program = Program.of(request.model, request.forms, layout, room, devices, options=options)
    dtype = jnp.dtype(request.dtype)
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
    said = expected.argmax(axis=-1)
    if not np.isfinite(expected).all():
        raise RunError(f"logits of {request.name} on one device are not finite: check config.json and weights")
    error = float(np.abs(found - expected).max() / np.abs(expected).max())
    return Checked(error, BOUNDS[request.dtype], bool((said == np.array(text.tokens)).all()))


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


def _predicted(request: RunRequest) -> tuple[float, float, float] | None:
    """What the cost model says of the step, in the formats that it ran in."""
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
            precision=",".join(f"{component}=bf16" for component in _PLAIN),
        )
        found = cost(asked, request.layout)
    low, high = found.step_seconds_range
    return low, found.step_seconds, high


def _notes(ran: Ran) -> list[str]:
    same = ran.checked is not None and ran.request.layout.gpus == 1 and jax.devices()[0].platform == "cpu"
    vacuous = ["the layout is one device itself: the check can only repeat it"] if same else []
    if ran.predicted is None:
        return [*vacuous, "no prediction: it is made for a known chip and bfloat16"]
    return [
        *vacuous,
        "the prediction is for engines' kernels and a captured graph; this program is what XLA makes of it",
    ]
