"""Backend ``cupy_cudnn`` on the double of CUDA, with a fault."""

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from host_device import HostDriver, HostStream, Ramp
from host_library import HostLibrary

from iossim.backends.cupy_cudnn.backend import CupyCudnnBackend
from iossim.backends.cupy_cudnn.convolution import Asked
from iossim.backends.cupy_cudnn.cudnn_graphs import EnginePlan, Executable
from iossim.backends.cupy_cudnn.options import parsed_options
from iossim.execution.engine import Engine
from iossim.ir.types import Precision

#: What may be wrong: outputs of captured convolutions are NaN, or of all convolutions 5% off; after some calls the
#: device breaks, or hangs; its clock is slow at first. ``idle`` computes nothing at all, so that plans of large
#: networks can be counted.
FAULTS = ("none", "nan", "wrong", "sticky", "hang", "slow", "idle")
#: Calls of convolutions after which a device breaks or hangs: in the midst of what a section measures.
CALLS_UNTIL_FAULT = 120
HANG_S = 600.0


class IdleDriver(HostDriver):
    """Work takes its time and does nothing."""

    def enqueue(self, stream: Any, run: Any, duration_us: float) -> None:
        super().enqueue(stream, lambda: None, duration_us)


class FaultyLibrary(HostLibrary):
    """Convolutions with a fault."""

    def __init__(self, driver: HostDriver, kind: str, plans: int) -> None:
        assert kind in FAULTS, f"fault {kind!r} is not known"
        ranked = {EnginePlan(f"eng{number}", 0): 6.0 + number for number in range(plans)}
        super().__init__(driver, (lambda convolution: ranked) if plans else None)
        self._kind, self._calls = kind, 0
        self.held = {"eng0": (200, 1.0), "eng7": (48, 0.53)}

    def bind(self, convolution: Asked, plan: str) -> Executable:
        return partial(self._faulty, convolution, super().bind(convolution, plan))

    def _faulty(
        self, asked: Asked, run: Executable, addresses: Mapping[str, int], workspace: int, handle: HostStream
    ) -> None:
        run(addresses, workspace, handle)
        self._calls += 1
        if self._kind == "wrong" or (self._kind == "nan" and handle.capture is not None):
            y = self._tensor(addresses["y"], asked.y, asked.dtype)
            factor = np.float32(np.nan if self._kind == "nan" else 1.05)
            self._driver.enqueue(handle, lambda: np.copyto(y, (y * factor).astype(y.dtype)), 0.0)
        if self._calls == CALLS_UNTIL_FAULT and self._kind == "sticky":
            self._driver.fail("cudaErrorIllegalAddress: an illegal memory access was encountered")
        if self._calls == CALLS_UNTIL_FAULT and self._kind == "hang":
            time.sleep(HANG_S)


def create(
    precision: Precision, engine: Engine, options: Mapping[str, str], kind: str, plans: int = 0
) -> CupyCudnnBackend:
    """The backend on a device with that fault, and so many plans a convolution, by default those of the double."""
    ramp = Ramp(slowdown=5.0, ramp_us=400.0) if kind == "slow" else Ramp()
    driver = (IdleDriver if kind == "idle" else HostDriver)(ramp=ramp)
    return CupyCudnnBackend(
        precision, engine, parsed_options(precision, options), driver, FaultyLibrary(driver, kind, plans)
    )
