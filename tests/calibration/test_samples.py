"""Samples of measurements, figures of accuracy for known errors, and measurements under the name of another device; a
board that lowers its clock while it is recorded: what shows it, and what a fit makes of it.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from made_sets import measured, true_profile
from operators import parse_description

from iossim.calibration import nuisances
from iossim.calibration.accuracy import Accuracy, buckets, device_times, rank_correlation
from iossim.calibration.calibrate import DeviceData, Protocol, calibrate
from iossim.calibration.fit import fit
from iossim.calibration.nuisances import (
    NOT_TOLD,
    SLOWING,
    fit_overhead,
    is_hidden,
    load_before_us,
    slowed_basis,
    slowing,
    unslowed,
    work_us,
)
from iossim.calibration.recording import check_label
from iossim.calibration.samples import SLOWED_WEIGHT, OperatorSamples, recorded_pattern
from iossim.calibration.validation import evaluate_operators
from iossim.hardware.fits import GPU_SPACE, TENSOR_SPACE
from iossim.hardware.load import device
from iossim.hardware.lowering.kernel import Issue
from iossim.hardware.profile import with_values
from iossim.ir.types import Precision
from iossim.measurements.measurement import Header, Measurement, MeasurementError, MeasurementSet, Operator
from iossim.measurements.operator_kinds import read_record
from iossim.prediction.predict import predict


@pytest.mark.parametrize("seed", range(3))
def test_the_same_as_lowering_the_rows_alone(seed: int) -> None:
    profile = true_profile()
    several = measured(profile, 40)
    chosen = np.random.default_rng(seed).random(40) < 0.5
    rows = [row for row, is_chosen in zip(several.measurements, chosen, strict=True) if is_chosen]
    alone = OperatorSamples.of(several, rows, profile, 3.0)
    part = OperatorSamples.of(several, several.measurements, profile, 3.0).where(chosen)
    np.testing.assert_array_equal(part.latency_us, alone.latency_us)
    np.testing.assert_array_equal(part.table.kernels, alone.table.kernels)
    for mine, other in zip(part.predict(profile), alone.predict(profile), strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize(
    ("kernels", "candidate"),
    [
        ("computeoffsetskernel volta_scudnn_128x64_relu", "implicit_gemm_128x64"),
        ("computeoffsetskernel volta_scudnn_128x64_relu more", None),
        ("winogradforwarddata volta_sgemm_128x64_nn", "winograd_nonfused_128x64"),
        ("volta_winograd_3x3_tile148t", "winograd_fused_1x4x8"),
        ("fft2d_r2c volta_gcgemm_32x32 fft2d_c2r", "fft_tiled"),
        ("implicit_convolve_sgemm", "implicit_convolve_sgemm"),
        ("nvjet_tst_128x64", "implicit_gemm_nvjet_64x128"),
    ],
)
def test_names_of_kernels_tell_the_algorithm_of_a_convolution(kernels: str, candidate: str | None) -> None:
    convolution = parse_description("conv batch=1 in_channels=8 out_channels=8 kernel=3 in_size=9 stride=1 padding=1")
    pattern = recorded_pattern(Measurement(convolution, 1.0, kernels=tuple(kernels.split())))
    assert (pattern is None) if candidate is None else (pattern is not None and pattern.fullmatch(candidate))


def test_a_profiler_flushes_the_caches_holds_the_clock_and_adds_a_constant() -> None:
    profile = device("v100-sxm2")
    operators = [parse_description(f"relu rows={rows} cols=1024") for rows in range(64, 6464, 64)]
    us_of_bytes = 1e-3 / (profile.dram_bandwidth_gbps * profile.parameters.stream_efficiency)
    # Up to 5 MB the copy stays in L2, where it costs nothing beside what is read.
    small = [one for one in operators if one.bytes <= 2 * 5_000_000]
    rows = tuple(Measurement(one, 2.5 + one.bytes / 2 * us_of_bytes) for one in small)
    header = Header(device="v100-sxm2", data_set="copies", includes_gaps=False, issue=Issue.PROFILER, clock_ghz=1.2)
    measured = MeasurementSet(header, rows)
    samples = OperatorSamples.of(measured, rows, profile, 1.0)
    assert samples.fit_nuisances(samples.predict(profile)[0]) == pytest.approx([2.5], rel=0.02)
    found = evaluate_operators(measured, profile)
    np.testing.assert_allclose(found.predicted_us, found.latency_us, rtol=0.01)
    assert not found.overhead_us.any()
    np.testing.assert_allclose(found.errors, 0.0, atol=0.01)
    # A product is bound by the clock.
    product = (Measurement(parse_description("gemm m=4096 n=4096 k=4096 trans_a=n trans_b=n"), 1.0),)
    held, free = (
        OperatorSamples.of(MeasurementSet(one, product), product, profile, 1.0).predict(profile)[0]
        for one in (header, header.model_copy(update={"clock_ghz": None}))
    )
    assert held / free == pytest.approx(1.53 / 1.2, rel=0.01)


def test_tensor_cores_are_fitted_beside_what_a_profile_holds() -> None:
    profile = device("v100-sxm2")
    truth = with_values(profile, {"tensor_efficiency": 0.7, "tensor_dram_efficiency": 0.75})
    operators = [
        read_record({"op": "linear", "batch": 1, "m": m, "n": n, "k": k}, Precision.FP16)
        for m in (1, 8, 64, 512, 1024, 4096, 8192, 16_384)
        for n in (2048, 4096, 8192, 16_384)
        for k in (2048, 4096, 8192, 12_288)
    ]
    header = Header(device=profile.name, data_set="made", precision=Precision.FP16)
    rows = tuple(Measurement(operator, 1.0) for operator in operators)
    measured = MeasurementSet(header, rows)
    times, _ = OperatorSamples.of(measured, rows, truth, 1.0).predict(truth)
    made = tuple(Measurement(one, us) for one, us in zip(operators, times.tolist(), strict=True))
    protocol = Protocol(folds=0, rounds=15, resamples=4, trusts_labels=True)
    found = calibrate([DeviceData(profile, (MeasurementSet(header, made),))], protocol)
    assert found.fit.space.names == TENSOR_SPACE.names
    # Weights of dense layers lie along the inner dimension: what DRAM gives for those is one figure of two parameters.
    assert abs(found.profile.parameters.tensor_efficiency - 0.7) < 0.05
    before_fit, after_fit = profile.parameter_values, found.profile.parameter_values
    assert all(after_fit[name] == before_fit[name] for name in GPU_SPACE.names)
    # The profile keeps its other data sets and their errors.
    provenance, before = found.profile.provenance, profile.provenance
    assert provenance.data_sets[: len(before.data_sets)] == before.data_sets
    assert provenance.data_sets[-1].name == "made"
    assert provenance.spread.items() >= before.spread.items()
    assert provenance.bands.keys() == before.bands.keys() | {"linear fp16"}
    (made_errors,) = (each for each in provenance.held_out if each.data_set == "made")
    assert made_errors.mape_percent < 2


ONES = np.ones((300, 1))


def drawn_us(seed: int = 0) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).uniform(np.log(1.0), np.log(800.0), 300))


@pytest.mark.slow
@given(host_us=st.floats(1.0, 80.0), floor_us=st.floats(0.0, 50.0), seed=st.integers(0, 9))
def test_what_the_host_adds_and_what_it_hides_are_told_apart(host_us: float, floor_us: float, seed: int) -> None:
    device_us = drawn_us(seed)
    found_host, found_floor = fit_overhead(ONES, host_us + np.maximum(device_us, floor_us), device_us, 5.0, True)
    assert found_host == pytest.approx(host_us, abs=2.5)
    assert found_floor == pytest.approx(floor_us, abs=2.5) or floor_us < 5.0


def test_without_a_floor_a_constant_is_found() -> None:
    device_us = drawn_us()
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


times = arrays(np.float64, st.integers(1, 40), elements=st.floats(1e-2, 1e6))


def test_known_errors() -> None:
    found = Accuracy.of(np.array([110.0, 90.0, 130.0, 100.0]), np.array([100.0, 100.0, 100.0, 50.0]))
    assert found.rows == 4
    assert found.mean_error == pytest.approx((0.1 + 0.1 + 0.3 + 1.0) / 4)
    assert found.median_error == pytest.approx(0.2)
    assert found.bias == pytest.approx((0.1 - 0.1 + 0.3 + 1.0) / 4)


def test_rows_without_a_prediction_do_not_count() -> None:
    found = Accuracy.of(np.array([110.0, np.nan]), np.array([100.0, 100.0]))
    assert found.rows == 1
    assert found.mean_error == pytest.approx(0.1)
    assert Accuracy.of(np.array([np.nan]), np.array([1.0])) == Accuracy(0)


def test_ranks() -> None:
    rising = np.arange(1.0, 9.0)
    assert rank_correlation(rising, rising**2) == pytest.approx(1.0)
    assert rank_correlation(rising, -rising) == pytest.approx(-1.0)
    assert rank_correlation(rising, np.ones(8)) is None
    assert rank_correlation(rising[:1], rising[:1]) is None


@given(times, st.floats(0.01, 100), st.randoms(use_true_random=False))
def test_unit_and_order_change_nothing(measured_us: np.ndarray, unit: float, random: object) -> None:
    predicted_us = measured_us * np.linspace(0.5, 2.0, len(measured_us))
    whole = Accuracy.of(predicted_us, measured_us)
    turned = Accuracy.of(unit * predicted_us[::-1], unit * measured_us[::-1])
    assert turned.rows == whole.rows
    assert turned.mean_error == pytest.approx(whole.mean_error)
    assert turned.median_error == pytest.approx(whole.median_error)
    assert turned.bias == pytest.approx(whole.bias)


@given(times)
@example(np.array([200.0, 1000.0]))
def test_buckets_part_the_rows(measured_us: np.ndarray) -> None:
    parts = buckets(measured_us)
    assert list(parts) == ["<0.2 ms", "0.2-1 ms", ">1 ms"]
    np.testing.assert_array_equal(sum(rows.astype(int) for rows in parts.values()), np.ones(len(measured_us)))
    assert (measured_us[parts["<0.2 ms"]] < 200).all()
    assert (measured_us[parts[">1 ms"]] >= 1000).all()


def of(name: str, kernels: tuple[str, ...] = ()) -> MeasurementSet:
    several = measured(device(name), 60)
    return replace(several, measurements=tuple(replace(row, kernels=kernels) for row in several.measurements))


@pytest.mark.parametrize("name", ["t4", "v100-sxm2", "a100-sxm-40gb"])
def test_right_label(name: str) -> None:
    assert check_label(of(name), device(name)).notes == ()


@pytest.mark.parametrize(
    ("name", "label"),
    [("p4", "v100-sxm2"), ("v100-sxm2", "h100-sxm"), ("a100-sxm-40gb", "k80"), ("t4", "v100-pcie-32gb")],
)
def test_wrong_label(name: str, label: str) -> None:
    with pytest.raises(MeasurementError, match=f"is the device right.*`device` {name[:4]}") as caught:
        check_label(of(name), device(label))
    assert "'made'" in str(caught.value)
    assert check_label(of(name), device(label), trusts_labels=True).notes == ()


def test_a_label_of_ones_own_is_only_doubted() -> None:
    own = device("v100-sxm2").model_copy(update={"name": "mine"})
    (note,) = check_label(of("p4"), own).notes
    assert "is the device right" in note


def test_too_few_rows_tell_nothing() -> None:
    several = of("p4")
    few = replace(several, measurements=several.measurements[:10])
    assert check_label(few, device("v100-sxm2")).notes == ()


def test_kernels_of_a_newer_architecture_cannot_have_run() -> None:
    kernels = ("volta_sgemm_128x64_nn", "im2col")
    assert check_label(of("v100-sxm2", kernels), device("v100-sxm2")).notes == ()
    with pytest.raises(MeasurementError, match="60 rows ran kernels made for volta"):
        check_label(of("p100-pcie-16gb", kernels), device("p100-pcie-16gb"), trusts_labels=True)


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


def sampled(measured: MeasurementSet) -> OperatorSamples:
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
    # An error that grows with the row's own work alone is no slowing: prices may be wrong like that.
    assert slowing(work, before, predicted * work**0.2, predicted) == pytest.approx(0.0, abs=0.02)
    assert slowing(work[:100], before[:100], predicted[:100], predicted[:100]) == 0.0


@pytest.mark.parametrize(("slowness", "is_slowed"), [(0.0, False), (0.8, True)])
def test_a_slowed_recording_has_terms_for_it_and_counts_less(slowness: float, is_slowed: bool) -> None:
    found = sampled(recorded(slowness))
    assert found.is_slowed == is_slowed
    assert found.host_terms == 1
    assert found.weight == 8.0 * (SLOWED_WEIGHT if is_slowed else 1.0)


def test_only_products_recorded_call_by_call_are_asked() -> None:
    slowed = recorded(0.8)
    steady = replace(slowed, header=slowed.header.model_copy(update={"includes_host_overhead": False}))
    assert not sampled(steady).is_slowed


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
    slowed = sampled(recorded(0.8))
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
