"""The real tables, where they are: curves agree with rows that they were fitted to, and interpolation with rows left
out of it."""

import numpy as np
import pytest

from experiments.op_tables import agreements
from hw.tables import Kind, TablesError, installed
from hw.tables.grid import interpolated

try:
    installed("b200")
    MISSING = ""
except TablesError as error:
    MISSING = str(error)
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

# medians that the fits state (hw/fits), and a little for what warm caches make of a repeated launch
_STATED = {Kind.GEMM: 0.09, Kind.MLA_DECODE: 0.08, Kind.LIBRARY: 0.05}


@pytest.mark.parametrize("chip", ["b200", "h200"])
def test_curves_agree_with_rows_that_they_were_fitted_to(chip: str):
    found = [a for a in agreements(chip, "sglang", _STATED) if a.rows == "fitted"]
    assert {Kind(a.kind) for a in found} == {*_STATED}
    for agreement in found:
        if agreement.size == "large":
            assert agreement.median < _STATED[Kind(agreement.kind)], agreement


@pytest.mark.parametrize(("axis", "level"), [("n", 3584), ("k", 2048)])
def test_a_level_left_out_is_interpolated(axis: str, level: int):
    """Medians are 3 to 7 %: engines change kernels between levels, and rows scatter by more than that."""
    rows = installed("b200").rows(Kind.GEMM)
    assert rows is not None
    ours = rows["gemm_dtype"] == "fp8_block"
    sizes = np.stack([rows[name][ours] for name in ("k", "n", "m")], axis=1).astype(float)
    seconds, out = rows["latency"][ours], rows[axis][ours] == level
    asked = np.flatnonzero(out)[::29]
    found = [interpolated(sizes[~out], seconds[~out], sizes[i]) for i in asked]
    errors = [abs(f[0] / seconds[i] - 1.0) for f, i in zip(found, asked, strict=True) if f is not None]
    assert len(errors) == len(asked)
    assert np.median(errors) < 0.09
