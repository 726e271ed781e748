"""A kind of device: what its devices share and the schema, fits and plausibility of profiles ask for.

Each kind is a module of :mod:`iossim.hardware.kinds` that holds it as ``KIND``, found by its name: that of a
profile's ``kind``. How a kind runs ops is its target's affair (:mod:`iossim.hardware.lowering.target`). Other packages
add kinds by entry points ``iossim.device_kinds``: modules with ``KIND`` and ``TARGET``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from types import ModuleType

from iossim.base.errors import DeviceError
from iossim.base.registry import Extension, Group, module_names
from iossim.hardware.compute_capability import TENSOR_CORES, MultiprocessorLimits
from iossim.hardware.parameters import EngineOverheads, ModelParameters, ParameterSpace
from iossim.ir.types import Precision

#: The kind of a profile that does not say it.
GPU = "gpu"


@dataclass(frozen=True, slots=True)
class Ranges:
    """From least to most: SMs, clock in GHz, L2 in MiB, bandwidth in GB/s, memory in GiB, power in W."""

    sm_count: tuple[float, float]
    clock_ghz: tuple[float, float]
    l2_mib: tuple[float, float]
    bandwidth_gbps: tuple[float, float]
    dram_gib: tuple[float, float]
    power_w: tuple[float, float]


@dataclass(frozen=True)
class EngineCosts:
    """What the engine costs where nothing else is known; ``spread`` are standard deviations of some, by name."""

    values: EngineOverheads
    spread: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class DeviceKind:
    """``noun`` is what one device is called in messages, ``multiprocessors`` what its SMs are.

    ``needs`` and ``lacks`` are facts that a datasheet of the kind must and must not have, of those that kinds differ
    in. ``limits`` are keyed by the datasheet's compute capability ("" where it has none), ``ranges`` (what such
    devices have had) by the architecture that the limits name, ``parameters`` (the defaults) by that too, and by a
    compute capability that differs from its generation, ``engines`` as they are.

    ``kernels`` are the parameters that operators measured alone determine, ``concurrency`` those that concurrent
    stages do, ``launches`` those that whole networks run unit after unit do, ``tensor_cores`` those that operators on
    tensor cores do. ``borrows``: what is not measured comes from :mod:`iossim.hardware.transfer`.
    """

    noun: str
    multiprocessors: str
    needs: frozenset[str]
    lacks: frozenset[str]
    limits: Mapping[str, MultiprocessorLimits]
    parameters: Mapping[str, ModelParameters]
    engines: Mapping[str, EngineCosts]
    ranges: Mapping[str, Ranges]
    kernels: ParameterSpace
    concurrency: ParameterSpace
    launches: ParameterSpace
    tensor_cores: ParameterSpace
    borrows: bool

    def default_parameters(self, compute_capability: str) -> ModelParameters:
        """The defaults of a compute capability, one of ``limits``: its own, or those of its architecture."""
        own = self.parameters.get(compute_capability)
        return own or self.parameters[self.limits[compute_capability].architecture]

    def engine_costs(self, compute_capability: str) -> EngineCosts:
        """The engine's costs on the architecture of a compute capability, one of ``limits``."""
        return self.engines[self.limits[compute_capability].architecture]

    def told_by(self, architecture: str, precisions: Collection[Precision]) -> ParameterSpace:
        """The parameters that operators of these precisions tell: those of tensor cores for what runs there."""
        on_tensor_cores = {one for one in precisions if architecture in TENSOR_CORES.get(one, ())}
        if not on_tensor_cores:
            return self.kernels
        others = () if on_tensor_cores == set(precisions) else self.kernels.parameters
        return ParameterSpace((*others, *self.tensor_cores.parameters))


_KINDS = "iossim.hardware.kinds"


@cache
def _own(name: str) -> ModuleType | None:
    known = name in module_names(_KINDS)
    return import_module(f"{_KINDS}.{name}") if known else None


#: The modules of kinds by name.
DEVICE_KINDS: Group[ModuleType] = Group(
    "device kind {!r} is not known",
    lambda: module_names(_KINDS),
    _own,
    Extension(
        "iossim.device_kinds",
        "a module with KIND and TARGET",
        lambda plugin, module: module,
        lambda module: isinstance(getattr(module, "KIND", None), DeviceKind) and hasattr(module, "TARGET"),
    ),
    DeviceError,
)


def device_kind(name: str) -> DeviceKind:
    """The kind of that name; raises DeviceError for an unknown one, PluginError for one that does not work."""
    kind: DeviceKind = DEVICE_KINDS.find(name).KIND
    return kind
