"""Sets with known errors: the figures say them, of held-out rows only, and nothing of those rows leaks into a fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_sets import DEVICE, made_set, noise, predicted_us, shapes, with_latencies

from evidence.data.data_sets import read_measurements
from evidence.validation.roofline import roofline_us
from iossim.calibration.validation import OperatorEvaluation, evaluate_operators
from iossim.hardware.load import device
from iossim.ir.types import Precision
from iossim.measurements.measurement import Measurement
from iossim.prediction.predict import predict


@pytest.fixture(scope="module")
def exact() -> OperatorEvaluation:
    """Every prediction is right, under 60 us of overhead."""
    return evaluate_operators(made_set(offset_us=60.0, includes_host_overhead=True), device(DEVICE), roofline_us)


def test_right_predictions(exact: OperatorEvaluation) -> None:
    assert exact.has_overhead
    np.testing.assert_allclose(exact.overhead_us, 60.0, rtol=1e-3)
    np.testing.assert_allclose(exact.predicted_us, predicted_us(), rtol=1e-12)
    accuracy = exact.unseen.gpu_time()
    assert accuracy.mean_error == pytest.approx(0.0, abs=1e-3)
    assert accuracy.kendall_tau == pytest.approx(1.0)
    assert exact.unseen.total_time().mean_error == pytest.approx(0.0, abs=1e-3)
    assert exact.coverage() == 1.0
    assert not exact.clamped.any()
    roofline = exact.unseen.baseline().mean_error
    assert roofline is not None
    assert roofline > 0.02


def test_split_is_by_shape(exact: OperatorEvaluation) -> None:
    assert [each.operator for each in exact.measurements] == list(shapes())
    np.testing.assert_array_equal(exact.held_out, [each.is_held_out() for each in shapes()])
    assert len(exact.seen) + len(exact.unseen) == len(exact)
    assert exact.unseen.held_out.all()


def test_intervals_are_those_of_predict(exact: OperatorEvaluation) -> None:
    predictions = predict(shapes(), device(DEVICE))
    np.testing.assert_allclose(exact.low_us, [each.low_us for each in predictions], rtol=1e-9)
    np.testing.assert_allclose(exact.high_us, [each.high_us for each in predictions], rtol=1e-9)


def test_kinds_apart(exact: OperatorEvaluation) -> None:
    assert [kind for kind, _ in exact.kinds] == ["conv", "gemm", "relu"]
    parts = [exact.of_kind(*kind) for kind in exact.kinds]
    assert [len(part) for part in parts] == [40, 40, 40]
    assert all(
        {each.operator.kind for each in part.measurements} == {kind}
        for part, (kind, _) in zip(parts, exact.kinds, strict=True)
    )
    assert len(exact.of_kind("gemm", Precision.FP16)) == 0


@given(st.floats(0.3, 3.0))
@settings(deadline=None, max_examples=4)
def test_a_wrong_factor_is_the_error(factor: float) -> None:
    found = evaluate_operators(made_set(lambda operator: factor), device(DEVICE), roofline_us).unseen
    error = 1.0 / factor - 1.0
    accuracy = found.gpu_time()
    assert accuracy.mean_error == pytest.approx(abs(error), abs=1e-9)
    assert accuracy.bias == pytest.approx(error, abs=1e-9)
    assert accuracy.kendall_tau == pytest.approx(1.0)
    measured_us = factor * found.predicted_us
    inside = (found.low_us <= measured_us) & (measured_us <= found.high_us)
    assert found.coverage() == pytest.approx(inside.mean())


@pytest.mark.slow
@given(st.integers(0, 1000))
@settings(deadline=None, max_examples=10)
def test_held_out_rows_decide_nothing(seed: int) -> None:
    measured = made_set(noise(seed, 0.2), 80.0, includes_host_overhead=True)
    other = with_latencies(measured, lambda row: 2.5 if row.operator.is_held_out() else 1.0)
    first, second = (evaluate_operators(each, device(DEVICE), roofline_us) for each in (measured, other))
    # Which rows the host hides, a held-out row's own time may decide.
    assert set(first.overhead_us.tolist()) == set(second.overhead_us.tolist())
    np.testing.assert_array_equal(first.seen.predicted_us, second.seen.predicted_us)
    np.testing.assert_array_equal(first.seen.baseline_us, second.seen.baseline_us)
    np.testing.assert_array_equal(first.seen.measured_us, second.seen.measured_us)
    assert not np.array_equal(first.unseen.measured_us, second.unseen.measured_us)


def test_rows_below_what_can_be_told_count_with_the_least() -> None:
    measured = made_set(offset_us=60.0, includes_host_overhead=True)
    first = next(index for index, row in enumerate(measured.measurements) if row.operator.is_held_out())
    rows = list(measured.measurements)
    rows[first] = replace(rows[first], latency_us=20.0)
    found = evaluate_operators(replace(measured, measurements=tuple(rows)), device(DEVICE))
    assert found.clamped.sum() == 1
    assert found.measured_us[first] == found.least_us == 5.0


def test_cold_rows_are_left_out() -> None:
    measured = made_set()
    rows = [replace(row, is_cold=index < 7) for index, row in enumerate(measured.measurements)]
    found = evaluate_operators(replace(measured, measurements=tuple(rows)), device(DEVICE))
    assert found.cold_rows == 7
    assert len(found) == len(rows) - 7


def test_a_fit_that_held_out_less_is_judged_by_that(exact: OperatorEvaluation) -> None:
    profile = device(DEVICE)
    provenance = profile.provenance.model_copy(update={"held_out_fraction": 0.1})
    less = evaluate_operators(made_set(), profile.model_copy(update={"provenance": provenance}), roofline_us)
    assert 0 < less.held_out.sum() < exact.held_out.sum()
    assert not (less.held_out & ~exact.held_out).any()


def test_few_rows_and_none_held_out() -> None:
    seen = [Measurement(each, 100.0) for each in shapes() if not each.is_held_out()][:4]
    found = evaluate_operators(replace(made_set(), measurements=tuple(seen)), device(DEVICE))
    assert len(found.unseen) == 0
    assert found.unseen.coverage() is None
    document = found.to_json()
    assert document["gpu_time"] == {"rows": 0, "mape": None, "median_error": None, "bias": None, "kendall_tau": None}
    assert document["baseline"] is None
    assert document["seen_gpu_time"]["rows"] == 4


@pytest.mark.slow
def test_recorded_convolutions(shared: Path) -> None:
    """Rows of a real recording: most are explained, and far better than by a roofline."""
    found = evaluate_operators(
        read_measurements(shared / "data" / "kernels" / "conv.v100-pcie-32gb.csv"),
        device("v100-pcie-32gb"),
        roofline_us,
    )
    assert len(found) + found.hidden_rows == 3471
    assert found.hidden_rows < 100
    assert 0.28 < found.held_out.mean() < 0.33
    accuracy, roofline = found.unseen.gpu_time(), found.unseen.baseline()
    assert accuracy.mean_error is not None
    assert roofline.mean_error is not None
    assert accuracy.mean_error < 0.75 * roofline.mean_error
    assert sum(each.rows for each in found.unseen.by_bucket().values()) == len(found.unseen)
