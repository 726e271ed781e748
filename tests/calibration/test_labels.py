"""Measurements under the name of another device."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic import measured

from iossim.calibration.doubts import check_label
from iossim.hardware.load import device
from iossim.measurements.measurement import MeasurementError, MeasurementSet


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
    assert "\n" not in str(caught.value)
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


def test_old_kernels_make_a_doubt_of_less() -> None:
    """What a Pascal card ran, under the name of a Volta one that is not much faster."""
    several = of("p100-pcie-16gb", ("maxwell_sgemm_128x64_nn",))
    with pytest.raises(MeasurementError, match="is the device right"):
        check_label(several, device("v100-pcie-32gb"))
