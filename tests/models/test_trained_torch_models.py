"""What PyTorch exports is trained: each parameter has, under its name, the gradient of PyTorch's training mode."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checked_execution import execute
from exported_networks import assert_equal_outputs
from onnx_of_op import run_onnxruntime

from iossim.api import optimize
from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.execution.lower import lower_schedule
from iossim.execution.made_inputs import made_arrays
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.microbatching.training_pass import PREFIX
from iossim.models.load import load

pytest.importorskip("torch", reason="needs PyTorch; pip install 'iossim[torch]'")
pytest.importorskip("onnxscript", reason="needs onnxscript; pip install 'iossim[torch]'")

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from torch import Tensor, nn
from torch_models import MODELS, MobileNet, TorchModel, image, sentences

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


class Encoder(nn.Module):
    """BERT on PyTorch's own attention (fused, with a mask of truth values) and a learnt temperature, one number."""

    def __init__(self, size: int = 32, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(50, size), nn.Embedding(16, size)
        self.norm, self.heads = nn.LayerNorm(size, eps=1e-12), heads
        self.qkv = nn.ModuleList(nn.Linear(size, 3 * size) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(size, size, bias=False) for _ in range(layers))
        self.inner = nn.ModuleList(nn.Linear(size, 4 * size) for _ in range(layers))
        self.outer = nn.ModuleList(nn.Linear(4 * size, size) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(2 * layers))
        self.pooler, self.temperature = nn.Linear(size, size), nn.Parameter(torch.tensor(0.7))

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        batch, length = ids.shape
        allowed = torch.ones(length, length).tril().bool() if mask is None else mask.bool()[:, None, None, :]
        x = self.norm(self.words(ids) + self.positions(torch.arange(length)))
        for layer, qkv in enumerate(self.qkv):
            parts = qkv(x).view(batch, length, self.heads, -1).transpose(1, 2).chunk(3, -1)
            mixed = F.scaled_dot_product_attention(*parts, attn_mask=allowed).transpose(1, 2)
            x = self.norms[2 * layer](x + self.out[layer](mixed.reshape(batch, length, -1)))
            x = self.norms[2 * layer + 1](x + self.outer[layer](F.gelu(self.inner[layer](x))))
        return x * self.temperature, torch.tanh(self.pooler(x[:, 0]))


TRAINED = {
    "mobilenet_v2": TorchModel(partial(MobileNet, activation=nn.ReLU6, gate=None), image(3, 24)),
    "efficientnet": TorchModel(partial(MobileNet, activation=nn.SiLU, gate=torch.sigmoid), image(3, 24)),
    "encoder": TorchModel(Encoder, sentences),
    "causal encoder": TorchModel(Encoder, lambda: sentences()[:1]),
    **{name: MODELS[name] for name in ("resnet", "mobilenet", "bert", "vit")},
}


def made(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A module, no two of whose weights are equal (exporters would make one of them), and its inputs."""
    module, inputs = TRAINED[name].make()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        for parameter in module.parameters():
            parameter.add_(torch.rand_like(parameter), alpha=0.1)
    return module, inputs


def inputs_of(network: Network, inputs: tuple[Tensor, ...]) -> dict[str, Array]:
    """Those of the module, and made gradients of its outputs."""
    names = [name for name in network.graph.inputs if not name.startswith(PREFIX)]
    gradients = [name for name in network.graph.inputs if name.startswith(PREFIX)]
    given = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
    return given | made_arrays(gradients, network.graph.types)


def gradients_of_torch(
    module: nn.Module, inputs: tuple[Tensor, ...], network: Network, given: dict[str, Array]
) -> dict[str, Array]:
    """Those of the parameters in training mode, without dropout."""
    module.train()
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        if isinstance(part, nn.MultiheadAttention):
            part.dropout = 0.0
    outputs = module(*inputs)
    outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    names = [name for name in network.graph.outputs if not name.startswith(PREFIX)]
    torch.autograd.backward(outputs, [torch.from_numpy(given[f"{PREFIX}{name}"]) for name in names])
    return {name: each.grad.numpy() for name, each in module.named_parameters() if each.grad is not None}


def assert_gradients(found: dict[str, Array], expected: dict[str, Array]) -> None:
    """Within 1e-4 of each weight's largest; where that is rounding, as a key's bias has, of a hundredth of all."""
    assert {name.removeprefix(PREFIX) for name in found if name.startswith(PREFIX)} == expected.keys()
    largest = max(float(np.abs(each).max()) for each in expected.values())
    for name, each in expected.items():
        size = max(float(np.abs(each).max()), 1e-2 * largest)
        np.testing.assert_allclose(found[f"{PREFIX}{name}"], each, rtol=1e-4, atol=1e-4 * size, err_msg=name)


@pytest.mark.parametrize("name", TRAINED)
def test_a_module_has_the_gradients_of_torch(name: str) -> None:
    module, inputs = made(name)
    network = load(module, inputs, training=True, strict=True)
    given = inputs_of(network, inputs)
    assert_gradients(evaluate_graph(network.graph, given), gradients_of_torch(module, inputs, network, given))


def dynamo(module: nn.Module, inputs: tuple[Tensor, ...], path: Path, **options: Any) -> None:
    torch.onnx.export(module, inputs, str(path), dynamo=True, verbose=False, **options)


def torchscript(module: nn.Module, inputs: tuple[Tensor, ...], path: Path) -> None:
    preserve = torch.onnx.TrainingMode.PRESERVE
    torch.onnx.export(module, inputs, str(path), dynamo=False, training=preserve, do_constant_folding=False)


@pytest.mark.parametrize(
    ("name", "export"),
    [
        ("mobilenet_v2", partial(dynamo, optimize=False)),
        ("mobilenet_v2", torchscript),
        ("efficientnet", torchscript),
        ("encoder", partial(dynamo, optimize=False)),
    ],
)
def test_a_file_has_the_gradients_of_torch(
    name: str, export: Callable[[nn.Module, tuple[Tensor, ...], Path], None], tmp_path: Path
) -> None:
    module, inputs = made(name)
    export(module, inputs, tmp_path / "net.onnx")
    network = load(tmp_path / "net.onnx", training=True, strict=True)
    given = inputs_of(network, inputs)
    schedule = optimize(network, "v100-sxm2", scheduler="greedy")
    found = execute(lower_schedule(schedule, network), network, given)
    assert_gradients(found, gradients_of_torch(module, inputs, network, given))


def test_gradients_have_the_names_that_the_file_has(tmp_path: Path) -> None:
    """PyTorch's optimiser folds batch norms and turns weights before it writes the file, whose weights are learnt."""
    dynamo(*made("mobilenet_v2"), tmp_path / "net.onnx")
    network = load(tmp_path / "net.onnx", training=True, strict=True)
    learnt = {name.removeprefix(PREFIX) for name in network.graph.outputs if name.startswith(PREFIX)}
    assert learnt == set(network.graph.constants) & set(network.weights or ())
    assert not network.graph.of_kind.get("batch_norm")
    assert {"stem.0.weight", "classifier.0.weight"} <= learnt


def test_an_exported_encoder_is_free_of_checks_that_find_nothing(tmp_path: Path) -> None:
    """With a mask that is known; one that is given may hide a whole row."""
    for name, remark in (
        ("causal encoder", "Left out, since the mask hides no row whole: 2 checks of a softmax for NaN."),
        ("encoder", "Kept, since the mask may hide a whole row: 2 checks of a softmax for NaN."),
    ):
        module, inputs = made(name)
        path = tmp_path / f"{name}.onnx"
        dynamo(module, inputs, path)
        network = load(path, strict=True)
        assert network.remarks == (remark,)
        assert sum(unit.kind == "Attention" for unit in network.units) == 2  # a check is part of it
        given = {value: x.numpy() for value, x in zip(network.graph.inputs, inputs, strict=True)}
        found, expected = evaluate_graph(network.graph, given), run_onnxruntime(str(path), given)
        assert_equal_outputs(found, expected, network.graph.outputs)
