"""``iossim.load`` of a PyTorch module and of its exported files: names, weights, options, schedules, executions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported_networks import assert_equal_outputs
from onnx_of_op import import_onnx, run_onnxruntime

from iossim.api import optimize, search_options
from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.base.errors import ModelError, OptionError
from iossim.execution.backend import create_backend
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import plan_memory
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.ir.types import DType
from iossim.models.load import load
from iossim.models.onnx.export import export_graph
from iossim.models.passes.pipeline import canonicalise
from iossim.models.sources import torch_module
from iossim.models.sources.torch_operators import translations
from iossim.schedule.fit import fit

pytest.importorskip("torch", reason="needs PyTorch; pip install 'iossim[torch]'")
pytest.importorskip("onnxscript", reason="needs onnxscript; pip install 'iossim[torch]'")

import torch
from torch import Tensor, nn
from torch_models import MODELS

import iossim.torch

pytestmark = pytest.mark.torch

#: Attention heads and pyramids make wide blocks, which take long to search without pruning.
PRUNED = search_options("general", 3, 4)
#: torch's fused attention is of operator set 14 at least.
OLDER_OPSET = dict.fromkeys(MODELS, 13) | {"vit": 14}


@cache
def made(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...], list[Array]]:
    """A model, its inputs, and the outputs that torch's eager mode computes."""
    module, inputs = MODELS[name].make()
    return module, inputs, outputs_of(module, *inputs)


def outputs_of(module: nn.Module, *inputs: Tensor) -> list[Array]:
    with torch.inference_mode():
        returned: Any = module(*inputs)
    returned = returned.values() if isinstance(returned, dict) else returned
    return [output.numpy() for output in ([returned] if isinstance(returned, Tensor) else returned)]


@cache
def loaded(name: str) -> Network:
    return load(*made(name)[:2], strict=True)


def inputs_of(network: Network, name: str) -> dict[str, Array]:
    return {value: x.numpy() for value, x in zip(network.graph.inputs, made(name)[1], strict=True)}


@pytest.mark.parametrize("name", MODELS)
def test_a_scheduled_module_computes_what_eager_does(name: str) -> None:
    network = loaded(name)
    inputs, outputs = inputs_of(network, name), network.graph.outputs
    schedule = optimize(network, "v100-sxm2", options=PRUNED)
    fit(schedule, network)
    sequential = optimize(network, "v100-sxm2", scheduler="sequential")
    # Sums in another order round otherwise.
    assert schedule.latency_us <= sequential.latency_us * (1 + 1e-12)
    plan = plan_memory(lower_schedule(schedule, network, in_place=True))
    for backend, options in (("numpy_reference", {}), ("onnxruntime_cpu", {}), ("torch_cuda", {"device": "cpu"})):
        found = create_backend(backend, options=options).execute(network, plan, inputs)
        assert_equal_outputs(found, made(name)[2], outputs)


@pytest.mark.parametrize("name", MODELS)
def test_a_module_goes_to_onnx_and_back(name: str, tmp_path: Path) -> None:
    graph = loaded(name).graph
    model = export_graph(graph)
    assert not loaded(name).foreign
    found = dict(zip(graph.outputs, run_onnxruntime(model, inputs_of(loaded(name), name)), strict=True))
    assert_equal_outputs(found, made(name)[2], graph.outputs)
    path = tmp_path / "again.onnx"
    path.write_bytes(model.SerializeToString())
    assert canonicalise(import_onnx(path)).hash == graph.hash


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("exporter", ["torchscript", "torchscript-older", "dynamo"])
@pytest.mark.parametrize("name", MODELS)
def test_files_of_torch_are_the_same_network(name: str, exporter: str, tmp_path: Path) -> None:
    module, inputs, expected = made(name)
    path = tmp_path / f"{name}.onnx"
    opset = OLDER_OPSET[name] if exporter == "torchscript-older" else 17
    options = {"dynamo": True, "verbose": False} if exporter == "dynamo" else {"dynamo": False, "opset_version": opset}
    torch.onnx.export(module, inputs, str(path), **options)
    network = load(path, strict=True)
    # The order of an ONNX file's inputs is that of the arguments.
    found = evaluate_graph(network.graph, inputs_of(network, name))
    assert_equal_outputs(found, expected, network.graph.outputs)


