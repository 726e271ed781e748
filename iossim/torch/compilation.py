""":func:`compile`: finds the schedule of a module, and passes it to the executor.

``torch.compile(module, backend="iossim")`` does so for each graph that dynamo finds.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from math import inf
from operator import is_
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import fx

from iossim import api
from iossim.backends.torch_cuda.backend import usable_device
from iossim.backends.torch_cuda.tensors import one_thread, uses_tf32
from iossim.base.errors import GraphError, ModelError, OptionError, public
from iossim.cost.measured.cost_model import MeasuredCostModel
from iossim.cost.measured.store import MeasurementStore
from iossim.execution.backend import BackendError
from iossim.execution.engine import Engine
from iossim.hardware.names import device_names
from iossim.ir.network import Network
from iossim.ir.types import Precision
from iossim.measurements.measurement import device_of_product
from iossim.models.load import load as load_network
from iossim.models.onnx.translate import WITHOUT_UNKNOWN
from iossim.models.sources.torch_module import FROM_FILE, call_arguments, check_inference
from iossim.schedule.schedule import AnySchedule, StreamSchedule
from iossim.schedule.streams import as_streams
from iossim.search.scheduler import SCHEDULERS
from iossim.tasks.measured_schedules import plain_schedule
from iossim.torch.bound import Bound, Chosen, executor, leaves
from iossim.torch.compiled_module import CompiledModule, read_compiled
from iossim.torch.state import unchanged


@public
def compile(
    module: torch.nn.Module,
    example_inputs: object,
    device: str | None = None,
    *,
    scheduler: str = "ios-both",
    tune: float = 0.0,
    dynamic: bool | None = None,
) -> CompiledModule:
    """A callable with the signature of ``module`` that runs its best schedule.

    ``example_inputs``: a tuple of its arguments, a dict of them by name, or one tensor, on the module's device; any may
    be a tuple, a dict or another tree of PyTorch's. On CUDA the schedule runs on streams, captured as one CUDA graph,
    on a CPU in the order of issue. ``device`` is the profile to schedule for, by default this GPU's, if it has one;
    without a profile, units run sequentially. ``scheduler`` names any, of stages or of streams. With ``tune`` stages
    are selected by measurement on the module's device, for about that many seconds; the simulator of ``device``
    proposes them. Other shapes are compiled at their first call, up to eight, and run eagerly after that; with
    ``dynamic=False`` all others run eagerly. No other thread may run the module itself while it is compiled.

    Under autocast it computes in autocast's precisions, and must be called under it. The module is run to compare
    outputs; its state, and that of random number generators, is restored. Raises ModelError for a module that torch
    cannot export, that changes its arguments or itself (as hooks may), or whose outputs do not depend on its arguments
    only; BackendError for an element type that torch has few functions for; OptionError or DeviceError.
    """
    module = _own(module)
    if not isinstance(tune, int | float) or not 0 <= tune < inf:
        raise OptionError(f"tune is {tune!r}; give seconds, or 0 to measure nothing")
    SCHEDULERS.find(scheduler)
    given = _bound(module, *call_arguments(example_inputs, type(module).__name__))
    place = _place(module, given)

    def compiled(arguments: Mapping[str, object]) -> Bound:
        call = inspect.BoundArguments(inspect.signature(module.forward), dict(arguments))
        with _device_of(arguments):
            with unchanged(module, seed=0):
                network = _in_tf32(_network(module, call), place)
            found = _schedule(network, place, device, scheduler, tune)
            return Bound(module, network, as_streams(found, network), arguments, place)

    with one_thread:
        return CompiledModule(module, [compiled(given)], None if dynamic is False else compiled)


@public
def load(path: str | Path, module: torch.nn.Module) -> CompiledModule:
    """Load the file of :meth:`CompiledModule.save` for the same module: nothing is traced, searched or timed.

    Weights are those of ``module``. Raises ModelError for a file of another module, or of other weights if the
    file has some that were computed from them.
    """
    module = _own(module)
    check_inference(module)

    def bind(network: Network, schedule: StreamSchedule, given: Mapping[str, object], chosen: Chosen) -> Bound:
        place = _place(module, given)
        with _device_of(given):
            return Bound(module, _in_tf32(network, place), schedule, given, place, chosen)

    with one_thread:
        return CompiledModule(module, read_compiled(Path(path), module, bind))


def _own(module: object) -> torch.nn.Module:
    """The module, or that of a compiled one; raises ModelError for TorchScript and for values that are no module."""
    if isinstance(module, torch.jit.ScriptModule) or not isinstance(module, torch.nn.Module):
        raise ModelError(f"{type(module).__name__} is not a PyTorch module that can be traced; give a torch.nn.Module")
    return module.module if isinstance(module, CompiledModule) else module


def _network(module: torch.nn.Module, call: inspect.BoundArguments) -> Network:
    """The module as a network; raises ModelError, whose remedy is one for this module, which is to run as a whole."""
    try:
        return load_network(module, call)
    except ModelError as error:
        remedy = 'use torch.compile(module, backend="iossim"), which runs in PyTorch what is refused'
        raise ModelError(str(error).replace(WITHOUT_UNKNOWN, remedy).replace(FROM_FILE, remedy)) from None


def _in_tf32(network: Network, place: str) -> Network:
    """The network, in TF32 if it is an fp32 one on a GPU and PyTorch's settings allow TF32."""
    if place != "cuda" or network.precision is not Precision.FP32:
        return network
    if uses_tf32():
        return replace(network, precision=Precision.TF32)
    if "conv" in network.graph.of_kind and uses_tf32(convolutions=True):
        said = "in TF32, its schedule in fp32; torch.set_float32_matmul_precision('high') allows TF32 in all of it"
        warnings.warn(f"iossim.torch: PyTorch convolves {network.name} {said}", stacklevel=4)
    return network


