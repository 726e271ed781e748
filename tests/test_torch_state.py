"""What ``iossim.torch`` notices of a module that was compiled: all that PyTorch's guards do, by its path."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch; pip install 'iossim[torch]'")
pytest.importorskip("onnxscript", reason="needs onnxscript; pip install 'iossim[torch]'")

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize, prune

from iossim.torch.state import State, unchanged

pytestmark = pytest.mark.torch

GLOBAL = 2
SETTINGS: dict[str, Any] = {"scale": [1.0, 2.0]}


def helper(x: Tensor) -> Tensor:
    return x * GLOBAL


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    factor = 3

    def run(self: Any, x: Tensor) -> Any:
        return function(self, x) * factor

    return run


class Inner(nn.Module):
    shift = 1

    def forward(self, x: Tensor) -> Tensor:
        return self.moved(x)

    def moved(self, x: Tensor) -> Tensor:
        return x + self.shift


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.linear = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Linear(4, 4)
        self.inner, self.parts = Inner(), nn.ModuleList([nn.ReLU(), nn.Sigmoid()])
        self.register_buffer("kept", torch.ones(4))
        self.register_buffer("passing", torch.ones(100, 3), persistent=False)
        self.scale, self.array, self.options = 2, np.arange(3.0), SimpleNamespace(power=2, nested={"a": (1, [2])})
        self.mask, self.act = torch.ones(4), partial(functional.leaky_relu, negative_slope=0.1)
        self.unused = {"step": 0.5}

    @decorated
    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x)).mean((2, 3)) * self.scale * SETTINGS["scale"][0]
        for part in self.parts:
            y = part(y)
        return helper(self.inner(self.act(self.linear(y)))) ** self.options.power


def made() -> Whole:
    torch.manual_seed(0)
    return Whole().eval()


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight * 2


def swap_values(module: Whole) -> None:
    module.kept, module.mask = module.mask, module.kept


CHANGES: dict[str, tuple[str, Callable[[Whole], object]]] = {
    "parameter replaced": ("linear.weight", lambda m: setattr(m.linear, "weight", nn.Parameter(torch.ones(4, 4)))),
    "parameter of equal values": ("linear.bias", lambda m: setattr(m.linear, "bias", nn.Parameter(m.linear.bias + 0))),
    "load_state_dict": ("kept", lambda m: m.load_state_dict(m.state_dict())),
    "load_state_dict assigned": ("kept", lambda m: m.load_state_dict(Whole().state_dict(), assign=True)),
    "data set": ("conv.weight", lambda m: setattr(m.conv.weight, "data", torch.ones(4, 3, 1, 1))),
    "data in place": ("a weight", lambda m: m.conv.weight.data.mul_(3)),
    "last value in place by data": ("a weight", lambda m: m.passing.data[99, 2].add_(1)),
    "data turned": ("linear.weight", lambda m: setattr(m.linear.weight, "data", m.linear.weight.data.t())),
    "data cut": ("linear.weight", lambda m: setattr(m.linear.weight, "data", m.linear.weight.data[:2])),
    "one value in place": ("passing", lambda m: functional.relu_(m.passing[50:].add_(2))),
    "to another type and back": ("kept", lambda m: m.double().float()),
    "buffer replaced": ("kept", lambda m: setattr(m, "kept", torch.zeros(4))),
    "buffer that is not saved replaced": ("passing", lambda m: setattr(m, "passing", torch.zeros(100, 3))),
    "plain tensor replaced": ("mask", lambda m: setattr(m, "mask", torch.zeros(4))),
    "tensors swapped": ("mask", swap_values),
    "submodule replaced": ("linear", lambda m: setattr(m, "linear", nn.Linear(4, 4))),
    "submodule of a list": ("parts.0", lambda m: m.parts.__setitem__(0, nn.Tanh())),
    "order of a list": ("order", lambda m: m.parts._modules.update({"0": m.parts._modules.pop("0")})),
    "submodule added": ("parts.2", lambda m: m.parts.append(nn.Tanh())),
    "training": ("training", lambda m: m.train()),
    "training of a part": ("norm.training", lambda m: m.norm.train()),
    "forward hook": ("norm._forward_hooks", lambda m: m.norm.register_forward_hook(lambda *given: None)),
    "forward hook of itself": ("_forward_hooks", lambda m: m.register_forward_hook(lambda *given: None)),
    "pre-hook": ("inner._forward_pre_hooks", lambda m: m.inner.register_forward_pre_hook(lambda *given: None)),
    "pruning": ("linear", lambda m: prune.l1_unstructured(m.linear, "weight", 0.5)),
    "parametrization": ("linear", lambda m: parametrize.register_parametrization(m.linear, "weight", Doubled())),
    "forward of the instance": ("forward", lambda m: setattr(m.inner, "forward", lambda x: x)),
    "class": ("__class__", lambda m: setattr(m.inner, "__class__", nn.Identity)),
    "number": ("scale", lambda m: setattr(m, "scale", 3)),
    "number of another type": ("scale", lambda m: setattr(m, "scale", 2.0)),
    "attribute deleted": ("attributes", lambda m: delattr(m, "scale")),
    "attribute renamed": ("scaled", lambda m: (delattr(m, "scale"), setattr(m, "scaled", 2))),
    "attribute of an attribute": ("options.power", lambda m: setattr(m.options, "power", 3)),
    "list in a tuple in a dict": ("options.nested.a.1", lambda m: m.options.nested["a"][1].append(3)),
    "array": ("a weight", lambda m: m.array.__setitem__(1, 7.0)),
    "number in a dict": ("unused.step", lambda m: m.unused.update(step=0.25)),
    "setting of a torch module": ("norm.eps", lambda m: setattr(m.norm, "eps", 0.1)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_noticed_and_named(name: str) -> None:
    module = made()
    state = State(module)
    with torch.no_grad():
        module(torch.rand(1, 3, 4, 4))
    assert state.change() == ""
    path, change = CHANGES[name]
    change(module)
    assert path in state.change()
    assert path in state.change(), "again, from what is remembered"
    assert State(module).change() == ""


@pytest.mark.parametrize(
    ("target", "name", "value", "path"),
    [
        (Inner, "shift", 5, "Inner.shift"),
        (Inner, "moved", lambda self, x: x, "Inner.moved"),
        (nn.Linear, "forward", lambda self, x: x, "Linear.forward"),
        (functional, "linear", lambda *given: None, "linear"),
        ("SETTINGS", "scale", [1.0, 2.0, 3.0], "SETTINGS.scale"),
        (None, "GLOBAL", 3, "GLOBAL"),
        (None, "helper", lambda x: x, "helper"),
    ],
)
def test_what_forward_reads_by_name_is_compared(
    target: Any, name: str, value: object, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = made()
    state = State(module)
    if target == "SETTINGS":
        monkeypatch.setitem(SETTINGS, name, value)
    elif target is None:
        monkeypatch.setitem(globals(), name, value)
    else:
        monkeypatch.setattr(target, name, value)
    assert path in state.change()
    monkeypatch.undo()
    assert state.change() == ""


def test_what_is_equal_is_no_change() -> None:
    module = made()
    state = State(module)
    module.scale = int("2")
    module.unused["step"] = float("0.5")
    module.eval().requires_grad_(False)
    module.float()
    assert state.change() == ""
    module.train()
    assert state.change() == "training"
    module.eval()
    assert state.change() == "", "what was put back is as it was"


def test_inference_tensors_have_no_versions_and_are_compared_by_values() -> None:
    with torch.inference_mode():
        module = made()
        state = State(module)
        assert state.change() == ""
        module.conv.weight.mul_(2)
    assert state.change() == "a weight"


def test_values_on_a_device_are_compared_there_and_no_call_waits_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change shows once the device came to the comparison, of which there are few; whoever waits sees it at once."""

    class Event:
        def record(self) -> None:
            self.come = False

        def synchronize(self) -> None:
            self.come = True

        def query(self) -> bool:
            return self.come

    event, places = Event(), list[Tensor]()
    monkeypatch.setattr(torch.cuda, "device_of", lambda tensor: nullcontext(places.append(tensor)))
    monkeypatch.setattr("iossim.torch.state._READABLE", set())
    monkeypatch.setattr("iossim.torch.state._PAUSE_S", 0.0)
    module = made()
    variance = module.norm.running_var.data
    with torch.inference_mode(), torch.device("meta"):  # a default that is no place of the host's
        state = State(module)
    assert state.change() == ""
    variance[3] += 1
    assert state.change() == "a weight"
    variance[3] -= 1
    assert state.change(waits=True) == ""
    monkeypatch.setattr("iossim.torch.state._event", lambda device: event)
    state = State(module)
    variance[3] += 1
    assert [state.change() for _ in range(2)] == ["", ""]
    event.come = True
    monkeypatch.setattr("iossim.torch.state._PAUSE_S", 1e9)
    assert state.change() == "a weight"
    variance[3] -= 1
    event.come = True
    assert state.change() == "a weight"
    assert state.change(waits=True) == ""
    assert len(places) > 3, "each event is of the weights' own GPU"


