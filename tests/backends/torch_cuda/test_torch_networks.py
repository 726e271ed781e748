"""Networks as torch modules: the oracle agrees with the NumPy reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from exported_networks import NETWORKS
from random_networks import random_inputs, random_network

from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.base.errors import OptionError
from iossim.execution.backend import BackendError
from iossim.execution.made_inputs import made_arrays
from iossim.ir.constants import ArrayConstant
from iossim.ir.graph import Graph, Node
from iossim.ir.network import Network
from iossim.ir.ops.nary import Add
from iossim.ir.ops.unary import Relu
from iossim.ir.types import Precision, TensorType
from iossim.models.load import load

pytest.importorskip("torch", reason="needs PyTorch; pip install 'iossim[torch]'")

import torch

from iossim.backends.torch_cuda.baselines import outputs
from iossim.backends.torch_cuda.module import torch_module
from iossim.backends.torch_cuda.tensors import arithmetic

pytestmark = pytest.mark.torch


def relative_difference(network: Network, seed: int = 0) -> float:
    """The largest difference of an output over the largest element of that output."""
    inputs = made_arrays(network.graph.inputs, network.graph.types, seed)
    expected = evaluate_graph(network.graph, inputs)
    found = outputs(network, inputs, "cpu")
    assert list(found) == list(expected)
    return max(
        float(np.abs(found[name] - array).max() / max(1e-6, np.abs(array).max())) for name, array in expected.items()
    )


@pytest.mark.parametrize("seed", range(25))
def test_random_networks(seed: int) -> None:
    assert relative_difference(random_network(seed), seed) < 1e-4


@pytest.mark.parametrize("model", ["ios_sample", "squeezenet", "resnet18"])
def test_networks_of_the_zoo(model: str) -> None:
    assert relative_difference(load(model)) < 1e-4


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_as_exporters_write_them(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.onnx"
    path.write_bytes(NETWORKS[name][0]().SerializeToString())
    assert relative_difference(load(path, dimensions=NETWORKS[name][1])) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("model", ["inception_v3", "randwire"])
def test_large_networks_of_the_zoo(model: str) -> None:
    assert relative_difference(load(model)) < 1e-4


def test_outputs_may_be_inputs_and_weights() -> None:
    weight = np.arange(3, dtype=np.float32)
    types = {"a name, with/signs": TensorType((2, 3))}
    nodes = [Node("sum", Add(), ("a name, with/signs", "w:0"), ("sum",)), Node("r", Relu(), ("sum",), ("r",))]
    graph = Graph.create(types, ["w:0", "sum", "a name, with/signs"], nodes, {"w:0": ArrayConstant(weight)})
    x = torch.full((2, 3), 2.0)
    found = torch_module(graph)(x)
    assert [tensor.tolist() for tensor in found] == [[0, 1, 2], [[2, 3, 4]] * 2, x.tolist()]


def test_tf32_only_where_the_precision_says_so_and_settings_are_put_back() -> None:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    with arithmetic(Precision.TF32):
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.backends.cudnn.allow_tf32
    with arithmetic(Precision.FP32):
        assert torch.get_float32_matmul_precision() == "highest"
        assert not torch.backends.cudnn.allow_tf32
        assert torch.backends.cudnn.benchmark
        assert torch.is_inference_mode_enabled()
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark) == before


def test_a_device_that_cannot_be_used_is_refused() -> None:
    network = random_network(0)
    with pytest.raises(OptionError, match="'tpu'"):
        outputs(network, random_inputs(network), "tpu")
    if not torch.cuda.is_available():
        with pytest.raises(BackendError, match="CUDA"):
            outputs(network, random_inputs(network), "cuda")
