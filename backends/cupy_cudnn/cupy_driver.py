"""The driver on a GPU: CuPy. Importing this module imports CuPy."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from time import perf_counter
from typing import Any, NamedTuple

import cupy
import numpy as np
from cupy.cuda import runtime

from iossim.backends.cupy_cudnn.driver import Allocation, DeviceFacts
from iossim.backends.cupy_cudnn.driver_api import GreenContexts, driver_library, held
from iossim.backends.cupy_cudnn.kernel_text import WAIT
from iossim.backends.cupy_cudnn.views import Scalar
from iossim.execution.backend import BackendError
from iossim.hardware.nvidia_smi import gpus
from iossim.ir.op import Array

# Read when CUDA starts: with fewer hardware queues, streams would share one and wait for each other by accident.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

#: Where the device does not tell: only how long it is kept waiting depends on it.
USUAL_CLOCK_KHZ = 1_500_000


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


class _PoolMemory:
    """A block of CuPy's memory pool: freed blocks are used again without a call to the device."""

    def __init__(self, size_bytes: int) -> None:
        self._pointer = cupy.cuda.alloc(max(1, size_bytes))
        self.address = int(self._pointer.ptr)


class CupyDriver:
    """The first device that is visible."""

    failures: tuple[type[Exception], ...] = (runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError)

    def __init__(self) -> None:
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
        return perf_counter() * 1e6

    def allocate(self, size_bytes: int) -> Allocation:
        try:
            return _PoolMemory(size_bytes)
        except cupy.cuda.memory.OutOfMemoryError:
            raise self.full(size_bytes) from None

    def full(self, size_bytes: int) -> BackendError:
        """Error of a request for more memory than there is."""
        return BackendError(
            f"the GPU has no {size_bytes} bytes of memory left, only {self.free_bytes()}; take a smaller batch, "
            "or end what else runs on it"
        )

    def free_bytes(self) -> int:
        free, _ = runtime.memGetInfo()
        return int(free) + int(cupy.get_default_memory_pool().free_bytes())

    def write(self, address: int, array: Array) -> None:
        source = np.ascontiguousarray(array)
        if source.nbytes:
            # Copies run in the legacy stream, which non-blocking streams are not ordered with: neither what was
            # issued before (freed memory is given out again at once) nor what comes after. And a copy from pageable
            # memory may return when the data has left the host, not when it is there.
            runtime.deviceSynchronize()
            runtime.memcpy(address, source.ctypes.data, source.nbytes, runtime.memcpyHostToDevice)
            runtime.deviceSynchronize()

    def read(self, address: int, array: Array) -> None:
        assert array.flags.c_contiguous, "only dense arrays are filled"
        if array.nbytes:
            runtime.deviceSynchronize()
            runtime.memcpy(array.ctypes.data, address, array.nbytes, runtime.memcpyDeviceToHost)

    def poison(self, address: int, size_bytes: int) -> None:
        if size_bytes:
            runtime.deviceSynchronize()  # as for copies: the legacy stream is ordered with no other
            runtime.memset(address, 0xFF, size_bytes)
            runtime.deviceSynchronize()

    def stream(self) -> Any:
        return cupy.cuda.Stream(non_blocking=True)

    def stream_of_part(self, division: tuple[range, ...], part: int) -> Any:
        if self._green is None:
            self._green = GreenContexts(driver_library())
        return cupy.cuda.ExternalStream(self._green.stream(division, part), 0)

    def event(self, timing: bool = False) -> Any:
        return cupy.cuda.Event(disable_timing=not timing)

    def record(self, event: Any, stream: Any) -> None:
        event.record(stream)

    def wait(self, event: Any, stream: Any) -> None:
        stream.wait_event(event)

    def synchronize(self) -> None:
        runtime.deviceSynchronize()

    def elapsed_us(self, start: Any, end: Any) -> float:
        return 1e3 * float(cupy.cuda.get_elapsed_time(start, end))

    def begin_capture(self, stream: Any, overlapped: bool = False) -> None:
        self._overlapped = overlapped
        # Relaxed: cuDNN may load a module at a first use, which the stricter modes forbid.
        stream.begin_capture(runtime.streamCaptureModeRelaxed)

    def end_capture(self, stream: Any) -> Any:
        self._overlapped = False
        graph = stream.end_capture()
        graph.upload(stream)
        return graph

    def abandon_capture(self, stream: Any) -> None:
        self._overlapped = False
        with suppress(runtime.CUDARuntimeError):  # what failed may have ended the capture too
            stream.end_capture()

    def launch_graph(self, graph: Any, stream: Any) -> None:
        graph.launch(stream)

    def held(self, graph: Any) -> tuple[int, float]:
        return held(driver_library(), int(graph.graph))

    def kernel(self, source: str, name: str) -> Any:
        key = (source, name)
        if key not in self._kernels:
            # The function itself, since the wrapper around it looks its device up at each launch.
            function = cupy.RawModule(code=source).get_function(name).kernel
            self._kernels[key] = _Kernel(function, WAIT in source)
        return self._kernels[key]

    def launch(self, kernel: Any, blocks: int, threads: int, arguments: tuple[Scalar, ...], stream: Any) -> None:
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
            raise cupy.cuda.driver.CUDADriverError(status)


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


def device_count() -> int:
    """Number of visible devices; 0 where there is no driver."""
    try:
        return int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError:
        return 0


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
