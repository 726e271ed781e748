"""Rows of a table of candidates are the rows of a table of those operators."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic import measured, true_profile

from iossim.calibration.samples import OperatorSamples


@pytest.mark.parametrize("seed", range(3))
def test_the_same_as_lowering_the_rows_alone(seed: int) -> None:
    profile = true_profile()
    several = measured(profile, 40)
    chosen = np.random.default_rng(seed).random(40) < 0.5
    rows = [row for row, is_chosen in zip(several.measurements, chosen, strict=True) if is_chosen]
    alone = OperatorSamples.of(several, rows, profile, 3.0)
    part = OperatorSamples.of(several, several.measurements, profile, 3.0).where(chosen)
    np.testing.assert_array_equal(part.latency_us, alone.latency_us)
    np.testing.assert_array_equal(part.table.kernels, alone.table.kernels)
    for mine, other in zip(part.predict(profile), alone.predict(profile), strict=True):
        np.testing.assert_array_equal(mine, other)
