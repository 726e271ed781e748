"""CuPy's interface to CUDA on the host's device: what the backend's own driver calls, as CuPy spells it.

So that the driver itself is tested, and not only what stands above it. Host copies behave as CUDA's of pageable memory: one to
the device returns when the data has left the host, and runs in the legacy stream, which other streams are not ordered with.
"""

from __future__ import annotations

import ctypes
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
from host_device import HostDeviceError, HostDriver, HostEvent, HostMemory, HostStream

_SCALARS = {"int": np.int32, "unsigned int": np.uint32, "float": np.float32, "long long": np.int64}


class OutOfMemoryError(MemoryError):
    """As that of CuPy's pools."""


class HostCupy:
    """Module ``cupy`` on a host's device; ``cupy.cuda`` is its :attr:`cuda`."""

    __version__ = "14.2.0"

    def __init__(self, device: HostDriver, memory_bytes: int = 2**34) -> None:
        self.device, self.memory_bytes = device, memory_bytes
        self.functions: list[Any] = []
        self.events: list[HostEvent] = []
        self.cuda = SimpleNamespace(
            alloc=self._alloc,
            Stream=self._stream,
            Event=lambda disable_timing: _Event(self, disable_timing),
            get_elapsed_time=lambda start, end: device.elapsed_us(start.event, end.event) / 1e3,
            memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
            driver=SimpleNamespace(CUDADriverError=type("CUDADriverError", (RuntimeError,), {})),
            runtime=_Runtime(self),
        )

    def RawModule(self, code: str) -> Any:  # noqa: N802
        def get_function(name: str) -> Any:
            kernel = self.device.kernel(code, name)

            def call(grid: tuple[int], block: tuple[int], args: tuple[np.generic, ...], *, stream: _Stream) -> None:
                overlapped, self.device._overlapped = self.device._overlapped, False
                self.device.launch(kernel, *grid, *block, args, self.stream_of(stream))
                self.device._overlapped = overlapped

            self.functions.append(kernel)
            call.ptr = len(self.functions)  # type: ignore[attr-defined]
            return SimpleNamespace(kernel=call)

        return SimpleNamespace(get_function=get_function)

    def _stream(self, non_blocking: bool) -> _Stream:
        assert non_blocking, "other streams wait for the legacy one at each launch"
        return _Stream(self, self.device.stream().ptr)

    def stream_of(self, given: Any) -> HostStream:
        """The stream of a number, which is all that CuPy reads of those that it has not made."""
        return self.device.streams[given.ptr]

    def cuLaunchKernelEx(self, asked: Any, function: Any, pointers: Any, extra: None) -> int:  # noqa: N802
        """The driver's own launch, of kernels whose arguments are found by their declarations."""
        asked = asked._obj
        attribute = asked.attributes[0]
        assert (asked.count, attribute.id, attribute.value, asked.shared_bytes) == (1, 6, 1, 0)
        assert [*asked.grid[1:], *asked.block[1:]] == [1] * 4
        kernel = self.functions[function.value - 1]
        stream = self.device.streams[asked.stream or 0]
        found = re.search(rf"void {kernel[1]}\((.*?)\) {{", kernel[0])
        assert found is not None
        types = [np.uint64 if "*" in each else _SCALARS[each.rpartition(" ")[0]] for each in found[1].split(", ")]
        arguments = [
            np.frombuffer((ctypes.c_char * np.dtype(kind).itemsize).from_address(place), kind)[0]
            for kind, place in zip(types, pointers, strict=True)
        ]
        self.device.launch(kernel, asked.grid[0], asked.block[0], tuple(arguments), stream)
        return 0

    def get_default_memory_pool(self) -> Any:
        return SimpleNamespace(free_bytes=lambda: 0)

    def _alloc(self, size_bytes: int) -> Any:
        if size_bytes > self.memory_bytes:
            raise OutOfMemoryError(size_bytes)
        return _Pointer(self.device.allocate(size_bytes))


