"""Backends by name: the modules ``iossim.backends.NAME.backend`` with functions ``create`` and ``missing``; others are
entry points ``iossim.backends`` (:mod:`iossim.base.registry`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from iossim.base.errors import DeviceError, IossimError, OptionError, first_line
from iossim.base.registry import Extension, Group, PluginError, module_names
from iossim.execution.engine import AUTO, UNDIVIDED, Engine
from iossim.hardware.load import device as load_device
from iossim.hardware.profile import DeviceProfile
from iossim.ir.types import Precision

if TYPE_CHECKING:
    from iossim.execution.backend import Backend, Fallback
    from iossim.ir.network import Network


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
