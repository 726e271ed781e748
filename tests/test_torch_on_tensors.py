"""Compiled modules on the cuDNN backend's memory of PyTorch tensors, whose device is the host's."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch; pip install 'iossim[torch]'")
pytest.importorskip("onnxscript", reason="needs onnxscript; pip install 'iossim[torch]'")

import torch
from compiled_modules import Returning, X, assert_agree, branches, mixed
from host_device import HostDriver, HostGraph, HostMemory
from host_library import HostLibrary
from torch import Tensor, nn

import iossim.torch
from iossim.backends.cupy_cudnn import candidate_timing
from iossim.backends.cupy_cudnn.options import CudnnOptions
from iossim.backends.torch_cuda.tensor_backend import TensorBackend
from iossim.base.errors import ModelError
from iossim.execution.engine import Engine
from iossim.ir.types import Precision
from iossim.torch import bound as binding
from iossim.torch import compilation, compiled_module


class TensorHostMemory(HostMemory):
    """A tensor's bytes, those of a new one all ones: NaNs."""

    def __init__(self, size_bytes: int, tensor: torch.Tensor | None = None) -> None:
        if tensor is None:
            whole = torch.full((size_bytes + 512,), 0xFF, dtype=torch.uint8)
            begin = -whole.data_ptr() % 256
            tensor = whole[begin : begin + size_bytes]
        self.holder, self.address, self.size_bytes = tensor, tensor.data_ptr(), size_bytes
        self._bytes = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()


class TensorHostDriver(HostDriver):
    """See :class:`iossim.backends.torch_cuda.tensor_backend.TensorDriver`; the caller's stream is the host itself."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self._caller = self.stream()
        self.adopted: list[torch.Tensor] = []

    def allocate(self, size_bytes: int) -> TensorHostMemory:
        assert not self.is_capturing, "memory is allocated during a capture"
        self.say("allocate", None, size_bytes)  # type: ignore[arg-type]
        return self._known(TensorHostMemory(size_bytes))

    def adopt(self, tensor: torch.Tensor) -> TensorHostMemory:
        self.adopted.append(tensor)
        return self._known(TensorHostMemory(tensor.numel() * tensor.element_size(), tensor))

    def _known(self, memory: TensorHostMemory) -> TensorHostMemory:
        self._memory.add(memory)
        return memory

    def launch_for_caller(self, graph: HostGraph) -> None:
        self.launch_graph(graph, self._caller)
        self.synchronize()


def tensor_host_backend(precision: Precision, seed: int = 0, **options: Any) -> TensorBackend:
    """A backend on such a device, which its ``driver`` is."""
    driver = TensorHostDriver(seed)
    return TensorBackend(precision, Engine.GRAPH, CudnnOptions(**options), driver, HostLibrary(driver))  # type: ignore[arg-type]


pytestmark = pytest.mark.torch


@pytest.fixture
def on_tensors(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The backend that a GPU has, on the device of the host: by precision."""
    for number in ("COPIES", "ROUNDS", "FINAL_ROUNDS"):
        monkeypatch.setattr(candidate_timing, number, 1)
    made: dict[Precision, TensorBackend] = {}

    def executor(network: Any, place: str) -> TensorBackend:
        return made.setdefault(network.precision, tensor_host_backend(network.precision))

    monkeypatch.setattr(binding, "executor", executor)
    monkeypatch.setattr(compilation, "executor", executor)
    return made


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.view(2, 5, 4, 4).transpose(1, 2) for part in self.heads(x).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.norm(x + self.out(mixed.transpose(1, 2).reshape(2, 5, 16)))


