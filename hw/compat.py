"""The JAX calls whose names or defaults differ between the versions we support (0.10.2 and 0.11.2).

Everything else in the project imports them from here, so that a new JAX version is one file to look at.
"""

import contextlib
import functools
import os
import pathlib
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, ParamSpec, TypeVar

import jax
import numpy as np
from jax.experimental import serialize_executable
from jax.sharding import AbstractMesh, AxisType, Mesh

from hw.errors import MeshwrightError

P = ParamSpec("P")
R = TypeVar("R")


@contextlib.contextmanager
def x64() -> Iterator[None]:
    """64-bit arithmetic inside the block: byte counts and step sums need more than float32's 24 bits."""
    with jax.enable_x64(True):
        yield


def in_x64(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a cost-side function so that it always traces and runs in 64 bits."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with x64():
            return function(*args, **kwargs)

    return wrapped


@contextlib.contextmanager
def on_host() -> Iterator[None]:
    """Small eager arithmetic inside the block runs on the CPU, where there is one beside the accelerator: each of its
    operations would be a program of its own there."""
    try:
        host = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS leaves it out
        yield
        return
    with jax.default_device(host):
        yield


# With two threads more than devices 4 of 28 runs of 4 devices on 2 busy cores hung, with four a device none of 56.
_THREADS_A_DEVICE: Final = 4
_MOST_THREADS: Final = 1024

# For `jit(compiler_options=...)` of cost-side programs, which are thousands of small ops on the CPU: without the fusion
# emitters XLA compiles them in half the time to code as fast (the option is gone in 0.11); of a program that runs once,
# what the compiler would spend on speed is never earned back.
_EMITTERS: Final = {"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 11) else {}
COMPILE_TO_RUN_OFTEN: Final[dict[str, bool | int]] = {**_EMITTERS}
COMPILE_TO_RUN_ONCE: Final[dict[str, bool | int]] = {**_EMITTERS, "xla_backend_optimization_level": 0}


def use_compilation_cache(folder: pathlib.Path | None = None) -> pathlib.Path:
    """Keep compiled programs on disk, so that the second `plan` on a machine starts warm.

    `MESHWRIGHT_CACHE` overrides the folder; an unwritable folder costs speed, never the answer.
    """
    default = pathlib.Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "meshwright" / "jax"
    folder = folder or pathlib.Path(os.environ.get("MESHWRIGHT_CACHE", default))
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder


def compilation_cache_folder() -> str | None:
    """Where compiled programs are kept, if anywhere."""
    return getattr(jax.config, "jax_compilation_cache_dir", None)


class _Outside:
    """How many threads compile outside the cache, and the threshold to go back to after the last."""

    lock: Final = threading.Lock()
    inside = 0
    before = 0.0


@contextlib.contextmanager
def outside_compilation_cache() -> Iterator[None]:
    """Programs compiled in the block stay out of JAX's cache: one that comes from there cannot be packed again."""
    least = "jax_persistent_cache_min_compile_time_secs"
    with _Outside.lock:
        if _Outside.inside == 0:
            _Outside.before = getattr(jax.config, least)
            jax.config.update(least, 1e9)
        _Outside.inside += 1
    try:
        yield
    finally:
        with _Outside.lock:
            _Outside.inside -= 1
            if _Outside.inside == 0:
                jax.config.update(least, _Outside.before)


def pack_executable(executable: jax.stages.Compiled) -> bytes:
    """A compiled program of flat lists as bytes, for this machine and this JAX alone."""
    return pickle.dumps(serialize_executable.serialize(executable))


def unpack_executable(packed: bytes) -> Callable[..., Any]:
    """The program that `pack_executable` packed."""
    one = jax.local_devices()[:1]  # where several are simulated, it would otherwise expect a shard of each
    return serialize_executable.deserialize_and_load(*pickle.loads(packed), execution_devices=one)


def automatic_mesh(devices: np.ndarray, names: tuple[str, ...]) -> Mesh:
    """A mesh whose axes the compiler may cut along by itself; the default type differs between versions."""
    return Mesh(devices, names, axis_types=(AxisType.Auto,) * len(names))


def abstract_mesh(sizes: tuple[int, ...], names: tuple[str, ...]) -> AbstractMesh:
    """The same without devices."""
    return AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(names))


def simulate_devices(count: int) -> None:
    """So many devices on the one CPU, before JAX has touched any.

    A device that waits for others in an exchange holds threads of XLA's pools, which are as large as the machine has
    cores: where these are few and busy, the last device found no thread now and then, and XLA ended the process. NPROC
    is where XLA's CPU client looks for the size of its pools; a user's own value stays.
    """
    threads = max(os.cpu_count() or 1, min(_THREADS_A_DEVICE * count, _MOST_THREADS))
    os.environ.setdefault("NPROC", str(threads))
    jax.config.update("jax_num_cpu_devices", count)


def join_processes(simulated: bool) -> None:
    """Join the other processes of a run: JAX finds SLURM, Open MPI and Kubernetes by itself; elsewhere the variables
    JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID say who is who. MeshwrightError where nothing does."""
    if simulated:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    count, own = os.environ.get("JAX_NUM_PROCESSES"), os.environ.get("JAX_PROCESS_ID")
    try:
        jax.distributed.initialize(
            num_processes=None if count is None else int(count), process_id=None if own is None else int(own)
        )
    except (ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise MeshwrightError(
            f"--distributed found no run to join ({reason}): start it under SLURM, Open MPI or Kubernetes, or set "
            "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID"
        ) from None
