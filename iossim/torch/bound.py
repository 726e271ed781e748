"""A schedule bound to the arguments of one call: its plan in its own memory, its weights, and its form of results."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from weakref import finalize

import numpy as np
import torch
from torch.utils import _pytree as pytree

from iossim.backends.torch_cuda.backend import TorchBackend
from iossim.backends.torch_cuda.tensor_backend import TensorBackend, tensor_backend
from iossim.backends.torch_cuda.tensors import arithmetic, one_thread, to_array, to_tensor
from iossim.base.errors import GraphError, ModelError, OptionError
from iossim.execution.backend import BackendError, Choice, DeviceLostError
from iossim.execution.engine import Engine
from iossim.execution.measured_run import plan_for
from iossim.execution.tolerance import SWAPPED, largest_difference, ranked, tolerance
from iossim.ir.constants import ArrayConstant, Constant
from iossim.ir.network import Network
from iossim.schedule.schedule import StreamSchedule
from iossim.torch.forms import Results, form, leaves, told, twins
from iossim.torch.state import unchanged

#: Algorithm of each launch, by the names of its units.
Chosen = dict[str, Choice]


def executor(network: Network, place: str) -> TensorBackend | TorchBackend:
    """Backend that runs plans: cuDNN and kernels if the GPU has them, else PyTorch's operators (with a warning)."""
    if place == "cuda":
        try:
            return tensor_backend(network.precision, torch.cuda.current_device())
        except DeviceLostError:
            raise
        except (BackendError, OptionError) as error:
            warnings.warn(f"iossim.torch: {error}; units run as PyTorch's operators", stacklevel=4)
    return TorchBackend(network.precision, Engine.GRAPH, place)


