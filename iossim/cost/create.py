"""Find a cost model by name: ``iossim.cost.NAME`` or ``iossim.backends.NAME.cost_model``, each with a ``create``.

A name may carry one argument after a colon: ``table:prices.json``, ``random:7`` (the seed). A backend that runs plans and
has no cost model of its own is one by measurement: ``onnxruntime_cpu:threads=2`` (its options). Others add cost models as
plugins (:mod:`iossim.plugins`).
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING

import iossim.cost
from iossim.errors import OptionError, did_you_mean
from iossim.execution.backend import backend_names, own_backends, own_packages
from iossim.plugins import COST_MODELS, plugin, plugins

if TYPE_CHECKING:
    from iossim.cost.model import CostModel
    from iossim.devices.profile import DeviceProfile
    from iossim.ir.types import Precision

#: The modules of ``iossim.cost`` that are no cost models of their own.
_NOT_MODELS = ("create", "measured", "memo", "model")


def cost_model_names() -> list[str]:
    """The cost models that can be asked for by name."""
    return sorted({*own_cost_models(), *backend_names(), *plugins(COST_MODELS)})


def own_cost_models() -> list[str]:
    """Those that iossim has itself."""
    plain = [module.name for module in iter_modules(iossim.cost.__path__) if module.name not in _NOT_MODELS]
    backends = [name for name in own_packages() if _has_model(name)]
    return sorted({*plain, *backends, *own_backends()})


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
        from iossim.cost.measured import cost_model as measured

        return measured.create(name, device, precision, engine, argument, store)
    if name == "replay":
        from iossim.cost import replay

        return replay.create(device, precision, engine, argument, store)
    home = f"iossim.cost.{name}"
    module = import_module(home if find_spec(home) else f"iossim.backends.{name}.cost_model")
    created: CostModel = module.create(device, precision, engine, argument)
    return created


def measures(spec: str) -> bool:
    """Whether the cost model that ``spec`` names is a backend, which prices by measuring."""
    name = spec.partition(":")[0]
    return name in backend_names() and not _has_model(name) and name not in plugins(COST_MODELS)


def _has_model(backend: str) -> bool:
    return backend in own_packages() and find_spec(f"iossim.backends.{backend}.cost_model") is not None
