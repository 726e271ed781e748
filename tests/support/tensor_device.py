"""The device of the host with memory of PyTorch's: what :class:`TensorDriver` is on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from host_device import HostDriver, HostGraph, HostMemory, HostStream
from host_library import HostLibrary

from iossim.backends.cupy_cudnn.options import CudnnOptions
from iossim.backends.torch_cuda.tensor_backend import TensorBackend
from iossim.execution.engine import Engine
from iossim.ir.types import Precision


class TensorHostMemory(HostMemory):
    """A tensor's bytes, those of a new one all ones: NaNs."""

    def __init__(self, size_bytes: int, tensor: torch.Tensor | None = None) -> None:
        if tensor is None:
            whole = torch.full((size_bytes + 512,), 0xFF, dtype=torch.uint8)
            begin = -whole.data_ptr() % 256
            tensor = whole[begin : begin + size_bytes]
        self.tensor, self.address, self.size_bytes = tensor, tensor.data_ptr(), size_bytes
        self._bytes = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()


class TensorHostDriver(HostDriver):
    """See :class:`iossim.backends.torch_cuda.tensor_backend.TensorsDriver`; the caller's stream is the host itself."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self._caller = self.stream()
        self.adopted: list[torch.Tensor] = []

    def allocate(self, size_bytes: int) -> TensorHostMemory:
        assert not self.is_capturing, "memory is allocated during a capture"
        self.say("allocate", None, size_bytes)  # type: ignore[arg-type]
        return self._known(TensorHostMemory(size_bytes))

    def adopt(self, tensor: torch.Tensor) -> TensorHostMemory:
        self.adopted.append(tensor)
        return self._known(TensorHostMemory(tensor.numel() * tensor.element_size(), tensor))

    def _known(self, memory: TensorHostMemory) -> TensorHostMemory:
        self._memory.add(memory)
        return memory

    def callers_stream(self) -> HostStream:
        return self._caller

    def launch_graph(self, graph: HostGraph, stream: HostStream) -> None:
        super().launch_graph(graph, stream)
        if stream is self._caller:
            self.synchronize()


def tensor_host_backend(precision: Precision, seed: int = 0, **options: Any) -> TensorBackend:
    """A backend on such a device, which its ``_driver`` is."""
    driver = TensorHostDriver(seed)
    return TensorBackend(precision, Engine.GRAPH, CudnnOptions(**options), driver, HostLibrary(driver))  # type: ignore[arg-type]
