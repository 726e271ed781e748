"""Models built with torch: loaded from memory and from files of both exporters, scheduled, executed, exported, equal to eager."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from exported_networks import assert_equal_outputs
from onnx_import import import_onnx
from onnx_of_op import run_onnxruntime

from iossim.api import optimize, search_options
from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.execution.backends import create_backend
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import plan_memory
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.models.load import load
from iossim.models.onnx.export import export_graph
from iossim.models.passes.pipeline import canonicalise
from iossim.schedule.fit import fit

pytest.importorskip("torch", reason="needs PyTorch; pip install 'iossim[torch]'")
pytest.importorskip("onnxscript", reason="needs onnxscript; pip install 'iossim[torch]'")

import torch
from torch import nn
from torch_models import MODELS

pytestmark = pytest.mark.torch

#: Attention heads and pyramids make wide blocks, which take long to search without pruning.
PRUNED = search_options("general", 3, 4)
#: torch's fused attention is of operator set 14 at least.
OLDER_OPSET = dict.fromkeys(MODELS, 13) | {"vit": 14}


@cache
def made(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...], list[Array]]:
    """A model, its inputs, and the outputs that torch's eager mode computes."""
    module, inputs = MODELS[name].make()
    with torch.inference_mode():
        returned: Any = module(*inputs)
    returned = returned.values() if isinstance(returned, dict) else returned
    outputs = [returned] if isinstance(returned, torch.Tensor) else list(returned)
    return module, inputs, [output.numpy() for output in outputs]


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
    with torch.inference_mode():
        assert_equal_outputs(
            evaluate_graph(network.graph, dict(zip(network.graph.inputs, [x.numpy()], strict=True))),
            [module(x).numpy()],
            network.graph.outputs,
        )
