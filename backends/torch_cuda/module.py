"""A network as a ``torch.nn.Module``: what a user of PyTorch would run, and an oracle besides NumPy's.

The graph is traced once into a ``torch.fx.GraphModule``: its ``forward`` is plain generated Python of torch's own
functions, without any work of ours between two ops. Every value is dropped after its last reader; what depends on
weights alone is computed once, while tracing.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import fx

from iossim.backends.torch_cuda.operators import Operand, apply
from iossim.backends.torch_cuda.tensors import DTYPES, to_tensor
from iossim.execution.backend import BackendError
from iossim.execution.made_inputs import check_inputs
from iossim.ir.constants import Constant
from iossim.ir.graph import Graph
from iossim.ir.op import Array


def torch_module(
    graph: Graph, device: str = "cpu", weights: Mapping[Constant, torch.Tensor] = MappingProxyType({})
) -> fx.GraphModule:
    """The module whose ``forward`` takes the graph's inputs in order and returns a tuple of its outputs.

    Weights are buffers on ``device``: the tensor that ``weights`` has for one, else a copy. Raises BackendError naming
    the op that torch does not cover.
    """
    root = torch.nn.Module()
    traced = fx.Graph()
    tracer = _Tracer(root, traced)
    values: dict[str, Operand] = {
        name: fx.Proxy(traced.placeholder(f"input{index}"), tracer) for index, name in enumerate(graph.inputs)
    }
    for name, constant in graph.constants.items():
        if constant.type.dtype not in DTYPES:
            raise BackendError(
                f"weight {name!r} is {constant.type}, which torch does not support; use backend numpy_reference"
            )
        values[name] = weights[constant] if constant in weights else to_tensor(constant.load(), device)
    for node in graph.nodes:
        try:
            made = apply(node.op, [values[name] for name in node.inputs], graph.input_types(node))
        except BackendError as error:
            raise BackendError(f"op {node.name!r}: {error}") from None
        values.update(zip(node.outputs, made, strict=True))
    traced.output(tuple(tracer.create_arg(values[name]) for name in graph.outputs))
    module: fx.GraphModule = fx.GraphModule(root, traced).to(device)
    return module.eval()


class _Tracer(fx.proxy.GraphAppendingTracer):  # type: ignore[misc]  # of a library that is not read
    """Makes a buffer of every tensor that is at hand where a traced function reads one."""

    def __init__(self, root: torch.nn.Module, graph: fx.Graph) -> None:
        super().__init__(graph)
        self._root = root
        #: The buffer of each tensor; both are kept, so that no other tensor gets the same identity.
        self._buffers: dict[int, tuple[torch.Tensor, fx.Node]] = {}

    def create_arg(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return super().create_arg(value)
        if id(value) not in self._buffers:
            name = f"constant{len(self._buffers)}"
            self._root.register_buffer(name, value)
            self._buffers[id(value)] = value, self.graph.get_attr(name)
        return self._buffers[id(value)][1]


def input_tensors(graph: Graph, inputs: Mapping[str, Array], device: str) -> list[torch.Tensor]:
    """Tensors for the graph's inputs, in order; raises GraphError where ``inputs`` are not the graph's."""
    check_inputs(inputs, {name: graph.types[name] for name in graph.inputs})
    return [to_tensor(inputs[name], device) for name in graph.inputs]
