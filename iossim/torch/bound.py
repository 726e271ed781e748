"""A schedule bound to the arguments of one call: its plan in its own memory, its weights, and its form of results.

A *form* is what calls share with the compilation: of arguments the shape, strides, element type, device or value, of a
module's outputs their structure, their layout, and shared memory.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any
from weakref import finalize

import numpy as np
import torch
from torch.utils import _pytree as pytree

from iossim.backends.torch_cuda.backend import TorchBackend
from iossim.backends.torch_cuda.tensor_backend import TensorBackend, tensor_backend
from iossim.backends.torch_cuda.tensors import arithmetic, one_thread, to_array, to_tensor, uses_tf32
from iossim.base.errors import GraphError, ModelError, OptionError
from iossim.execution.backend import BackendError, Choice, DeviceLostError
from iossim.execution.engine import Engine
from iossim.execution.measured_run import SWAPPED, largest_difference, plan_for, ranked, tolerance
from iossim.ir.constants import ArrayConstant, Constant
from iossim.ir.network import Network
from iossim.schedule.schedule import StreamSchedule
from iossim.torch.state import unchanged

#: A memory of outputs begins at so many bytes, so that values of every type lie at multiples of their size.
_ALIGNMENT = 16
_LEAVES = (torch.Tensor, bool, int, float, str, type(None))
#: Properties shared with the compiled argument: of a tensor class, element type, device, shape and strides or layout.
Form = tuple[Any, ...]


def form(value: object) -> Form:
    """The properties that a call's argument shares with the compiled one: for a number, its type and digits."""
    if not isinstance(value, torch.Tensor):
        return type(value), repr(value)
    kind = torch.Tensor if type(value) is torch.nn.Parameter else type(value)
    if value.layout is not torch.strided:
        return kind, value.dtype, value.device, value.shape, value.layout
    # A dimension of length 1 may have any stride.
    strides = [0 if length == 1 else stride for length, stride in zip(value.shape, value.stride(), strict=True)]
    return kind, value.dtype, value.device, value.shape, tuple(strides)


def leaves(arguments: Mapping[str, object]) -> dict[str, object]:
    """Arguments by name; what a tuple, a dict or another tree of PyTorch's holds by its path, as ``images[0]``."""
    found: dict[str, object] = {}
    for name, value in arguments.items():
        if isinstance(value, _LEAVES):
            found[name] = value
            continue
        try:
            found |= {f"{name}{pytree.keystr(path)}": leaf for path, leaf in pytree.tree_leaves_with_path(value)}
        except ValueError:  # of a class that was registered without keys
            found |= {f"{name}[{number}]": leaf for number, leaf in enumerate(pytree.tree_leaves(value))}
    return found


def told(seen: Form) -> str:
    """A form as text."""
    if len(seen) == 2:
        return str(seen[1])
    kind, dtype, device, shape, layout = seen
    own = "" if kind is torch.Tensor else f" of class {kind.__name__}"
    is_usual = layout == form(torch.empty(shape, device="meta"))[-1]
    lies = "" if is_usual else f", {'strides ' if isinstance(layout, tuple) else ''}{layout}"
    return f"{dtype}[{'x'.join(map(str, shape))}]{own} on {device}{lies}"


def settings(place: str) -> dict[str, object]:
    """The settings of PyTorch that affect a module's results."""
    return {
        "TF32 in products": place == "cuda" and uses_tf32(),
        "autocast": torch.is_autocast_enabled(place) and torch.get_autocast_dtype(place),
        "the default dtype": torch.get_default_dtype(),
        "the default device": torch.get_default_device(),
    }


@dataclass(frozen=True, slots=True, eq=False)
class _View:
    """An output in the memory of an argument, by name, or in a new one, by number; ``offset`` values into it."""

    source: str | int
    is_whole: bool
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, value: torch.Tensor) -> torch.Tensor:
        if self.is_whole:
            return value
        return value.as_strided(self.shape, self.stride, value.storage_offset() + self.offset)

    def once(self, value: torch.Tensor) -> torch.Tensor:
        """One element along each axis that repeats them."""
        if all(self.stride):
            return value
        return value[tuple(slice(None) if stride else slice(1) for stride in self.stride)]


