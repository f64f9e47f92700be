"""Kernels in Pallas for Mosaic GPU: its module, and where they run."""

from typing import Any, Final

import jax
import jax.experimental.pallas.mosaic_gpu

from hw.errors import MeshwrightError

# untyped: the signatures are those of JAX 0.11, and checks run on older ones too
plgpu: Final[Any] = jax.experimental.pallas.mosaic_gpu
_CAPABILITY: Final = "9.0"
_OLDEST_JAX: Final = (0, 11)  # Mosaic GPU before it has other signatures and no layout inference by default


def device_for_kernels() -> Any:
    """The default device. Raises MeshwrightError if it, or this JAX, does not run these kernels."""
    if jax.__version_info__[:2] < _OLDEST_JAX:
        raise MeshwrightError(f"jax {jax.__version__}: the kernel needs 0.11 or newer; use another form")
    device = jax.devices()[0]
    capability = str(getattr(device, "compute_capability", device.platform))
    if capability != _CAPABILITY:
        raise MeshwrightError(f"{capability}: the kernel is for compute capability {_CAPABILITY}; use another form")
    return device
