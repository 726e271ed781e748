"""How far predictions are from measured device times, kind by kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from iossim.calibration.prediction.accuracy import Accuracy
from iossim.calibration.prediction.bands import residual_bands
from iossim.calibration.samples import OperatorSamples, nuisances_us
from iossim.hardware.profile import DeviceProfile
from iossim.hardware.provenance import Band, KindError

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Residuals:
    """Predicted and measured device times of operators of one kind in one data set, ``[rows]`` each.

    ``key`` names the kind, and the precision where it is not fp32.
    """

    data_set: str
    key: str
    predicted_us: Floats
    measured_us: Floats

    @property
    def errors(self) -> Floats:
        """Relative to the measured time, with their sign, ``[rows]``."""
        return self.predicted_us / self.measured_us - 1

    @property
    def accuracy(self) -> Accuracy:
        return Accuracy.of(self.predicted_us, self.measured_us)

    def summary(self) -> KindError:
        """The errors in a few numbers; raises ValueError if there are no rows."""
        found = self.accuracy
        if found.mean_error is None or found.median_error is None:
            raise ValueError(f"{self.data_set}: no rows of {self.key} with a prediction")
        return KindError(
            data_set=self.data_set,
            kind=self.key,
            rows=found.rows,
            mape_percent=round(100 * found.mean_error, 2),
            median_error_percent=round(100 * found.median_error, 2),
            kendall_tau=None if found.kendall_tau is None else round(found.kendall_tau, 4),
        )


def device_times(samples: OperatorSamples, profile: DeviceProfile, overhead: Floats) -> tuple[Floats, Floats]:
    """Predicted and measured device times; the measured ones are latencies without the recording's nuisances, whose
    coefficients are ``overhead``: less the host's, and shortened to what an unslowed board would have taken.

    Beside the host's overhead, times below ``least_us`` cannot be told apart: they count as that.
    """
    predicted_us, _ = samples.predict(profile)
    return predicted_us, without_nuisances(samples, predicted_us, overhead)


def without_nuisances(samples: OperatorSamples, predicted_us: Floats, overhead: Floats) -> Floats:
    """Measured device times, ``[samples]``; of a slowed board in the proportion in which a prediction is lengthened."""
    host_us, slowed_us = nuisances_us(samples, overhead)
    share = predicted_us / (predicted_us + slowed_us)
    return np.maximum((samples.latency_us - host_us) * share, samples.least_us)


def residuals_by_kind(
    data_set: str, keys: Sequence[str], predicted_us: Floats, measured_us: Floats
) -> list[Residuals]:
    """Residuals of the rows of each key; keys in the order of the alphabet."""
    names = np.array(keys)
    return [
        Residuals(data_set, key, predicted_us[names == key], measured_us[names == key]) for key in sorted(set(keys))
    ]


def bands_by_kind(residuals: Iterable[Residuals]) -> dict[str, list[Band]]:
    """Bands of each kind over all data sets; a kind with too few rows has none."""
    by_key: dict[str, list[Residuals]] = {}
    for one in residuals:
        by_key.setdefault(one.key, []).append(one)
    bands = {
        key: residual_bands(
            np.concatenate([one.predicted_us for one in several]),
            np.concatenate([one.measured_us for one in several]),
        )
        for key, several in sorted(by_key.items())
    }
    return {key: found for key, found in bands.items() if found}