class Bound:
    """A schedule of ``module`` ready to run calls like ``given``; raises ModelError if its outputs differ."""

    def __init__(
        self,
        module: torch.nn.Module,
        network: Network,
        schedule: StreamSchedule,
        given: Mapping[str, object],
        place: str,
        chosen: Chosen | None = None,
    ) -> None:
        self.network, self.schedule, self.given = network, schedule, given
        here = {path: value for path, value in leaves(given).items() if isinstance(value, torch.Tensor)}
        path_of, device = dict(zip(network.graph.inputs, here, strict=True)), next(iter(here.values())).device
        self._module, self._name, self.place = module, type(module).__name__, place
        self._autocast = torch.is_autocast_enabled(place)
        self.shared_weights = _shared_weights(module, network, device)
        backend = executor(network, place)
        try:
            self._take(backend, chosen)
        except (BackendError, GraphError) as error:  # the latter from an op that NumPy cannot compute on the host
            if isinstance(error, DeviceLostError) or isinstance(backend, TorchBackend):
                raise
            warnings.warn(f"iossim.torch: {error}; units run as PyTorch's operators", stacklevel=4)
            self._take(TorchBackend(network.precision, Engine.GRAPH, place), None)
        tensors, constants = self._program.tensors, network.graph.constants
        #: The paths of inputs, what they are copied to, and the outputs of the graph.
        self._from, self._into = [path_of[name] for name in self.plan.inputs], [*map(tensors.get, self.plan.inputs)]
        for path, tensor in zip(self._from, self._into, strict=True):
            self._compare(f"argument {path!r}", here[path], tensor)
        self._outputs = [
            tensors[name] if name in tensors else to_tensor(constants[name].load(), place)
            for name in network.graph.outputs
        ]
        self._gpu, self._ended = -1, None
        if device.type == "cuda":
            self._gpu, self._ended = device.index, torch.cuda.Event()
            # Memory that is given back before the last call has run would be another's meanwhile.
            finalize(self, self._ended.synchronize).atexit = False
        self._results: Results | None = None
        self._results = self._learned()

    def _take(self, backend: TensorBackend | TorchBackend, chosen: Chosen | None) -> None:
        known, choices = chosen or {}, backend.choices(self.network)
        self.plan = plan_for(
            self.schedule, self.network, backend, lambda units, *how: known.get(" ".join(units)) or choices(units, *how)
        )
        self._program = backend.program(self.network, self.plan, self.shared_weights)
        recorded = isinstance(backend, TensorBackend)
        self._settings: Callable[[], AbstractContextManager[None]] = (
            torch.inference_mode if recorded else partial(arithmetic, self.network.precision)
        )

    @property
    def chosen(self) -> Chosen:
        """Algorithm of each launch of the plan."""
        sizes = self.plan.buffers
        return {
            " ".join(each.units): Choice(each.algorithm, 0 if each.workspace is None else sizes[each.workspace].bytes)
            for each in self.plan.launches
        }

    def run(self, given: Mapping[str, object]) -> Any:
        """The result of a run in the form that the module returns; until that is learned, the outputs of its graph.

        ``given`` are the :func:`leaves` of arguments.
        """
        with one_thread, torch.no_grad(), torch.cuda.device(self._gpu):
            stream = self._ended and torch.cuda.current_stream()
            if self._ended:  # earlier work of the plan, on any stream, uses the same memory
                self._ended.wait(stream)
            try:
                with self._settings():
                    if self._into:  # in one kernel
                        torch._foreach_copy_(self._into, [given[path] for path in self._from])
                    self._program.run()
                if self._results is None:
                    return [each.clone() for each in self._outputs]
                return self._results.returned(self._outputs, given)
            finally:
                if self._ended:
                    self._ended.record(stream)

    def _learned(self) -> Results:
        """Form of the results, from a run of the module itself; raises ModelError if outputs differ from it."""
        # The seed differs from that of tracing, so that random results are detected as differences.
        own_arithmetic = arithmetic(self.network.precision)  # by default PyTorch convolves in TF32
        with own_arithmetic, unchanged(self._module, 1) as state, torch.inference_mode(mode=False), torch.no_grad():
            arguments = twins(self.given)
            own = leaves(arguments)
            versions = {name: (value, value._version) for name, value in own.items() if isinstance(value, torch.Tensor)}
            call = inspect.BoundArguments(inspect.signature(self._module.forward), arguments)
            expected, structure = pytree.tree_flatten(self._module(*call.args, **call.kwargs))
            if path := state.change(waits=True):
                raise ModelError(
                    f"module {self._name} changes its {path} when it is called, which its schedule does not; take "
                    "that out of its forward, or call it once before if it does so at its first call only"
                )
            now = leaves(arguments)
            changed = [name for name in own.keys() | now.keys() if now.get(name) is not own.get(name)]
            changed += [name for name, (value, version) in versions.items() if value._version != version]
            for name in sorted(changed):
                raise ModelError(
                    f"module {self._name} changes its argument {name!r} in place, which its schedule does not; "
                    "let it change a clone"
                )
            made = self.run(leaves(self.given))
            self._check([value for value in expected if isinstance(value, torch.Tensor)], made)
            return Results(self._name, expected, structure, own, state.plain)

    def _compare(self, what: str, own: torch.Tensor, other: torch.Tensor) -> None:
        """Raises ModelError for a tensor of the module that is of another form than the schedule's."""
        may_differ = self._autocast and own.is_floating_point() and other.is_floating_point()
        same = own.layout is other.layout and (own.shape, own.device) == (other.shape, other.device)
        if not same or (own.dtype != other.dtype and not may_differ):
            raise ModelError(
                f"{what} of module {self._name} is {told(form(own))}, and its schedule computes with "
                f"{told(form(other))}; convert the module or its inputs"
            )

    def _check(self, expected: list[torch.Tensor], made: list[torch.Tensor]) -> None:
        if len(expected) != len(made):
            raise ModelError(
                f"module {self._name} returns numbers that depend on its arguments; return tensors of them"
            )
        ordered, swapped = ranked(self.network.graph), []
        for number, (one, other) in enumerate(zip(expected, made, strict=True)):
            self._compare(f"output {number}", one, other)
            error = largest_difference({"output": to_array(other)}, {"output": to_array(one)}).relative
            if error > tolerance(self.network):
                if self.network.graph.outputs[number] not in ordered:
                    raise ModelError(
                        f"output {number} of module {self._name} is off by {error:.1e} of its largest value when "
                        "it runs by its schedule; it is not a function of its inputs alone, or has other weights"
                    )
                swapped.append(number)
        if swapped:
            warnings.warn(
                f"iossim.torch: outputs {swapped} of module {self._name} differ from its own; {SWAPPED}", stacklevel=4
            )


def _shared_weights(module: torch.nn.Module, network: Network, device: torch.device) -> dict[Constant, torch.Tensor]:
    """The module's tensors on a device that equal constants of the network, by constant: those that no pass changed."""
    state = named_tensors(module)
    found: dict[Constant, torch.Tensor] = {}
    for name, constant in network.graph.constants.items():
        if isinstance(constant, ArrayConstant) and (value := state.get(name)) is not None:
            if value.device != device:  # PyTorch takes single numbers that are on the host
                continue
            array = to_array(value)
            if array.dtype == constant.array.dtype and np.array_equal(array, constant.array):
                found[constant] = value.detach()
    return found


def named_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A module's parameters and buffers; a shared tensor appears under each of its names."""
    return dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))
