"""Intervals of operators, of schedules and of their differences, by bands of residuals."""

from functools import cache
from math import log
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from operators import operators, parse_description

import iossim
from iossim.calibration.accuracy import BUCKET_ENDS_US, FEWEST_RESIDUALS, band_key, interval, residual_bands
from iossim.cost.random import RandomCostModel
from iossim.hardware.load import device
from iossim.hardware.profile import DeviceProfile, with_values
from iossim.hardware.provenance import Band, Provenance
from iossim.ir.ops import functions
from iossim.ir.types import Precision
from iossim.measurements.measurement import Operator
from iossim.prediction.bands import measured_over_predicted
from iossim.prediction.predict import predict
from iossim.prediction.schedule_interval import (
    COMMON_PART,
    REPEAT_NOISE,
    ConcurrencySlopes,
    ScheduleErrors,
    schedule_errors,
)
from iossim.search.assemble import reprice
from iossim.tasks.comparison import Comparison
from iossim.tasks.stream_explain import in_sequence

#: Hardly any residuals: what is left is what the spread of parameters does.
EXACT = {kind: [Band(rows=30, low=0.9999, high=1.0001)] for kind in ("conv", "gemm", "add")}


@cache
def compared(model: str, name: str = "v100-sxm2") -> Comparison:
    return iossim.compare(iossim.load(model), device(name))


def with_provenance(**fields: object) -> DeviceProfile:
    provenance = Provenance(kind="fitted", note="", **fields)  # type: ignore[arg-type]
    return device("v100-sxm2").model_copy(update={"provenance": provenance})


@pytest.mark.parametrize("model", ["squeezenet", "inception_v3"])
def test_around_the_latency(model: str) -> None:
    comparison = compared(model)
    for found in comparison.schedules:
        errors = ScheduleErrors(comparison.network, device("v100-sxm2"))
        assert errors.noise(found, found) == pytest.approx(REPEAT_NOISE)  # a tie with itself
        interval = errors.interval(found)
        assert 0 < interval.low_us < found.latency_us < interval.high_us
        assert [interval.low_us, interval.high_us] == found.interval_us


def test_measured_networks_narrow_only_the_precision_that_they_ran_in() -> None:
    """The V100's published networks are in fp32: in fp16, of which nothing was measured there, an interval is wider."""
    width = {}
    for dtype in ("fp32", "fp16"):
        found = iossim.optimize(iossim.load("squeezenet", dtype=dtype), "v100-sxm2", scheduler="sequential")
        low_us, high_us = found.interval_us or (0.0, 0.0)
        width[dtype] = log(high_us / low_us)
    assert width["fp16"] > 1.5 * width["fp32"]


@pytest.mark.parametrize("engine", ["graph", "paper"])
def test_streams_have_an_interval_that_concurrency_widens(engine: str) -> None:
    network = iossim.load("squeezenet")
    prices = iossim.cost_model("simulator", "v100-sxm2", engine=engine)
    found = iossim.optimize_streams(network, None, cost_model=prices)
    alone = in_sequence(network, prices, found)
    errors = schedule_errors(network, prices)
    assert errors is not None
    interval, of_one = errors.interval(found), errors.interval(alone)
    assert found.interval_us == [interval.low_us, interval.high_us]
    assert interval.low_us < found.latency_us < interval.high_us
    if engine == "graph":  # where the host's launches, which a long stream waits for, are no part of the error
        assert interval.high_us / interval.low_us > of_one.high_us / of_one.low_us
    assert errors.noise(found, found) == pytest.approx(REPEAT_NOISE)
    again = iossim.simulate(found, None, network=network, cost_model=prices)
    assert again.interval_us == pytest.approx(found.interval_us)


def test_what_both_contain_cancels() -> None:
    """The noise of a difference is far below that of the latencies, as their parts make it."""
    comparison = compared("inception_v3")
    both, sequential = comparison["ios-both"], comparison["sequential"]
    assert both.interval_us is not None
    profile = device("v100-sxm2")
    alone = log(both.interval_us[1] / both.latency_us) / profile.provenance.network_width
    errors = ScheduleErrors(comparison.network, profile)
    noise = errors.noise(both, sequential)
    assert noise == errors.noise(sequential, both)
    assert REPEAT_NOISE < noise < 0.6 * alone
    assert "sequential" not in both.ties


