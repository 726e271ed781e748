"""Figures of accuracy: what they are for known errors, and what leaves them as they are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from iossim.calibration.accuracy import Accuracy, buckets, rank_correlation

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
def test_buckets_part_the_rows(measured_us: np.ndarray) -> None:
    parts = buckets(measured_us)
    assert list(parts) == ["<0.2 ms", "0.2-1 ms", ">1 ms"]
    np.testing.assert_array_equal(sum(rows.astype(int) for rows in parts.values()), np.ones(len(measured_us)))
    assert (measured_us[parts["<0.2 ms"]] < 200).all()
    assert (measured_us[parts[">1 ms"]] >= 1000).all()
