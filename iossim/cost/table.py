"""Prices from a table: a user's own measurements, or the numbers of a test.

The file is JSON (schema: :class:`PriceTable`)::

    {"boundary_us": {"single_to_concurrent": 10, "concurrent_to_single": 10, "concurrent_to_concurrent": 10},
     "stages": [{"units": ["a", "b"], "latency_us": 12.5},
                {"units": ["a", "c"], "strategy": "merge", "latency_us": 9.0}]}

A stage that is not in the table cannot run; a table that prices every unit alone allows a sequential schedule.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np
from pydantic import Field, ValidationError, model_validator

from iossim.base.errors import OptionError
from iossim.base.user_files import read_text
from iossim.base.values import TimeUs, Value, first_problem
from iossim.cost.model import CostModelIdentity, Prices, StageBounds
from iossim.hardware.profile import DeviceProfile
from iossim.ir.types import Precision
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.problem import ScheduleProblem, bits

#: A stage's strategy and its units.
StageKey = tuple[Strategy, frozenset[str]]


class BoundaryPrices(Value):
    """The price of a boundary, us, by whether the stages on either side run several groups."""

    single_to_single: TimeUs = 0.0
    single_to_concurrent: TimeUs = 0.0
    concurrent_to_single: TimeUs = 0.0
    concurrent_to_concurrent: TimeUs = 0.0


class StagePrice(Value):
    """The price of one stage: its units by name, in any order."""

    units: list[str] = Field(min_length=1)
    strategy: Strategy = Field(default=Strategy.CONCURRENT, strict=False)
    latency_us: TimeUs

    @property
    def key(self) -> StageKey:
        return self.strategy, frozenset(self.units)

    @model_validator(mode="after")
    def _each_unit_once(self) -> StagePrice:
        for unit in self.units:
            if self.units.count(unit) > 1:
                raise ValueError(f"unit {unit!r} is in the stage twice")
        return self


class PriceTable(Value):
    """A table of stage prices. ``device`` is where they were measured, if known."""

    device: str | None = None
    boundary_us: BoundaryPrices = BoundaryPrices()
    stages: list[StagePrice]

    @model_validator(mode="after")
    def _each_stage_once(self) -> PriceTable:
        seen: set[StageKey] = set()
        for stage in self.stages:
            if stage.key in seen:
                units = ", ".join(map(repr, stage.units))
                raise ValueError(f"the {stage.strategy} stage of units {units} is in the table twice")
            seen.add(stage.key)
        return self


class TableCostModel:
    """Prices stages by the names of their units. ``device`` is the default if the table has none."""

    def __init__(self, table: PriceTable, device: str = "table", precision: str = "") -> None:
        self.table = table
        self.identity = CostModelIdentity("table", table.device or device, precision)

    @cached_property
    def _prices(self) -> dict[StageKey, float]:
        return {stage.key: stage.latency_us for stage in self.table.stages}

    def price_stages(self, batch: StageBatch) -> Prices:
        """Microseconds of each stage, shape ``[len(batch)]``; inf for stages missing in the table."""
        names = batch.problem.unit_names
        return np.array(
            [
                self._prices.get((strategy, frozenset(names[unit] for unit in bits(mask))), np.inf)
                for mask, strategy in batch.stages()
            ]
        )

    def price_boundary(self, left_concurrent: bool, right_concurrent: bool) -> float:
        left = "concurrent" if left_concurrent else "single"
        right = "concurrent" if right_concurrent else "single"
        return float(getattr(self.table.boundary_us, f"{left}_to_{right}"))

    def bounds(self, problem: ScheduleProblem) -> StageBounds | None:
        """None: a table gives no bound for stages that are not in it."""
        return None


def read_table(path: Path) -> PriceTable:
    """The table in a file; raises OptionError naming the file and the field."""
    text = read_text(path, "the price table", "give an existing JSON file", OptionError)
    try:
        return PriceTable.model_validate_json(text)
    except ValidationError as error:
        raise OptionError(f"the price table {path} is not valid: {first_problem(error)}; correct it") from None


def create(
    device: DeviceProfile | None, precision: Precision, engine: str, argument: str = "", store: Path | None = None
) -> TableCostModel:
    """The table at the path ``argument``; its device, if it has one, must be the given one."""
    if not argument:
        raise OptionError("the table cost model needs a file of prices; give `cost_model` table:PRICES.json")
    table = read_table(Path(argument))
    if device is not None and table.device not in (None, device.name):
        raise OptionError(
            f"the price table {argument} is for device {table.device!r}, not {device.name!r}; leave out `device`"
        )
    return TableCostModel(table, device.name if device else "table", str(precision))
