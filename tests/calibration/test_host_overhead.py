"""The host's overhead: what it adds to a call, and what it hides."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iossim.calibration.nuisances import fit_overhead, is_hidden
from iossim.calibration.samples import OperatorSamples
from iossim.hardware.load import device
from iossim.measurements.measurement import Header, MeasurementSet

ONES = np.ones((300, 1))


def device_times(seed: int = 0) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).uniform(np.log(1.0), np.log(800.0), 300))


@pytest.mark.slow
@given(host_us=st.floats(1.0, 80.0), floor_us=st.floats(0.0, 50.0), seed=st.integers(0, 9))
def test_what_the_host_adds_and_what_it_hides_are_told_apart(host_us: float, floor_us: float, seed: int) -> None:
    device_us = device_times(seed)
    found_host, found_floor = fit_overhead(ONES, host_us + np.maximum(device_us, floor_us), device_us, 5.0, True)
    assert found_host == pytest.approx(host_us, abs=2.5)
    assert found_floor == pytest.approx(floor_us, abs=2.5) or floor_us < 5.0


def test_without_a_floor_a_constant_is_found() -> None:
    device_us = device_times()
    assert fit_overhead(ONES, 40.0 + device_us, device_us, 5.0) == pytest.approx([40.0])


def test_rows_below_the_floor_are_hidden_unless_they_are_expected_above_it() -> None:
    measured_us = np.array([20.5, 20.0, 40.0, 40.0])
    expected_us = np.array([3.0, 60.0, 3.0, 41.0])
    np.testing.assert_array_equal(is_hidden(measured_us, expected_us, 20.0), [True, False, False, False])
    assert not is_hidden(measured_us, expected_us, 0.0).any()


def test_a_recording_has_a_floor_where_the_hosts_time_is_in_it() -> None:
    def has_floor(**kwargs: bool) -> bool:
        measured = MeasurementSet(Header(device="t4", data_set="made", **kwargs))
        return OperatorSamples.of(measured, (), device("t4"), 1.0).has_floor

    assert has_floor(includes_host_overhead=True)
    assert has_floor(includes_host_overhead=True, host_overhead_drifts=True)
    assert not has_floor()
