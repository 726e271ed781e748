"""One step of Gauss-Newton stands in for a whole fit of resampled rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from synthetic import TRUTH, measured, true_profile

from iossim.calibration.bootstrap import Bootstrap, bootstrap
from iossim.calibration.fit import Fit, fit
from iossim.calibration.samples import OperatorSamples
from iossim.hardware.fits import GPU_SPACE
from iossim.hardware.load import device

ROWS = 120


@pytest.fixture(scope="module")
def samples() -> OperatorSamples:
    several = measured(true_profile(), ROWS, noise=0.05, overhead_us=20.0)
    return OperatorSamples.of(several, several.measurements, device("v100-sxm2"), 500.0)


@pytest.fixture(scope="module")
def found(samples: OperatorSamples) -> Fit:
    return fit([samples], device("v100-sxm2"), 30)


@pytest.fixture(scope="module")
def resampled(samples: OperatorSamples, found: Fit) -> Bootstrap:
    return bootstrap(found, [samples], 40)


@pytest.mark.slow
def test_one_step_is_nearly_a_whole_fit(samples: OperatorSamples, found: Fit, resampled: Bootstrap) -> None:
    """Of the same rows: a row that was drawn twice is fitted twice."""
    several = measured(true_profile(), ROWS, noise=0.05, overhead_us=20.0)
    generator = np.random.default_rng(0)
    off: list[float] = []
    moved: list[float] = []
    for index in range(4):
        times = generator.multinomial(ROWS, np.full(ROWS, 1 / ROWS))
        rows = [row for row, count in zip(several.measurements, times.tolist(), strict=True) for _ in range(count)]
        again = fit([OperatorSamples.of(several, rows, device("v100-sxm2"), samples.weight)], device("v100-sxm2"), 30)
        for name in TRUTH:
            off.append((resampled.values()[name][index] - again.values[name]) / resampled.spread()[name])
            moved.append((found.values[name] - again.values[name]) / resampled.spread()[name])
    # Medians: of a few resamples one may lead the whole fit to another minimum, which no step foresees.
    assert np.median(np.abs(off)) < 0.75
    assert np.median(np.abs(off)) < 0.75 * np.median(np.abs(moved))


@pytest.mark.slow
def test_spread_is_that_of_other_noise(samples: OperatorSamples, resampled: Bootstrap) -> None:
    """The same operators, measured again and fitted in full."""
    refitted = []
    for seed in range(10):
        noise = np.exp(0.05 * np.random.default_rng(seed).normal(size=ROWS))
        device_us, _ = samples.predict(true_profile())
        again = fit([replace(samples, latency_us=20.0 + device_us * noise)], device("v100-sxm2"), 30)
        refitted.append(again.values)
    for name in TRUTH:
        whole = np.std([values[name] for values in refitted])
        # Of what is beside a floor a resample sees less than another recording would.
        assert 0.3 <= resampled.spread()[name] / whole <= 2.5, name


def test_truth_lies_within(resampled: Bootstrap) -> None:
    values = resampled.values()
    for name, truth in TRUTH.items():
        assert abs(np.mean(values[name]) - truth) <= 4 * np.std(values[name]) + 0.01, name


def test_inside_bounds_and_deterministic(samples: OperatorSamples, found: Fit, resampled: Bootstrap) -> None:
    low, high = GPU_SPACE.bounds()
    assert (resampled.vectors >= low).all()
    assert (resampled.vectors <= high).all()
    np.testing.assert_array_equal(bootstrap(found, [samples], 3).vectors, resampled.vectors[:3])
    assert not np.array_equal(bootstrap(found, [samples], 3, seed=1).vectors, resampled.vectors[:3])


def test_what_no_row_shows_is_unidentified(resampled: Bootstrap) -> None:
    """No row is a transform of weights alone, and none is so large that address translation misses."""
    assert "translation_reach_bytes" in resampled.unidentified
    assert "gemm_efficiency" not in resampled.unidentified
    index = GPU_SPACE.names.index("gemm_efficiency")
    assert resampled.prior_part[index] < 0.1