def _schedule(network: Network, place: str, device: str | None, scheduler: str, tune: float) -> AnySchedule:
    if tune:
        prices = MeasuredCostModel(executor(network, place), MeasurementStore(None))
        return api.optimize(network, device, scheduler=scheduler, cost_model=prices, budget=f"{tune:g}s")
    if (
        device is None
        and place == "cuda"
        and (own := device_of_product(torch.cuda.get_device_name())) in device_names()
    ):
        device = own
    if device is None:
        return plain_schedule(network, "sequential")
    spec = "simulator:backend"
    return api.scheduled(network, device, scheduler=scheduler, engine=Engine.GRAPH, cost_model=spec).schedule


def _place(module: torch.nn.Module, given: Mapping[str, object]) -> str:
    """The kind of device of all tensors; raises ModelError unless there is one."""
    places = {value.device for value in leaves(given).values() if isinstance(value, torch.Tensor)}
    if len(places) != 1:
        found = " and ".join(sorted(map(str, places))) or "no device"
        raise ModelError(
            f"the tensors among the example inputs of module {type(module).__name__} are on {found}; give some on one, "
            "alone or in tuples, dicts or classes of torch.export.register_dataclass"
        )
    return usable_device(*(place.type for place in places))


def _device_of(given: Mapping[str, object]) -> torch.cuda.device_of:
    """A context in which the GPU of arguments is current; one without effect where they are on the host."""
    return torch.cuda.device_of(next(value for value in leaves(given).values() if isinstance(value, torch.Tensor)))


def _bound(module: torch.nn.Module, arguments: tuple[object, ...], keywords: dict[str, object]) -> dict[str, object]:
    """The arguments of a call by name, without omitted ones."""
    try:
        return dict(inspect.signature(module.forward).bind(*arguments, **keywords).arguments)
    except TypeError as error:
        raise ModelError(
            f"the example inputs are no arguments of module {type(module).__name__}: {error}; give a tuple of its "
            "arguments, or a dict of them by name"
        ) from None


def dynamo_backend(
    body: fx.GraphModule, example_inputs: Sequence[torch.Tensor], *, options: Mapping[str, Any] = MappingProxyType({})
) -> Callable[..., object]:
    """A callable for a graph of dynamo's: weights, which are passed as inputs, are restored; shapes are fixed.

    A graph that :func:`compile` refuses, with sizes as inputs, or with requested gradients, runs eagerly, with a
    warning, and so does a call with other weights. ``options`` are keywords of :func:`compile`; raises OptionError or
    DeviceError as it does.
    """
    eager: Callable[..., object] = body.forward
    if not all(isinstance(value, torch.Tensor) for value in example_inputs):
        return _eager(eager, "sizes are inputs of this graph; give torch.compile dynamic=False")
    if torch.is_grad_enabled() and any(value.requires_grad for value in example_inputs):
        return _eager(eager, "gradients are asked of this graph; call it under torch.no_grad()")
    # A copy: dynamo's calls match the arguments of its own graph, and its module makes its forward at its first call.
    whole = fx.GraphModule(body, deepcopy(body.graph))
    places = [node for node in whole.graph.nodes if node.op == "placeholder"]
    free, weights = [], {}
    for number, (node, value) in enumerate(zip(places, example_inputs, strict=True)):
        if not isinstance(value, torch.nn.Parameter) and "_buffers_" not in node.name:
            free.append(number)
            node.target = node.name  # the exporter's name for it
            continue
        weights[number] = value
        keep = whole.register_parameter if isinstance(value, torch.nn.Parameter) else whole.register_buffer
        keep(node.name, value)
        with whole.graph.inserting_before(node):
            node.replace_all_uses_with(whole.graph.get_attr(node.name))
        whole.graph.erase_node(node)
    whole.recompile()
    try:
        compiled = compile(whole.eval(), tuple(example_inputs[number] for number in free), dynamic=False, **options)
    except (BackendError, GraphError, ModelError) as error:
        return _eager(eager, str(error))
    others: Callable[..., object] | None = None

    def run(*given: object) -> object:
        nonlocal others
        if all(map(is_, map(given.__getitem__, weights), weights.values())):
            return compiled(*(given[number] for number in free))
        others = others or _eager(eager, "weights were replaced since this graph was compiled")
        return others(*given)

    return run


def _eager(forward: Callable[..., object], reason: str) -> Callable[..., object]:
    warnings.warn(f"iossim.torch: {reason}; it runs eagerly", stacklevel=3)
    return forward
