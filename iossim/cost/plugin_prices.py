"""Cost models of other packages: their identity is checked, and what they raise is one line that names the stage."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import getattr_static, isfunction
from typing import Any

import numpy as np

from iossim.base.registry import Plugin
from iossim.cost.model import CostModel, Prices
from iossim.execution.engine import Engine
from iossim.hardware.profile import DeviceProfile
from iossim.ir.types import Precision
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.planned_stage import planned_of

#: Members that every cost model must have.
_MEMBERS = ("identity", "price_stages", "price_boundary", "bounds")


def adapted(
    plugin: Plugin, create: Callable[[DeviceProfile | None, Precision, str, str], CostModel]
) -> Callable[[DeviceProfile | None, Precision, str, str, object], CostModel]:
    """The ``create`` of a plugin, which has no store; schedules record the name, so that it must be the plugin's."""

    def created(device: DeviceProfile | None, precision: Precision, engine: str, argument: str, _: object) -> CostModel:
        found = plugin.guarded(create)(device, precision, str(Engine.named(engine, device)), argument)
        if lacking := plugin.guarded(lambda: [name for name in _MEMBERS if not hasattr(found, name)])():
            raise plugin.error(f"creates {found!r}, a cost model without {', '.join(lacking)}")
        if (name := plugin.guarded(lambda: found.identity.name)()) != plugin.name:
            raise plugin.error(f"creates a cost model whose identity is called {name!r}")
        _guard(plugin, type(found))
        return found

    return created


@cache
def _guard(plugin: Plugin, kind: type) -> None:
    """Make what a plugin's class raises when asked for prices a PluginError that names the stage.

    Methods are replaced in the class: its objects keep their capabilities, and are copied and pickled as before.
    """
    methods: dict[str, Any] = {name: getattr_static(kind, name, None) for name in (*_MEMBERS, "price_keys")}
    price = methods["price_stages"]

    def price_stages(model: CostModel, batch: StageBatch) -> Prices:
        prices = np.asarray(price(model, batch), dtype=np.float64)
        if prices.shape != (len(batch),) or (prices < 0).any():
            raise ValueError(f"price_stages returned {prices}, not {len(batch)} numbers of 0 or more")
        return prices

    methods["price_stages"] = price_stages if isfunction(price) else price

    def unpriced(model: CostModel, asked: Any = None, *_: object, **__: object) -> str:
        for index, stage in enumerate(planned_of(asked) if isinstance(asked, StageBatch) else ()):
            try:
                methods["price_stages"](model, asked.take(np.array([index])))
            except (Exception, SystemExit):  # this stage is what the batch failed at
                merged = "the merge of " if stage.strategy is Strategy.MERGE else ""
                return f"cannot price {merged}{', '.join(stage.named(asked.problem).units)}"
        return "cannot price its stages"

    for name, method in methods.items():
        if isfunction(method) and not kind.__module__.startswith("iossim."):
            setattr(kind, name, plugin.guarded(method, unpriced))
