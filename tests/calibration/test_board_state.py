"""A board that lowers its clock while it is recorded: what shows it, and what a fit makes of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from iossim.calibration import nuisances
from iossim.calibration.accuracy import device_times
from iossim.calibration.fit import fit
from iossim.calibration.nuisances import NOT_TOLD, SLOWING, load_before_us, slowed_basis, slowing, unslowed, work_us
from iossim.calibration.samples import SLOWED_WEIGHT, OperatorSamples
from iossim.hardware.load import device
from iossim.hardware.profile import with_values
from iossim.measurements.measurement import Header, Measurement, MeasurementSet, Operator
from iossim.measurements.operator_kinds import parse_description
from iossim.prediction.predict import predict

P4 = nuisances.neutral(device("p4"))
TRUTH = with_values(unslowed(P4), {"gemm_efficiency": 0.7})
OVERHEAD_US = 30.0


def products(count: int, seed: int = 0) -> list[Operator]:
    generator = np.random.default_rng(seed)
    sizes = (2 ** generator.uniform(8, 13, (count, 3))).astype(int).tolist()
    return [parse_description("linear batch=1 m={} n={} k={}".format(*three)) for three in sizes]


def recorded(slowness: float, count: int = 700) -> MeasurementSet:
    """Dense layers whose arithmetic takes longer by ``slowness`` for each decade of load above 100 us."""
    operators = products(count)
    rows = [Measurement(one, 1.0, row) for row, one in enumerate(operators)]
    work = work_us(rows, P4)
    load = np.maximum(np.log10(np.maximum(work + load_before_us(work), 1.0)) - 2.0, 0.0)
    noise = np.random.default_rng(1).normal(0.0, 0.01, count)
    times = np.array([one.gpu_time_us for one in predict(operators, TRUTH)]) + slowness * load * work
    times = OVERHEAD_US + times * np.exp(noise)
    header = Header(device="p4", data_set="linear.p4", includes_host_overhead=True)
    found = (replace(row, latency_us=us) for row, us in zip(rows, times.tolist(), strict=True))
    return MeasurementSet(header, tuple(found))


def samples(measured: MeasurementSet) -> OperatorSamples:
    return OperatorSamples.of(measured, measured.measurements, P4, 8.0)


def test_the_load_before_a_row_is_the_work_of_the_rows_just_before_it() -> None:
    assert load_before_us(np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])).tolist() == [0.0, 1.0, 3.0, 7.0, 15.0, 30.0]
    assert load_before_us(np.zeros(0)).tolist() == []


def test_slowing_is_told_from_rows_of_equal_work() -> None:
    generator = np.random.default_rng(0)
    work = 10 ** generator.uniform(2.5, 5.0, 2_000)
    before = load_before_us(work)
    predicted = work * np.exp(generator.normal(0.3, 0.1, len(work)))
    decades = np.log10(np.maximum(before, 10.0))
    for slope in (0.0, 0.2):
        measured = predicted * np.exp(slope * decades + generator.normal(0.0, 0.1, len(work)))
        assert slowing(work, before, measured, predicted) == pytest.approx(slope, abs=0.02)
    # What only grows with the row's own work is no slowing: prices may be wrong like that.
    assert slowing(work, before, predicted * work**0.2, predicted) == pytest.approx(0.0, abs=0.02)
    assert slowing(work[:100], before[:100], predicted[:100], predicted[:100]) == 0.0


@pytest.mark.parametrize(("slowness", "is_slowed"), [(0.0, False), (0.8, True)])
def test_a_slowed_recording_has_terms_for_it_and_counts_less(slowness: float, is_slowed: bool) -> None:
    found = samples(recorded(slowness))
    assert found.is_slowed == is_slowed
    assert found.host_terms == 1
    assert found.weight == 8.0 * (SLOWED_WEIGHT if is_slowed else 1.0)


def test_only_products_recorded_call_by_call_are_asked() -> None:
    slowed = recorded(0.8)
    steady = replace(slowed, header=slowed.header.model_copy(update={"includes_host_overhead": False}))
    assert not samples(steady).is_slowed


def test_extra_time_is_work_times_steps_of_the_load() -> None:
    measured = recorded(0.0)
    basis = slowed_basis(measured, measured.measurements, P4)
    work = work_us(measured.measurements, P4)
    assert (basis >= 0.0).all()
    assert (basis <= work[:, None] / 100.0 + 1e-12).all()
    order = np.argsort(work + load_before_us(work))
    assert (np.diff((basis / work[:, None])[order], axis=0) >= -1e-12).all()


@pytest.mark.slow
def test_a_fit_finds_the_unslowed_board_beside_its_slowing() -> None:
    slowed = samples(recorded(0.8))
    found = fit([slowed], P4, 25)
    for name in NOT_TOLD:
        assert found.values[name] == pytest.approx(getattr(TRUTH.parameters, name), rel=1e-3)
    (overhead,) = found.overheads
    assert float(np.median(slowed.latency_us / np.maximum(device_times(slowed, TRUTH, np.zeros(7))[0], 1.0))) > 1.8
    host_us, slowed_us = slowed.nuisances_us(overhead)
    assert float(host_us[0]) == pytest.approx(OVERHEAD_US, abs=15.0)
    assert (slowed_us >= 0.0).all()
    predicted_us, measured_us, _ = device_times(slowed, found.apply(P4), overhead)
    long_rows = predicted_us > 1_000.0
    assert float(np.median(np.abs(predicted_us / measured_us - 1.0)[long_rows])) < 0.05
    true_us = np.array(
        [one.gpu_time_us for one in predict([row.operator for row in recorded(0.8).measurements], TRUTH)]
    )
    # The recording takes 1.8 times as long; of a constant lack of speed, a part may go to either.
    assert float(np.median(np.abs(measured_us / true_us - 1.0)[long_rows])) < 0.2


@pytest.mark.parametrize("name", ["p4", "t4", "l4", "v100-sxm2", "h100-sxm"])
def test_an_unslowed_board_sustains_what_its_power_limit_allows(name: str) -> None:
    profile = unslowed(device(name))
    rate = profile.parameters.gemm_sustained_gflops_per_watt
    assert 0.0 < rate * profile.board_power_w <= 1e3 * profile.fp32_tflops * (1 + 1e-9)
    low, high = {"p4": (2.4, 5.0), "t4": (3.7, 4.3)}.get(name, (0.0, 1e3))
    assert low <= rate * profile.board_power_w / 1e3 <= high


def test_the_bar_of_slowing_lies_between_boards_that_slow_and_boards_that_do_not() -> None:
    assert 0.07 < SLOWING < 0.11
