"""The double of CUDA under backend ``cupy_cudnn``, in every Python process that has this folder on its path.

Python imports a module of this name as it starts, so that the sections of ``gpu_report.py``, which are processes of their own,
run as on a GPU: nothing of them knows of it. ``CUDA_DOUBLE`` says which fault the device has, ``nan@networks`` for one section
alone (see :data:`FAULTS`); nothing happens without it. Plans' times are virtual.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from iossim.backends.cupy_cudnn.backend import CupyCudnnBackend
    from iossim.execution.engine import Engine
    from iossim.ir.types import Precision

#: What may be wrong: outputs of captured convolutions are NaN, or 5% off; after some calls the device breaks, or hangs; its
#: clock is slow at first. ``idle`` computes nothing at all, so that plans of large networks can be counted.
FAULTS = ("none", "nan", "wrong", "sticky", "hang", "slow", "idle")
#: Calls of convolutions after which a device breaks or hangs: in the midst of what a section measures.
CALLS_UNTIL_FAULT = 120
HANG_S = 600.0


def fault() -> str:
    """What is wrong with the device in this process."""
    kind, _, section = os.environ["CUDA_DOUBLE"].partition("@")
    assert kind in FAULTS, f"CUDA_DOUBLE {kind!r} is not known"
    return kind if not section or any(argument.startswith(section) for argument in sys.argv) else "none"


def create(precision: Precision, engine: Engine, options: Mapping[str, str]) -> CupyCudnnBackend:
    """The backend on the double."""
    from host_device import HostDriver, HostLibrary, Ramp

    from iossim.backends.cupy_cudnn import candidate_timing
    from iossim.backends.cupy_cudnn.backend import CupyCudnnBackend
    from iossim.backends.cupy_cudnn.options import parsed_options

    kind = fault()
    # Virtual times are exact: one copy says all.
    candidate_timing.COPIES = 1

    class IdleDriver(HostDriver):
        """Work takes its time and does nothing."""

        def enqueue(self, stream: Any, run: Any, duration_us: float) -> None:
            super().enqueue(stream, lambda: None, duration_us)

    class Library(HostLibrary):
        """Convolutions with a fault."""

        calls = 0

        def execute(self, executable: Any, addresses: Mapping[str, int], workspace: int, handle: Any) -> None:
            super().execute(executable, addresses, workspace, handle)
            self.calls += 1
            if kind in ("nan", "wrong") and handle.capture is not None:
                y = self._tensor(addresses["y"], executable[0].y)
                self._driver.enqueue(handle, lambda: y.__imul__(float("nan") if kind == "nan" else 1.05), 0.0)
            if self.calls == CALLS_UNTIL_FAULT and kind == "sticky":
                self._driver.fail("cudaErrorIllegalAddress: an illegal memory access was encountered")
            if self.calls == CALLS_UNTIL_FAULT and kind == "hang":
                time.sleep(HANG_S)

    ramp = Ramp(slowdown=5.0, ramp_us=200_000.0) if kind == "slow" else Ramp()
    driver = (IdleDriver if kind == "idle" else HostDriver)(ramp=ramp)
    return CupyCudnnBackend(precision, engine, parsed_options(precision, options), driver, Library(driver))


if "CUDA_DOUBLE" in os.environ:
    from iossim.backends.cupy_cudnn import backend

    backend.create = create
    backend.missing = lambda: ""
