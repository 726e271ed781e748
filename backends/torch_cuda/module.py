"""A network as a ``torch.nn.Module``: what a user of PyTorch would run, and an oracle that shares no code with NumPy's.

The graph is traced once into a ``torch.fx.GraphModule``: its ``forward`` is plain generated Python of torch's own
functions, which eager mode runs without any work of ours between two ops, and which torch.compile reads whole. Units and
blocks mean nothing here; every value is dropped after its last reader.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import fx

from iossim.backends.torch_cuda.operators import Operand, apply
from iossim.backends.torch_cuda.tensors import to_tensor
from iossim.execution.backend import BackendError
from iossim.execution.given_inputs import check_inputs
from iossim.ir.graph import Graph
from iossim.ir.op import Array


def torch_module(graph: Graph, device: str = "cpu") -> fx.GraphModule:
    """The module whose ``forward`` takes the graph's inputs in order and returns a tuple of its outputs.

    Weights are buffers on ``device``. Raises BackendError naming the op that torch does not cover.
    """
    root = torch.nn.Module()
    traced = fx.Graph()
    tracer = fx.proxy.GraphAppendingTracer(traced)
    values: dict[str, Operand] = {
        name: fx.Proxy(traced.placeholder(f"input{index}"), tracer) for index, name in enumerate(graph.inputs)
    }
    for index, (name, constant) in enumerate(graph.constants.items()):
        root.register_buffer(f"constant{index}", to_tensor(constant.load(), device))
        values[name] = fx.Proxy(traced.get_attr(f"constant{index}"), tracer)
    for node in graph.nodes:
        try:
            made = apply(node.op, [values[name] for name in node.inputs], graph.input_types(node))
        except BackendError as error:
            raise BackendError(f"op {node.name!r}: {error}") from None
        values.update(zip(node.outputs, made, strict=True))
    traced.output(tuple(values[name].node for name in graph.outputs))
    module = fx.GraphModule(root, traced)
    return module.eval()


def input_tensors(graph: Graph, inputs: Mapping[str, Array], device: str) -> list[torch.Tensor]:
    """Tensors for the graph's inputs, in order; raises GraphError where ``inputs`` are not the graph's."""
    check_inputs(inputs, {name: graph.types[name] for name in graph.inputs})
    return [to_tensor(inputs[name], device) for name in graph.inputs]
