"""Splits by size and family on sets made of predictions: what a fit sees, what is judged, and the figures of both."""

from __future__ import annotations

import numpy as np
import pytest
from made_sets import DEVICE, made_set

from evidence.profiles.chips import all_rows, chips, fit_lanes
from evidence.validation.published_models import family_errors
from evidence.validation.splits import LARGEST_PART, SplitRows, split_by_family, split_by_size
from iossim.calibration.recording import lowered, work
from iossim.hardware.load import device
from iossim.ir.types import Precision
from iossim.measurements.measurement import Header, Measurement, MeasurementSet
from iossim.measurements.operator_kinds import parse_description
from iossim.prediction.predict import predict
from iossim.prediction.published import operator_model

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
        assert each.accuracy.mean_error is not None
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


@pytest.mark.slow
def test_a_family_that_is_left_out_does_not_move_the_fit() -> None:
    def judged(factor: float) -> SplitRows:
        sets = [lowered(each, device(DEVICE)) for each in (relus(factor), made_set())]
        return next(
            row for row in split_by_family(chips(sets)) if (row.part, row.data_set) == ("element-wise", "relus")
        )

    first, second = judged(1.0), judged(2.0)
    np.testing.assert_array_equal(first.predicted_us, second.predicted_us)
    assert len(first) == sum(each.is_held_out() for each in RELUS)


def test_products_on_tensor_cores_are_no_part_of_a_fit_of_the_lanes() -> None:
    operators = [
        parse_description(f"gemm m={96 * n} n=512 k=1024 trans_a=N trans_b=T", Precision.FP16) for n in range(1, 41)
    ]
    half = MeasurementSet(Header(device=DEVICE, data_set="half"), tuple(Measurement(each, 1.0) for each in operators))
    alone, both = (
        fit_lanes(chips([lowered(each, device(DEVICE)) for each in sets])[0], all_rows)
        for sets in ([made_set()], [made_set(), half])
    )
    assert alone is not None
    assert both is not None
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
    assert found["bmm"].roofline == pytest.approx(1.0)
    assert found["bmm"].devices == 2
    published = operator_model("NeuSight")["out_of_distribution"]
    assert found["bmm"].published == pytest.approx(published["bmm"] / 100)
    assert found["bmm"].is_better is False
    assert found["elementwise"].error == pytest.approx(0.2)
