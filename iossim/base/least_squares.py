"""SciPy's least squares on one thread of BLAS: sums depend on their number."""

from __future__ import annotations

from typing import Any

from threadpoolctl import threadpool_limits


def least_squares(*args: Any, **options: Any) -> Any:
    """:func:`scipy.optimize.least_squares`."""
    from scipy import optimize

    with threadpool_limits(limits=1, user_api="blas"):
        return optimize.least_squares(*args, **options)


def lsq_linear(*args: Any, **options: Any) -> Any:
    """:func:`scipy.optimize.lsq_linear`."""
    from scipy import optimize

    with threadpool_limits(limits=1, user_api="blas"):
        return optimize.lsq_linear(*args, **options)
