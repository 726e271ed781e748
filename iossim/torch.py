"""``iossim.torch.compile``: a PyTorch module that runs its schedule, on CUDA streams in one graph, or in order.

The module is read as ONNX has it, scheduled, and run unit by unit in PyTorch's own functions. Inputs are copied in
and outputs out, so that a caller keeps what it has; shapes are fixed. Weights are the module's own tensors, except
where the schedule needs others: batch norms folded in, merged convolutions stacked, filters of 16 bits channels last.
A module whose weights changed runs eagerly until it is compiled again. It is for inference, and knows no gradients.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from numpy import array_equal

from iossim import api
from iossim.backends.torch_cuda.backend import TorchBackend, usable_device
from iossim.base.errors import ModelError
from iossim.execution.engine import Engine
from iossim.execution.measured_run import largest_error, plan_for
from iossim.execution.tolerance import tolerance
from iossim.hardware.load import device_names
from iossim.ir.constants import ArrayConstant, Constant
from iossim.ir.network import Network
from iossim.models.load import load
from iossim.schedule.schedule import StreamSchedule
from iossim.schedule.streams import as_streams
from iossim.tasks.measured_schedules import plain_schedule

if TYPE_CHECKING:
    from iossim.backends.torch_cuda.program import TorchProgram

_DEFAULT_SCHEDULER = "ios-both"


class CompiledModule:
    """Runs a module's schedule; called as the module is, it returns what the module does.

    What it was not compiled for (another shape, element type or place, another value that is no tensor, an input
    with a gradient) runs eagerly, with one warning.
    """

    def __init__(
        self, module: Any, network: Network, schedule: StreamSchedule, given: Mapping[str, Any], place: str
    ) -> None:
        self.module, self.network, self.schedule = module, network, schedule
        backend = TorchBackend(network.precision, Engine.GRAPH, place)
        self.plan = plan_for(schedule, network, backend)
        self.shared_weights = _shared_weights(module, network)
        self._program: TorchProgram = backend.program(network, self.plan, self.shared_weights)
        self._state = [value for value in _state(module).values() if not value.is_inference()]
        self._versions = self._count_changes()
        self._given = dict(given)
        self._spec: Any = None
        self._warned = False
        self._learn_outputs()

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        given = _bound(self.module, arguments, keywords)
        reason = self._unfit(given)
        if reason:
            if not self._warned:
                self._warned = True
                warnings.warn(f"iossim.torch: {reason}; this call runs eagerly", stacklevel=2)
            return self.module(*arguments, **keywords)
        return self._structured(self._run(given))

    def _count_changes(self) -> int:
        """Changes in place of parameters and buffers so far, as PyTorch counts them."""
        return sum(value._version for value in self._state)

    def _run(self, given: Mapping[str, Any]) -> list[Any]:
        """The outputs of the graph, in memory of their own."""
        import torch

        from iossim.backends.torch_cuda.tensors import arithmetic

        tensors = self._program.tensors
        with arithmetic(self.network.precision):
            for name in self.plan.inputs:
                tensors[name].copy_(given[name])
            self._program.run()
        with torch.no_grad():
            return [tensors[name].clone() if name in tensors else self._constant(name) for name in self._outputs]

    @property
    def _outputs(self) -> tuple[str, ...]:
        return self.network.graph.outputs

    def _constant(self, name: str) -> Any:
        from iossim.backends.torch_cuda.tensors import to_tensor

        return to_tensor(self.network.graph.constants[name].load())

    def _unfit(self, given: Mapping[str, Any]) -> str:
        """Why a call is not what was compiled; empty where it is."""
        import torch

        if self._count_changes() != self._versions:
            return "weights of the module changed since it was compiled; compile it again"
        if given.keys() != self._given.keys():
            return f"it was compiled for the arguments {', '.join(self._given)}"
        for name, example in self._given.items():
            value = given[name]
            if not isinstance(example, torch.Tensor):
                if isinstance(value, torch.Tensor) or value != example:
                    return f"{name} is not {example!r}, for which it was compiled"
            elif not isinstance(value, torch.Tensor):
                return f"{name} is no tensor"
            elif (value.shape, value.dtype, value.device) != (example.shape, example.dtype, example.device):
                return f"{name} is {_told(value)}, compiled was {_told(example)}"
            elif value.requires_grad and torch.is_grad_enabled():
                return f"{name} asks for a gradient"
        return ""

    def _learn_outputs(self) -> None:
        """How outputs are returned, from a run of the module itself; raises ModelError where they differ from it."""
        import torch
        from torch.utils import _pytree as pytree

        from iossim.backends.torch_cuda.tensors import to_array

        name = type(self.module).__name__
        with torch.no_grad():
            expected, self._spec = pytree.tree_flatten(self.module(**self._given))
        made = self._run(self._given)
        fits = len(expected) == len(made) and all(
            isinstance(one, torch.Tensor) and one.shape == other.shape
            for one, other in zip(expected, made, strict=True)
        )
        if not fits:
            raise ModelError(f"module {name} returns {len(expected)} values that are not the tensors of its graph")
        for number, (one, other) in enumerate(zip(expected, made, strict=True)):
            error = largest_error({"output": to_array(other)}, {"output": to_array(one)})
            if error > tolerance(self.network):
                raise ModelError(
                    f"output {number} of module {name} is off by {error:.1e} of its largest value when it runs by "
                    "its schedule; it is not a function of its inputs alone"
                )

    def _structured(self, outputs: list[Any]) -> Any:
        from torch.utils import _pytree as pytree

        return pytree.tree_unflatten(outputs, self._spec)


def compile(
    module: Any, example_inputs: Any, device: str | None = None, *, scheduler: str = _DEFAULT_SCHEDULER
) -> CompiledModule:
    """A callable with the signature of ``module`` that runs its best schedule.

    ``example_inputs``: a tuple of its arguments, a dict of them by name, or one tensor, where the module is: on CUDA
    the schedule runs on streams, captured as one CUDA graph, on a CPU in the order of issue. ``device`` is whom to
    schedule for, by default this GPU, where it has a profile; where nothing says it, units run one after another.

    Raises ModelError for a module that torch cannot export, or that does not compute its outputs from its arguments
    alone; BackendError naming the op that is not covered; OptionError or DeviceError.
    """
    import torch

    arguments, keywords = _call(example_inputs)
    given = _bound(module, arguments, keywords)
    for name, value in given.items():
        if isinstance(value, list | tuple | dict):
            raise ModelError(
                f"argument {name!r} of module {type(module).__name__} holds several values; give each tensor as an "
                "argument of its own"
            )
    network = load(module, example_inputs)
    for name in network.graph.inputs:
        if name not in given:
            raise ModelError(
                f"{name!r} of module {type(module).__name__} is no argument of its forward: the example inputs hold "
                "tensors in other values; give each as an argument of its own"
            )
    places = {value.device.type for value in given.values() if isinstance(value, torch.Tensor)}
    place = usable_device(places.pop() if len(places) == 1 else "several")
    target = device or _own_device(place)
    found = (
        api.optimize(network, target, scheduler=scheduler, engine=Engine.GRAPH)
        if target is not None
        else plain_schedule(network, "sequential")
    )
    return CompiledModule(module, network, as_streams(found, network), given, place)


def _state(module: Any) -> dict[str, Any]:
    """Parameters and buffers by name, each name of a shared one."""
    return dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))


def _shared_weights(module: Any, network: Network) -> dict[Constant, Any]:
    """The module's tensors that constants of the network are equal to, by constant: those that no pass changed."""
    from iossim.backends.torch_cuda.tensors import to_array

    state = _state(module)
    found: dict[Constant, Any] = {}
    for name, constant in network.graph.constants.items():
        if isinstance(constant, ArrayConstant) and (value := state.get(name)) is not None:
            array = to_array(value)
            if array.dtype == constant.array.dtype and array_equal(array, constant.array):
                found[constant] = value.detach()
    return found


