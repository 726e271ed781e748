"""Sets made of predictions or with known errors: what a fit sees, what is judged, and the baseline that finds its parameters."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_sets import DEVICE, made_set, noise, predicted_us, shapes, with_latencies
from operators import parse_description

from evidence.data.data_sets import read_measurements
from evidence.profiles.chips import all_rows, chips, fit_lanes
from evidence.validation import intervals as judging
from evidence.validation.published_models import family_errors
from evidence.validation.roofline import CalibratedRoofline, Roofs, roofline_us
from evidence.validation.splits import LARGEST_PART, SplitRows, split_by_size
from iossim.calibration.recording import lowered, work
from iossim.calibration.validation import OperatorEvaluation, evaluate_operators
from iossim.hardware.load import device
from iossim.ir.types import Precision
from iossim.measurements.measurement import Header, Measurement, MeasurementSet
from iossim.prediction.predict import predict

RELUS = tuple(parse_description(f"relu rows={97 * n} cols=4096") for n in range(1, 201))


def relus(factor: float = 1.0, largest_factor: float = 1.0) -> MeasurementSet:
    """Activations of 0.4 to 80 million elements; the largest fifth takes ``largest_factor`` times what it would."""
    predictions = predict(RELUS, device(DEVICE))
    rows = [
        Measurement(each, told.gpu_time_us * factor * (largest_factor if index >= 0.8 * len(RELUS) else 1.0), index)
        for index, (each, told) in enumerate(zip(RELUS, predictions, strict=True))
    ]
    return MeasurementSet(Header(device=DEVICE, data_set="relus"), tuple(rows))


def by_part(measured: MeasurementSet) -> dict[str, SplitRows]:
    return {row.part: row for row in split_by_size(chips([lowered(measured, device(DEVICE))]))}


def test_the_largest_fifth_is_judged_by_a_fit_of_the_rest() -> None:
    found = by_part(relus())
    inside, largest = found["inside"], found["largest"]
    assert len(largest) == LARGEST_PART * len(RELUS)
    assert largest.measured_us.min() > inside.measured_us.max()
    assert len(inside) == sum(each.is_held_out() for each in RELUS[:160])
    for each in (inside, largest):
        assert each.accuracy.mean_error < 0.1
        assert each.far_off == 0
        assert each.roofline.rows == len(each)


def test_large_rows_do_not_move_the_fit() -> None:
    first, second = by_part(relus()), by_part(relus(largest_factor=3.0))
    np.testing.assert_array_equal(first["inside"].predicted_us, second["inside"].predicted_us)
    np.testing.assert_array_equal(first["largest"].predicted_us, second["largest"].predicted_us)
    np.testing.assert_array_equal(first["largest"].baseline_us, second["largest"].baseline_us)
    assert second["largest"].far_off == len(second["largest"])
    assert second["largest"].coverage == 0.0
    assert first["largest"].width == second["largest"].width


def test_kinds_of_few_rows_are_not_split() -> None:
    assert split_by_size(chips([lowered(made_set(), device(DEVICE))])) == ()


def test_products_on_tensor_cores_are_no_part_of_a_fit_of_the_lanes() -> None:
    operators = [
        parse_description(f"gemm m={96 * n} n=512 k=1024 trans_a=N trans_b=T", Precision.FP16) for n in range(1, 41)
    ]
    half = MeasurementSet(Header(device=DEVICE, data_set="half"), tuple(Measurement(each, 1.0) for each in operators))
    alone, both = (
        fit_lanes(chips([lowered(each, device(DEVICE)) for each in sets])[0], all_rows)
        for sets in ([made_set()], [made_set(), half])
    )
    assert alone.found.values == both.found.values
    assert fit_lanes(chips([lowered(half, device(DEVICE))])[0], all_rows) is None


def test_long_recordings_are_thinned_over_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    from iossim.calibration import recording as module

    monkeypatch.setattr(module, "MOST_SEEN_ROWS", 30)
    kept = lowered(relus(), device(DEVICE))
    assert int(kept.seen.sum()) == 30
    assert int(kept.is_held_out.sum()) == sum(each.is_held_out() for each in RELUS)
    seen = [row for row in kept.measured.measurements if not row.operator.is_held_out()]
    all_seen = [each for each in RELUS if not each.is_held_out()]
    assert (seen[0].operator, seen[-1].operator) == (all_seen[0], all_seen[-1])
    assert max(np.diff([work(row)[0] for row in seen])) < 97 * 4096 * 12


def test_families_stand_beside_the_published_errors() -> None:
    times = np.linspace(10.0, 500.0, 150)

    def row(device_name: str, key: str, error: float, rows: int = 150) -> SplitRows:
        measured = times[:rows]
        arrays = ((1 + error) * measured, measured, measured, measured, 2 * measured)
        return SplitRows("device", "zero-shot", device_name, f"{key}.{device_name}", key, *arrays)

    rows = [row("t4", "bmm", 0.1), row("p4", "bmm", -0.2), row("t4", "add", 0.3), row("t4", "relu", 0.1)]
    rows += [row("t4", "softmax", 9.0, rows=9)]
    found = {each.family: each for each in family_errors([], rows)}
    assert set(found) == {"bmm", "elementwise"}
    assert found["bmm"].error == pytest.approx(0.15)
    assert found["bmm"].devices == 2
    assert found["bmm"].published == pytest.approx(0.138)
    assert found["elementwise"].error == pytest.approx(0.2)


def test_groups_count_alike_or_by_their_rows() -> None:
    inside, outside = (judging.judged_by(np.full(rows, ratio), 0.8, 1.25) for rows, ratio in ((90, 1.0), (10, 2.0)))
    groups = {"a": [inside[:40], inside[40:]], "b": [outside], "few": [outside[:5]]}
    by_rows, alike = judging.summary(groups), judging.summary(groups, alike=True)
    assert (by_rows["rows"], by_rows["inside"]) == (105, pytest.approx(600 / 7))
    assert (alike["rows"], alike["inside"]) == (100, 50.0)
    assert (alike["least"], alike["most"], alike["width"]) == (0.0, 100.0, pytest.approx(1.25 / 0.8))


def test_boards_count_alike_in_a_band_and_are_judged_by_the_others() -> None:
    near, far = np.linspace(0.9, 1.1, 1001), np.linspace(1.9, 2.1, 21)
    assert judging.quantiles([near]) == [pytest.approx(0.91, abs=0.005), pytest.approx(1.09, abs=0.005)]
    assert judging.quantiles([near, far]) == [pytest.approx(0.92, abs=0.005), pytest.approx(2.08, abs=0.011)]
    alike = judging.boards_left_out({"a": near, "b": near[::7], "c": far})
    assert (alike["least"], alike["rows"]) == (0.0, 1001 + 143 + 21)


def test_the_order_of_schedules_and_intervals_that_move() -> None:
    """Two networks, whose schedules all take a quarter longer than predicted, with intervals of a fifth."""

    def interval(one: SimpleNamespace) -> SimpleNamespace:
        return SimpleNamespace(low_us=one.latency_us / 1.2, high_us=one.latency_us * 1.2)

    errors = SimpleNamespace(interval=interval, noise=lambda *_: 0.1)
    one, near, far = (SimpleNamespace(latency_us=us) for us in (100.0, 102.0, 150.0))
    found = [("a", errors, [(one, 125.0), (near, 124.0)]), ("b", errors, [(one, 125.0), (far, 187.5)])]
    for judged, inside in ((judging.latencies, 0.0), (judging.moved, 100.0), (judging.differences, 100.0)):
        assert judging.summary({"": judged(found)})["inside"] == inside
    counts = {"pairs": 2, "told": 1, "told right": 1, "ties": 1, "clear": 1, "clear right": 1, "unclear": 1}
    assert Counter(judging.order(found)) == counts


ARITHMETIC, MEMORY, FLOOR_US = 0.6, 0.8, 7.0


@pytest.fixture
def roofs() -> Roofs:
    return Roofs.of(shapes(), device(DEVICE))


def test_parameters_are_found(roofs: Roofs) -> None:
    latency_us = FLOOR_US + roofs.device_us(ARITHMETIC, MEMORY)
    latency_us[::15] *= 3.0  # a few rows that no roofline explains
    none = np.zeros((len(latency_us), 0))
    found = CalibratedRoofline.fit(roofs, none, latency_us, latency_us)
    assert found.arithmetic_efficiency == pytest.approx(ARITHMETIC, rel=0.03)
    assert found.memory_efficiency == pytest.approx(MEMORY, rel=0.03)
    assert found.offset == pytest.approx([FLOOR_US], rel=0.05)
    right = np.arange(len(latency_us)) % 15 != 0
    np.testing.assert_allclose(found.latency_us(roofs, none)[right], latency_us[right], rtol=0.03)


def test_overhead_takes_the_place_of_the_floor(roofs: Roofs) -> None:
    rows = np.linspace(0.0, 1.0, len(shapes()))
    basis = np.stack([1.0 - rows, rows], axis=1)
    device_us = roofs.device_us(ARITHMETIC, MEMORY)
    latency_us = device_us + basis @ np.array([60.0, 200.0])
    found = CalibratedRoofline.fit(roofs, basis, latency_us, device_us)
    np.testing.assert_allclose(found.latency_us(roofs, basis), latency_us, rtol=1e-3)


def test_too_few_rows(roofs: Roofs) -> None:
    few = np.arange(len(shapes())) < 5
    assert CalibratedRoofline.fit(roofs[few], np.zeros((5, 0)), np.ones(5), np.ones(5)) is None


def test_reduced_precision_has_a_higher_roof() -> None:
    product = next(each for each in shapes() if each.kind == "gemm")
    full = Roofs.of([product], device(DEVICE)).arithmetic_us
    half = Roofs.of([replace(product, precision=Precision.FP16)], device(DEVICE)).arithmetic_us
    assert half < 0.2 * full


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
    assert roofline > 0.02


def test_split_is_by_shape(exact: OperatorEvaluation) -> None:
    assert [each.operator for each in exact.measurements] == list(shapes())
    np.testing.assert_array_equal(exact.held_out, [each.is_held_out() for each in shapes()])
    assert len(exact.seen) + len(exact.unseen) == len(exact)
    assert [(kind, len(exact.of_kind(kind, precision))) for kind, precision in exact.kinds] == [
        (kind, 40) for kind in ("conv", "gemm", "relu")
    ]
    assert exact.unseen.held_out.all()


def test_intervals_are_those_of_predict(exact: OperatorEvaluation) -> None:
    predictions = predict(shapes(), device(DEVICE))
    np.testing.assert_allclose(exact.low_us, [each.low_us for each in predictions], rtol=1e-9)
    np.testing.assert_allclose(exact.high_us, [each.high_us for each in predictions], rtol=1e-9)


@given(st.floats(0.3, 3.0))
@settings(max_examples=4)
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
@settings(max_examples=10)
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
    assert accuracy.mean_error < 0.75 * roofline.mean_error
    assert sum(each.rows for each in found.unseen.by_bucket().values()) == len(found.unseen)
