"""Weights in blocks with scales: their bytes, their values against numpy float64, cuts, and whole decoders of them."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from jax.sharding import NamedSharding, PartitionSpec

from hw.compat import automatic_mesh
from layouts.four_bits import of_e2m1, pack, to_e2m1, unpack
from layouts.shapes import ShapeError
from layouts.stored import Stored, specs_of
from layouts.stored import quantise as quantise_
from layouts.tensor import FORMATS, Format

quantise = jax.jit(quantise_, static_argnums=(1, 2, 3), static_argnames="runs")
worked_out = jax.jit(lambda stored: stored.astype(jnp.float32))
SCALED = ("fp8", "mxfp4", "nvfp4", "int4")
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
LARGEST = {"fp8": 448.0, "mxfp4": 6.0, "nvfp4": 6.0, "int4": 7.0}
# OCP Microscaling Formats 1.0 table 5, and the same with the sign bit
GRID = {"mxfp4": np.concatenate([-E2M1, E2M1]), "nvfp4": np.concatenate([-E2M1, E2M1]), "int4": np.arange(-8.0, 8.0)}
_every = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
GRID["fp8"] = np.unique(_every[np.isfinite(_every)])


def drawn(*shape: int, seed: int = 0) -> jax.Array:
    """Normal values whose sizes differ by a few orders from row to row."""
    random = np.random.default_rng(seed)
    values = random.normal(size=shape) * 10.0 ** random.integers(-2, 3, size=(*shape[:-1], 1))
    return jnp.asarray(values, jnp.float32)


def values(stored: Stored) -> np.ndarray:
    return np.asarray(worked_out(stored))


def scales(stored: Stored) -> np.ndarray:
    """Float64 scale of every value, by numpy alone."""
    scale = np.asarray(stored.scale).astype(np.float64)
    if stored.matrix is not None:
        scale = scale * np.asarray(stored.matrix, np.float64)
    for axis, block in enumerate(stored.block):
        scale = np.repeat(scale, block, axis=axis)
    return scale[tuple(slice(0, size) for size in stored.shape)]


@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize(("shape", "inputs"), [((256, 128), 1), ((3, 2, 128, 256), 1), ((128, 2, 128), 2)])
def test_bytes_are_those_of_the_format(name: str, shape: tuple[int, ...], inputs: int) -> None:
    stored, form = quantise(drawn(*shape), FORMATS[name], inputs), FORMATS[name]
    parameters = int(np.prod(shape))
    assert stored.shape == shape
    assert stored.payload.nbytes == form.payload * parameters
    assert stored.scale.nbytes == form.scale * parameters
    assert (stored.matrix is None) == (name != "nvfp4")


def test_ragged_blocks_and_the_group_that_a_format_names() -> None:
    assert quantise(drawn(5, 200, 130), FORMATS["fp8"]).scale.shape == (5, 2, 2)
    by_128 = replace(FORMATS["int4"], scale=Fraction(2, 128))
    assert quantise(drawn(4, 300), by_128).scale.shape == (4, 3)
    assert quantise(drawn(96, 32), FORMATS["fp8"], runs=2).block == (16, 128)
    assert quantise(drawn(6, 4, 10, 40), FORMATS["nvfp4"]).matrix.shape == (6, 4, 1, 1)  # pyright: ignore[reportOptionalMemberAccess]


def test_codes_of_four_bits() -> None:
    codes = jnp.arange(16, dtype=jnp.uint8)
    found = np.asarray(of_e2m1(codes))
    np.testing.assert_array_equal(found, np.concatenate([E2M1, -E2M1]))
    np.testing.assert_array_equal(to_e2m1(jnp.asarray(found)), codes)
    # the first value of a pair lies in the low half: 1 and 6 are codes 2 and 7
    assert pack(to_e2m1(jnp.array([1.0, 6.0]))).tolist() == [0x72]
    np.testing.assert_array_equal(unpack(pack(codes)), codes)
    halves = (E2M1[1:] + E2M1[:-1]) / 2  # ties go to even codes
    np.testing.assert_array_equal(np.asarray(of_e2m1(to_e2m1(jnp.asarray(halves, jnp.float32)))), [0, 1, 1, 2, 2, 4, 4])


def test_values_by_hand() -> None:
    row = np.array([[0.5, -1.0, 3.0, 12.0] + [0.0] * 28])
    stored = quantise(jnp.asarray(row, jnp.float32), FORMATS["mxfp4"])
    # 12 = 6 x 2, so the scale is 2^1, byte 128; values over it are 0.25 (tie: 0), -0.5, 1.5, 6
    assert np.asarray(stored.scale).view(np.uint8).tolist() == [[128]]
    assert np.asarray(stored.payload)[0, :3].tolist() == [0x90, 0x73, 0]
    np.testing.assert_array_equal(values(stored)[0, :4], [0.0, -1.0, 3.0, 12.0])
    block = quantise(jnp.full((128, 128), -7.0, jnp.float32), FORMATS["fp8"])
    np.testing.assert_array_equal(np.asarray(block.scale), [[7.0 / 448]])
    np.testing.assert_array_equal(values(block), np.full((128, 128), -7.0))


def entries(most: float) -> st.SearchStrategy[float]:
    """Zero, or large enough that no scale of it is subnormal, which XLA flushes to zero."""
    above = st.floats(2.0**-100, most, width=32)
    return st.just(0.0) | above | above.map(lambda value: -value)


blocks = hnp.arrays(np.float32, (3, 64), elements=entries(2.0**40)) | hnp.arrays(
    np.float32, (3, 64), elements=entries(1)
)


@pytest.mark.parametrize("name", SCALED)
@given(weight=blocks)
def test_every_value_is_the_nearest_that_its_scale_allows(name: str, weight: np.ndarray) -> None:
    stored = quantise(jnp.asarray(weight), FORMATS[name])
    scale, wide = scales(stored), weight.astype(np.float64)
    nearest = np.abs(wide[..., None] - scale[..., None] * GRID[name]).min(axis=-1)
    off = np.abs(values(stored) - wide)
    # float32 rounding of the quotient may send a value to the other side of a tie, and the product is rounded once more
    assert np.all(off <= nearest + 2.0**-22 * np.abs(wide) + 2.0**-120)


@pytest.mark.parametrize("name", SCALED)
@given(weight=blocks)
def test_error_is_half_a_step_of_the_largest(name: str, weight: np.ndarray) -> None:
    """The widest step of e2m1 is 2 of 6, of int4 1 of 7, of e4m3 32 of 448: half of it, in units of what the largest
    value of the block asks for as scale. A power of two is up to twice what is asked for; e4m3 and bf16 scales are off
    by a sixteenth and a 256th of it, e4m3 ones also by half the least, 2^-10 of the matrix's scale."""
    stored = quantise(jnp.asarray(weight), FORMATS[name])
    wide, (rows, inputs) = weight.astype(np.float64), stored.block
    over = np.abs(wide).reshape(-1, 64 // inputs, inputs).max(axis=-1) if rows == 1 else np.abs(wide).max()
    asked = np.repeat(over, inputs, axis=-1) / LARGEST[name] if rows == 1 else over / LARGEST[name]
    half = {"fp8": 16.0, "mxfp4": 1.0, "nvfp4": 1.0, "int4": 0.5}[name]
    factor = {"fp8": 1.0, "mxfp4": 2.0, "nvfp4": 17 / 16, "int4": 257 / 256}[name]
    least = 6 * 2.0**-10 * np.abs(wide).max() / (6 * 448) if name == "nvfp4" else 0.0
    assert np.all(np.abs(values(stored) - wide) <= (half * factor * asked + least) * (1 + 2.0**-20) + 2.0**-120)


@pytest.mark.parametrize("name", SCALED)
def test_zeros_stay_zeros(name: str) -> None:
    np.testing.assert_array_equal(values(quantise(jnp.zeros((4, 64)), FORMATS[name])), np.zeros((4, 64)))
    beside = jnp.zeros((4, 64)).at[0, 0].set(6.0)  # blocks of zeros in a matrix that has others
    np.testing.assert_allclose(values(quantise(beside, FORMATS[name])), beside, rtol=2.0**-7)


def test_scales_of_nvfp4_use_the_whole_of_e4m3() -> None:
    stored = quantise(drawn(3, 32, 64), FORMATS["nvfp4"])
    np.testing.assert_array_equal(np.asarray(stored.scale).astype(np.float64).max(axis=(1, 2)), 448.0)
    tiny = jnp.zeros((1, 32), jnp.float32).at[0, 0].set(6 * 448.0).at[0, 16].set(2.0**-10)  # below half the least scale
    assert values(quantise(tiny, FORMATS["nvfp4"]))[0, [0, 16]].tolist() == [6 * 448.0, 0.0]


@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("parts", [(1, 1, 1), (3, 1, 1), (1, 8, 1), (1, 1, 8), (3, 4, 10), (1, 5, 1)])
def test_a_cut_keeps_values_and_gives_every_part_its_scales(name: str, parts: tuple[int, ...]) -> None:
    stored = quantise(drawn(3, 200, 160), FORMATS[name])
    cut = stored.cut(parts)
    np.testing.assert_array_equal(values(cut), values(stored))
    for size, block, scale, n in zip(stored.shape, cut.block, cut.scale.shape, parts, strict=True):
        assert n == 1 or (size // n % block == 0 and scale % n == 0)


def test_a_cut_along_whole_blocks_repeats_nothing() -> None:
    stored = quantise(drawn(256, 512), FORMATS["fp8"])
    assert stored.cut((2, 4)).scale.shape == (2, 4)
    assert stored.cut((4, 1)).scale.shape == (4, 4)  # 64 rows a rank: each block of 128 has its scale twice
    assert quantise(drawn(200, 300), FORMATS["fp8"]).cut((1, 1)).scale.shape == (2, 3)


def test_what_cannot_be_stored_or_cut() -> None:
    with pytest.raises(ShapeError, match="7 inputs do not fill bytes of two"):
        quantise(drawn(4, 7), FORMATS["mxfp4"])
    with pytest.raises(ShapeError, match="has no output"):
        quantise(drawn(64), FORMATS["fp8"])
    with pytest.raises(ShapeError, match="cut inside a byte"):
        quantise(drawn(4, 24), FORMATS["mxfp4"]).cut((1, 8))


@pytest.mark.parametrize("name", SCALED)
def test_each_rank_reads_its_part(name: str) -> None:
    """In shard_map a rank's payload and scales are a weight of their own, whose values are its part of the whole."""
    mesh = automatic_mesh(np.array(jax.devices()).reshape(2, 8), ("a", "b"))
    spec = PartitionSpec("a", "b", None)
    stored = quantise(drawn(2, 160, 64), FORMATS[name]).cut((2, 8, 1))
    specs: Any = specs_of(stored, spec, spec)

    def rank(part: Stored) -> jax.Array:
        assert part.shape == (1, 20, 64)
        return part.astype(jnp.float32)

    placed = jax.tree.map(lambda x, s: jax.device_put(x, NamedSharding(mesh, s)), stored, specs)
    found = jax.jit(jax.shard_map(rank, mesh=mesh, in_specs=(specs,), out_specs=spec))(placed)
    np.testing.assert_array_equal(found, values(stored))


def test_astype_rounds_once() -> None:
    stored = quantise(drawn(8, 64), FORMATS["nvfp4"])
    expected = values(stored).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(np.asarray(stored.astype(jnp.bfloat16)), expected)


def test_blocks_are_the_formats_own() -> None:
    small = Format("fp8", Fraction(1), Fraction(4, 64), "fp8", 8)
    stored = quantise(drawn(16, 24), small)
    assert stored.scale.shape == (2, 3)
    largest = np.abs(np.asarray(drawn(16, 24), np.float64)).reshape(2, 8, 3, 8).max(axis=(1, 3))
    np.testing.assert_allclose(np.asarray(stored.scale, np.float64), largest / 448, rtol=2.0**-23)