def test_on_tensors_weights_are_by_pointer_shapes_are_compiled_when_met_and_saved(
    on_tensors: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One graph of kernels and library calls a shape, in the caller's stream; a second process need not search."""
    module, image = branches()
    compiled = iossim.torch.compile(module, image, "v100-sxm2", scheduler="ios-streams")
    driver = on_tensors[Precision.FP32].driver
    # Convolutions with folded batch norms, and those merged with them, have weights of their own.
    adopted = {tensor.data_ptr() for tensor in driver.adopted}
    last = {value.data_ptr() for value in module.right[2].parameters()}
    assert last <= adopted <= {value.data_ptr() for value in module.right.parameters()}
    other = torch.rand(1, 3, 7, 9)

    def agrees(ran: Any, *given: Tensor) -> None:
        for each in given:
            assert_agree(ran(each), module(each))

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        agrees(compiled, image, image * 3, other, other * 2, image)
        launched = [call.stream for call in driver.calls if call.verb == "launch_graph"]
        # Each shape is compared with the module once.
        assert launched.count(driver._caller.ptr) == 2 + 5
        with torch.inference_mode():
            agrees(compiled, image, other)
        compiled.save(tmp_path / "branches.iossim")
        monkeypatch.setattr(
            candidate_timing.CandidateTiming, "times_us", lambda *given: pytest.fail("it is timed anew")
        )
        monkeypatch.setattr(compilation, "load_network", lambda *given: pytest.fail("it is traced anew"))
        on_tensors.clear()
        agrees(iossim.torch.load(tmp_path / "branches.iossim", module), image, other)
        module.left[0].weight.mul_(2)
    with torch.no_grad(), pytest.warns(UserWarning, match="left.0.weight of module Branches changed"):
        agrees(compiled, image)
    (tmp_path / "broken").write_bytes(b"no archive")
    saved = torch.load(tmp_path / "branches.iossim", weights_only=True)
    damages: dict[str, Any] = {"given": None, "model": torch.zeros(5, dtype=torch.uint8), "chosen": None}
    for part, value in damages.items():
        torch.save(saved | {"shapes": [saved["shapes"][0] | {part: value}]}, tmp_path / part)
    torch.save(saved | {"shapes": []}, tmp_path / "empty")
    torch.save(saved | {"module": HostMemory}, tmp_path / "classes")
    for name, given, words in (
        *((name, module, rf"{name}' is no compiled module that fits .* \(\w+Error: ?.*\)") for name in damages),
        ("classes", module, "global: GLOBAL host_device.HostMemory was not an.*add_safe_globals"),
        ("empty", compiled, "it has no shapes"),
        ("branches.iossim", HostMemory, "type is not a PyTorch module that can be traced"),
        ("branches.iossim", nn.Linear(2, 2), "module Linear: it is in training mode"),
        ("branches.iossim", module, "or has other weights"),
        ("branches.iossim", nn.Linear(2, 2).eval(), "was saved of a Branches, not of a Linear; load it with that"),
        ("broken", module, r"broken' is no compiled module that fits this Branches \(\w+Error: "),
    ):
        with pytest.raises(ModelError, match=words):
            iossim.torch.load(tmp_path / name, given)


def test_what_no_longer_runs_leaves_no_memory_behind(on_tensors: Any) -> None:
    """Neither of its plans nor of its weights, and without a collection of cycles, which no use of a GPU's memory begins."""
    module, image = branches()
    gc.disable()
    try:
        compiled = iossim.torch.compile(module.requires_grad_(False), image, "v100-sxm2")
        backend = on_tensors[Precision.FP32]
        assert len(backend.driver._memory) > 0
        del compiled
        assert (len(backend.driver._memory), len(backend._weights)) == (0, 0)
    finally:
        gc.enable()


def test_attention_on_tensors_and_more_shapes_than_are_compiled(
    on_tensors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, x = Attention().eval().requires_grad_(False), torch.rand(2, 5, 16)
    monkeypatch.setattr(compiled_module, "MOST_SHAPES", 1)
    compiled = iossim.torch.compile(module, x)
    torch.testing.assert_close(compiled(x - 1), module(x - 1), rtol=1e-4, atol=1e-5)
    assert {tensor.data_ptr() for tensor in on_tensors[Precision.FP32].driver.adopted} <= {
        value.data_ptr() for value in module.parameters()
    }
    turned = torch.rand(5, 2, 16).transpose(0, 1)
    with pytest.warns(UserWarning, match="and 1 shapes in all; this call runs eagerly"):
        torch.testing.assert_close(compiled(turned), module(turned))


def test_what_neither_kernels_nor_numpy_compute_runs_as_pytorchs_operators(on_tensors: Any) -> None:
    module = Returning(lambda x: mixed(x, [x], 2.0)[0] + 1).eval()
    with pytest.warns(UserWarning, match="it can be priced, not run; units run as PyTorch's operators"):
        compiled = iossim.torch.compile(module, X)
    torch.testing.assert_close(compiled(X), X * 3 + 1)


def test_under_autocast_it_computes_as_autocast_has_it(on_tensors: Any) -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval().requires_grad_(False)
    image = torch.rand(1, 3, 8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16), warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = iossim.torch.compile(module, image)
        assert compiled(image).dtype is module(image).dtype is torch.bfloat16
        torch.testing.assert_close(compiled(image), module(image), rtol=5e-2, atol=5e-2)
    with pytest.warns(UserWarning, match="autocast is False, compiled was torch.bfloat16"):
        assert compiled(image).dtype is torch.float32
