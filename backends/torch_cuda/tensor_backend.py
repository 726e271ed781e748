"""Plans of backend ``cupy_cudnn`` on PyTorch's tensors: one graph of cuDNN's calls and kernels, in the caller's stream.

The arena is a tensor, and each buffer of a plan a view of it. Weights that lie as a kernel reads them are the caller's
own tensors; others are uploaded in the form that is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, cast

import torch

from iossim.backends.cupy_cudnn.backend import CupyCudnnBackend, created
from iossim.backends.cupy_cudnn.driver import Driver
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


class TensorMemory:
    """Device memory that is a tensor's; it lives as long as this does."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.address = tensor, tensor.data_ptr()


class TensorsDriver(Driver, Protocol):
    """A driver that allocates tensors of bytes."""

    def allocate(self, size_bytes: int) -> TensorMemory: ...

    def adopt(self, tensor: torch.Tensor) -> TensorMemory:
        """The memory of a tensor that is on the device."""

    def callers_stream(self) -> Any:
        """The stream in which PyTorch issues what the caller asks for."""


@dataclass(frozen=True, eq=False)
class TensorProgram:
    """A recorded plan; ``tensors`` holds each buffer. :meth:`run` returns before the device has run it."""

    _run: Run
    _driver: TensorsDriver
    tensors: Mapping[str, torch.Tensor]

    def run(self) -> None:
        self._run.launch(self._driver.callers_stream())


class TensorBackend(CupyCudnnBackend):
    """Backend ``cupy_cudnn`` under the graph engine, on a :class:`TensorsDriver`."""

    _driver: TensorsDriver

    def program(self, network: Network, plan: Plan, weights: Mapping[Constant, torch.Tensor]) -> TensorProgram:
        """A plan in memory of its own; ``weights`` are tensors on the device that stand for constants of the network.

        Raises BackendError where an op has no kernel.
        """

        constants = network.graph.constants  # not the network, which weights do not outlive

        def at_hand(name: str, order: tuple[int, ...]) -> TensorMemory | None:
            constant = constants.get(name)
            tensor = None if constant is None else weights.get(constant)
            if tensor is None or not tensor.permute(order).is_contiguous() or tensor.data_ptr() % _ALIGNMENT:
                return None
            return self._driver.adopt(tensor)

        with self._told():
            self._driver.synchronize()  # what used the memory before may still run in a stream of its caller
            own = self._weights_of(network)
            own.at_hand = at_hand
            run = self._recorded(network, plan)
            if not run.is_one_graph:
                raise BackendError("an op of it would run on the host, which the graph of a module cannot wait for")
            arena = cast(TensorMemory, run.prepared.arena)
            return TensorProgram(run, self._driver, dict(views(run.prepared.plan, arena.tensor, own.layout)))


@cache
def tensor_backend(precision: Precision) -> TensorBackend:
    """The backend of a precision, once in a process. Raises BackendError where it cannot run, with the remedy."""
    return created(TensorBackend, "iossim.backends.torch_cuda.tensor_driver:TensorDriver", precision, Engine.GRAPH, {})
