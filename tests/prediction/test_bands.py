"""Bands of residuals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from iossim.calibration.accuracy import BUCKET_ENDS_US, FEWEST_RESIDUALS, band_key, residual_bands
from iossim.hardware.provenance import Provenance
from iossim.ir.types import Precision
from iossim.measurements.operator_kinds import parse_description
from iossim.prediction.bands import band_of

times = arrays(np.float64, st.integers(0, 120), elements=st.floats(1.0, 1e5))


@given(times, st.floats(0.2, 5.0))
def test_bands_cover_every_prediction(predicted_us: np.ndarray, factor: float) -> None:
    bands = residual_bands(predicted_us, predicted_us * factor)
    assert bool(bands) == (len(predicted_us) >= FEWEST_RESIDUALS)
    if bands:
        # What a profile takes.
        Provenance(kind="fitted", note="", bands={"conv": bands})
        assert sum(band.rows for band in bands) == len(predicted_us)
        assert all(band.rows >= FEWEST_RESIDUALS for band in bands)
        for predicted in (*BUCKET_ENDS_US, 1e9):
            band = band_of(bands, predicted)
            assert band.low <= max(factor, 0.01) + 1e-3
            assert band.high >= factor - 1e-3


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