class Results:
    """The form of what a module returned for ``given``, for other calls; ``kept`` are the module's own tensors.

    Outputs that share memory share it again. Raises ModelError for an argument that is read as another type.
    """

    def __init__(
        self,
        module: str,
        outputs: Sequence[object],
        structure: pytree.TreeSpec,
        given: Mapping[str, object],
        kept: Sequence[torch.Tensor],
    ) -> None:
        self._structure = structure
        values = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
        arguments = {_memory(value): name for name, value in values.items()}
        arguments |= {id(value): name for name, value in values.items()}  # of which several may lie in one memory
        own = {*map(_memory, kept)}
        #: The bytes that outputs span in each memory of several, by its address.
        self._sizes: dict[int, int] = {}
        #: Outputs in order: a value that every call returns (no tensor, or one of the module's own), or how to view it.
        self._results: list[object] = []
        #: Those in new memory, each once, and the number of the tensor that is copied there.
        self._new: dict[_View, int] = {}
        known_views: dict[tuple[object, ...], _View] = {}
        tensors = [output for output in outputs if isinstance(output, torch.Tensor)]
        numbers = iter(range(len(tensors)))
        for output in outputs:
            if not isinstance(output, torch.Tensor):
                self._results.append(output)
                continue
            number = next(numbers)
            memory = _memory(output) if output.numel() else 0
            place = output.dtype, output.shape, output.stride()
            known = map(arguments.get, (id(output), id(output._base), memory))
            if memory and (argument := next(filter(None, known), None)):
                value = values[argument]
                if value.dtype != output.dtype:
                    raise ModelError(
                        f"output {number} of module {module} is argument {argument!r} read as another type; return a "
                        "clone"
                    )
                offset = output.storage_offset() - value.storage_offset()
                self._results.append(_View(argument, output is value, *place, offset))
            elif memory and memory in own:
                self._results.append(output)
            else:
                together = [each for each in tensors if _memory(each) == memory > 0]
                begin = min(map(_begin, together), default=0) // _ALIGNMENT * _ALIGNMENT
                size = max(map(_end, together), default=0) - begin
                if len(together) > 1:
                    self._sizes[memory] = size + -size % _ALIGNMENT
                view = _View(memory or -number, False, *place, (_begin(output) - begin) // output.element_size())
                view = known_views.setdefault(astuple(view), view)
                self._results.append(view)
                self._new.setdefault(view, number)

    def returned(self, outputs: Sequence[torch.Tensor], given: Mapping[str, object]) -> object:
        """The module's result for these outputs of its graph, in newly allocated memory."""
        memories: dict[str | int, torch.Tensor] = {}
        made: dict[_View, torch.Tensor] = {}
        for view, number in self._new.items():
            device, source = outputs[number].device, view.source
            if source not in self._sizes:
                made[view] = torch.empty_strided(view.shape, view.stride, dtype=view.dtype, device=device)
                continue
            if source not in memories:
                memories[source] = torch.empty(self._sizes[source], dtype=torch.uint8, device=device)
            made[view] = view.of(memories[source].view(view.dtype))
        if made:  # in one kernel
            places = [view.once(each) for view, each in made.items()]
            torch._foreach_copy_(places, [view.once(outputs[number]) for view, number in self._new.items()])
        for each in self._results:
            if isinstance(each, _View) and each not in made:
                made[each] = each.of(given[str(each.source)])
        results = [made[each] if isinstance(each, _View) else each for each in self._results]
        return pytree.tree_unflatten(results, self._structure)


def twins(given: Mapping[str, object]) -> dict[str, object]:
    """Arguments by name whose tensors are copies with the same layout and shared memory."""
    memory: dict[int, torch.UntypedStorage] = {}

    def twin(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        if value.layout is not torch.strided or not _memory(value) or value.is_conj() or value.is_neg():
            return value.detach().clone()
        if _memory(value) not in memory:
            memory[_memory(value)] = value.untyped_storage().clone()
        made = torch.empty(0, dtype=value.dtype, device=value.device)
        return made.set_(memory[_memory(value)], value.storage_offset(), value.shape, value.stride())

    return {name: pytree.tree_map(twin, value) for name, value in given.items()}


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def _begin(tensor: torch.Tensor) -> int:
    """The first byte of a tensor in its memory."""
    return int(tensor.storage_offset() * tensor.element_size())


def _end(tensor: torch.Tensor) -> int:
    """The byte after the last of a tensor in its memory."""
    reach = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return _begin(tensor) + int((reach + 1) * tensor.element_size() * (tensor.numel() > 0))


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
