"""The contract of a backend, which runs plans on real hardware, and backends by name.

A backend runs plans and times them; it knows no schedule, no search and no store. Pricing and reporting by measurement
(:mod:`iossim.cost.measured.cost_model`, ``iossim run``, ``iossim bench``) depend on this file only.

One is found by its name: the modules ``iossim.backends.NAME.backend`` with functions ``create`` and ``missing``; others
are entry points ``iossim.backends`` (:mod:`iossim.base.registry`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import numpy as np

from iossim.base.errors import DeviceError, IossimError, OptionError, PlanError, Progress, first_line, ignore
from iossim.base.registry import Extension, Group, PluginError, module_names
from iossim.execution.engine import AUTO, UNDIVIDED, Engine
from iossim.execution.plan import Plan
from iossim.hardware.load import device as load_device
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.ir.types import Precision
from iossim.schedule.batch import FASTEST, Strategy, UnitVariant


class BackendError(IossimError):
    """A backend that cannot run here (the missing part, and how to install it), or cannot run what it was given."""


class DeviceLostError(BackendError):
    """The device failed permanently: nothing more runs on it in this process."""


@dataclass(frozen=True, slots=True)
class Context:
    """Everything that a measured time depends on besides the work: the key under which it may be stored and reused.

    ``libraries`` are sorted pairs of a library and its version; ``driver`` is that of a GPU, or the system's kernel.
    ``options`` are settings of the backend that affect times (threads of an op, clocks), also sorted pairs.
    """

    backend: str
    device: str
    precision: str
    engine: str
    layout: str = "nchw"
    driver: str = ""
    libraries: tuple[tuple[str, str], ...] = ()
    options: tuple[tuple[str, str], ...] = ()

    def timed(self, timing: Timing) -> Context:
        """This context plus the timing conditions that affect times: cold caches are one more option.

        The store keeps such times under the plain context, distinguished from warm ones by a mark.
        """
        if not timing.cold:
            return self
        return replace(self, options=tuple(sorted({**dict(self.options), "caches": "cold"}.items())))


#: The condition of samples with the time of a graph without nodes: part of a stage's time, but not of its work.
EMPTY_GRAPH = "empty_graph_us"


@dataclass(frozen=True, slots=True)
class Samples:
    """The times of one plan: accepted rounds in the order they were taken, microseconds.

    ``rejected`` is the number of rounds left out because the machine was busy otherwise; ``conditions``
    describe the machine meanwhile (load, involuntary switches, clocks, temperature).
    """

    times_us: tuple[float, ...]
    rejected: int = 0
    conditions: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def median_us(self) -> float:
        return float(np.median(self.times_us))

    @property
    def spread_us(self) -> float:
        """90th minus 10th percentile."""
        low, high = np.percentile(self.times_us, (10, 90))
        return float(high - low)


@dataclass(frozen=True, slots=True)
class Choice:
    """Choice for one launch: the backend's name of an algorithm, and its workspace."""

    algorithm: str = ""
    workspace_bytes: int = 0


class Choices(Protocol):
    """Chooses algorithms of units (names; several if merged): those of the schedule's variant, if it has one.

    Raises PlanError for an unknown variant.
    """

    def __call__(self, units: tuple[str, ...], strategy: Strategy, variant: str = FASTEST) -> Choice: ...


class Divided(Protocol):
    """Partitions a device among the groups of a stage: the SMs of each; those of two are disjoint or the same.

    ``groups`` are indices of the network's units, each group in execution order; ``variants`` as in a schedule.
    """

    def __call__(self, groups: Sequence[Sequence[int]], variants: Mapping[str, str]) -> tuple[range, ...]: ...


def without_variants(backend: str) -> Choices:
    """The choices of a backend that has none: a schedule that names a variant is refused."""

    def choices(units: tuple[str, ...], strategy: Strategy, variant: str = FASTEST) -> Choice:
        if variant:
            raise PlanError(
                f"the schedule runs {'+'.join(units)} as {variant!r}, and backend {backend} knows no variants; "
                "leave them out of the schedule"
            )
        return Choice()

    return choices


