"""Which of NVML's devices is read: the one that CUDA runs on, however either counts them."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from host_device import HostDriver

from iossim.backends.cupy_cudnn.timing import Conditions


class NVMLError(Exception):
    """As NVML's."""


class Nvml(SimpleNamespace):
    """Two GPUs; the one that CUDA calls its first is the second here."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self) -> None:
        super().__init__()
        self.buses = ["0000:0a:00.0", HostDriver().facts.pci_bus]

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetHandleByPciBusId(self, bus: str) -> int:  # noqa: N802
        if bus not in self.buses:
            raise NVMLError("Not Found")
        return self.buses.index(bus)

    def nvmlDeviceGetClockInfo(self, handle: int, clock: int) -> int:  # noqa: N802
        return [345, 1980][handle] if clock == self.NVML_CLOCK_SM else 2619

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:  # noqa: N802
        return [30, 60][handle]

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        raise NVMLError("Not Supported")

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:  # noqa: N802
        return [1, 0][handle]

    def nvmlDeviceGetUUID(self, handle: int) -> Any:  # noqa: N802
        return [b"GPU-idle", b"GPU-busy"][handle]


def test_the_device_is_found_by_where_it_is_plugged_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())  # type: ignore[arg-type]
    read = Conditions(HostDriver().facts.pci_bus).read()
    assert read == {
        "sm_clock_mhz": 1980.0, "memory_clock_mhz": 2619.0, "temperature_c": 60.0, "throttle_reasons": "0x0",
        "gpu": "GPU-busy",
    }  # fmt: skip


def test_a_device_that_nvml_does_not_know_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())  # type: ignore[arg-type]
    assert Conditions("0000:ff:00.0").read() == {}
    monkeypatch.setitem(sys.modules, "pynvml", None)  # type: ignore[arg-type]
    assert Conditions("0000:1b:00.0").read() == {}
