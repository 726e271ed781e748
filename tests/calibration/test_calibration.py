"""Calibration recovers what the data tells, says what it does not, and how far it is off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from synthetic import TRUTH, measured, scaled, true_profile

import iossim
from iossim.calibration.accuracy import device_times, interval
from iossim.calibration.bootstrap import KEPT_RESAMPLES
from iossim.calibration.calibrate import Calibration, DeviceData, calibrate
from iossim.calibration.fit import fit, tell_calls
from iossim.calibration.recording import Recording
from iossim.calibration.samples import SequenceSamples, hidden
from iossim.hardware.load import device
from iossim.hardware.parameters import CALL
from iossim.measurements.measurement import MeasurementError
from iossim.measurements.measurement_set import read_measurements

SET = measured(true_profile(), 200, noise=0.03, overhead_us=15.0)


def run(*data: DeviceData, **options: object) -> Calibration:
    return calibrate(data, **{"rounds": 25, "resamples": 30, "folds": 0, **options})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def found() -> Calibration:
    return run(DeviceData(device("v100-sxm2"), (SET,)), folds=2, date="2026-11-21")


def test_recovers_what_is_identifiable(found: Calibration) -> None:
    for name, truth in TRUTH.items():
        assert getattr(found.profile.parameters, name) == pytest.approx(truth, rel=0.06), name
    assert found.fit.overheads[0][0] == pytest.approx(15.0, abs=3)
    assert found.profile.name == "v100-sxm2"
    assert found.profile.datasheet == device("v100-sxm2").datasheet


def test_errors_are_the_noise(found: Calibration) -> None:
    kinds = {error.kind: error for error in found.held_out}
    assert set(kinds) == {"conv", "gemm", "relu"}
    assert {error.kind for error in found.cross_validated} == set(kinds)
    for error in (*found.held_out, *found.cross_validated):
        assert error.mape_percent < 6
        assert error.kendall_tau is not None
        assert error.kendall_tau > 0.9
    rows = sum(error.rows for error in (*found.held_out, *found.cross_validated))
    # The few that are no longer than what the host may hide are left out.
    assert 0.95 * len(SET.measurements) <= rows <= len(SET.measurements)
    fitted = sum(data_set.rows for data_set in found.profile.provenance.data_sets)
    assert 0.95 * fitted <= sum(error.rows for error in found.cross_validated) <= fitted


def test_provenance(found: Calibration) -> None:
    provenance = found.profile.provenance
    assert provenance.kind == "fitted"
    assert provenance.date == "2026-11-21"
    assert provenance.held_out_fraction == 0.3
    assert set(provenance.unidentified) <= set(provenance.spread)
    # What ended at a bound says what the bound is, not what the parameter is.
    assert provenance.at_bounds
    assert set(provenance.at_bounds) <= set(provenance.unidentified)
    assert sum(one.weight_percent or 0 for one in provenance.data_sets) == pytest.approx(100, abs=1)
    assert set(provenance.resamples) <= set(provenance.spread)
    assert {len(values) for values in provenance.resamples.values()} == {KEPT_RESAMPLES}
    assert "conv" in provenance.bands


def test_what_a_call_costs_cannot_be_told_beside_a_hosts_overhead(found: Calibration) -> None:
    """It ran to whatever bound it had, and chose the algorithms: it stays, and is said to be open."""
    assert SET.header.includes_host_overhead
    own, start = (one.parameters.model_dump() | one.engine.model_dump() for one in (found.profile, device("v100-sxm2")))
    for name in CALL:
        assert own[name] == pytest.approx(start[name], abs=1e-3)
    assert set(found.profile.provenance.unidentified) >= CALL
    steady = Recording.of(measured(true_profile(), 20, seed=3), device("v100-sxm2"), 0.3, 0)
    assert tell_calls([steady.samples])
    assert not tell_calls([Recording.of(SET, device("v100-sxm2"), 0.3, 0).samples])


def test_deterministic(found: Calibration) -> None:
    again = run(DeviceData(device("v100-sxm2"), (SET,)), folds=2, date="2026-11-21")
    assert again.profiles == found.profiles
    assert again.notes == found.notes


def test_boards_of_one_chip_share_parameters() -> None:
    """Each with a host of its own."""
    sxm2, pcie = (
        measured(true_profile(name), 80, overhead_us=overhead_us, seed=seed, name=name)
        for name, overhead_us, seed in (("v100-sxm2", 0.0, 1), ("v100-pcie-32gb", 60.0, 2))
    )
    found = run(DeviceData(device("v100-sxm2"), (sxm2,)), DeviceData(device("v100-pcie-32gb"), (pcie,)))
    first, second = found.profiles
    assert first.parameters == second.parameters
    assert (first.name, second.name) == ("v100-sxm2", "v100-pcie-32gb")
    assert first.boost_clock_ghz != second.boost_clock_ghz
    assert [len(overhead) for overhead in found.fit.overheads] == [0, 2]
    assert found.fit.overheads[1][0] == pytest.approx(60.0, abs=5)


def test_outliers_are_noted_and_count_little() -> None:
    rows = [
        replace(row, latency_us=4 * row.latency_us) if index % 20 == 0 else row
        for index, row in enumerate(SET.measurements)
    ]
    found = run(DeviceData(device("v100-sxm2"), (replace(SET, measurements=tuple(rows)),)))
    assert any("count less" in note for note in found.notes)
    for name, truth in TRUTH.items():
        assert getattr(found.profile.parameters, name) == pytest.approx(truth, rel=0.12), name


def test_a_set_that_disagrees_is_noted() -> None:
    other = scaled(measured(true_profile(), 60, seed=5, name="slow host"), 1.6)
    found = run(DeviceData(device("v100-sxm2"), (replace(SET, path=Path("good.csv")), other)), trusts_labels=True)
    assert any("'slow host'" in note and "above" in note for note in found.notes)
    assert not any("good.csv" in note and "above" in note for note in found.notes)


def test_few_rows_are_noted_and_stay_near_the_start() -> None:
    few = replace(SET, measurements=SET.measurements[:24])
    found = run(DeviceData(device("v100-sxm2"), (few,)))
    assert any("rows for" in note for note in found.notes)
    assert found.profile.provenance.unidentified
    start = device("v100-sxm2").parameters
    assert found.profile.parameters.translation_reach_bytes == pytest.approx(start.translation_reach_bytes, rel=0.05)


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(MeasurementError, match=r"'made': \d usable rows are not held out") as caught:
        run(DeviceData(device("v100-sxm2"), (replace(SET, measurements=SET.measurements[:8]),)))
    assert "\n" not in str(caught.value)


def test_networks_are_fitted_beside() -> None:
    """A whole network unit after unit, twice as slow as the profile has it, pulls the parameters."""
    network = iossim.load("squeezenet")
    profile = device("v100-sxm2")
    sequential = iossim.optimize(network, profile, scheduler="sequential")
    sequences = [(network, range(len(network.units)), 2 * sequential.latency_us)]
    further = SequenceSamples.of("networks", profile, sequences, 300.0)
    few = replace(SET, measurements=SET.measurements[:40])
    beside, alone = (run(DeviceData(profile, (few,)), further=several) for several in ([further], []))
    slower, faster = (iossim.optimize(network, one.profile, scheduler="sequential") for one in (beside, alone))
    assert slower.latency_us > 1.2 * faster.latency_us
    assert beside.profile.provenance.data_sets[-1].name == "networks"


@pytest.mark.slow
def test_a_fit_near_another_ends_where_one_from_the_start_does() -> None:
    """Folds and fits that leave something out begin at the fit of all."""
    recording = Recording.of(SET, device("v100-sxm2"), 0.3, 2)
    whole = recording.where(recording.seen)
    part = recording.where(recording.seen & (recording.fold == 0))
    from_start = fit([part], device("v100-sxm2"))
    near = fit([part], device("v100-sxm2"), near=fit([whole], device("v100-sxm2")))
    # Or better: where the host hides the shortest rows there may be two optima.
    assert 0.95 * from_start.cost <= near.cost <= 1.01 * from_start.cost
    for name in TRUTH:
        assert near.values[name] == pytest.approx(from_start.values[name], rel=0.03), name


@pytest.mark.slow
def test_all_folds_and_nothing_held_out() -> None:
    found = run(DeviceData(device("v100-sxm2"), (SET,)), folds=3, held_out=0.0)
    assert found.held_out == ()
    rows = sum(error.rows for error in found.cross_validated)
    assert 0.95 * len(SET.measurements) <= rows <= len(SET.measurements)
    assert found.profile.provenance.bands


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v100-pcie-32gb", "p100-pcie-16gb"])
def test_intervals_cover_held_out_measurements(shared: Path, name: str) -> None:
    """Nine of ten, of shapes that neither the fit nor the bands have seen; a sixth of the rows is enough.

    What the shipped profiles of all boards cover is a kept figure of the documents.
    """
    sets = []
    for kind in ("conv", "linear", "add", "relu"):
        whole = read_measurements(shared / f"data/kernels/{kind}.{name}.csv")
        sets.append(replace(whole, measurements=whole.measurements[::6]))
    found = run(DeviceData(device(name), tuple(sets)), folds=3)
    inside: list[bool] = []
    for each, overhead in zip(sets, found.fit.overheads, strict=True):
        recording = Recording.of(each, found.profile, 0.3, 0)
        samples = recording.where(recording.is_held_out)
        predicted_us, measured_us = device_times(samples, found.profile, overhead)
        rows = [row for row, is_out in zip(each.measurements, recording.is_held_out, strict=True) if is_out]
        bounds = [interval(row.operator, us, found.profile) for row, us in zip(rows, predicted_us, strict=True)]
        is_shown = ~hidden(samples, predicted_us, overhead)
        of_kind = [low <= us <= high for us, (low, high) in zip(measured_us, bounds, strict=True)]
        # Bands are at least as wide as repeats differ, which element-wise rows hardly do.
        assert np.mean(np.array(of_kind)[is_shown]) >= 0.7, each.header.data_set
        inside += np.array(of_kind)[is_shown].tolist()
    assert 0.85 <= np.mean(inside) <= 0.96
