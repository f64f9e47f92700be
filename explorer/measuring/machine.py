"""The machine at hand: its devices, what they are called, and the versions that a measurement depends on."""

import importlib.metadata
import pathlib
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax

from explorer.documents import versions
from explorer.measuring.errors import MeasuringError
from hw.compat import on_host
from hw.figures import chip_names
from hw.machine import Machine, load_machine

_DRIVER: Final = pathlib.Path("/proc/driver/nvidia/version")
_PACKAGES: Final = re.compile(r"^nvidia[-_]nccl|^jax[-_]cuda|^jaxlib$")


@dataclass(frozen=True)
class Here:
    """Devices of one kind, and the chip whose datasheet and curves they are held against. `name`: of the host."""

    devices: tuple[Any, ...]
    machine: Machine
    name: str
    versions: dict[str, str]

    @property
    def real(self) -> bool:
        """Whether these are accelerators, and not simulated on the CPU."""
        return self.devices[0].platform != "cpu"

    @property
    def surroundings(self) -> dict[str, Any]:
        """What rows depend on beside their names: the chip, too, whose multiprocessors their shapes count."""
        first = self.devices[0]
        devices = {"kind": first.device_kind, "platform": first.platform, "count": len(self.devices)}
        return {
            "chip": self.machine.sources.chip, "machine": self.name, "devices": devices, "versions": self.versions
        }  # fmt: skip


def machine_here(hardware: str | None, gpus: int | None, simulated: bool) -> Here:
    """The first `gpus` devices (None: all) as a machine of the chip `hardware` (None: found by the device's name).

    MeasuringError where there is no accelerator and none are simulated, for a chip that has no data file, and for more
    devices than there are.
    """
    devices = _devices()
    if devices[0].platform == "cpu" and not simulated:
        raise MeasuringError("there is no GPU to measure: run on a machine with one, or try it out with --simulate 2")
    count = len(devices) if gpus is None else gpus
    if not 1 <= count <= len(devices):
        raise MeasuringError(f"gpus = {count}: must be from 1 to {len(devices)}, the devices that are here")
    chip = hardware or chip_of_device(devices[0])
    if chip is None:
        raise MeasuringError(
            f"{devices[0].device_kind!r} is no chip with a data file: say which it is like with --hardware, one of "
            f"{', '.join(chip_names())}"
        )
    if chip not in chip_names():
        raise MeasuringError(f"hardware {chip!r}: must be a chip, one of {', '.join(chip_names())}")
    with on_host():
        machine = load_machine(chip)
    return Here(tuple(devices[:count]), machine, platform.node() or "unknown", versions_here())


def chip_of_device(device: Any) -> str | None:
    """The chip whose name stands in that of the device."""
    kind = device.device_kind.lower()
    return next((name for name in sorted(chip_names(), key=len, reverse=True) if name in kind.split()), None)


def versions_here() -> dict[str, str]:
    """Versions of what is timed: ours, JAX's and its plug-ins', NCCL's, the driver's where its module says it."""
    installed = {(d.metadata["Name"] or ""): d.version for d in importlib.metadata.distributions()}
    found = {name: version for name, version in sorted(installed.items()) if _PACKAGES.match(name)}
    driver = re.search(r"\s(\d+\.\d+\S*)\s", _DRIVER.read_text(encoding="utf-8")) if _DRIVER.exists() else None
    return {**versions(), **found, **({"driver": driver[1]} if driver else {})}


def _devices() -> Sequence[Any]:
    try:
        return jax.local_devices()
    except (RuntimeError, AssertionError) as error:  # JAX asserts that a kind it could not wake up was not the only one
        reason = (str(error).splitlines() or ["JAX_PLATFORMS names none that is here"])[0]
        raise MeasuringError(f"there is no device to measure ({reason}): unset JAX_PLATFORMS") from None
