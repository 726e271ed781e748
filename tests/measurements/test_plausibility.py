"""Sets of the wrong unit or device are refused, a few impossible rows dropped."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from operators import operators

from iossim.hardware.load import device
from iossim.measurements.measurement import Header, Measurement, MeasurementError, MeasurementSet, Operator
from iossim.measurements.measurement_set import check_plausible, fastest_possible_us
from iossim.measurements.operator_kinds import parse_description
from iossim.prediction.predict import predict

SHAPES = [
    *(f"conv batch={n} in_channels=64 out_channels=128 kernel=3 in_size=28 stride=1 padding=1" for n in range(1, 33)),
    *(f"gemm m={128 * n} n=512 k=1024 trans_a=N trans_b=T" for n in range(1, 33)),
    *(f"relu rows={n * n} cols=4096" for n in range(1, 33)),
]


@pytest.fixture(scope="module")
def v100_set() -> MeasurementSet:
    """What a V100 would take, and 60 us of host overhead."""
    shapes = [parse_description(text) for text in SHAPES]
    predictions = predict(shapes, device("v100-sxm2"))
    measurements = (
        Measurement(shape, 60.0 + prediction.gpu_time_us) for shape, prediction in zip(shapes, predictions, strict=True)
    )
    return MeasurementSet(Header(device="v100-sxm2", data_set="made"), tuple(measurements))


def scaled(measured: MeasurementSet, factor: float) -> MeasurementSet:
    rows = (replace(row, latency_us=row.latency_us * factor) for row in measured.measurements)
    return replace(measured, measurements=tuple(rows))


def test_plausible(v100_set: MeasurementSet) -> None:
    assert check_plausible(v100_set, device("v100-sxm2")) is v100_set


@pytest.mark.parametrize("factor", [1e-3, 1e-6, 1e3])
def test_wrong_unit(v100_set: MeasurementSet, factor: float) -> None:
    with pytest.raises(MeasurementError, match="is the unit us") as caught:
        check_plausible(scaled(v100_set, factor), device("v100-sxm2"))
    assert "'made'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_much_slower_device(v100_set: MeasurementSet) -> None:
    with pytest.raises(MeasurementError, match="is this the device"):
        check_plausible(v100_set, device("k80"))


def test_one_impossible_row_is_dropped(v100_set: MeasurementSet) -> None:
    rows = list(v100_set.measurements)
    rows[40] = replace(rows[40], latency_us=0.01)
    checked = check_plausible(replace(v100_set, measurements=tuple(rows)), device("v100-sxm2"))
    assert len(checked.measurements) == len(rows) - 1
    assert rows[40] not in checked.measurements
    assert "1 of 96 rows dropped" in checked.notes[0]


@settings(max_examples=20)
@given(operators())
def test_no_prediction_is_impossible(operator: Operator) -> None:
    for name in ("v100-sxm2", "t4", "p100-pcie-16gb", "a100-pcie-80gb"):
        (prediction,) = predict([operator], device(name))
        assert prediction.gpu_time_us >= fastest_possible_us(operator, device(name))
