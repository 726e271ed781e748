"""Integer programs are solved in silence."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
import pytest
import scipy.optimize
from scipy.optimize import LinearConstraint

from iossim.base.solvers import solve_integer_program


def test_a_small_knapsack() -> None:
    rng = np.random.default_rng(0)
    values, sizes = rng.integers(1, 10**6, 30), rng.integers(1, 10**6, 30)
    row = LinearConstraint(sizes[None, :].astype(float), -np.inf, float(sizes.sum() // 3))
    found = solve_integer_program(-values, integrality=np.ones(30), bounds=(0, 1), constraints=row)
    assert found.status == 0
    assert sizes @ np.rint(found.x) <= sizes.sum() // 3


@pytest.mark.skipif(os.name != "posix", reason="C's output is flushed on POSIX alone")
def test_what_the_solver_prints_is_not_heard(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def chatty(*args: Any) -> str:
        os.write(1, b"straight out\n")
        ctypes.CDLL(None).printf(b"through C's buffer\n")
        return "solved"

    monkeypatch.setattr(scipy.optimize, "milp", chatty)
    assert solve_integer_program() == "solved"
    print("heard")
    assert capfd.readouterr().out == "heard\n"
