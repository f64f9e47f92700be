"""What every test runs under: 16 simulated devices, no silent promotion, compiled programs kept between runs.

The environment is set before the first import of JAX, which reads it once.
"""

import gc
import os
import pathlib

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=16".strip()
os.environ.setdefault("NPROC", "64")  # as `hw.compat.simulate_devices`
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(pathlib.Path(__file__).resolve().parents[1] / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")

import hypothesis
import jax

# Tracing makes many objects that live; to look through them at every 700 takes 7 % of the time.
gc.set_threshold(10_000)

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# Examples are the same in every run, and a first call may compile.
hypothesis.settings.register_profile("meshwright", deadline=None, max_examples=50, derandomize=True)
hypothesis.settings.load_profile("meshwright")
