"""Training graphs beside PyTorch's own differentiation of the network."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from checked_execution import execute
from divided import divided

from iossim import api
from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.execution.lower import lower_schedule
from iossim.execution.made_inputs import made_arrays
from iossim.execution.memory import plan_memory
from iossim.ir.graph import Graph
from iossim.ir.op import Array
from iossim.ir.ops.conv_transpose import ConvBackwardFilter
from iossim.microbatching.training_pass import PREFIX
from iossim.models.load import load

pytest.importorskip("torch", reason="needs PyTorch; pip install 'iossim[torch]'")

import torch
from torch_models import torch_outputs

from iossim.backends.torch_cuda.program import torch_module

pytestmark = pytest.mark.torch

NETWORKS = {"alexnet": (2, 3, 96, 96), "resnet18": (2, 3, 64, 64), "squeezenet": (2, 3, 64, 64)}


def assert_gradients_of_torch(model: str, inputs: Mapping[str, Array], found: Mapping[str, Array]) -> None:
    """Within 1e-4 of what PyTorch's autograd makes of the network as it is without gradients."""
    graph = load(model, shapes={"image": NETWORKS[model]}).graph
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
def test_gradients_are_those_of_torch(model: str) -> None:
    graph = load(model, shapes={"image": NETWORKS[model]}, training=True).graph
    inputs = made_arrays(graph.inputs, graph.types)
    assert_gradients_of_torch(model, inputs, evaluate_graph(graph, inputs))


@pytest.mark.parametrize("model", NETWORKS)
def test_a_plan_in_micro_batches_makes_the_gradients_of_torch(model: str) -> None:
    network = load(model, shapes={"image": NETWORKS[model]}, training=True)
    parts = divided(network, "v100-sxm2", 2).network
    plan = plan_memory(lower_schedule(api.optimize(parts, "v100-sxm2", scheduler="greedy"), parts, in_place=True))
    filters = [each for each in network.graph.nodes if isinstance(each.op, ConvBackwardFilter)]
    assert sum(launch.adds_to is not None for launch in plan.launches) == len(filters)
    inputs = made_arrays(network.graph.inputs, network.graph.types)
    assert_gradients_of_torch(model, inputs, execute(plan, parts, inputs))
    assert_gradients_of_torch(model, inputs, torch_outputs(parts, inputs))
