"""What measurements say about the estimates: a ridge regression of logarithms of measured over estimated prices.

The model: log(measured / estimated) = features x weights + error, weights normal around zero and errors normal. How far
weights of each family may go, and how large the error is, are the values of a small grid under which what was measured
is most probable (evidence maximisation; C. M. Bishop, Pattern Recognition and Machine Learning, 3.5), so that an
error without structure is not mistaken for one. The grid is searched anew when measurements have grown by half.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from iossim.compiled import jit
from iossim.scheduling.measured.stage_classes import Features

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: Standard deviations that weights may have: of dense features, of the times of units, and of their shares.
DENSE_SPREADS, TIME_SPREADS, SHARE_SPREADS = (0.03, 0.15), (0.003, 0.05, 0.15), (0.003, 0.1, 0.25)
#: Errors are not taken to be smaller than this, however few residuals say so.
LEAST_DEVIATION = 0.005
#: By how many residuals the initial standard deviation counts.
INITIAL_WEIGHT = 3.0
#: The grid of hyperparameters is searched anew when there are so many times more measurements.
SEARCH_GROWTH = 2.0
#: The weights are fitted anew when there are so many times more.
FIT_GROWTH = 1.06


class Correction:
    """Learns from measured classes; ``deviation`` is the standard deviation of what it does not explain."""

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
        """Take in log(measured / estimated) of some classes, each once."""
        rows = _rows(np.array(classes, dtype=np.int64), *self._arrays, len(self._families))
        self._gram += rows.T @ rows
        self._moment += rows.T @ residuals
        self._squares += float(residuals @ residuals)
        self._count += len(residuals)

    @property
    def is_due(self) -> bool:
        """Whether enough was added for another fit to tell more."""
        return self._count >= FIT_GROWTH * self._fitted_at

    def fit(self) -> None:
        """Take over what was added."""
        self._fitted_at = self._count
        if self._count >= SEARCH_GROWTH * self._searched_at:
            self._search()
            self._searched_at = self._count
        solved = self._solve(self._spreads, self.deviation)
        self._weights = solved.weights
        left = self._squares - 2 * self._moment @ self._weights + self._weights @ self._gram @ self._weights
        freedom = max(1.0, self._count - solved.freedom)
        variance = (INITIAL_WEIGHT * self._initial**2 + max(0.0, float(left))) / (INITIAL_WEIGHT + freedom)
        self.deviation = max(LEAST_DEVIATION, float(np.sqrt(variance)))

    def predict(self) -> Floats:
        """The expected log(measured / estimated) of every class."""
        predicted: Floats = _predict(*self._arrays, self._weights)
        return predicted

    @property
    def _arrays(self) -> tuple[Floats, Integers, Integers, Floats, Floats]:
        one = self._features
        return one.dense, one.begin, one.unit, one.time, one.share

    def _search(self) -> None:
        best = -np.inf
        for spreads in product(DENSE_SPREADS, TIME_SPREADS, SHARE_SPREADS):
            deviation = self.deviation
            for _ in range(2):
                solved = self._solve(np.array(spreads), deviation)
                left = self._squares - self._moment @ solved.weights
                left += solved.weights @ (self._gram @ solved.weights - self._moment)
                freedom = max(1.0, self._count - solved.freedom)
                deviation = np.sqrt(
                    (INITIAL_WEIGHT * self._initial**2 + max(0.0, float(left))) / (INITIAL_WEIGHT + freedom)
                )
                deviation = max(LEAST_DEVIATION, float(deviation))
            if solved.evidence > best:
                best = solved.evidence
                self._spreads = np.array(spreads)
                self.deviation = deviation

    def _solve(self, spreads: Floats, deviation: float) -> _Solved:
        spread = spreads[self._families]
        # In units of each weight's spread, so that the matrix is well conditioned.
        scaled = self._gram * spread[:, None] * spread[None, :] / deviation**2
        scaled[np.diag_indices_from(scaled)] += 1.0
        factor = np.linalg.cholesky(scaled)
        moment = self._moment * spread / deviation**2
        inverse = np.linalg.inv(factor)
        weights = inverse.T @ (inverse @ moment)
        trace = float((inverse**2).sum())
        fit = self._squares / deviation**2 - moment @ weights
        evidence = -self._count * np.log(deviation) - np.log(np.diag(factor)).sum() - 0.5 * fit
        return _Solved(weights * spread, len(spread) - trace, float(evidence))


class _Solved:
    def __init__(self, weights: Floats, freedom: float, evidence: float) -> None:
        self.weights, self.freedom, self.evidence = weights, freedom, evidence


@jit
def _rows(
    classes: Integers, dense: Floats, begin: Integers, unit: Integers, time: Floats, share: Floats, size: int
) -> Floats:
    first = dense.shape[1]
    units = (size - first) // 2
    rows = np.zeros((len(classes), size))
    for index in range(len(classes)):
        one = classes[index]
        rows[index, :first] = dense[one]
        for entry in range(begin[one], begin[one + 1]):
            rows[index, first + unit[entry]] += time[entry]
            rows[index, first + units + unit[entry]] += share[entry]
    return rows


@jit
def _predict(dense: Floats, begin: Integers, unit: Integers, time: Floats, share: Floats, weights: Floats) -> Floats:
    first = dense.shape[1]
    units = (len(weights) - first) // 2
    predicted = np.empty(len(dense))
    for one in range(len(dense)):
        total = 0.0
        for column in range(first):
            total += dense[one, column] * weights[column]
        for entry in range(begin[one], begin[one + 1]):
            total += time[entry] * weights[first + unit[entry]] + share[entry] * weights[first + units + unit[entry]]
        predicted[one] = total
    return predicted