def test_each_side_is_as_wide_as_the_bands_are_there() -> None:
    """Twice as far above is so for the interval, and changes nothing below."""
    comparison = compared("squeezenet")
    found = comparison["sequential"]
    ends = []
    for high in (1.1, 1.21):
        bands = {kind: [Band(rows=30, low=1 / 1.1, high=high)] for kind in ("conv", "gemm", "add", "concat")}
        bands |= {kind: [Band(rows=30, low=0.9999, high=1.0001)] for kind in ("max_pool", "average_pool", "softmax")}
        interval = ScheduleErrors(comparison.network, with_provenance(bands=bands)).interval(found)
        ends.append((log(found.latency_us / interval.low_us), log(interval.high_us / found.latency_us)))
    (below, above), (again, further) = ends
    assert (below, again) == (pytest.approx(above, rel=0.02), pytest.approx(below))
    assert 1.3 * above < further <= 2.0 * above


def test_a_comparison_says_how_large_the_noise_of_its_ties_is() -> None:
    comparison = compared("inception_v3")
    best = comparison.best
    (line,) = (remark for remark in comparison.remarks if "noise" in remark)
    assert line.endswith(f"differences of up to {comparison.noise:.0%} are within the noise")
    errors = ScheduleErrors(comparison.network, device("v100-sxm2"))
    assert comparison.noise == pytest.approx(max(errors.noise(best, comparison[name]) for name in best.ties))
    assert all(log(comparison[name].latency_us / best.latency_us) <= comparison.noise for name in best.ties)


@pytest.mark.parametrize("scheduler", ["greedy", "ios-both", "sequential"])
@pytest.mark.parametrize(
    ("engine", "name"),
    [
        ("paper", "bare_launch_us"),
        ("paper", "synchronise_us"),
        ("graph", "graph_gap_factor"),
        ("graph", "fork_us"),
        ("graph", "join_us"),
        ("graph", "bare_launch_us"),
        ("paper", "fork_us"),
    ],
)
def test_slopes_are_those_of_pricing_again(engine: str, name: str, scheduler: str) -> None:
    """Launches all cost the same, so they move together; what an engine does not ask for changes nothing."""
    profile, network = device("v100-sxm2"), compared("squeezenet").network
    prices = iossim.api.cost_model("simulator", profile, engine=engine)
    found = reprice(compared("squeezenet")[scheduler], network, prices)
    slope = ConcurrencySlopes(network, profile, [name]).of(found)[name]
    own = profile.parameter_values[name]
    step = 0.05 * own
    changed = {name: own + step}
    if name == "bare_launch_us":
        changed |= dict.fromkeys(("library_call_us", "library_kernel_us"), own + step)
    again = reprice(found, network, iossim.api.cost_model("simulator", with_values(profile, changed), engine=engine))
    assert slope * step == pytest.approx(again.latency_us / found.latency_us - 1, rel=0.05, abs=2e-5)
    assert slope >= 0


def test_intervals_see_how_little_is_known_of_concurrency() -> None:
    """Concurrent schedules have wider intervals in proportion to the spread of its parameters, or to their generation's
    where no fit told them; sequential ones do not.
    """
    comparison = compared("inception_v3")
    deviations: dict[str, list[float]] = {"greedy": [], "sequential": []}
    for spread in ({"synchronise_us": 0.0}, {"synchronise_us": 4.0}, {"synchronise_us": 8.0}, {}):
        errors = ScheduleErrors(comparison.network, with_provenance(bands=EXACT, spread=spread))
        for scheduler, several in deviations.items():
            several.append(errors._deviation(errors._shares(comparison[scheduler])))
    none, some, more, untold = deviations["greedy"]
    assert none < some < more
    assert none < untold
    assert np.sqrt(more**2 - none**2) == pytest.approx(2 * np.sqrt(some**2 - none**2))
    assert deviations["sequential"] == pytest.approx([deviations["sequential"][0]] * 4)


def test_a_kernel_that_a_longer_gap_would_change_is_no_slope() -> None:
    """A step of 5% of the gap passed where cuDNN changes kernels: the interval was 0.3 to 6.5 ms."""
    network = iossim.load("inception_v3", dtype="tf32")
    prices = iossim.cost_model("simulator:backend", "h200-sxm", "tf32", engine="graph")
    found = iossim.optimize(network, None, cost_model=prices, scheduler="sequential")
    assert found.interval_us is not None
    assert found.interval_us[1] < 1.6 * found.interval_us[0]


def test_stages_of_several_groups_are_less_known_since_hopper_the_more_there_are() -> None:
    deviations = {}
    for name, dtype in (("h100-sxm", "bf16"), ("h100-sxm", "fp32"), ("a100-sxm-40gb", "bf16")):
        errors = ScheduleErrors(iossim.load("squeezenet", dtype=dtype), device(name))
        deviations[name, dtype] = [errors._deviation({("stage", ((),) * groups): 1.0}) for groups in (2, 8)]
    assert deviations.pop(("a100-sxm-40gb", "bf16")) == [pytest.approx(0.05)] * 2
    for few, many in deviations.values():
        assert 0.2 < few < many < 0.4


