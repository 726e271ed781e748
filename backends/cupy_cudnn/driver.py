"""The boundary between the backend and a GPU, which hides CuPy: the driver of the first device that is visible.

Addresses and sizes are plain integers, and streams, events, graphs and kernels are opaque above it. Importing this
module imports no CuPy; making a :class:`Driver` does. In tests the host stands for the driver, or for CuPy below it.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from iossim.backends.cupy_cudnn.cudnn_library import check_version
from iossim.backends.cupy_cudnn.driver_api import GreenContexts, driver_library, held
from iossim.backends.cupy_cudnn.kernel_text import WAIT
from iossim.backends.cupy_cudnn.views import Scalar
from iossim.base.errors import first_line
from iossim.execution.backend import BackendError
from iossim.hardware.nvidia_smi import gpus
from iossim.ir.op import Array

#: Opaque to everything above the driver.
Stream = Any
Event = Any
Graph = Any
Kernel = Any

#: Where the device does not tell: only how long it is kept waiting depends on it.
USUAL_CLOCK_KHZ = 1_500_000

#: ``cudaErrorNoDevice``.
_NO_DEVICE = 100
#: Programmatic dependent launch (``cuda.h``): the attribute, and the first GPUs and drivers that capture it.
_SERIALIZATION, _SINCE_CAPABILITY, _SINCE_DRIVER = 6, 9, 12_030


class _Attribute(ctypes.Structure):
    """``CUlaunchAttribute``."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_ubyte * 60))


