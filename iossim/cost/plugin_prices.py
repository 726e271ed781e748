"""Cost models of other packages: their identity is checked, and what they raise is one line that names the stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from iossim.base.registry import Plugin
from iossim.execution.engine import Engine
from iossim.ir.types import Precision
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.planned_stage import planned_of

if TYPE_CHECKING:
    from iossim.cost.create import CreateCostModel
    from iossim.cost.model import CostModel
    from iossim.hardware.profile import DeviceProfile


def adapted(
    plugin: Plugin, create: Callable[[DeviceProfile | None, Precision, str, str], CostModel]
) -> CreateCostModel:
    """The ``create`` of a plugin, which has no store; schedules record the name, so that it must be the plugin's."""

    def created(device: DeviceProfile | None, precision: Precision, engine: str, argument: str, _: object) -> CostModel:
        found = plugin.guarded(create)(device, precision, str(Engine.named(engine, device)), argument)
        if (name := plugin.guarded(lambda: found.identity.name)()) != plugin.name:
            raise plugin.error(f"creates a cost model whose identity is called {name!r}")
        return _guarded(plugin, found)

    return created


def _guarded(plugin: Plugin, found: CostModel) -> CostModel:
    """A plugin's cost model, of a class derived from its own to keep its capabilities: what it raises when asked for
    prices is a PluginError that names the stage.
    """
    kind = type(found)

    def unpriced(model: CostModel, asked: Any, *_: object) -> str:
        for index, stage in enumerate(planned_of(asked) if isinstance(asked, StageBatch) else ()):
            try:
                kind.price_stages(model, asked.take(np.array([index])))
            except (Exception, SystemExit):  # as above, this time of one stage
                merged = "the merge of " if stage.strategy is Strategy.MERGE else ""
                return f"cannot price {merged}{', '.join(stage.named(asked.problem).units)}"
        return "cannot price its stages"

    asked = ("price_stages", "price_boundary", "price_keys", "bounds")
    own = {name: plugin.guarded(getattr(kind, name), unpriced) for name in asked if hasattr(kind, name)}
    object.__setattr__(found, "__class__", type(kind.__name__, (kind,), {"__slots__": (), **own}))
    return found