def test_branches_of_a_detection_head_run_side_by_side() -> None:
    assert loaded("detection").graph.outputs == ("boxes", "best")
    assert optimize(loaded("detection"), "v100-sxm2", options=PRUNED).streams > 2


class _SelfAttention(nn.Module):
    def __init__(self, causal: bool, masked: bool) -> None:
        super().__init__()
        self.inner, self.outer, self.causal = nn.Linear(64, 192), nn.Linear(64, 64), causal
        self.register_buffer("mask", torch.ones(8, 8).tril().bool() if masked else None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.inner(x).reshape(2, 8, 3, 4, 16).permute(2, 0, 3, 1, 4).unbind(0)
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=self.mask, is_causal=self.causal)
        return self.outer(y.transpose(1, 2).reshape(2, 8, 64))


@pytest.mark.parametrize(("causal", "masked"), [(False, False), (True, False), (False, True)])
def test_attention_of_torch_is_one_unit(causal: bool, masked: bool) -> None:
    module, x = _SelfAttention(causal, masked).eval(), torch.randn(2, 8, 64)
    network = load(module, x, units="fused")
    kinds = [unit.kind for unit in network.units]
    assert kinds.count("Attention") == 1
    assert not {"Softmax", "Matmul"}.intersection(kinds)
    found = evaluate_graph(network.graph, {network.graph.inputs[0]: x.numpy()})
    assert_equal_outputs(found, outputs_of(module, x), network.graph.outputs)


