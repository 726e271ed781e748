"""Plans of backend ``cupy_cudnn`` on PyTorch's tensors: one graph of cuDNN's calls and kernels, in the caller's stream.

The arena is a tensor, and each buffer of a plan a view of it. Weights that lie as a kernel reads them are the caller's
own tensors; others are uploaded in the form that is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace

import torch

from iossim.backends.cupy_cudnn.backend import CupyCudnnBackend, created
from iossim.backends.cupy_cudnn.driver import Allocation, Driver, Graph
from iossim.backends.cupy_cudnn.prepared_plan import Run
from iossim.backends.torch_cuda.program import views
from iossim.execution.backend import BackendError
from iossim.execution.engine import Engine
from iossim.execution.plan import Plan
from iossim.ir.constants import Constant
from iossim.ir.network import Network
from iossim.ir.types import Precision

#: Kernels read 16 bytes at a time.
_ALIGNMENT = 16


class TensorDriver(Driver):
    """Driver whose memory is tensors of bytes, made in a stream of its own, so that no other gets what is freed."""

    def __init__(self) -> None:
        super().__init__()
        self._own = torch.cuda.Stream()

    def allocate(self, size_bytes: int) -> Allocation:
        with torch.cuda.stream(self._own):
            try:
                return self.adopt(torch.empty(max(1, size_bytes), dtype=torch.uint8, device="cuda"))
            except torch.OutOfMemoryError:
                raise self.full(size_bytes) from None

    def free_bytes(self) -> int:
        return int(super().free_bytes() + torch.cuda.memory_reserved() - torch.cuda.memory_allocated())

    def adopt(self, tensor: torch.Tensor) -> Allocation:
        """The memory of a tensor that is on the device."""
        return Allocation(tensor, tensor.data_ptr())

    def launch_for_caller(self, graph: Graph) -> None:
        """Launch a graph in the stream in which PyTorch issues what the caller asks for."""
        self.launch_graph(graph, SimpleNamespace(ptr=torch.cuda.current_stream().cuda_stream))


@dataclass(frozen=True, eq=False)
class TensorProgram:
    """A plan recorded as one graph; ``tensors`` holds each buffer. :meth:`run` returns before the device has run it."""

    _run: Run
    _driver: TensorDriver
    tensors: Mapping[str, torch.Tensor]

    def run(self) -> None:
        self._driver.launch_for_caller(self._run.graphs[0])


class TensorBackend(CupyCudnnBackend):
    """Backend ``cupy_cudnn`` under the graph engine, on a :class:`TensorDriver`."""

    driver: TensorDriver

    def program(self, network: Network, plan: Plan, weights: Mapping[Constant, torch.Tensor]) -> TensorProgram:
        """A plan in memory of its own; ``weights`` are tensors on the device that stand for constants of the network.

        Raises BackendError where an op has no kernel.
        """

        constants = network.graph.constants  # not the network, which weights do not outlive

        def at_hand(name: str, order: tuple[int, ...]) -> Allocation | None:
            constant = constants.get(name)
            tensor = None if constant is None else weights.get(constant)
            if tensor is None or not tensor.permute(order).is_contiguous() or tensor.data_ptr() % _ALIGNMENT:
                return None
            return self.driver.adopt(tensor)

        with self._told():
            self.driver.synchronize()  # what used the memory before may still run in a stream of its caller
            own = self._weights_of(network)
            own.at_hand = at_hand
            run = self._recorded(network, plan)
            if not run.is_one_graph:
                raise BackendError("an op of it would run on the host, which the graph of a module cannot wait for")
            arena = run.prepared.arena.holder
            return TensorProgram(run, self.driver, dict(views(run.prepared.plan, arena, own.layout)))


@cache
def tensor_backend(precision: Precision, gpu: int) -> TensorBackend:
    """The backend of a precision, once in a process. Raises BackendError where it cannot run, with the remedy."""
    if gpu:
        raise BackendError("CuPy runs on the first visible GPU; let CUDA_VISIBLE_DEVICES show this one alone")
    return created(TensorBackend, TensorDriver, precision, Engine.GRAPH, {})