def test_hooks_of_all_modules_are_noticed() -> None:
    state = State(made())
    handle = nn.modules.module.register_module_forward_hook(lambda *given: None)
    try:
        assert state.change().startswith("_global_forward_hooks")
    finally:
        handle.remove()
    assert state.change() == ""


def test_a_module_is_left_as_it_was() -> None:
    module, chance = made(), (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy())  # type: ignore[index, union-attr]
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with unchanged(module, seed=0) as own:
        module.train()
        module(torch.rand(2, 3, 4, 4))
        module.kept = torch.zeros(4)
        module.kept_too = np.random.default_rng  # type: ignore[assignment]
        module.options.nested["b"] = 1
        module.parts.append(nn.Tanh())
        assert own.change()
    assert not module.training
    assert len(module.parts) == 2
    assert module.options.nested == {"a": (1, [2])}
    assert not hasattr(module, "kept_too")
    torch.testing.assert_close(module.state_dict(), before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), chance[0])
    assert random.getstate() == chance[1]
    assert np.array_equal(np.random.get_state()[1], chance[2])  # type: ignore[index]


class Building(OrderedDict[str, type[nn.Module]]):
    """A table that makes an entry anew whenever it is asked for one, as transformers' activations do."""

    def __getitem__(self, name: str) -> Any:
        return super().__getitem__(name)()