class _Pointer:
    def __init__(self, memory: HostMemory) -> None:
        self.memory, self.ptr = memory, memory.address


class _Graph:
    def __init__(self, cupy: HostCupy, graph: Any) -> None:
        self.cupy, self.graph = cupy, graph

    def upload(self, stream: _Stream) -> None:
        self.cupy.device._alive()

    def launch(self, stream: Any) -> None:
        self.cupy.device.launch_graph(self.graph, self.cupy.stream_of(stream))


class _Stream:
    def __init__(self, cupy: HostCupy, ptr: int) -> None:
        self.cupy, self.ptr = cupy, ptr

    def begin_capture(self, mode: int) -> None:
        assert mode == _Runtime.streamCaptureModeRelaxed, "libraries may load what they need at a first use"
        self.cupy.device.begin_capture(self.cupy.stream_of(self), overlapped=True)

    def end_capture(self) -> _Graph:
        if self.cupy.stream_of(self).capture is None:
            raise HostDeviceError("cudaErrorIllegalState: the operation cannot be performed in the present state")
        return _Graph(self.cupy, self.cupy.device.end_capture(self.cupy.stream_of(self)))


class _Event:
    def __init__(self, cupy: HostCupy, disable_timing: bool) -> None:
        self.cupy, self.event, self.ptr = cupy, cupy.device.event(timing=not disable_timing), len(cupy.events)
        cupy.events.append(self.event)

    def record(self, stream: Any) -> None:
        self.cupy.device.record(self.event, self.cupy.stream_of(stream))


class _Runtime:
    """``cupy.cuda.runtime``."""

    CUDARuntimeError = HostDeviceError
    streamCaptureModeRelaxed = 2  # noqa: N815
    memcpyHostToDevice, memcpyDeviceToHost = 1, 2  # noqa: N815
    cudaDevAttrL2CacheSize, cudaDevAttrClockRate = 38, 13  # noqa: N815

    def __init__(self, cupy: HostCupy) -> None:
        self._cupy, self._device = cupy, cupy.device

    def streamWaitEvent(self, stream: int, event: int) -> None:  # noqa: N802
        self._device.wait(self._cupy.events[event], self._device.streams[stream])

    def setDevice(self, device: int) -> None:  # noqa: N802
        assert device == 0

    def getDeviceCount(self) -> int:  # noqa: N802
        return 1

    def getDeviceProperties(self, device: int) -> dict[str, Any]:  # noqa: N802
        facts = self._device.facts
        own = {"major": 9 if facts.overlaps else 8, "multiProcessorCount": facts.sms}
        return {"name": facts.name.encode(), **own}

    def deviceGetAttribute(self, attribute: int, device: int) -> int:  # noqa: N802
        facts = self._device.facts
        return {self.cudaDevAttrL2CacheSize: facts.l2_bytes, self.cudaDevAttrClockRate: facts.clock_khz}[attribute]

    def deviceGetPCIBusId(self, device: int) -> str:  # noqa: N802
        return self._device.facts.pci_bus.upper()

    def runtimeGetVersion(self) -> int:  # noqa: N802
        return 13000

    driverGetVersion = runtimeGetVersion  # noqa: N815

    def deviceSynchronize(self) -> None:  # noqa: N802
        self._device.synchronize()

    def memGetInfo(self) -> tuple[int, int]:  # noqa: N802
        return self._device.free_bytes(), 2**40

    def memset(self, target: int, value: int, size_bytes: int) -> None:
        self._device._alive()
        self._device.bytes(target, size_bytes)[:] = value

    def memcpy(self, target: int, source: int, size_bytes: int, kind: int) -> None:
        if kind == self.memcpyHostToDevice:
            data = np.frombuffer((ctypes.c_uint8 * size_bytes).from_address(source), np.uint8)
            self._device.copy_in(target, data)
        else:
            # What the legacy stream holds has run before; what other streams hold need not have.
            self._device._alive()
            ctypes.memmove(target, self._device.bytes(source, size_bytes).ctypes.data, size_bytes)
