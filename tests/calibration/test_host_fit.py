"""The gap between kernels by published sequential figures, and one step of Gauss-Newton instead of a fit of resampled rows."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from made_sets import TRUTH, measured, true_profile
from operators import parse_description

from iossim.calibration.fit import Bootstrap, Fit, bootstrap, fit
from iossim.calibration.host_fit import DATA_SET, fit_host, sequences, with_gap
from iossim.calibration.samples import OperatorSamples
from iossim.hardware.fits import GPU_SPACE
from iossim.hardware.load import device
from iossim.hardware.profile import with_values
from iossim.prediction.predict import predict
from iossim.prediction.published import published_figures

DEVICE = "v100-sxm2"


def changed(monkeypatch: pytest.MonkeyPatch, factor: float, *, sequential: bool, model: str = "") -> None:
    """Multiply the figures of sequential schedules and single units, or of all others, of one model or of all."""
    figures: dict[str, Any] = published_figures()

    def times(ms: float, is_sequential: bool) -> float:
        return factor * ms if is_sequential == sequential else ms

    networks = [
        {**row, "latency_ms": {name: times(ms, name == "sequential") for name, ms in row["latency_ms"].items()}}
        if model in ("", row["model"])
        else row
        for row in figures["networks"]
    ]
    stages = [
        {**row, "latency_ms": {name: times(ms, "," not in name) for name, ms in row["latency_ms"].items()}}
        if model in ("", "ios_sample")
        else row
        for row in figures["sample_stages"]
    ]
    told = {**figures, "networks": networks, "sample_stages": stages}
    monkeypatch.setattr("iossim.calibration.host_fit.published_figures", lambda: told)


def test_the_profile_that_ships_is_what_is_found() -> None:
    own, found = device(DEVICE), fit_host(device(DEVICE))
    known = own.parameter_values
    assert found.values == pytest.approx({name: known[name] for name in found.values}, rel=0.01)
    assert {name: own.provenance.spread[name] for name in found.spread} == dict(found.spread)
    assert [one.rows for one in own.provenance.data_sets if one.name == DATA_SET] == [found.figures]
    # A concat of three terms by itself, 17.9 us, is three launches.
    assert found.values["bare_launch_us"] == pytest.approx(17.9 / 3, rel=0.03)


def test_what_the_profile_had_is_not_remembered() -> None:
    start = with_gap(with_values(device(DEVICE), {"bare_launch_us": 2.0, "library_call_us": 2.0}), 2.5)
    own, other = fit_host(device(DEVICE)), fit_host(start)
    assert other.values == pytest.approx(dict(own.values), rel=0.02)


def test_concurrent_figures_may_be_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fit_host(device(DEVICE))
    changed(monkeypatch, 3.0, sequential=False)
    assert fit_host(device(DEVICE)) == before


def test_sequential_figures_take_part_and_a_network_left_out_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = device(DEVICE)

    def fitted(without: str) -> tuple[Any, list[float]]:
        return fit_host(profile, without), [us for one in sequences(profile, without) for us in one.latency_us.tolist()]

    before, with_all = fitted("ios_sample"), fitted("")
    changed(monkeypatch, 1.2, sequential=True, model="ios_sample")
    assert fitted("ios_sample") == before
    assert fitted("")[0] != with_all[0]
    assert fitted("")[1] != with_all[1]


def test_a_device_without_networks_has_nothing_to_fit() -> None:
    assert fit_host(device("t4")) is None


def test_a_gap_moves_and_calls_take_as_long() -> None:
    """Rows of operators tell the gap and what a call costs besides as a sum alone."""
    profile = with_values(device(DEVICE), {"kernel_gap_us": 3.0, "dispatch_us": 6.0, "dispatch_kernel_us": 0.0})
    moved = with_gap(profile, 1.5)
    operators = [
        parse_description(text) for text in ("gemm m=512 n=512 k=512 trans_a=N trans_b=N", "relu rows=512 cols=512")
    ]
    assert moved.parameters.kernel_gap_us == 1.5
    for before, after in zip(predict(operators, profile), predict(operators, moved), strict=True):
        assert before.gpu_time_us == pytest.approx(after.gpu_time_us, rel=1e-9)
    assert (moved.engine.dispatch_us, moved.engine.dispatch_kernel_us) == (7.5, 1.5)


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
    """A resample of the same rows: a row that was drawn twice is fitted twice."""
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
        # A resample sees less of what is beside a floor than another recording would.
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