class Returning(nn.Module):
    """Computes any function of one tensor."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.eval()

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


class Scaled(nn.Module):
    def forward(self, image: Tensor, shift: Tensor | None = None, *, scale: float = 2.0) -> Tensor:
        return torch.relu(image * scale + (shift if shift is not None else 0))


X = torch.linspace(-1, 1, 6).reshape(2, 3)


@torch.library.custom_op("transformers::grouped_mm_fallback", mutates_args=())
def grouped_mm_fallback(input: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    return torch._grouped_mm(input, weight, offs=offs)


@grouped_mm_fallback.register_fake
def _(input: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    return input.new_empty(input.shape[0], weight.shape[2])


class Routed(nn.Module):
    """Tokens to two of five experts each, with the operators of transformers' ``grouped_mm_experts_forward``."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.up = nn.Linear(8, 5, bias=False), nn.Parameter(torch.randn(5, 24, 8))
        self.down, self.bias = nn.Parameter(torch.randn(5, 8, 12)), nn.Parameter(torch.randn(5, 8))

    def forward(self, x: Tensor) -> Tensor:
        shares, choice = torch.topk(torch.softmax(self.router(x), -1), 2)
        experts, order = torch.sort(choice.reshape(-1))
        ends = torch.cumsum(torch.histc(experts.float(), bins=5, min=0, max=4), dim=0, dtype=torch.int32)
        gate, up = grouped_mm_fallback(x[order // 2], self.up.transpose(-2, -1), ends).chunk(2, dim=-1)
        made = grouped_mm_fallback(nn.functional.silu(gate) * up, self.down.transpose(-2, -1), ends)
        made = (made + self.bias[experts]) * shares.reshape(-1)[order].unsqueeze(-1)
        places = torch.empty_like(order)
        places[order] = torch.arange(order.size(0))
        return made[places].view(*shares.shape, 8).sum(1)


def test_a_routed_layer_is_a_few_units_of_known_ops_and_its_file_runs(tmp_path: Path) -> None:
    module, x, path = Routed().eval().requires_grad_(False), torch.randn(7, 8), tmp_path / "m.onnx"
    network, kept = load(module, x), load(module, x, onnx_file=path)
    kinds = [unit.kind for unit in network.units]
    assert not network.foreign
    assert len(kinds) == 18
    assert [kind for kind in kinds if "Grouped" in kind] == ["Grouped-Matmul", "Grouped-Matmul-Add-Mul"]
    assert kept.graph.hash == network.graph.hash
    (expected,), (value,) = outputs_of(module, x), network.graph.outputs
    for made in (evaluate_graph(network.graph, {"x": x.numpy()})[value], *run_onnxruntime(str(path), {"x": x.numpy()})):
        np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(iossim.torch.compile(module, x)(x), module(x))


def test_a_histogram_may_have_edges_between_whole_numbers() -> None:
    module, x = Returning(lambda x: torch.histc(x, 7, -0.25, 0.75)), torch.rand(9)
    (made,) = evaluate_graph(load(module, x).graph, {"x": x.numpy()}).values()
    np.testing.assert_array_equal(made, module(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 0).index_put((torch.tensor([2, 0, 1]),), x[:3]),
        lambda x: (x * 0).long().index_put((torch.sort(x)[1],), torch.arange(1, 10)),
        lambda x: (x * 0).index_put((torch.sort(x)[1],), torch.arange(9, dtype=torch.float32)),
        lambda x: (x * 0).long().index_put((torch.sort(x)[1],), torch.arange(9), True),
        lambda x: (x[:3] * 0).long().index_put((x.view(3, 3).sort()[1],), torch.arange(3)),
        lambda x: x.index_copy(0, torch.tensor([4, 1]), x[:2]),
    ],
)
def test_writes_at_places_are_no_inverse_order_unless_all_of_it_is_there(function: Callable[..., Tensor]) -> None:
    """Places that are no order; numbers that begin at 1, are of another type, or are added; orders of several rows;
    rows of a cache, of which the exporter makes writes at places.
    """
    traced = torch.export.export(Returning(function), (torch.rand(9),))
    assert translations(traced.graph)[torch.ops.aten.index_put.default].__name__ != "_inverse"


def test_inputs_are_called_as_arguments_and_outputs_as_keys() -> None:
    network = load(Scaled().eval(), {"shift": X, "image": X, "scale": 3.0})
    assert set(network.graph.inputs) == {"image", "shift"}
    assert load(Scaled().eval(), (X, None)).graph.inputs == ("image",)
    assert load(Scaled().eval(), X).graph.hash == load(Scaled().eval(), [X]).graph.hash
    assert load(Returning(lambda x: {"sum": x + 1, "rest": x * 2}), X).graph.outputs == ("sum", "rest")
    # Names that other values have already are left to them.
    same = load(Returning(lambda x: {"x": x + 1, "itself": x, "twice": x * 2}), X).graph
    assert same.inputs == ("x",)
    assert same.outputs[1:] == ("x", "twice")
    assert same.outputs[0] not in ("x", "itself", "twice")


@pytest.mark.parametrize("bias", [False, True])
def test_a_convolution_of_volumes(bias: bool) -> None:
    module, x = nn.Conv3d(2, 3, 2, bias=bias).eval(), torch.linspace(-1, 1, 54).reshape(1, 2, 3, 3, 3)
    graph = load(module, x).graph
    (made,) = evaluate_graph(graph, dict.fromkeys(graph.inputs, x.numpy())).values()
    np.testing.assert_allclose(made, module(x).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_weights_are_the_modules_own_memory_and_are_not_written() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5)).eval()
    graph = load(module, torch.zeros(1, 3, 4, 4)).graph
    arrays = {name: graph.constants[name].load() for name in ("3.weight", "3.bias")}
    for name, array in arrays.items():
        assert np.shares_memory(array, module.state_dict()[name].numpy())
        assert not array.flags.writeable
    # The batch norm is folded when weights are loaded, not before: changed weights are seen.
    (weight,) = (value for value in graph.constants.values() if value.type.shape == (4, 3, 3, 3))
    before = weight.load()
    with torch.no_grad():
        module[1].weight.fill_(2.0)
    np.testing.assert_allclose(weight.load(), 2 * before, rtol=1e-6)


def test_options_are_those_of_a_file() -> None:
    module, inputs = MODELS["resnet"].make()
    network = load(module, inputs, batch=4, dtype="fp16", units="none", max_block=3, strict=True)
    assert network.name == "ResNet"
    assert network.source.model == "torch:ResNet"
    assert (network.source.batch, dict(network.source.options)["dtype"]) == (4, "fp16")
    assert network.graph.types[network.graph.outputs[0]].shape == (4, 10)
    assert network.graph.types["image"].dtype is DType.FLOAT16
    assert max(len(block.units) for block in network.blocks) <= 3


