"""Integer programs are solved in silence."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import LinearConstraint

from iossim.integer_program import solve_integer_program


def test_a_small_knapsack_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    for _ in range(5):
        values, sizes = rng.integers(1, 10**6, 30), rng.integers(1, 10**6, 30)
        row = LinearConstraint(sizes[None, :].astype(float), -np.inf, float(sizes.sum() // 3))
        found = solve_integer_program(-values, integrality=np.ones(30), bounds=(0, 1), constraints=row)
        assert sizes @ np.rint(found.x) <= sizes.sum() // 3
    print("heard")
    assert capfd.readouterr().out == "heard\n"