class _Launch(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


class _Kernel(NamedTuple):
    """A function of CuPy's, and whether it waits for what is ahead of it, so that it may start early."""

    function: Any
    waits: bool


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Facts about the device, by its driver: the product's name, the driver's version, and sizes that timing needs.

    ``clock_khz`` is the most that the multiprocessors are clocked at, ``pci_bus`` its place: ``0000:1b:00.0``. Where it
    ``overlaps``, a kernel may start while the one ahead of it ends (programmatic dependent launch). There are ``sms``
    multiprocessors, or 0 where that is not known.
    """

    name: str
    driver: str
    l2_bytes: int
    clock_khz: int
    libraries: tuple[tuple[str, str], ...]
    pci_bus: str = ""
    overlaps: bool = False
    sms: int = 0


@dataclass(frozen=True, slots=True)
class Allocation:
    """Device memory at an ``address``; it lives as long as its ``holder``, which this object keeps."""

    holder: object
    address: int


class Driver:
    """Memory, streams, events, graphs and kernels of one device, and the clock of the host."""

    def __init__(self) -> None:
        self._cupy = cupy = _imported()
        self._runtime = runtime = cupy.cuda.runtime
        #: Exceptions by which a call says that it, or something issued before it, failed on the device.
        self.failures: tuple[type[Exception], ...] = (runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError)
        _keep_kernels_somewhere()
        runtime.setDevice(0)
        runtime.deviceSynchronize()  # makes the context now, not while something is timed
        self._kernels: dict[tuple[str, str], _Kernel] = {}
        self._green: GreenContexts | None = None
        self._overlapped = False
        properties = runtime.getDeviceProperties(0)
        name = properties["name"]
        self.facts = DeviceFacts(
            name.decode() if isinstance(name, bytes) else str(name),
            next((gpu.driver_version for gpu in gpus()), f"CUDA {_dotted(runtime.driverGetVersion())}"),
            int(runtime.deviceGetAttribute(runtime.cudaDevAttrL2CacheSize, 0)),
            int(runtime.deviceGetAttribute(runtime.cudaDevAttrClockRate, 0)) or USUAL_CLOCK_KHZ,
            (("cuda", _dotted(runtime.runtimeGetVersion())), ("cupy", cupy.__version__)),
            str(runtime.deviceGetPCIBusId(0)).lower(),
            properties["major"] >= _SINCE_CAPABILITY and runtime.driverGetVersion() >= _SINCE_DRIVER,
            int(properties["multiProcessorCount"]),
        )

    def host_us(self) -> float:
        """The host's clock, microseconds from some moment on."""
        return perf_counter() * 1e6

    def allocate(self, size_bytes: int) -> Allocation:
        """Memory at a multiple of 256 bytes; raises BackendError where the device has not as much left.

        It is of CuPy's pool: freed blocks are used again without a call to the device.
        """
        try:
            pointer = self._cupy.cuda.alloc(max(1, size_bytes))
        except self._cupy.cuda.memory.OutOfMemoryError:
            raise self.full(size_bytes) from None
        return Allocation(pointer, int(pointer.ptr))

    def full(self, size_bytes: int) -> BackendError:
        """Error of a request for more memory than there is."""
        return BackendError(
            f"the GPU has no {size_bytes} bytes of memory left, only {self.free_bytes()}; take a smaller batch, "
            "or end what else runs on it"
        )

    def free_bytes(self) -> int:
        free, _ = self._runtime.memGetInfo()
        return int(free) + int(self._cupy.get_default_memory_pool().free_bytes())

    def write(self, address: int, array: Array) -> None:
        """Copy a dense host array to the device, after all that was issued; returns when it is there."""
        source = np.ascontiguousarray(array)
        if source.nbytes:
            # Copies run in the legacy stream, which non-blocking streams are not ordered with: neither what was
            # issued before (freed memory is given out again at once) nor what comes after. And a copy from pageable
            # memory may return when the data has left the host, not when it is there.
            self._runtime.deviceSynchronize()
            self._runtime.memcpy(address, source.ctypes.data, source.nbytes, self._runtime.memcpyHostToDevice)
            self._runtime.deviceSynchronize()

    def read(self, address: int, array: Array) -> None:
        """Fill a dense host array from the device, after all that was issued."""
        assert array.flags.c_contiguous, "only dense arrays are filled"
        if array.nbytes:
            self._runtime.deviceSynchronize()
            self._runtime.memcpy(array.ctypes.data, address, array.nbytes, self._runtime.memcpyDeviceToHost)

    def poison(self, address: int, size_bytes: int) -> None:
        """Set every bit, which turns floats into NaNs, after all that was issued; returns when it is done."""
        if size_bytes:
            self._runtime.deviceSynchronize()  # as for copies: the legacy stream is ordered with no other
            self._runtime.memset(address, 0xFF, size_bytes)
            self._runtime.deviceSynchronize()

    def stream(self) -> Stream:
        """A new stream that does not synchronise with the default one."""
        return self._cupy.cuda.Stream(non_blocking=True)

    def stream_of_part(self, division: tuple[range, ...], part: int) -> Stream:
        """Such a stream that has the SMs of one part of a division to itself; raises BackendError where none has."""
        if self._green is None:
            self._green = GreenContexts(driver_library())
        return SimpleNamespace(ptr=self._green.stream(division, part))  # CuPy's own class for such streams warns

    def event(self, timing: bool = False) -> Event:
        return self._cupy.cuda.Event(disable_timing=not timing)

    def record(self, event: Event, stream: Stream) -> None:
        event.record(stream)

    def wait(self, event: Event, stream: Stream) -> None:
        self._runtime.streamWaitEvent(stream.ptr, event.ptr)

    def synchronize(self) -> None:
        """Wait until the whole device is idle."""
        self._runtime.deviceSynchronize()

    def elapsed_us(self, start: Event, end: Event) -> float:
        return 1e3 * float(self._cupy.cuda.get_elapsed_time(start, end))

    def begin_capture(self, stream: Stream, overlapped: bool = False) -> None:
        """Capture what is issued from now on; ``overlapped``: kernels start early whose text waits for those ahead."""
        self._overlapped = overlapped
        # Relaxed: cuDNN may load a module at a first use, which the stricter modes forbid.
        stream.begin_capture(self._runtime.streamCaptureModeRelaxed)

    def end_capture(self, stream: Stream) -> Graph:
        """Everything issued to the stream, and to those that it forked to, as a graph ready to launch."""
        self._overlapped = False
        graph = stream.end_capture()
        graph.upload(stream)
        return graph

    def abandon_capture(self, stream: Stream) -> None:
        """End a capture in which something failed, and forget it."""
        self._overlapped = False
        with suppress(self._runtime.CUDARuntimeError):  # what failed may have ended the capture too
            stream.end_capture()

    def launch_graph(self, graph: Graph, stream: Stream) -> None:
        graph.launch(stream)

    def held(self, graph: Graph) -> tuple[int, float]:
        """Blocks of the kernel of a graph that holds most of an SM, and the part that each holds; zeros if not told."""
        return held(driver_library(), int(graph.graph))

    def kernel(self, source: str, name: str) -> Kernel:
        """Compile and load kernel ``name``; the same again for the same source."""
        key = (source, name)
        if key not in self._kernels:
            # The function itself, since the wrapper around it looks its device up at each launch.
            function = self._cupy.RawModule(code=source).get_function(name).kernel
            self._kernels[key] = _Kernel(function, WAIT in source)
        return self._kernels[key]

    def launch(self, kernel: Kernel, blocks: int, threads: int, arguments: tuple[Scalar, ...], stream: Stream) -> None:
        if not (self._overlapped and kernel.waits):
            kernel.function((blocks,), (threads,), arguments, stream=stream)
            return
        # CuPy's launches have no attributes.
        held = [np.array(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(held))(*(each.ctypes.data for each in held))
        attribute = _Attribute(_SERIALIZATION, 0, 1)
        asked = _Launch((blocks, 1, 1), (threads, 1, 1), 0, stream.ptr, ctypes.pointer(attribute), 1)
        function = ctypes.c_void_p(kernel.function.ptr)
        status = driver_library().cuLaunchKernelEx(ctypes.byref(asked), function, pointers, None)
        if status:
            raise self._cupy.cuda.driver.CUDADriverError(status)


def _keep_kernels_somewhere() -> None:
    """Let CuPy keep compiled kernels in memory where it has no folder for them: it would fail at the first one."""
    given = os.environ.get("CUPY_CACHE_DIR") or os.path.expanduser("~/.cupy/kernel_cache")
    try:
        os.makedirs(given, exist_ok=True)
        usable = os.access(given, os.W_OK)
    except OSError:
        usable = False
    if not usable:
        os.environ["CUPY_CACHE_IN_MEMORY"] = "1"


def _imported() -> Any:
    """CuPy, which is loaded now."""
    # Read when CUDA starts: with fewer hardware queues, streams would share one and wait for each other by accident.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    import cupy

    return cupy


def device_count() -> int:
    """Number of visible devices, 0 where there is no driver; raises BackendError for a CuPy that is too old, and for a
    driver that is, or that has its devices not ready.
    """
    cupy = _imported()
    check_version("cupy", str(cupy.__version__))
    runtime = cupy.cuda.runtime
    try:
        return int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as error:
        driver = runtime.driverGetVersion()  # 0 where there is none
        if driver and error.status != _NO_DEVICE:
            raise BackendError(
                f"the driver (of CUDA {_dotted(driver)}) gives CuPy no GPU ({first_line(error)}); see 'nvidia-smi', "
                "install a newer driver, or CuPy for this one's CUDA"
            ) from None
        return 0


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
