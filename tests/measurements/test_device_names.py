"""Which device a recording is of."""

from __future__ import annotations

from pathlib import Path

import pytest

from iossim.hardware.load import device_names
from iossim.measurements.measurement import ALIASES, MeasurementError, device_of, device_of_product


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("Tesla K80", "k80"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2"),
        ("Tesla V100-PCIE-32GB", "v100-pcie-32gb"),
        ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx-2080-ti"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("Tesla P100-SXM2-16GB", "p100-sxm2"),
        ("NVIDIA GeForce GTX TITAN X", "titan-x"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H200", "h200-sxm"),
    ],
)
def test_names_of_drivers(product: str, name: str) -> None:
    assert device_of_product(product) == name
    assert name in device_names()


def test_aliases_are_of_devices_that_ship() -> None:
    assert set(ALIASES.values()) <= set(device_names())


def test_who_says_it() -> None:
    path = Path("table.csv")
    assert device_of(path, "t4", None) == "t4"
    assert device_of(path, None, "t4") == "t4"
    assert device_of(path, "v100-dgx1", "v100-sxm2") == "v100-sxm2"
    assert device_of(path, "my-gpu", "t4") == "my-gpu"
    assert device_of(path, "v100-dgx1", "t4") == "v100-sxm2"
    with pytest.raises(MeasurementError, match="`device`"):
        device_of(path, None, None)
