"""``iossim.torch.compile``: the module's own outputs, in the order of its schedule; what it cannot run is eager, or refused."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch; pip install 'iossim[torch]'")
pytest.importorskip("onnxscript", reason="needs onnxscript; pip install 'iossim[torch]'")

import torch
from torch import Tensor, nn
from torch_cuda_double import Double, TorchWithDouble

import iossim.torch
from iossim.backends.torch_cuda import program
from iossim.base.errors import ModelError, ScheduleError
from iossim.execution.happens_before import check_happens_before
from iossim.execution.plan import Launch, Wait

pytestmark = pytest.mark.torch


class Branches(nn.Module):
    """Two branches of one input, their sum and the first; batch norms have statistics of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.right = nn.Sequential(nn.Conv2d(3, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 8, 1))
        nn.init.uniform_(self.left[1].running_mean)

    def forward(self, image: Tensor, scaled: bool = False) -> dict[str, Tensor]:
        left, right = self.left(image), self.right(image)
        return {"sum": left + right, "left": left * 2 if scaled else left}


def branches() -> tuple[Branches, Tensor]:
    torch.manual_seed(0)
    return Branches().eval(), torch.rand(2, 3, 12, 12)


@pytest.fixture(scope="module")
def compiled() -> Any:
    module, image = branches()
    return iossim.torch.compile(module, image, "v100-sxm2", scheduler="greedy")


def test_outputs_are_the_modules_and_the_callers_own(compiled: Any) -> None:
    _, image = branches()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        for scale in (1, 3):
            expected, found = compiled.module(image * scale), compiled(image * scale)
            assert list(found) == list(expected)
            for name, tensor in expected.items():
                torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5)
        kept = compiled(image)["sum"]
        before = kept.clone()
        compiled(image * 5)
        torch.testing.assert_close(kept, before, rtol=0, atol=0)


def test_the_plan_is_of_streams_and_free_of_races(compiled: Any) -> None:
    assert len(compiled.schedule.streams) == 2
    assert len({command.queue for command in compiled.plan.commands if isinstance(command, Launch)}) == 2
    assert any(isinstance(command, Wait) for command in compiled.plan.commands)
    check_happens_before(compiled.plan)


def test_each_event_that_data_crosses_by_is_needed(compiled: Any) -> None:
    """Without it the checker finds the race."""
    plan = compiled.plan
    awaited = sum(len(launch.after) for own in compiled.schedule.streams for launch in own)
    caught = 0
    for place, command in enumerate(plan.commands):
        if isinstance(command, Wait):
            without = replace(plan, commands=(*plan.commands[:place], *plan.commands[place + 1 :]))
            try:
                check_happens_before(without)
            except ScheduleError:
                caught += 1
    assert caught >= awaited > 0


def test_on_a_double_of_cuda_it_is_one_graph_of_streams(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured once, replayed for each call, with the events of the plan; the double runs in the order of issue."""
    double = Double()
    captured = program.TorchProgram.capture

    def capture(self: program.TorchProgram) -> None:
        captured(self)
        double.again = lambda: [step() for segment in self._segments for step in segment]  # type: ignore[assignment]

    def launch_module(graph: Any, device: str, channels_last: bool, weights: Any) -> Any:
        return made(graph, "cpu", channels_last, weights)

    made = program.launch_module
    monkeypatch.setattr(program, "torch", TorchWithDouble(double))
    monkeypatch.setattr(program, "launch_module", launch_module)
    monkeypatch.setattr(program.TorchProgram, "capture", capture)
    monkeypatch.setattr(torch.cuda, "synchronize", double.synchronize)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "double")
    module, image = branches()
    ran = iossim.torch.CompiledModule(module, compiled.network, compiled.schedule, {"image": image}, "cuda")
    begin, end = double.calls.index(("begin capture",)), double.calls.index(("end capture",))
    inside = [call[0] for call in double.calls[begin:end]]
    assert inside.count("wait") == sum(isinstance(command, Wait) for command in ran.plan.commands) > 0
    assert ("join", "s0", "capture") in double.calls
    assert ("join", "s1", "capture") in double.calls
    for scale in (1, 3):
        double.calls.clear()
        with torch.no_grad():
            found = ran(image * scale)
            for name, tensor in module(image * scale).items():
                torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5)
        assert double.calls[0] == ("replay",)
        assert ("begin capture",) not in double.calls


def test_what_it_was_not_compiled_for_runs_eagerly_with_one_warning() -> None:
    module, image = branches()
    compiled = iossim.torch.compile(module, {"image": image}, "v100-sxm2", scheduler="sequential")
    other = torch.rand(1, 3, 8, 8)
    with torch.no_grad():
        with pytest.warns(UserWarning, match=r"image is torch.float32\[1x3x8x8\] on cpu, compiled was"):
            found = compiled(other)
        torch.testing.assert_close(found, module(other), rtol=0, atol=0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            scaled = compiled(image, scaled=True)
        torch.testing.assert_close(scaled, module(image, scaled=True), rtol=0, atol=0)
    assert compiled(image.clone().requires_grad_())["sum"].requires_grad


class Random(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


class OfAList(nn.Module):
    def forward(self, parts: list[Tensor]) -> Tensor:
        return parts[0] + parts[1]


def test_what_cannot_be_captured_is_refused_by_name() -> None:
    x = torch.rand(2, 4)
    with pytest.raises(ModelError, match="Random"):
        iossim.torch.compile(Random().eval(), x)
    with pytest.raises(ModelError, match="argument 'parts' of module OfAList holds several values"):
        iossim.torch.compile(OfAList().eval(), ([x, x],))


def test_backend_of_torch_compile() -> None:
    module, image = branches()
    ran = torch.compile(module, backend=iossim.torch.dynamo_backend, fullgraph=True, dynamic=False)
    with torch.no_grad():
        torch.testing.assert_close(ran(image), module(image), rtol=1e-4, atol=1e-5)


def test_weights_are_the_modules_own_unless_they_are_folded(compiled: Any) -> None:
    state = dict(compiled.module.named_parameters())
    shared = {tensor.data_ptr() for tensor in compiled.shared_weights.values()}
    right = [value for name, value in state.items() if name.startswith("right.")]
    assert {value.data_ptr() for value in right} == shared
    assert state["left.0.weight"].data_ptr() not in shared


def test_a_module_that_is_trained_further_runs_eagerly() -> None:
    module, image = branches()
    own = iossim.torch.compile(module, image, "v100-sxm2", scheduler="greedy")
    with torch.no_grad():
        module.left[0].weight.mul_(2)
        with pytest.warns(UserWarning, match="weights of the module changed since it was compiled"):
            found = own(image)
        torch.testing.assert_close(found["sum"], module(image)["sum"])
