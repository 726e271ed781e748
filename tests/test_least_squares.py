"""A fit ends at the same place however many threads BLAS has."""

from __future__ import annotations

import numpy as np
from threadpoolctl import threadpool_limits

from iossim.base.solvers import least_squares, lsq_linear


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
