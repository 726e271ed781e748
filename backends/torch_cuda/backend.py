"""Backend ``torch_cuda``: plans in PyTorch on CUDA streams, issued (engine paper) or captured as CUDA graphs (graph).

It computes each launch with torch's own functions, so it shows what streams and graphs bring to PyTorch; cuDNN called
directly is backend ``cupy_cudnn``. Images and filters of 16-bit networks lie channels last. Option ``device=cpu`` runs
plans in the order of issue on the CPU: for tests.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from iossim.base.errors import OptionError, Progress, did_you_mean, ignore, warn_once
from iossim.execution.backend import BackendError, Choices, Context, Samples, Timing, without_variants
from iossim.execution.engine import Engine
from iossim.execution.layouts import ImageLayout, prefers_channels_last
from iossim.execution.made_inputs import check_graph, check_inputs, launch_graph, made_inputs
from iossim.execution.plan import Launch, Plan
from iossim.hardware.nvidia_smi import gpus
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.ir.types import Precision
from iossim.measurements.measurement import device_of_product
from iossim.schedule.batch import Strategy

if TYPE_CHECKING:
    from torch import fx

    from iossim.backends.torch_cuda.program import TorchProgram, Weights

DEVICES = ("cpu", "cuda")
_NOT_INSTALLED = "torch is not installed; pip install 'iossim[torch]'"


def missing() -> str:
    """Why the backend cannot run here, in one line with the remedy; empty where it can."""
    if find_spec("torch") is None:
        return _NOT_INSTALLED
    import torch

    if not torch.cuda.is_available():
        build = f"torch {torch.__version__}"
        if torch.version.cuda is None:
            return f"{build} is built without CUDA; install a CUDA build of torch on a machine with an NVIDIA GPU"
        return f"{build} is built with CUDA, but finds no GPU or driver; check that nvidia-smi lists a GPU"
    return ""


def usable_device(name: str) -> str:
    """The device of that name; raises OptionError for an unknown one, BackendError where torch cannot use it."""
    if name not in DEVICES:
        raise OptionError(f"torch runs on no device {name!r}; {did_you_mean(name, DEVICES)}")
    if find_spec("torch") is None:
        raise BackendError(_NOT_INSTALLED)
    if name == "cuda" and (reason := missing()):
        raise BackendError(f"torch cannot use CUDA here: {reason}")
    return name


def create(precision: Precision, engine: Engine, options: Mapping[str, str]) -> TorchBackend:
    """The backend; ``options`` may hold ``device``: ``cuda`` (by default) or ``cpu``.

    Raises OptionError for another setting, BackendError where torch or CUDA is missing.
    """
    for name in options:
        if name != "device":
            raise OptionError(f"backend torch_cuda has no setting {name!r}; {did_you_mean(name, ['device'])}")
    return TorchBackend(precision, engine, usable_device(options.get("device", "cuda")))


class TorchBackend:
    """Runs plans with PyTorch on one device at one precision under one engine."""

    def __init__(self, precision: Precision, engine: Engine, device: str) -> None:
        self._precision, self._engine, self._device = precision, engine, device
        self._channels_last = prefers_channels_last(precision)
        self.context = _context(precision, engine, device)
        #: The module of each launch of a network, by its units and strategy: plans share weights.
        self._modules = WeakKeyDictionary[Network, dict[tuple[tuple[str, ...], Strategy], "fx.GraphModule"]]()

    def choices(self, network: Network) -> Choices:
        """cuDNN's search chooses algorithms, inside torch: there is nothing to say."""
        return without_variants("torch_cuda")

    def execute(self, network: Network, plan: Plan, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run a plan once; the arrays of ``plan.outputs`` by name, from arrays for ``plan.inputs``.

        Raises BackendError for an element type that torch does not have, ScheduleError for a plan of another network,
        GraphError for inputs that do not fit.
        """
        from iossim.backends.torch_cuda.tensors import arithmetic, to_array, to_tensor

        check_inputs(inputs, {name: plan.buffers[name].type for name in plan.inputs})
        with arithmetic(self._precision):
            program = self.program(network, plan)
            for name in plan.inputs:
                program.tensors[name].copy_(to_tensor(inputs[name], self._device))
            self._synchronise()
            program.run()
            return {name: to_array(program.tensors[name]) for name in plan.outputs}

    def measure(
        self, network: Network, plans: Sequence[Plan], timing: Timing, progress: Progress = ignore
    ) -> list[Samples]:
        """Time each plan as a whole, at normal noise.

        One CUDA graph is timed by events and ends with its last kernel; all else by the host's clock.
        """
        from iossim.backends.torch_cuda.tensors import arithmetic, to_tensor
        from iossim.backends.torch_cuda.timing import time_rounds

        with arithmetic(self._precision):
            programs = [self.program(network, plan) for plan in plans]
            for program in programs:
                for name, array in made_inputs(program.plan, network, timing.seed).items():
                    program.tensors[name].copy_(to_tensor(array, self._device))
            self._synchronise()
            return time_rounds([program.timed for program in programs], timing, self._device, progress)

    def program(self, network: Network, plan: Plan, weights: Weights = MappingProxyType({})) -> TorchProgram:
        """A plan in memory of its own, captured under the graph engine on CUDA; raises as :meth:`execute`.

        ``weights``: tensors on the device that stand for constants of the network; all others are copied once.
        """
        from iossim.backends.torch_cuda.program import TorchProgram, launch_module, on_host
        from iossim.backends.torch_cuda.tensors import arithmetic

        check_graph(plan, network)
        for line in on_host(network):
            warn_once(line)
        modules = self._modules.setdefault(network, {})

        def module_of(launch: Launch) -> fx.GraphModule:
            key = launch.units, launch.strategy
            if key not in modules:
                graph = launch_graph(network, launch)
                modules[key] = launch_module(graph, self._device, self._channels_last, weights)
            return modules[key]

        layout = ImageLayout(network.graph, self._channels_last)
        program = TorchProgram(plan, self._device, module_of, layout)
        self._synchronise()
        if self._engine is Engine.GRAPH and self._device == "cuda":
            with arithmetic(self._precision):  # a graph keeps the algorithms of its capture
                program.capture()
        return program

    def _synchronise(self) -> None:
        if self._device == "cuda":
            import torch

            torch.cuda.synchronize()


def _context(precision: Precision, engine: Engine, device: str) -> Context:
    import torch

    libraries = {"torch": str(torch.__version__)}
    driver, name = platform.release(), "cpu"
    if device == "cuda":
        libraries |= {"cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}
        driver = next((gpu.driver_version for gpu in gpus()), "")
        name = device_of_product(torch.cuda.get_device_name())
    pairs = tuple(sorted(libraries.items()))
    layout = "nhwc" if prefers_channels_last(precision) else "nchw"
    return Context("torch_cuda", name, str(precision), str(engine), layout, driver, pairs)
