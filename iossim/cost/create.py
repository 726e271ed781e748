"""Find a cost model by name: ``iossim.cost.NAME`` or ``iossim.backends.NAME.cost_model``, each with a ``create``.

A name may carry one argument after a colon: ``table:prices.json``, ``random:7`` (the seed). A backend that runs plans and
has no cost model of its own is one by measurement: ``onnxruntime_cpu:threads=2`` (its options). Others add cost models as
plugins (:mod:`iossim.plugins`).
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from iossim.errors import OptionError, did_you_mean
from iossim.execution.backend import backend_names, own_backends, own_packages
from iossim.plugins import COST_MODELS, plugin, plugins

if TYPE_CHECKING:
    from iossim.cost.model import CostModel
    from iossim.devices.profile import DeviceProfile
    from iossim.ir.types import Precision

#: The cost models of this room, a module each; what a backend brings stands in its package.
_OWN = ("perturbed", "random", "replay", "table")


def cost_model_names() -> list[str]:
    """The cost models that can be asked for by name."""
    return sorted({*own_cost_models(), *backend_names(), *plugins(COST_MODELS)})


def own_cost_models() -> list[str]:
    """Those that iossim has itself."""
    return sorted({*_OWN, *filter(_has_model, own_packages()), *own_backends()})


def create_cost_model(
    spec: str,
    device: DeviceProfile | None,
    precision: Precision,
    engine: str,
    store: Path | None = None,
) -> CostModel:
    """The cost model that ``spec`` names, for a device; raises OptionError where it is not known or lacks something.

    ``store`` is where measurements are kept and found, instead of the user's own store.
    """
    name, _, argument = spec.partition(":")
    if name not in own_cost_models():
        if (added := plugin(COST_MODELS, name)) is not None:
            model: CostModel = added.call(device, precision, engine, argument)
            return model
        if name not in backend_names():
            raise OptionError(f"`cost_model` {name!r} is not known; {did_you_mean(name, cost_model_names())}")
    if measures(spec):
        # In their own module, as the others are: whoever prices by a simulator opens no store.
        made: CostModel = import_module("iossim.cost.measured.cost_model").create(
            name, device, precision, engine, argument, store
        )
        return made
    module = import_module(f"iossim.cost.{name}" if name in _OWN else f"iossim.backends.{name}.cost_model")
    stored = {"store": store} if name == "replay" else {}
    made = module.create(device, precision, engine, argument, **stored)
    return made


def measures(spec: str) -> bool:
    """Whether the cost model that ``spec`` names is a backend, which prices by measuring."""
    name = spec.partition(":")[0]
    return name in backend_names() and not _has_model(name) and name not in plugins(COST_MODELS)


def _has_model(backend: str) -> bool:
    return backend in own_packages() and find_spec(f"iossim.backends.{backend}.cost_model") is not None
