"""The correction of estimates by measurements: a ridge regression of logarithms of measured over estimated prices.

The model: log(measured / estimated) = features x weights + error, weights normal around zero and errors normal. The
spreads of the weights of each family, and the size of the error, are the values of a small grid under which the
measurements are most probable (evidence maximisation; C. M. Bishop, Pattern Recognition and Machine Learning, 3.5), so
that noise is not mistaken for structure. The grid is searched again when measurements have doubled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from iossim.base.compiled import Floats, Integers, jit
from iossim.search.measured.stage_classes import Features

#: Standard deviations of weights to choose from: of dense features, of the times of units, and of their shares.
DENSE_SPREADS, TIME_SPREADS, SHARE_SPREADS = (0.03, 0.15), (0.003, 0.05, 0.15), (0.003, 0.1, 0.25)
#: Lower limit of the standard deviation of errors, which few residuals may underestimate.
LEAST_DEVIATION = 0.005
#: Weight of the initial standard deviation, in residuals.
INITIAL_WEIGHT = 3.0
#: Growth of the number of measurements after which the grid of hyperparameters is searched anew.
SEARCH_GROWTH = 2.0
#: Growth after which the weights are fitted anew.
FIT_GROWTH = 1.06


class Correction:
    """Learns from measured classes; ``deviation`` is the standard deviation of the unexplained error."""

    def __init__(self, features: Features, deviation: float) -> None:
        self._features = features
        self._initial = deviation
        self.deviation = deviation
        dense = features.dense.shape[1]
        self._families = np.repeat([0, 1, 2], [dense, features.units, features.units])
        size = len(self._families)
        self._gram = np.zeros((size, size))
        self._moment = np.zeros(size)
        self._squares = 0.0
        self._count = 0
        self._searched_at = self._fitted_at = 0
        self._spreads = np.array([DENSE_SPREADS[0], TIME_SPREADS[0], SHARE_SPREADS[0]])
        self._weights = np.zeros(size)

    def add(self, classes: Sequence[int], residuals: Floats) -> None:
        """Add ``residuals``, log(measured / estimated) of some classes, each once; both ``[added]``."""
        rows = np.zeros((len(classes), len(self._weights)))
        _fill_rows(np.array(classes, dtype=np.int64), self._features, rows)
        _accumulate(rows, residuals, self._gram, self._moment)
        self._squares += float((residuals**2).sum())
        self._count += len(residuals)

    @property
    def is_due(self) -> bool:
        """True if enough was added for another fit."""
        return self._count >= FIT_GROWTH * self._fitted_at

    def fit(self) -> None:
        """Fit the weights to all that was added."""
        self._fitted_at = self._count
        if self._count >= SEARCH_GROWTH * self._searched_at:
            self._search()
            self._searched_at = self._count
        solved = self._solve(self._spreads, self.deviation)
        self._weights, self.deviation = solved.weights, solved.deviation

    def predict(self) -> Floats:
        """The expected log(measured / estimated) of every class, shape ``[classes]``."""
        predicted = np.empty(len(self._features.dense))
        _predict(self._features, self._weights, predicted)
        return predicted

    def _search(self) -> None:
        best = -np.inf
        for spreads in product(DENSE_SPREADS, TIME_SPREADS, SHARE_SPREADS):
            first = self._solve(np.array(spreads), self.deviation)
            solved = self._solve(np.array(spreads), first.deviation)
            if solved.evidence > best:
                best = solved.evidence
                self._spreads, self.deviation = np.array(spreads), solved.deviation

    def _solve(self, spreads: Floats, deviation: float) -> _Solved:
        """The weights if errors have this standard deviation, and the standard deviation of the remaining error."""
        spread = spreads[self._families]
        # In units of each weight's spread, so that the matrix is well conditioned.
        scaled = self._gram * np.outer(spread, spread) / deviation**2
        scaled[np.diag_indices_from(scaled)] += 1.0
        moment = self._moment * spread / deviation**2
        weights = np.empty(len(moment))
        trace, log_determinant = _solve(scaled, moment, weights)
        explained = float((moment * weights).sum())
        evidence = -self._count * np.log(deviation) - 0.5 * (log_determinant + self._squares / deviation**2 - explained)
        # The squared error, including the effect of shrinking the weights: |y - Xw|^2 = y'y - 2 w'X'y + w'X'Xw.
        shrunk = float((weights**2).sum())
        left = max(0.0, self._squares - deviation**2 * (explained + shrunk))
        freedom = max(1.0, self._count - (len(spread) - trace))
        variance = (INITIAL_WEIGHT * self._initial**2 + left) / (INITIAL_WEIGHT + freedom)
        return _Solved(weights * spread, max(LEAST_DEVIATION, float(np.sqrt(variance))), float(evidence))


@dataclass(frozen=True, eq=False)
class _Solved:
    weights: Floats
    deviation: float
    #: The logarithm of the probability of the measurements, up to a constant.
    evidence: float


# Not by LAPACK, whose threads cost more than these small systems, and whose rounding depends on them.


@jit
def _accumulate(rows: Floats, residuals: Floats, gram: Floats, moment: Floats) -> None:
    """``gram += rows' rows``, ``moment += rows' residuals``; rows have few entries."""
    columns = rows.shape[1]
    entries = np.empty(columns, dtype=np.int64)
    for index in range(len(rows)):
        count = 0
        for column in range(columns):
            if rows[index, column] != 0.0:
                entries[count] = column
                count += 1
        for first in range(count):
            one = entries[first]
            moment[one] += rows[index, one] * residuals[index]
            for second in range(count):
                gram[one, entries[second]] += rows[index, one] * rows[index, entries[second]]


@jit
def _dot(a: Floats, b: Floats, begin: int, end: int) -> float:
    """The sum of products from ``begin`` to ``end``, in four independent sums, which a processor adds in parallel."""
    s0 = s1 = s2 = s3 = 0.0
    even = begin + (end - begin) // 4 * 4
    for k in range(begin, even, 4):
        s0 += a[k] * b[k]
        s1 += a[k + 1] * b[k + 1]
        s2 += a[k + 2] * b[k + 2]
        s3 += a[k + 3] * b[k + 3]
    for k in range(even, end):
        s0 += a[k] * b[k]
    return (s0 + s1) + (s2 + s3)


@jit
def _solve(matrix: Floats, right: Floats, solution: Floats) -> tuple[float, float]:
    """By Cholesky, in place; fills ``solution``; returns the trace of the inverse, the logarithm of the determinant."""
    size = len(matrix)
    log_determinant = 0.0
    for i in range(size):
        for j in range(i):
            matrix[i, j] = (matrix[i, j] - _dot(matrix[i], matrix[j], 0, j)) / matrix[j, j]
        matrix[i, i] = np.sqrt(matrix[i, i] - _dot(matrix[i], matrix[i], 0, i))
        log_determinant += 2.0 * np.log(matrix[i, i])
        solution[i] = (right[i] - _dot(matrix[i], solution, 0, i)) / matrix[i, i]
    for i in range(size - 1, -1, -1):
        solution[i] /= matrix[i, i]
        for k in range(i):
            solution[k] -= matrix[i, k] * solution[i]
    trace = 0.0
    column = np.empty(size)
    for j in range(size):
        column[j] = 1.0 / matrix[j, j]
        trace += column[j] * column[j]
        for i in range(j + 1, size):
            column[i] = -_dot(matrix[i], column, j, i) / matrix[i, i]
            trace += column[i] * column[i]
    return trace, log_determinant


@jit
def _fill_rows(classes: Integers, features: Features, rows: Floats) -> None:
    dense, begin, unit, time, share, units = features
    first = dense.shape[1]
    for index in range(len(classes)):
        one = classes[index]
        for column in range(first):
            rows[index, column] = dense[one, column]
        for entry in range(begin[one], begin[one + 1]):
            rows[index, first + unit[entry]] += time[entry]
            rows[index, first + units + unit[entry]] += share[entry]


@jit
def _predict(features: Features, weights: Floats, predicted: Floats) -> None:
    dense, begin, unit, time, share, units = features
    first = dense.shape[1]
    for one in range(len(dense)):
        total = 0.0
        for column in range(first):
            total += dense[one, column] * weights[column]
        for entry in range(begin[one], begin[one + 1]):
            total += time[entry] * weights[first + unit[entry]] + share[entry] * weights[first + units + unit[entry]]
        predicted[one] = total


# Value of a stage that is not measured yet. A measurement is an expense, with the chance that the stage is cheaper than
# expected. So a stage is valued at its reservation price (M. L. Weitzman, Optimal search
# for the best alternative, Econometrica 47, 1979): the price z at which the expected gain, E[max(0, z - price)], is
# just worth a measurement. Prices are taken to be normal around what is expected, with a standard deviation
# proportional to it. Then z lies k standard deviations below what is expected, and k grows with the price: a long
# stage is worth a longer shot; a short one is valued above its expected price. Kappa sets the worth of a measurement:
# the gain of a stage of typical price at k = kappa.

#: The values of k that are distinguished.
_K = np.linspace(-30.0, 6.0, 4000)


def optimistic_us(expected_us: Floats, deviation: float, kappa: float, typical_us: float) -> Floats:
    """The reservation price of each stage, us, from its expected price and the standard deviation of its logarithm.

    ``expected_us`` and the result have shape ``[stages]``; ``typical_us`` is the price whose gain ``kappa`` is for.
    """
    gain = _gain(_K)
    worth = float(np.interp(kappa, _K, gain)) * typical_us
    with np.errstate(divide="ignore", over="ignore"):
        wanted = -np.log(worth / expected_us)
    k = np.interp(wanted, -np.log(gain), _K)
    # For k > 0 the logarithm is normal, so that a price k standard deviations below is still positive.
    return np.where(k > 0, expected_us * np.exp(-k * deviation), expected_us * (1 - k * deviation))


def _gain(k: Floats) -> Floats:
    """The expected gain over a price that lies ``k`` standard deviations below the mean, in standard deviations.

    The expected improvement of a normal variable (D. R. Jones, M. Schonlau, W. J. Welch, J. Global Optimization 13,
    1998).
    """
    from scipy.special import ndtr

    density = np.exp(-0.5 * k**2) / np.sqrt(2 * np.pi)
    return np.asarray(density - k * ndtr(-k), dtype=np.float64)
