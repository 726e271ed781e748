"""The driver of backend ``cupy_cudnn`` on memory of PyTorch's. Importing this module imports CuPy and PyTorch."""

from __future__ import annotations

from typing import Any

import cupy
import torch

from iossim.backends.cupy_cudnn.cupy_driver import CupyDriver
from iossim.backends.torch_cuda.tensor_backend import TensorMemory
from iossim.execution.backend import BackendError


class TensorDriver(CupyDriver):
    """PyTorch's allocator gives memory, in a stream of the driver's own, so that no other stream gets what is freed."""

    def __init__(self) -> None:
        super().__init__()
        if torch.cuda.current_device():
            raise BackendError("CuPy runs on the first visible GPU; let CUDA_VISIBLE_DEVICES show this one alone")
        self._own = torch.cuda.Stream()

    def allocate(self, size_bytes: int) -> TensorMemory:
        with torch.cuda.stream(self._own):
            try:
                return TensorMemory(torch.empty(max(1, size_bytes), dtype=torch.uint8, device="cuda"))
            except torch.OutOfMemoryError:
                raise self.full(size_bytes) from None

    def free_bytes(self) -> int:
        return int(super().free_bytes() + torch.cuda.memory_reserved() - torch.cuda.memory_allocated())

    def adopt(self, tensor: torch.Tensor) -> TensorMemory:
        return TensorMemory(tensor)

    def callers_stream(self) -> Any:
        return cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
