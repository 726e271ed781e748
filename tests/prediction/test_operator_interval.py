"""Which band a prediction gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operators import operators

from iossim.calibration.accuracy import interval
from iossim.hardware.load import device
from iossim.hardware.profile import DeviceProfile
from iossim.hardware.provenance import Band, Provenance
from iossim.ir.ops import functions
from iossim.ir.types import Precision
from iossim.measurements.measurement import Operator
from iossim.prediction.bands import measured_over_predicted
from iossim.prediction.predict import predict

BANDS = {
    "conv": [Band(up_to_us=50, rows=30, low=0.7, high=1.5), Band(rows=90, low=0.9, high=1.2)],
    "gemm": [Band(rows=30, low=0.95, high=1.05)],
    "relu": [Band(rows=30, low=0.98, high=1.02)],
}
FITTED = Provenance(kind="fitted", note="", bands=BANDS)
HAND_SET = Provenance(kind="hand-set", note="")


def band(kind: str, us: float = 10.0, precision: Precision = Precision.FP32, provenance: Provenance = FITTED) -> Band:
    return measured_over_predicted(kind, precision, us, provenance)


def test_own_kind_and_bucket() -> None:
    assert band("conv", 50.0) == BANDS["conv"][0]
    assert band("conv", 50.1) == BANDS["conv"][1]


def test_nearest_kind() -> None:
    assert band("linear") == band("matmul") == BANDS["gemm"][0]
    assert all(band(kind) == BANDS["relu"][0] for kind in ("add", "sigmoid", *functions.UNARY))
    assert all(band(kind) == BANDS["relu"][0] for kind in functions.NARY)


@pytest.mark.parametrize("kind", ["depthwise", "max_pool", "softmax"])
def test_kinds_unlike_any_measured_are_wide(kind: str) -> None:
    assert band(kind).high / band(kind).low >= 4 * 0.99
    assert band(kind).rows == 0


def test_reduced_precision_is_another_kind() -> None:
    assert band("conv", precision=Precision.FP16) == Band(rows=0, low=0.74, high=1.55) != band("conv")
    assert band("linear", precision=Precision.BF16) == Band(rows=0, low=0.8, high=1.35)
    assert band("max_pool", precision=Precision.FP16).high >= 2
    half = FITTED.model_copy(update={"bands": {**BANDS, "conv fp16": BANDS["gemm"]}})
    assert band("conv", precision=Precision.FP16, provenance=half) == BANDS["gemm"][0]


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
