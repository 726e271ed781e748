"""Backend torch_cuda: networks as modules of torch, and plans as it runs them: in the order of issue on the CPU, on
streams and in graphs on CUDA.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checked_execution import execute
from divided import divided
from exported_networks import NETWORKS
from precisions import stored_in
from random_networks import random_inputs, random_network, random_schedule, sequential_schedule

from iossim import api
from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.base.errors import OptionError
from iossim.execution.backend import BackendError, Samples, Timing, create_backend
from iossim.execution.engine import Engine
from iossim.execution.layouts import ImageLayout
from iossim.execution.lower import lower_schedule, lower_stage
from iossim.execution.made_inputs import launch_graph, made_arrays
from iossim.execution.measured_run import largest_difference, tolerance
from iossim.execution.memory import plan_memory
from iossim.execution.plan import Copy, Launch, repeat
from iossim.ir.constants import ArrayConstant
from iossim.ir.graph import Graph, Node
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.ir.ops.conv_transpose import ConvBackwardFilter
from iossim.ir.ops.nary import Add
from iossim.ir.ops.unary import Relu
from iossim.ir.types import Precision, TensorType
from iossim.microbatching.training_pass import PREFIX
from iossim.models.load import load
from iossim.schedule.batch import Strategy

pytest.importorskip("torch", reason="needs PyTorch; pip install 'iossim[torch]'")

import torch
from torch_models import torch_outputs

from iossim.backends.torch_cuda.backend import usable_device
from iossim.backends.torch_cuda.program import TorchProgram, launch_module, torch_module
from iossim.backends.torch_cuda.tensors import arithmetic, uses_tf32

pytestmark = pytest.mark.torch

ENGINES = [Engine.PAPER, Engine.GRAPH]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def agree(found: dict[str, Array], expected: dict[str, Array]) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        scale = max(1e-6, float(np.abs(array).max()))
        assert float(np.abs(found[name] - array).max()) / scale < 1e-4, name


def check(network: Network, device: str, engine: Engine, seed: int = 0) -> int:
    """Run random and sequential schedules; returns how many copies their plans held."""
    backend = create_backend("torch_cuda", network.precision, engine, {"device": device})
    inputs = random_inputs(network, seed)
    expected = evaluate_graph(network.graph, inputs)
    copies = 0
    for schedule in (random_schedule(network, seed), sequential_schedule(network)):
        for in_place in (True, False):
            plan = lower_schedule(schedule, network, engine, in_place=in_place)
            copies += sum(isinstance(command, Copy) for command in plan.commands)
            agree(backend.execute(network, plan, inputs), expected)
    return copies


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("engine", ENGINES)
def test_random_networks_in_random_stages(engine: Engine, device: str) -> None:
    copies = sum(check(random_network(seed), device, engine, seed) for seed in range(12))
    assert copies > 0  # else no copy was tested


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", [Precision.FP16, Precision.BF16])
def test_16_bits_lie_channels_last_and_compute_the_same(precision: Precision, device: str) -> None:
    for seed in range(6):
        network = stored_in(random_network(seed, movers=True), precision)
        backend = create_backend("torch_cuda", precision, Engine.PAPER, {"device": device})
        assert backend.context.layout == "nhwc"
        inputs = made_arrays(network.graph.inputs, network.graph.types)
        plan = lower_schedule(random_schedule(network, seed), network, Engine.PAPER, in_place=True)
        found = largest_difference(backend.execute(network, plan, inputs), evaluate_graph(network.graph, inputs))
        assert found.relative <= tolerance(network), found


def test_images_and_filters_of_16_bits_are_channels_last() -> None:
    network = stored_in(load("ios_sample"), Precision.BF16)
    plan = lower_schedule(sequential_schedule(network), network, in_place=True)
    seen: list[Any] = []

    def module_of(launch: Launch) -> Any:
        seen.append(launch_module(launch_graph(network, launch), "cpu", channels_last=True))
        return seen[-1]

    program = TorchProgram(plan, "cpu", module_of, ImageLayout(network.graph))
    whole = [program.tensors[storage.name] for storage in program.plan.storages if len(storage.type.shape) == 4]
    filters = [each for module in seen for each in module.buffers() if each.dim() == 4]
    assert len(whole) > 2 < len(filters)
    assert all(each.is_contiguous(memory_format=torch.channels_last) for each in (*whole, *filters))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model", ["ios_sample", "squeezenet"])
def test_networks_of_the_zoo(model: str, device: str) -> None:
    check(load(model), device, Engine.GRAPH)


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", ["inception_v3", "randwire", "nasnet_a"])
def test_large_networks_on_streams(model: str, engine: Engine) -> None:
    network = load(model)
    backend = create_backend("torch_cuda", network.precision, engine)
    inputs = random_inputs(network)
    plan = lower_schedule(random_schedule(network, 0), network, engine, in_place=True)
    agree(backend.execute(network, plan, inputs), torch_outputs(network, inputs))


@pytest.mark.parametrize("device", DEVICES)
def test_a_stage_repeated_is_measured_round_by_round(device: str) -> None:
    network = random_network(3)
    backend = create_backend("torch_cuda", Precision.FP32, Engine.PAPER, {"device": device})
    stage = lower_stage(network, [[0], [1]], Strategy.CONCURRENT, in_place=True)
    plans = [repeat(stage, 3, synchronise=True), stage, plan_memory(stage)]
    told: list[tuple[int, int]] = []
    found = backend.measure(network, plans, Timing(rounds=4, warm_up=2), lambda *done: told.append(done))
    assert [len(samples.times_us) for samples in found] == [4, 4, 4]
    assert all(isinstance(samples, Samples) and min(samples.times_us) > 0 for samples in found)
    assert told[-1] == (6, 6)


def check_module(network: Network) -> None:
    """The oracle gives the outputs of the NumPy reference."""
    inputs = made_arrays(network.graph.inputs, network.graph.types)
    agree(torch_outputs(network, inputs), evaluate_graph(network.graph, inputs))


def test_modules_of_random_networks() -> None:
    for seed in range(25):
        check_module(random_network(seed))


@pytest.mark.parametrize(
    "model",
    [
        "ios_sample",
        "squeezenet",
        "resnet18",
        *(pytest.param(m, marks=pytest.mark.slow) for m in ("inception_v3", "randwire")),
    ],
)
def test_modules_of_the_zoo(model: str) -> None:
    check_module(load(model))


@pytest.mark.parametrize("name", NETWORKS)
def test_modules_of_networks_as_exporters_write_them(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.onnx"
    path.write_bytes(NETWORKS[name][0]().SerializeToString())
    check_module(load(path, dimensions=NETWORKS[name][1]))


def test_outputs_may_be_inputs_and_weights() -> None:
    weight = np.arange(3, dtype=np.float32)
    types = {"a name, with/signs": TensorType((2, 3))}
    nodes = [Node("sum", Add(), ("a name, with/signs", "w:0"), ("sum",)), Node("r", Relu(), ("sum",), ("r",))]
    graph = Graph.create(types, ["w:0", "sum", "a name, with/signs"], nodes, {"w:0": ArrayConstant(weight)})
    x = torch.full((2, 3), 2.0)
    found = torch_module(graph)(x)
    assert [tensor.tolist() for tensor in found] == [[0, 1, 2], [[2, 3, 4]] * 2, x.tolist()]


@pytest.mark.parametrize("newer", ["", "tf32", "ieee"])
def test_tf32_only_where_the_precision_says_so_and_settings_are_put_back(newer: str) -> None:
    """By PyTorch's older names for them and by its newer ones, which no older one is read beside."""
    products = torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn
    defaults = [each.fp32_precision for each in products]
    older = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    for each in products:
        each.fp32_precision = newer or each.fp32_precision
    before = [each.fp32_precision for each in products], torch.backends.cudnn.benchmark
    assert (uses_tf32(), uses_tf32(convolutions=True)) == (newer == "tf32", newer != "ieee")
    with arithmetic(Precision.TF32):
        assert (uses_tf32(), uses_tf32(convolutions=True)) == (True, True)
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.backends.cudnn.allow_tf32
    with arithmetic(Precision.FP32):
        assert (uses_tf32(), uses_tf32(convolutions=True)) == (False, False)
        assert torch.get_float32_matmul_precision() == "highest"
        assert not torch.backends.cudnn.allow_tf32
        assert torch.backends.cudnn.benchmark
        assert torch.is_inference_mode_enabled()
    assert ([each.fp32_precision for each in products], torch.backends.cudnn.benchmark) == before
    with pytest.raises(BackendError, match=r"full\. Take a smaller batch"), arithmetic(Precision.FP32):
        raise torch.OutOfMemoryError("full.")
    for each, value in zip(products, defaults, strict=True):
        each.fp32_precision = value
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == older


