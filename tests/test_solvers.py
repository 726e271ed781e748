"""Least squares and 0-1 programs, held to what is known of their solutions."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
import pytest
import scipy.optimize
from scipy.optimize import LinearConstraint
from threadpoolctl import threadpool_limits

from iossim.base.solvers import least_squares, lsq_linear, solve_integer_program


def test_threads_change_nothing() -> None:
    generator = np.random.default_rng(1)
    matrix, noise = generator.standard_normal((4000, 40)), generator.standard_normal(4000)
    first = np.full(40, 0.1)

    def fitted() -> bytes:
        found = least_squares(lambda x: np.tanh((matrix * x).sum(axis=1)) - noise, first, loss="soft_l1", max_nfev=8)
        linear = lsq_linear(matrix, noise, bounds=(-0.01, 0.01))
        return bytes(found.x.tobytes() + linear.x.tobytes())

    ends = set()
    for threads in (1, 2, 4):
        with threadpool_limits(limits=threads, user_api="blas"):
            ends.add(fitted())
    assert len(ends) == 1


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
