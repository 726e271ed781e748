"""A module that runs its schedule where a call is what was compiled, and eagerly, with a warning, where it is not."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
import torch
from torch.utils import _pytree as pytree

from iossim.backends.torch_cuda.backend import TorchBackend
from iossim.backends.torch_cuda.tensors import arithmetic, one_thread, to_array, to_tensor
from iossim.base.errors import ModelError
from iossim.execution.engine import Engine
from iossim.execution.measured_run import largest_error, plan_for
from iossim.execution.tolerance import tolerance
from iossim.ir.constants import ArrayConstant, Constant
from iossim.ir.network import Network
from iossim.schedule.schedule import StreamSchedule
from iossim.torch.results import Results, twins
from iossim.torch.state import State, unchanged


class CompiledModule:
    """Runs a module's schedule; called as the module is, it returns what the module does.

    What it was not compiled for runs eagerly, with one warning for each thing: other arguments (shape, strides, element
    type, place, or a value that is no tensor), a module that changed, other settings of PyTorch, a gradient that is
    asked for. Calls from several threads run one after another. It can be neither copied nor pickled.
    """

    def __init__(
        self, module: Any, network: Network, schedule: StreamSchedule, given: Mapping[str, Any], place: str
    ) -> None:
        self.module, self.network, self.schedule = module, network, schedule
        self._name, self._place = type(module).__name__, place
        backend = TorchBackend(network.precision, Engine.GRAPH, place)
        self.plan = plan_for(schedule, network, backend)
        self.shared_weights = _shared_weights(module, network)
        self._program = backend.program(network, self.plan, self.shared_weights)
        for name in self.plan.inputs:
            computed = self._program.tensors[name].dtype
            if given[name].dtype != computed:
                raise ModelError(
                    f"argument {name!r} of module {self._name} is {given[name].dtype}, and its schedule computes in "
                    f"{computed}; convert the module and its inputs"
                )
        self._signature = inspect.signature(module.forward)
        example = inspect.BoundArguments(self._signature, dict(given))
        example.apply_defaults()
        self._forms = {name: _form(value) for name, value in example.arguments.items()}
        self._settings = _settings(place)
        self._warned: set[str] = set()
        self._results = self._learned(given)
        self._state = State(module)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        given = self._bound(arguments, keywords)
        kind, reason = self._unfit(given)
        if reason:
            if kind not in self._warned:
                self._warned.add(kind)
                warnings.warn(f"iossim.torch: {reason}; this call runs eagerly", stacklevel=2)
            return self.module(*arguments, **keywords)
        return self._run(given, self._results)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise ModelError(
            f"compiled module {self._name} holds memory of its own and cannot be copied or pickled; copy or save its "
            ".module, and compile that"
        )

    def _bound(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name, defaults included."""
        bound = self._signature.bind(*arguments, **keywords)
        bound.apply_defaults()
        return bound.arguments

    def _run(self, given: Mapping[str, Any], results: Results | None) -> Any:
        """The result of a run as the module returns it; without ``results`` the outputs of its graph."""
        tensors = self._program.tensors
        with one_thread, torch.no_grad():
            with arithmetic(self.network.precision):
                for name in self.plan.inputs:
                    tensors[name].copy_(given[name])
                self._program.run()
            outputs = [tensors[name] if name in tensors else self._constant(name) for name in self._outputs]
            made = [each.clone() for each in outputs] if results is None else results.returned(outputs, given)
            if any(output.is_cuda for output in outputs):
                torch.cuda.current_stream().synchronize()  # before another thread's call fills this memory
        return made

    @property
    def _outputs(self) -> tuple[str, ...]:
        return self.network.graph.outputs

    def _constant(self, name: str) -> torch.Tensor:
        return to_tensor(self.network.graph.constants[name].load(), self._place)

    def _unfit(self, given: Mapping[str, Any]) -> tuple[str, str]:
        """The kind of mismatch between a call and what was compiled, and a sentence on it; empty where they match."""
        if path := self._state.change():
            return path, f"{path} of module {self._name} changed since it was compiled; compile it again"
        for (name, then), now in zip(self._settings.items(), _settings(self._place).values(), strict=True):
            if then != now:
                return name, f"{name} is {now}, compiled was {then}"
        for name, form in self._forms.items():
            now = _form(given[name])
            if now != form:
                return "arguments", f"{name} is {_told(now)}, compiled was {_told(form)}"
        if torch.is_grad_enabled():
            for name, value in given.items():
                if isinstance(value, torch.Tensor) and value.requires_grad:
                    return "gradient", f"{name} asks for a gradient"
            if any(tensor.requires_grad for tensor in self._state.tensors):
                return "gradient", "parameters ask for gradients; call it under torch.no_grad()"
        return "", ""

    def _learned(self, given: Mapping[str, Any]) -> Results:
        """How outputs are returned, from a run of the module itself; raises ModelError where they differ from it."""
        # The seed is not the one that the module was traced with, so that random results are seen to differ.
        with unchanged(self.module, seed=1) as state, torch.inference_mode(mode=False), torch.no_grad():
            own = twins(given)
            versions = {name: value._version for name, value in own.items() if isinstance(value, torch.Tensor)}
            call = inspect.BoundArguments(self._signature, own)
            expected, structure = pytree.tree_flatten(self.module(*call.args, **call.kwargs))
            if path := state.change():
                raise ModelError(
                    f"module {self._name} changes its {path} when it is called, which its schedule does not; take "
                    "that out of its forward"
                )
            for name, version in versions.items():
                if own[name]._version != version:
                    raise ModelError(
                        f"module {self._name} changes its argument {name!r} in place, which its schedule does not; "
                        "let it change a clone"
                    )
            made = self._run(given, None)
            self._check(expected, made)
            return Results(self._name, expected, structure, own, state.plain)

    def _check(self, expected: list[Any], made: list[torch.Tensor]) -> None:
        fits = len(expected) == len(made) and all(
            isinstance(one, torch.Tensor) and one.shape == other.shape
            for one, other in zip(expected, made, strict=True)
        )
        if not fits:
            raise ModelError(
                f"module {self._name} returns {len(expected)} values that are not the tensors of its graph"
            )
        for number, (one, other) in enumerate(zip(expected, made, strict=True)):
            if (one.dtype, one.device) != (other.dtype, other.device):
                raise ModelError(
                    f"output {number} of module {self._name} is {_told(_form(one))}, and by its schedule "
                    f"{_told(_form(other))}; convert the module and its inputs"
                )
            error = largest_error({"output": to_array(other)}, {"output": to_array(one)})
            if error > tolerance(self.network):
                raise ModelError(
                    f"output {number} of module {self._name} is off by {error:.1e} of its largest value when it runs "
                    "by its schedule; it is not a function of its inputs alone"
                )


