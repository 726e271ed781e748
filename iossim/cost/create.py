"""Look up a cost model by name: ``iossim.cost.NAME`` or ``iossim.backends.NAME.cost_model``, each with a ``create``.

A name may have one argument after a colon: ``table:prices.json``, ``random:7`` (the seed). A backend that runs plans
and has no cost model of its own becomes one by measurement: ``onnxruntime_cpu:threads=2`` (its options). Other packages
add cost models by entry points ``iossim.cost_models``, functions of device, precision, engine and argument.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from iossim.base.registry import Extension, Group, Plugin, module_names
from iossim.ir.types import Precision

if TYPE_CHECKING:
    from iossim.cost.model import CostModel
    from iossim.execution.backend import BackendModule
    from iossim.hardware.profile import DeviceProfile

    #: Function from a device, a precision, the name of an engine, the argument, and the user's store to a cost model.
    CreateCostModel = Callable[[DeviceProfile | None, Precision, str, str, Path | None], CostModel]


def _own_names() -> list[str]:
    """The names of iossim's own cost models."""
    found = {name for name in module_names("iossim.cost") if _own(name) is not None}
    found |= {name for name in module_names("iossim.backends") if find_spec(f"iossim.backends.{name}.cost_model")}
    return sorted(found | {*_backends().own()})


def _own(name: str) -> CreateCostModel | None:
    """The ``create`` of a cost model of iossim, None if no module defines one under this name."""
    for package, module in (("iossim.cost", name), ("iossim.backends", f"{name}.cost_model")):
        if name in module_names(package) and find_spec(f"{package}.{module}") is not None:
            create: CreateCostModel | None = getattr(import_module(f"{package}.{module}"), "create", None)
            return create
    return None


def _adapt(plugin: Plugin, create: Callable[[DeviceProfile | None, Precision, str, str], CostModel]) -> CreateCostModel:
    from iossim.cost.plugin_prices import adapted  # most prices are of no plugin

    return adapted(plugin, create)


COST_MODELS: Group[CreateCostModel] = Group(
    "`cost_model` {!r} is not known",
    _own_names,
    _own,
    Extension("iossim.cost_models", "a function that creates a cost model", _adapt),
)


def cost_model_names() -> list[str]:
    """The available names of cost models."""
    return sorted({*COST_MODELS.names(), *_backends().names()})


def create_cost_model(
    spec: str, device: DeviceProfile | None, precision: Precision, engine: str, store: Path | None = None
) -> CostModel:
    """The cost model that ``spec`` names, for a device; raises OptionError if it is unknown or lacks an argument.

    ``store`` is used for measurements instead of the user's own store.
    """
    name, _, argument = spec.partition(":")
    if measures(spec):
        from iossim.cost.measured import cost_model as measured

        return measured.create(name, device, precision, engine, argument, store)
    create = COST_MODELS.get(name)
    if create is None:
        raise COST_MODELS.refusal(name, cost_model_names())
    return create(device, precision, engine, argument, store)


def measures(spec: str) -> bool:
    """True if ``spec`` names a backend without a cost model of its own, which prices by measuring."""
    name = spec.partition(":")[0]
    if _own(name) is not None:
        return False
    backends = _backends()
    return name in backends.own() or (name in backends.plugins() and name not in COST_MODELS.plugins())


def _backends() -> Group[BackendModule]:
    from iossim.execution.backend import BACKENDS  # most prices take none

    return BACKENDS
