"""Which devices a command wakes up: none but the CPU to plan, those of the machine to run."""

import os
from typing import Final

from hw.errors import MeshwrightError

MOST_SIMULATED: Final = 1024  # each takes threads and memory of the one CPU
_ASKED: Final = os.environ.get("JAX_PLATFORMS")  # what the user says, before any command has its say


def plan_on_cpu() -> None:
    """Planning is arithmetic on arrays of a few kilobytes: no accelerator is woken up for it."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")


def run_here(simulate: int | None, distributed: bool) -> None:
    """The machine's own devices, or so many simulated ones on its CPU; with other processes of the run if there are.

    To be called before JAX has touched a device. Raises MeshwrightError where there is no run to join, or for a number
    of devices that cannot be simulated.
    """
    if simulate is not None and not 1 <= simulate <= MOST_SIMULATED:
        raise MeshwrightError(f"simulate = {simulate} is out of range: give 1 to {MOST_SIMULATED}")
    import jax

    from hw.compat import join_processes, simulate_devices

    jax.config.update("jax_platforms", "cpu" if simulate is not None else _ASKED)
    if simulate is not None:
        simulate_devices(simulate)
    if distributed:
        join_processes(simulated=simulate is not None)
