"""SciPy's solvers: least squares on one BLAS thread, since sums depend on the number of threads, and quiet MILPs."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from threadpoolctl import threadpool_limits

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult


def least_squares(*args: object, **options: object) -> OptimizeResult:
    """:func:`scipy.optimize.least_squares`."""
    from scipy import optimize

    with threadpool_limits(limits=1, user_api="blas"):
        return optimize.least_squares(*args, **options)


def lsq_linear(*args: object, **options: object) -> OptimizeResult:
    """:func:`scipy.optimize.lsq_linear`."""
    from scipy import optimize

    with threadpool_limits(limits=1, user_api="blas"):
        return optimize.lsq_linear(*args, **options)


def solve_integer_program(*args: object, **options: object) -> OptimizeResult:
    """:func:`scipy.optimize.milp`, without the messages of HiGHS on standard output."""
    from scipy.optimize import milp

    with silent():  # HiGHS in SciPy 1.17 always prints a line
        return milp(*args, **options)


@contextmanager
def silent() -> Iterator[None]:
    """Redirect file descriptor 1 to nothing, for libraries that print there."""
    if sys.stdout is not None:
        sys.stdout.flush()
    _flush_c()
    try:
        saved = os.dup(1)
    except OSError:  # the descriptor is closed
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        _flush_c()
        os.dup2(saved, 1)
        os.close(saved)
        os.close(nowhere)


def _flush_c() -> None:
    """Flush C's standard output: what it prints to a pipe stays in its buffer until that is full."""
    if os.name == "posix":
        ctypes.CDLL(None).fflush(None)
