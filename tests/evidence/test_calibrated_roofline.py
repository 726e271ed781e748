"""The baseline: it finds the parameters that a set was made with, outliers or not."""

from __future__ import annotations

import numpy as np
import pytest
from made_sets import DEVICE, shapes

from evidence.validation.roofline import CalibratedRoofline, Roofs
from iossim.hardware.load import device
from iossim.ir.types import Precision

ARITHMETIC, MEMORY, FLOOR_US = 0.6, 0.8, 7.0


@pytest.fixture
def roofs() -> Roofs:
    return Roofs.of(shapes(), device(DEVICE))


def test_parameters_are_found(roofs: Roofs) -> None:
    latency_us = FLOOR_US + roofs.device_us(ARITHMETIC, MEMORY)
    latency_us[::15] *= 3.0  # a few rows that no roofline explains
    none = np.zeros((len(latency_us), 0))
    found = CalibratedRoofline.fit(roofs, none, latency_us, latency_us)
    assert found is not None
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
    assert found is not None
    np.testing.assert_allclose(found.latency_us(roofs, basis), latency_us, rtol=1e-3)


def test_too_few_rows(roofs: Roofs) -> None:
    few = np.arange(len(shapes())) < 5
    assert CalibratedRoofline.fit(roofs[few], np.zeros((5, 0)), np.ones(5), np.ones(5)) is None


def test_reduced_precision_has_a_higher_roof() -> None:
    from dataclasses import replace

    product = next(each for each in shapes() if each.kind == "gemm")
    full = Roofs.of([product], device(DEVICE)).arithmetic_us
    half = Roofs.of([replace(product, precision=Precision.FP16)], device(DEVICE)).arithmetic_us
    assert half < 0.2 * full