def _shared_weights(module: torch.nn.Module, network: Network) -> dict[Constant, torch.Tensor]:
    """The module's tensors that constants of the network are equal to, by constant: those that no pass changed."""
    # Each name of a shared tensor counts.
    state = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))
    found: dict[Constant, torch.Tensor] = {}
    for name, constant in network.graph.constants.items():
        if isinstance(constant, ArrayConstant) and (value := state.get(name)) is not None:
            array = to_array(value)
            if array.dtype == constant.array.dtype and np.array_equal(array, constant.array):
                found[constant] = value.detach()
    return found


def _form(value: Any) -> tuple[Any, ...]:
    """The properties that a call's argument shares with the compiled one: for a number, its type and digits."""
    if not isinstance(value, torch.Tensor):
        return type(value), repr(value)
    kind = torch.Tensor if type(value) is torch.nn.Parameter else type(value)
    if value.layout is not torch.strided:
        return kind, value.dtype, value.device, value.shape, value.layout
    # A dimension of length 1 may have any stride.
    strides = [0 if length == 1 else stride for length, stride in zip(value.shape, value.stride(), strict=True)]
    return kind, value.dtype, value.device, value.shape, tuple(strides)


def _told(form: tuple[Any, ...]) -> str:
    if len(form) == 2:
        return str(form[1])
    kind, dtype, device, shape, layout = form
    own = "" if kind is torch.Tensor else f" of class {kind.__name__}"
    lies = f", strides {layout}" if isinstance(layout, tuple) and layout != _contiguous(shape) else ""
    return f"{dtype}[{'x'.join(map(str, shape))}]{own} on {device}{lies}"


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return _form(torch.empty(shape, device="meta"))[-1]  # type: ignore[no-any-return]


def _settings(place: str) -> dict[str, Any]:
    """The settings of PyTorch that decide what a module computes."""
    return {
        "autocast": torch.is_autocast_enabled(place) and torch.get_autocast_dtype(place),
        "the default dtype": torch.get_default_dtype(),
        "the default device": torch.get_default_device(),
    }
