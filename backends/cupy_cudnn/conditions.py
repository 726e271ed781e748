"""What the GPU was like while something was timed: clocks, temperature, power and what held it back, as NVML tells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Conditions:
    """Reads NVML where ``nvidia-ml-py`` is installed; without it, tells nothing.

    The device is found by where it is plugged in (``0000:1b:00.0``). Its number is no name of it: CUDA counts the visible
    devices, the fastest first, NVML all, along the bus. Nor is the identifier (UUID) that CUDA tells: where the device is a
    part of a GPU (MIG) it is that of the part, for which NVML tells neither clocks nor power, and CuPy cuts it off at its
    first zero byte.
    """

    def __init__(self, pci_bus: str) -> None:
        self._nvml: Any = None
        try:
            import pynvml
        except ImportError:
            return
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus)
        except pynvml.NVMLError:
            return
        self._nvml = pynvml

    def read(self) -> dict[str, float | str]:
        """Readings by name; one that the device does not give is left out."""
        nvml = self._nvml
        if nvml is None:
            return {}
        handle = self._handle
        reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None) or getattr(
            nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None
        )
        readings: dict[str, Callable[[], float | str]] = {
            "sm_clock_mhz": lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            "memory_clock_mhz": lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            "temperature_c": lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
        }
        if reasons is not None:
            readings["throttle_reasons"] = lambda: hex(reasons(handle))
        if hasattr(nvml, "nvmlDeviceGetUUID"):
            readings["gpu"] = lambda: _text(nvml.nvmlDeviceGetUUID(handle))
        found: dict[str, float | str] = {}
        for name, reading in readings.items():
            try:
                found[name] = reading()
            except nvml.NVMLError:
                continue
        return found


def first_and_last(before: dict[str, float | str], after: dict[str, float | str]) -> dict[str, float | str]:
    """Two readings as one: each number as it was first and last, each text as it was last."""
    told: dict[str, float | str] = {}
    for name, value in after.items():
        if isinstance(value, str):
            told[name] = value
        else:
            if name in before:
                told[f"{name}_first"] = before[name]
            told[f"{name}_last"] = value
    return told


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