ACTIVATIONS = Building(relu=nn.ReLU, gelu=nn.GELU)


class Activated(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return ACTIVATIONS["gelu"](x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("changes", [False, True])
def test_a_table_that_makes_its_entries_is_left_as_it_was(changes: bool) -> None:
    before = [*ACTIVATIONS.items()]
    with unchanged(Activated(), seed=0) as own:
        if changes:
            ACTIVATIONS.move_to_end("relu")
            ACTIVATIONS["tanh"] = nn.Tanh
        assert bool(own.change()) == changes
    assert [*ACTIVATIONS.items()] == before == [("relu", nn.ReLU), ("gelu", nn.GELU)]


def test_large_containers_are_compared_by_their_size() -> None:
    module = made()
    module.unused = dict.fromkeys(map(str, range(2_000)), 1.0)
    state = State(module)
    module.unused["7"] = 2.0
    assert state.change() == ""
    module.unused["more"] = 1.0
    assert state.change() == "unused"


def test_all_parts_are_compared_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iossim.torch.state._MOST", 10)
    monkeypatch.setattr("iossim.torch.state._LONGEST", 2)
    module = nn.Sequential(made(), *(nn.Sequential(nn.ReLU(), nn.Linear(2, 2)) for _ in range(5)))
    state = State(module)
    module[5][1].weight = nn.Parameter(torch.ones(2, 2))
    assert state.change() == "5.1.weight"
    module[0].unused["step"] = 1.0
    assert state.change() == "5.1.weight"