def test_errors_of_stages_are_common_in_part_since_hopper() -> None:
    """They cancel among many of them on an A100, but not on an H100."""
    deviations = {}
    for name in ("h100-sxm", "a100-sxm-40gb"):
        errors = ScheduleErrors(iossim.load("squeezenet"), device(name))
        several = {("stage", ((index,), ())): 0.01 for index in range(100)}
        deviations[name] = errors._deviation(several) / errors._deviation({("stage", ((), ())): 1.0})
    assert deviations["a100-sxm-40gb"] == pytest.approx(0.1)
    assert deviations["h100-sxm"] == pytest.approx(np.sqrt(COMMON_PART + (1 - COMMON_PART) / 100))


@pytest.mark.parametrize(("argument", "is_work"), [("", False), (":copies", True)])
def test_what_lies_in_place_takes_no_time_of_a_schedule(argument: str, is_work: bool) -> None:
    network = iossim.load("squeezenet")
    prices = iossim.cost_model(f"simulator{argument}", "t4", engine="graph")
    errors = schedule_errors(network, prices)
    assert errors is not None
    found = iossim.optimize(network, "t4", cost_model=prices, scheduler="sequential")
    assert ("concat" in errors.time_by_kind_us(found)) == is_work


def test_prices_that_predict_no_device_have_no_noise() -> None:
    network = iossim.load("squeezenet")
    assert schedule_errors(network, RandomCostModel()) is None
    found = iossim.optimize(network, None, cost_model="random:1")
    assert found.interval_us is None
    assert found.ties == []


def test_optimize_and_simulate_say_the_same_as_compare() -> None:
    comparison = compared("squeezenet")
    found = iossim.optimize(comparison.network, device("v100-sxm2"))
    assert found.interval_us == comparison["ios-both"].interval_us
    assert found.ties == [name for name in comparison["ios-both"].ties if name == "sequential"]
    again = iossim.simulate(found, network=comparison.network)
    assert again.interval_us == found.interval_us


BANDS = {
    "conv": [Band(up_to_us=50, rows=30, low=0.7, high=1.5), Band(rows=90, low=0.9, high=1.2)],
    "gemm": [Band(rows=30, low=0.95, high=1.05)],
    "relu": [Band(rows=30, low=0.98, high=1.02)],
}
FITTED = Provenance(kind="fitted", note="", bands=BANDS)
HAND_SET = Provenance(kind="hand-set", note="")


def band(kind: str, us: float = 10.0, precision: Precision = Precision.FP32, **of: Any) -> Band:
    told = {"provenance": of.get("provenance", FITTED)}
    return measured_over_predicted(kind, precision, us, device(of.get("name", "v100-sxm2")).model_copy(update=told))


def test_a_kind_has_its_own_band_by_time_or_that_of_the_nearest_kind() -> None:
    assert (band("conv", 50.0), band("conv", 50.1)) == (BANDS["conv"][0], BANDS["conv"][1])
    assert band("linear") == band("matmul") == BANDS["gemm"][0]
    for kind in ("add", "sigmoid", *functions.UNARY, *functions.NARY):
        assert band(kind) == BANDS["relu"][0]
    for unlike in ("depthwise", "max_pool", "softmax"):
        assert band(unlike).high / band(unlike).low >= 4 * 0.99
        assert band(unlike).rows == 0


def test_reduced_precision_is_another_kind() -> None:
    assert band("conv", precision=Precision.FP16) == Band(rows=0, low=0.78, high=1.43) != band("conv")
    assert band("linear", precision=Precision.BF16) == Band(rows=0, low=0.84, high=1.21)
    half = FITTED.model_copy(update={"bands": {**BANDS, "conv fp16": BANDS["gemm"]}})
    for precision in (Precision.FP16, Precision.BF16):
        assert band("conv", precision=precision, provenance=half) == BANDS["gemm"][0]
    assert band("conv", precision=Precision.TF32, provenance=half).rows == 0