def test_a_schedule_of_a_module_asks_for_the_network_and_takes_a_file_of_it(tmp_path: Path) -> None:
    module, inputs = MODELS["mobilenet"].make()
    network = load(module, inputs)
    saved = tmp_path / "schedule.json"
    schedule = iossim.optimize(network, "v100-sxm2", scheduler="greedy")
    schedule.save(saved)
    with pytest.raises(ModelError, match=r"'torch:MobileNet' was made in memory, .* give network="):
        iossim.simulate(saved)
    assert iossim.simulate(saved, network=network).latency_us == pytest.approx(schedule.latency_us)

    path = tmp_path / "mobilenet.onnx"
    kept = load(module, inputs, onnx_file=path)
    assert kept.graph.hash == network.graph.hash
    assert kept.source.model == str(path)
    assert [found.name for found in tmp_path.iterdir() if found != saved] == ["mobilenet.onnx"]
    read, found = iossim.api.read_any_schedule(saved, str(path))  # as the commands do for --model
    assert found.graph.hash == network.graph.hash
    assert len(read.stages) == len(schedule.stages)


def test_what_the_exporter_says_is_not_the_users(capfd: pytest.CaptureFixture[str], recwarn: Any) -> None:
    load(MODELS["bert"].make()[0], MODELS["bert"].make()[1])
    with pytest.raises(ModelError):
        load(SIGN, X)
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list
    assert logging.root.manager.disable == logging.NOTSET


refused = partial(partial, load)
RELU, SIGN = nn.ReLU().eval(), Returning(lambda x: x if x.sum() > 0 else -x)
EDGES, TRIL = Returning(lambda x: torch.ops.aten._histogramdd_bin_edges(x, [2, 2, 2])[0]), Returning(torch.tril)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (refused(nn.ReLU().train(), X), "module ReLU: it is in training mode, and .* call .eval()"),
        (refused(nn.Sequential(nn.Dropout()).eval().append(nn.Dropout()), X), "its part '1' is in training mode"),
        (refused(RELU), "module ReLU needs example inputs"),
        (refused(RELU, X.numpy()), "module ReLU needs example inputs"),
        (refused(nn.Linear(4, 5).eval(), X), "torch.export cannot trace module Linear: RuntimeError: "),
        (refused(RELU, (X, X)), "TypeError: too many positional arguments"),
        (refused(RELU, {"y": X}), "TypeError: missing a required argument: 'input'"),
        (refused(SIGN, X), "data-dependent"),
        (refused(EDGES, X, onnx_file="m.onnx"), "module Returning: operator .*_bin_edges.default is none from tensors"),
        (refused(Returning(lambda x: x[x > 0]), X), "module Returning has operators .* NonZero"),
        (refused(Returning(lambda x: x), X), "module Returning computes nothing"),
        (refused(TRIL, X, strict=True), "does not know: Trilu"),
        (refused(3), "`model` of load cannot be 3; give a value of type str, Path or nn.Module"),
        (refused(3, (X,)), "`model` of load cannot be 3"),
        (refused(nn.Linear(64, 64).state_dict()), r"^model .{,80} is no name: .*state_dict, the module"),
        (refused("squeezenet", (X,)), "are for PyTorch modules; leave them out for 'squeezenet'"),
        (refused(RELU, X, shapes={"x": (1, 2)}), "shapes of its example inputs"),
        (refused(RELU, X, onnx_file="x.json"), "'x.json' does not end in .onnx"),
        (refused(RELU, X, onnx_file="nowhere/x.onnx"), "cannot write nowhere/x.onnx: No such file"),
    ],
)
def test_mistakes_are_one_line_and_leave_no_file(
    given: Callable[[], object], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ModelError, OptionError), match=reason):
        given()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("package", ["torch", "onnxscript"])
def test_what_is_not_installed_is_said(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_module, "find_spec", lambda name: None if name == package else object())
    with pytest.raises(ModelError, match=rf"{package}, which is not installed; pip install 'iossim\[torch\]'"):
        load(nn.ReLU().eval(), X)