def test_a_device_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(OptionError, match="'tpu'"):
        usable_device("tpu")
    if not torch.cuda.is_available():
        with pytest.raises(BackendError, match="CUDA"):
            usable_device("cuda")


pytest.importorskip("torch", reason="needs PyTorch; pip install 'iossim[torch]'")


TRAINED = {"alexnet": (2, 3, 96, 96), "resnet18": (2, 3, 64, 64), "squeezenet": (2, 3, 64, 64)}


def assert_gradients_of_torch(model: str, inputs: Mapping[str, Array], found: Mapping[str, Array]) -> None:
    """Within 1e-4 of what PyTorch's autograd makes of the network as it is without gradients."""
    graph = load(model, shapes={"image": TRAINED[model]}).graph
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


@pytest.mark.parametrize("model", TRAINED)
def test_gradients_are_those_of_torch(model: str) -> None:
    graph = load(model, shapes={"image": TRAINED[model]}, training=True).graph
    inputs = made_arrays(graph.inputs, graph.types)
    assert_gradients_of_torch(model, inputs, evaluate_graph(graph, inputs))


@pytest.mark.parametrize("model", TRAINED)
def test_a_plan_in_micro_batches_makes_the_gradients_of_torch(model: str) -> None:
    network = load(model, shapes={"image": TRAINED[model]}, training=True)
    parts = divided(network, "v100-sxm2", 2).network
    plan = plan_memory(lower_schedule(api.optimize(parts, "v100-sxm2", scheduler="greedy"), parts, in_place=True))
    filters = [each for each in network.graph.nodes if isinstance(each.op, ConvBackwardFilter)]
    assert sum(launch.adds_to is not None for launch in plan.launches) == len(filters)
    inputs = made_arrays(network.graph.inputs, network.graph.types)
    assert_gradients_of_torch(model, inputs, execute(plan, parts, inputs))
    assert_gradients_of_torch(model, inputs, torch_outputs(parts, inputs))
