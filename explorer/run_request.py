"""What is to be run, checked against the model and the devices that are here."""

import pathlib
from dataclasses import dataclass
from typing import Any, Final

import jax

from explorer.request import whole
from hw.errors import MeshwrightError
from hw.figures import chip_names
from hw.machine import load_machine
from layouts.enumerate import checked
from layouts.layout import Layout
from layouts.models.forms import Forms
from layouts.models.load import load_forms, load_model
from layouts.models.model import Model
from layouts.models.scale import Scale, scaled_config
from layouts.rules import Site
from layouts.text import parse

DTYPES: Final = ("float32", "bfloat16")
MOST_TOKENS: Final = 1 << 20


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
    if chosen not in DTYPES:
        raise RunError(f"dtype {chosen!r} is unknown: choose one of {', '.join(DTYPES)}")
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
