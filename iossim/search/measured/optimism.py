"""What a stage should count for that is not measured yet: as much as it may turn out to be worth measuring.

A measurement is an expense, and what it promises is the chance that the stage is cheaper than thought. So a stage counts
for its reservation price (M. L. Weitzman, Optimal search for the best alternative, Econometrica 47, 1979): the price ``z``
at which the expected gain, ``E[max(0, z - price)]``, is just worth a measurement. Prices are taken to be normal around
what is expected, with a standard deviation proportional to it. Then ``z`` lies ``k`` standard deviations below what is
expected, and ``k`` grows with the price: a stage that takes long is worth a longer shot; a short one counts for more than is
expected of it.

``kappa`` says how much a measurement is worth: as much as what a stage of typical price gains at ``k = kappa``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: The values of k that are told apart.
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
    # The logarithm is normal where that matters: k standard deviations below, a price is still positive.
    return np.where(k > 0, expected_us * np.exp(-k * deviation), expected_us * (1 - k * deviation))


def _gain(k: Floats) -> Floats:
    """The expected gain over a price that lies ``k`` standard deviations below the mean, in standard deviations.

    The expected improvement of a normal variable (D. R. Jones, M. Schonlau, W. J. Welch, J. Global Optimization 13, 1998).
    """
    from scipy.special import ndtr

    density = np.exp(-0.5 * k**2) / np.sqrt(2 * np.pi)
    return np.asarray(density - k * ndtr(-k), dtype=np.float64)