def dynamo_backend(body: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """``torch.compile(module, backend="iossim")``: weights, which come as inputs, are put back; shapes are fixed."""
    import torch

    if not all(isinstance(value, torch.Tensor) for value in example_inputs):
        warnings.warn("iossim.torch: sizes are inputs of this graph; it runs eagerly", stacklevel=2)
        forward: Callable[..., Any] = body.forward
        return forward
    # A copy: dynamo calls with what its own graph takes, and its module makes its forward when it is first called.
    whole = torch.fx.GraphModule(body, deepcopy(body.graph))
    places = [node for node in whole.graph.nodes if node.op == "placeholder"]
    free = []
    for number, (node, value) in enumerate(zip(places, example_inputs, strict=True)):
        if not _is_weight(node.name, value):
            free.append(number)
            node.target = node.name  # what the exporter calls it
            continue
        whole.register_buffer(f"weight{number}", value.detach())
        with whole.graph.inserting_before(node):
            node.replace_all_uses_with(whole.graph.get_attr(f"weight{number}"))
        whole.graph.erase_node(node)
    whole.recompile()
    compiled = compile(whole.eval(), tuple(example_inputs[number] for number in free))
    return lambda *given: compiled(*(given[number] for number in free))


def _is_weight(name: str, value: Any) -> bool:
    """Whether an input of a graph of dynamo's is a parameter or buffer of the module that it was made of."""
    import torch

    return isinstance(value, torch.nn.Parameter) or "_buffers_" in name


def _own_device(place: str) -> str | None:
    """The profile of the GPU that torch uses; None where there is none."""
    if place != "cuda":
        return None
    import torch

    from iossim.measurements.measurement import device_of_product

    name = device_of_product(torch.cuda.get_device_name())
    return name if name in device_names() else None


def _call(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Example inputs as the arguments of a call."""
    if isinstance(example_inputs, dict):
        return (), example_inputs
    return (tuple(example_inputs) if isinstance(example_inputs, tuple | list) else (example_inputs,)), {}


def _bound(module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, those left out missing."""
    return dict(inspect.signature(module.forward).bind(*arguments, **keywords).arguments)


def _told(tensor: Any) -> str:
    return f"{tensor.dtype}[{'x'.join(map(str, tensor.shape))}] on {tensor.device}"