def test_what_was_not_measured_is_wider_by_what_leaving_out_shows() -> None:
    """So is what needs no tensor cores in another precision: its kernels are nearly those of fp32."""
    transferred = FITTED.model_copy(update={"kind": "transferred"})
    for kind in ("conv", "gemm", "add"):
        own, new = band(kind), band(kind, provenance=transferred)
        assert (new.rows, new.low, new.high) == (0, pytest.approx(own.low / 1.05), pytest.approx(own.high * 1.05))
    for precision in (Precision.FP16, Precision.TF32):
        own, stored = band("add"), band("add", precision=precision)
        assert (stored.rows, stored.low, stored.high) == (0, own.low / 1.2, own.high * 1.2)
        assert band("max_pool", precision=precision) == band("max_pool")
    for kind in ("conv", "linear", "attention"):
        known = band(kind, precision=Precision.BF16, name="a40")
        for precision, name in ((Precision.BF16, "b200"), (Precision.INT8, "a40")):
            unknown = band(kind, precision=precision, name=name)
            assert unknown.low < known.low < known.high <= unknown.high


@pytest.mark.parametrize(("name", "told"), [("b200", ["b200 in bf16"]), ("h100-sxm", [])])
def test_why_an_interval_is_wide_is_said(name: str, told: list[str]) -> None:
    found = iossim.optimize(iossim.load("squeezenet", dtype="bf16"), device(name), engine="graph")
    said = [
        f"Most of this was not measured on {each}: the interval is as wide as errors on other devices" for each in told
    ]
    for one in (found, iossim.simulate(found)):
        assert [remark for remark in one.remarks if "not measured" in remark] == said


def test_hand_set_is_wider_than_fitted_without_rows() -> None:
    bare = Provenance(kind="fitted", note="")
    for kind in ("conv", "gemm", "add", "depthwise"):
        wide, narrow = band(kind, provenance=HAND_SET), band(kind, provenance=bare)
        assert wide.low <= narrow.low
        assert wide.high >= narrow.high


@given(operators(), st.sampled_from([FITTED, HAND_SET]))
def test_around_the_prediction(operator: Operator, provenance: Provenance) -> None:
    profile: DeviceProfile = device("t4").model_copy(update={"provenance": provenance})
    (prediction,) = predict([operator], profile)
    assert 0 < prediction.low_us < prediction.gpu_time_us < prediction.high_us
    assert (prediction.low_us, prediction.high_us) == interval(operator, prediction.gpu_time_us, profile)


times = arrays(np.float64, st.integers(0, 120), elements=st.floats(1.0, 1e5))


@given(times, st.floats(0.2, 5.0))
def test_bands_cover_every_prediction(predicted_us: np.ndarray, factor: float) -> None:
    bands = residual_bands(predicted_us, predicted_us * factor)
    assert bool(bands) == (len(predicted_us) >= FEWEST_RESIDUALS)
    if bands:
        # What a profile takes.
        told = Provenance(kind="fitted", note="", bands={"conv": bands})
        assert sum(band.rows for band in bands) == len(predicted_us)
        assert all(band.rows >= FEWEST_RESIDUALS for band in bands)
        for predicted in (*BUCKET_ENDS_US, 1e9):
            found = band("conv", predicted, provenance=told)
            assert found.low <= max(factor, 0.01) + 1e-3
            assert found.high >= factor - 1e-3


def test_nine_of_ten_of_what_follows() -> None:
    generator = np.random.default_rng(1)
    inside = []
    for _ in range(200):
        ratio = np.exp(0.2 * generator.normal(size=60))
        (band,) = residual_bands(np.full(59, 10.0), 10.0 * ratio[1:])
        inside.append(band.low <= ratio[0] <= band.high)
    assert 0.84 <= np.mean(inside) <= 0.97


def test_small_kernels_have_a_band_of_their_own() -> None:
    predicted_us = np.repeat([20.0, 500.0, 5000.0], [30, 30, 5])
    measured_us = predicted_us * np.where(predicted_us < 50, 1.5, 1.1)
    small, large = residual_bands(predicted_us, measured_us)
    assert (small.up_to_us, small.rows, small.high) == (50.0, 30, 1.5)
    assert (large.up_to_us, large.rows, large.high) == (None, 35, 1.1)


@pytest.mark.parametrize(
    ("text", "precision", "key"),
    [
        ("relu rows=3 cols=4", Precision.FP32, "relu"),
        ("gemm m=3 n=4 k=5 trans_a=N trans_b=N", Precision.FP16, "gemm fp16"),
        ("conv2d batch=1 in_channels=8 out_channels=8 kernel=1 in_size=3 stride=1 padding=0", Precision.FP32, "conv"),
        (
            "conv batch=1 in_channels=8 out_channels=8 groups=8 kernel=3 in_size=3 stride=1 padding=1",
            Precision.FP32,
            "depthwise",
        ),
    ],
)
def test_key(text: str, precision: Precision, key: str) -> None:
    assert band_key(parse_description(text, precision)) == key
