"""Transfer and its refinement on measurements made up by the model itself; on real ones with README's tables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evidence.profiles.chips import chips
from evidence.profiles.leave_one_out import _fitted_source, draw, leave_one_out, transfer_table
from iossim.calibration.nuisances import neutral
from iossim.calibration.recording import lowered
from iossim.calibration.samples_refinement import refine, source_device, source_spread, transferred
from iossim.hardware.fits import GPU_SPACE
from iossim.hardware.load import device
from iossim.hardware.profile import DeviceProfile, with_values
from iossim.hardware.transfer import ARITHMETIC, SourceDevice
from iossim.ir.types import Precision
from iossim.measurements.measurement import Header, Measurement, MeasurementError, MeasurementSet
from iossim.measurements.operator_kinds import read_record
from iossim.prediction.predict import predict

CALIBRATED = [device(name) for name in ("v100-pcie-32gb", "p100-pcie-16gb", "p4")]
DONORS = [source_device(profile) for profile in CALIBRATED]


def convolutions(count: int, seed: int) -> list[dict[str, object]]:
    generator = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        channels, outputs = generator.integers(16, 600, 2).tolist()
        size, batch = int(generator.integers(7, 64)), int(generator.integers(1, 32))
        rows.append(
            {"op": "conv", "batch": batch, "in_channels": channels, "out_channels": outputs}
            | {f"{name}_{axis}": value for axis in "hw" for name, value in [("in", size), ("kernel", 3), ("pad", 1)]}
            | {f"stride_{axis}": 1 for axis in "hw"}
        )
    return rows


def measured_on(profile: DeviceProfile, count: int, seed: int = 0, overhead_us: float = 0.0) -> MeasurementSet:
    """What a device would measure that is just as ``profile`` says, with three per cent of noise."""
    operators = [read_record(record, Precision.FP32) for record in convolutions(count, seed)]
    noise = np.random.default_rng(seed + 1).normal(1.0, 0.03, count)
    measurements = tuple(
        Measurement(operator, prediction.gpu_time_us * factor + overhead_us, row)
        for row, (operator, prediction, factor) in enumerate(
            zip(operators, predict(operators, profile), noise.tolist(), strict=True)
        )
    )
    header = Header(device=profile.name, data_set="made-up", includes_host_overhead=overhead_us > 0)
    return MeasurementSet(header, measurements)


def error(measured: MeasurementSet, profile: DeviceProfile, overhead_us: float = 0.0) -> float:
    predictions = predict([row.operator for row in measured.measurements], profile)
    times = [row.latency_us - overhead_us for row in measured.measurements]
    return float(np.mean([abs(p.gpu_time_us / time - 1) for p, time in zip(predictions, times, strict=True)]))


def slower(profile: DeviceProfile, factor: float) -> DeviceProfile:
    return with_values(profile, {name: factor * getattr(profile.parameters, name) for name in ARITHMETIC})


def test_transferred_parameters_lie_among_those_of_the_calibrated() -> None:
    found = transferred(device("t4"), DONORS)
    for name in ("latency_hiding_warps", "overlap_norm", "wave_quantisation"):
        values = [getattr(profile.parameters, name) for profile in CALIBRATED]
        assert min(values) * 0.999 <= getattr(found.parameters, name) <= max(values) * 1.001
    assert found.engine.fork_us == device("t4").engine.fork_us


def test_a_neutral_profile_knows_only_the_datasheet() -> None:
    one = neutral(device("t4"))
    other = neutral(with_values(device("t4"), {"gemm_efficiency": 0.3, "sustained_gflops_per_watt": 33.0}))
    assert np.array_equal(GPU_SPACE.to_vector(one.parameter_values), GPU_SPACE.to_vector(other.parameter_values))


@pytest.mark.parametrize("overhead_us", [0.0, 150.0])
def test_few_samples_correct_a_device_that_is_slower_than_thought(overhead_us: float) -> None:
    guess = transferred(device("t4"), DONORS)
    truth = slower(guess, 0.75)
    rest = measured_on(truth, 60, seed=5, overhead_us=overhead_us)
    refined = refine(guess, measured_on(truth, 20, seed=1, overhead_us=overhead_us), DONORS)
    before, after = error(rest, guess, overhead_us), error(rest, refined, overhead_us)
    assert before > 0.12
    assert after < 0.6 * before
    assert refined.provenance.kind == "transferred"
    assert "20 measurements" in refined.provenance.note


def test_samples_that_say_what_was_thought_change_little() -> None:
    guess = transferred(device("t4"), DONORS)
    refined = refine(guess, measured_on(guess, 20), DONORS)
    assert error(measured_on(guess, 60, seed=9), refined) < 0.05


def test_refinement_repeats_bit_for_bit() -> None:
    guess = transferred(device("t4"), DONORS)
    samples = measured_on(slower(guess, 0.9), 12)
    assert refine(guess, samples, DONORS) == refine(guess, samples, DONORS)


def test_too_few_samples_are_refused_in_a_line() -> None:
    guess = transferred(device("t4"), DONORS)
    with pytest.raises(MeasurementError, match="2 usable operators, at least 3") as caught:
        refine(guess, measured_on(guess, 2), DONORS)
    assert "\n" not in str(caught.value)


def test_samples_of_a_far_faster_device_are_refused() -> None:
    guess = transferred(device("t4"), DONORS)
    with pytest.raises(MeasurementError, match="faster than t4 can be"):
        refine(guess, measured_on(device("h100-sxm").model_copy(update={"name": "t4"}), 20), DONORS)


def test_prior_widths_are_positive_for_any_number_of_sources() -> None:
    partial = SourceDevice(
        boards=["x"], compute_capability="7.0", peak_gflops_per_watt=50.0, values={"gemm_efficiency": 0.9}
    )
    for several in ([], DONORS[:1], DONORS, [*DONORS, partial]):
        widths = source_spread(several)
        assert widths.shape == (len(GPU_SPACE.parameters),)
        assert (widths > 0).all()


def test_drawn_samples_are_spread_over_sizes() -> None:
    rows = list(measured_on(device("t4"), 100).measurements)
    chosen = draw(rows, 20, seed=3)
    assert chosen.sum() == 20
    assert np.array_equal(chosen, draw(rows, 20, seed=3))
    assert not np.array_equal(chosen, draw(rows, 20, seed=4))
    order = np.argsort([row.operator.flops for row in rows], kind="stable")
    assert [int(part.sum()) for part in np.array_split(chosen[order], 4)] == [5, 5, 5, 5]
    assert draw(rows[:5], 20, seed=0).sum() == 5


@pytest.mark.slow
def test_a_device_left_out_is_predicted_without_its_measurements() -> None:
    names = ("v100-pcie-32gb", "t4", "p100-pcie-16gb")
    sets = [(measured_on(device(name), 120, seed=2), device(name)) for name in names]
    result = leave_one_out(sets, samples=20)
    # The left out device's times do not move its own zero-shot prediction, only those of the others.
    changed, profile = sets[1]
    times = tuple(replace(row, latency_us=1.3 * row.latency_us) for row in changed.measurements)
    again = leave_one_out([sets[0], (replace(changed, measurements=times), profile), sets[2]])
    before, after = ({row.chip: row.zero_shot.predicted_us for row in one.rows} for one in (result, again))
    assert np.array_equal(before["t4"], after["t4"])
    assert not np.array_equal(before["v100-pcie-32gb"], after["v100-pcie-32gb"])
    assert set(result.errors("conv")) == set(result.errors("conv", refined=True)) == set(names)
    table = transfer_table(result, "2026-11-21")
    assert [one.boards for one in table.sources] == [["p100-pcie-16gb"], ["t4"], ["v100-pcie-32gb"]]
    assert table.bands["conv"]
    assert table.refined_bands["conv"]


@pytest.mark.slow
def test_samples_are_of_the_kind_that_they_refine() -> None:
    """A device whose element-wise kernels are half as fast as thought: samples of them say so, those of products nothing."""
    names = ("v100-pcie-32gb", "t4")
    kinds = {"relu": [{"op": "relu", "rows": 64 * n, "cols": 8192} for n in range(20, 140)]}
    kinds["gemm"] = [
        {"op": "gemm", "m": 64 * n, "n": 512, "k": 512, "trans_a": "N", "trans_b": "N"} for n in range(2, 122)
    ]
    sets = []
    for name in names:
        profile = device(name)
        for kind, records in kinds.items():
            operators = [read_record(record, Precision.FP32) for record in records]
            factor = 2.0 if (name, kind) == ("t4", "relu") else 1.0
            times = [factor * each.gpu_time_us for each in predict(operators, profile)]
            rows = tuple(Measurement(*each) for each in zip(operators, times, strict=True))
            sets.append((MeasurementSet(Header(device=name, data_set=f"{kind}.{name}"), rows), profile))
    result = leave_one_out(sets, samples=20)
    zero_shot, refined = result.errors("relu")["t4"], result.errors("relu", refined=True)["t4"]
    assert zero_shot > 0.3
    assert refined < 0.5 * zero_shot
    assert set(result.errors("gemm", refined=True)) == {"t4", "v100-pcie-32gb"}


def test_sources_see_no_held_out_shape() -> None:
    """Their values ship: whatever the held-out shapes take, they are the same."""
    measured, profile = measured_on(device("t4"), 120), device("t4")
    changed = tuple(
        replace(row, latency_us=1.5 * row.latency_us) if row.operator.is_held_out() else row
        for row in measured.measurements
    )
    assert changed != measured.measurements
    sources = [
        _fitted_source(chip)
        for rows in (measured.measurements, changed)
        for chip in chips([lowered(replace(measured, measurements=rows), profile)])
    ]
    assert sources[0] == sources[1]


def test_one_device_cannot_be_left_out() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        leave_one_out([(measured_on(device("t4"), 120), device("t4"))])
