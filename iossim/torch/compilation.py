""":func:`compile`: the schedule of a module is found, and given to what runs it."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from iossim import api
from iossim.backends.torch_cuda.backend import usable_device
from iossim.base.errors import ModelError
from iossim.execution.engine import Engine
from iossim.hardware.load import device_names
from iossim.measurements.measurement import device_of_product
from iossim.models.load import load
from iossim.schedule.streams import as_streams
from iossim.tasks.measured_schedules import plain_schedule
from iossim.torch.compiled_module import CompiledModule
from iossim.torch.state import unchanged

_DEFAULT_SCHEDULER = "ios-both"


def compile(
    module: Any, example_inputs: Any, device: str | None = None, *, scheduler: str = _DEFAULT_SCHEDULER
) -> CompiledModule:
    """A callable with the signature of ``module`` that runs its best schedule.

    ``example_inputs``: a tuple of its arguments, a dict of them by name, or one tensor, where the module is: on CUDA
    the schedule runs on streams, captured as one CUDA graph, on a CPU in the order of issue. ``device`` is whom to
    schedule for, by default this GPU, where it has a profile; where nothing says it, units run one after another.

    The module is run to compare outputs, and left as it was, as are generators of random numbers. Raises ModelError
    for a module that torch cannot export, that has forward hooks, that changes its arguments or itself, or that does
    not compute its outputs from its arguments alone; BackendError naming the op that is not covered; OptionError or
    DeviceError.
    """
    if not isinstance(module, torch.nn.Module):
        raise ModelError(f"{type(module).__name__} is not a PyTorch module; give a torch.nn.Module")
    arguments, keywords = _call(example_inputs)
    given = _bound(module, arguments, keywords)
    for name, value in given.items():
        if isinstance(value, list | tuple | dict):
            raise ModelError(
                f"argument {name!r} of module {type(module).__name__} holds several values; give each tensor as an "
                "argument of its own"
            )
    with unchanged(module, seed=0) as state:
        if hooks := state.hooks():
            raise ModelError(
                f"{hooks} of module {type(module).__name__} holds hooks, which its schedule does not run; remove them"
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


def _own_device(place: str) -> str | None:
    """The profile of the GPU that torch uses; None where there is none."""
    if place != "cuda":
        return None
    name = device_of_product(torch.cuda.get_device_name())
    return name if name in device_names() else None


def _call(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Example inputs as the arguments of a call."""
    if isinstance(example_inputs, dict):
        return (), example_inputs
    return (tuple(example_inputs) if isinstance(example_inputs, tuple | list) else (example_inputs,)), {}


def _bound(module: torch.nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, those left out missing."""
    try:
        return dict(inspect.signature(module.forward).bind(*arguments, **keywords).arguments)
    except TypeError as error:
        raise ModelError(
            f"the example inputs are no arguments of module {type(module).__name__}: {error}; give a tuple of its "
            "arguments, or a dict of them by name"
        ) from None
