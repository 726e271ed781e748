"""Training graphs beside PyTorch's own differentiation of the network."""

from __future__ import annotations

import numpy as np
import pytest

from iossim.backends.numpy_reference.evaluate import evaluate_graph
from iossim.execution.made_inputs import made_arrays
from iossim.ir.graph import Graph
from iossim.models.load import load
from iossim.passes.training import PREFIX

pytest.importorskip("torch", reason="needs PyTorch; pip install 'iossim[torch]'")

import torch

from iossim.backends.torch_cuda.baselines import outputs
from iossim.backends.torch_cuda.module import torch_module

pytestmark = pytest.mark.torch

NETWORKS = {"alexnet": (2, 3, 96, 96), "resnet18": (2, 3, 64, 64), "squeezenet": (1, 3, 64, 64)}


@pytest.mark.parametrize("model", NETWORKS)
def test_gradients_are_those_of_torch(model: str) -> None:
    shapes = {"image": NETWORKS[model]}
    forward, trained = (load(model, shapes=shapes, training=training) for training in (False, True))
    graph = forward.graph
    inputs = made_arrays(trained.graph.inputs, trained.graph.types)
    found = evaluate_graph(trained.graph, inputs)
    weights = list(graph.constants)
    open_graph = Graph.create(
        {name: graph.types[name] for name in (*graph.inputs, *weights)}, graph.outputs, graph.nodes, {}
    )
    tensors = [torch.from_numpy(inputs[name]) for name in graph.inputs]
    learnt = [torch.from_numpy(graph.constants[name].load()).requires_grad_() for name in weights]
    made = torch_module(open_graph)(*tensors, *learnt)
    torch.autograd.backward(made, [torch.from_numpy(inputs[f"{PREFIX}{name}"]) for name in graph.outputs])
    for name, tensor in zip(weights, learnt, strict=True):
        expected = tensor.grad.numpy()
        np.testing.assert_allclose(
            found[f"{PREFIX}{name}"], expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max(), err_msg=name
        )


@pytest.mark.parametrize("model", NETWORKS)
def test_torch_computes_training_graphs(model: str) -> None:
    network = load(model, shapes={"image": NETWORKS[model]}, training=True)
    inputs = made_arrays(network.graph.inputs, network.graph.types)
    found = outputs(network, inputs, "cpu")
    for name, expected in evaluate_graph(network.graph, inputs).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max(), err_msg=name)