@dataclass(frozen=True, slots=True)
class Timing:
    """Timing protocol of plans.

    ``rounds`` accepted rounds follow ``warm_up`` uncounted ones; in each round every plan runs once, in
    an order drawn from ``seed``, so that drift affects all equally. ``cold``: caches are flushed before.
    """

    rounds: int = 30
    warm_up: int = 3
    seed: int = 0
    cold: bool = False


class Backend(Protocol):
    """Runs plans on one device at one precision under one engine."""

    @property
    def context(self) -> Context: ...

    def choices(self, network: Network) -> Choices:
        """The algorithms of the network's units: those that are fastest alone, or a variant."""

    def execute(self, network: Network, plan: Plan, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run a plan once; the arrays of ``plan.outputs`` by name, from arrays for ``plan.inputs``.

        Raises BackendError if the backend cannot run it, GraphError for inputs that do not fit.
        """

    def measure(
        self, network: Network, plans: Sequence[Plan], timing: Timing, progress: Progress = ignore
    ) -> list[Samples]:
        """Time each plan, from its first command until the host has waited for its last, with synthetic inputs."""


@runtime_checkable
class OffersVariants(Backend, Protocol):
    """A backend that runs units as what is fastest alone, or as a variant that leaves others more of the device."""

    def variants(self, network: Network, unit: str) -> tuple[UnitVariant, ...]:
        """Variants of a unit, :data:`~iossim.schedule.batch.FASTEST` first; the same names in every process."""


@runtime_checkable
class TimesAlgorithms(Backend, Protocol):
    """A backend that can time each algorithm of a unit, as a library's own benchmark does."""

    def algorithms(self, network: Network, unit: str) -> list[UnitVariant]:
        """The algorithms of a unit of one convolution. Raises BackendError if there is none, or no choice."""


@runtime_checkable
class DividesDevice(Backend, Protocol):
    """A backend that knows the SMs of its device."""

    def divided(self, network: Network) -> Divided:
        """The partition of the SMs among the groups of a stage of the network under the partition engine."""


@runtime_checkable
class ChoosesLayouts(Backend, Protocol):
    """A backend that chooses the layout of images per network, if the user leaves that open (context ``auto``)."""

    def context_of(self, network: Network) -> Context:
        """The timing context of that network."""


def context_of(backend: Backend, network: Network) -> Context:
    """The timing context of a network on a backend, including the layout of its images there."""
    return backend.context_of(network) if isinstance(backend, ChoosesLayouts) else backend.context


def divided_by(backend: Backend, network: Network) -> Divided | None:
    """The partition function of a backend; None if it has none, or does not know its SMs."""
    return backend.divided(network) if isinstance(backend, DividesDevice) else None


@dataclass(frozen=True, slots=True)
class Fallback:
    """An op that a backend does not compute on its device: its name, kind and unit, and the reason."""

    op: str
    kind: str
    unit: str
    reason: str


def remarks(network: str, found: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """A line for each kind and reason of the ops of a network that run on the host (name, kind, reason)."""
    causes: dict[tuple[str, str], list[str]] = {}
    for op, kind, reason in found:
        causes.setdefault((kind, reason), []).append(repr(op))
    for (kind, reason), ops in causes.items():
        named = ", ".join(ops[:3]) + (f" and {len(ops) - 3} more" if len(ops) > 3 else "")
        yield f"{kind} of {network!r} (op {named}) runs on the host, by NumPy, and the device waits: {reason}"


@dataclass(frozen=True, slots=True)
class BackendModule:
    """Contents of a backend's module: its constructor (:func:`create_backend`), and its missing requirements.

    ``engines`` are those whose plans it runs (``ENGINES`` in the module, by default paper and graph). ``offers``
    describes what it computes here, if it can run: lines of text, none if the module has no such function.
    ``fallbacks`` returns, on any machine, the ops of a network that do not run on the device.
    ``takes_device``: an option ``device`` selects the device that plans run on (``TAKES_DEVICE``).
    """

    create: Callable[[Precision, Engine, dict[str, str]], Backend]
    missing: Callable[[], str]
    engines: tuple[Engine, ...]
    offers: Callable[[], list[str]] = list
    takes_device: bool = False
    fallbacks: Callable[[Network], list[Fallback]] | None = None


def _own_names() -> list[str]:
    """The backends among the packages of ``iossim.backends``, not all of which run plans."""
    return [name for name in module_names("iossim.backends") if find_spec(f"iossim.backends.{name}.backend")]


def _own(name: str) -> BackendModule | None:
    if name not in _own_names():
        return None
    module = import_module(f"iossim.backends.{name}.backend")
    return _module(module, lambda function: function)


def _module(module: ModuleType, guarded: Callable[[Any], Any]) -> BackendModule:
    engines, takes_device = tuple(getattr(module, "ENGINES", UNDIVIDED)), getattr(module, "TAKES_DEVICE", False)
    create, missing, offers = map(guarded, (module.create, module.missing, getattr(module, "offers", list)))
    return BackendModule(create, missing, engines, offers, takes_device, getattr(module, "fallbacks", None))


BACKENDS: Group[BackendModule] = Group(
    "`backend` {!r} is not known",
    _own_names,
    _own,
    Extension(
        "iossim.backends",
        "a module with create and missing",
        lambda added, found: _module(found, added.guarded),
        lambda found: all(callable(getattr(found, name, None)) for name in ("create", "missing")),
    ),
)


def backend_names() -> list[str]:
    """The available names of backends, whether or not they can run here."""
    return sorted(BACKENDS.names())


def create_backend(
    name: str,
    precision: Precision = Precision.FP32,
    engine: Engine = Engine.PAPER,
    options: Mapping[str, str] | None = None,
) -> Backend:
    """The backend of that name; ``options`` are its own settings by name (such as ``threads`` of an op).

    Raises OptionError for an unknown name or setting, BackendError if it cannot run on this machine.
    """
    module = BACKENDS.find(name)
    if engine not in module.engines:
        why = ", which is simulated only" if not (engine.facts.runs_on_devices or engine.facts.divides_sms) else ""
        raise OptionError(
            f"backend {name} cannot run `engine` {engine}{why}; give {' or '.join(map(str, module.engines))}"
        )
    return module.create(precision, engine, dict(options or {}))


def backend_from(
    spec: str, precision: Precision = Precision.FP32, engine: str = Engine.PAPER, device: str | None = None
) -> Backend:
    """The backend that a command line names: ``NAME``, or ``NAME:option=value,option=value``.

    ``device`` is the default for a backend that takes one. The engine ``auto`` is chosen for the
    device that the backend finds. Raises OptionError for misspelt text.
    """
    name, _, given = spec.partition(":")
    options: dict[str, str] = {}
    for part in filter(None, given.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not key or not value:
            raise OptionError(f"`backend` {spec!r}: {part!r} is not a setting; write {name}:option=value")
        if key in options:
            raise OptionError(f"`backend` {spec!r}: {key!r} is given twice; give it once")
        options[key] = value
    if device is not None and BACKENDS.find(name).takes_device:
        options.setdefault("device", device)
    found = create_backend(name, precision, Engine.named(engine), options)
    chosen = Engine.named(engine, _profile(found.context.device) if engine == AUTO else None)
    return found if chosen == found.context.engine else create_backend(name, precision, chosen, options)


def _profile(device: str) -> DeviceProfile | None:
    """The profile of a device that a backend runs on, if there is one."""
    try:
        return load_device(device)
    except DeviceError:
        return None


def offers_of(name: str) -> list[str]:
    """Description of what a backend that can run here computes on this machine, in lines of text."""
    try:
        return BACKENDS.find(name).offers()
    except (ImportError, OSError, RuntimeError, IossimError) as error:  # from a library that was available before
        return [f"it does not say what it offers: {first_line(error)}"]


def fallbacks_of(network: Network) -> dict[str, list[Fallback]]:
    """For each backend that reports it, the ops of a network that it does not compute on its device."""
    found = {name: BACKENDS.find(name).fallbacks for name in _own_names()}
    return {name: tell(network) for name, tell in sorted(found.items()) if tell is not None}


def missing_for(name: str) -> str:
    """Reason why the backend of that name cannot run on this machine, in one line with the remedy; empty if it can."""
    try:
        return BACKENDS.find(name).missing()
    except PluginError as error:
        return str(error)
