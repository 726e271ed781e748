"""Prices from a table."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import iossim
from iossim.base.errors import OptionError
from iossim.cost.create import create_cost_model
from iossim.cost.table import PriceTable, TableCostModel
from iossim.ir.types import Precision
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.problem import ScheduleProblem

TABLE = {
    "boundary_us": {"single_to_concurrent": 1, "concurrent_to_single": 2, "concurrent_to_concurrent": 3},
    "stages": [
        {"units": ["0"], "latency_us": 5},
        {"units": ["1", "0"], "latency_us": 7},
        {"units": ["0", "1"], "strategy": "merge", "latency_us": 6},
    ],
}


def test_stages_by_units_and_strategy() -> None:
    model = TableCostModel(PriceTable.model_validate(TABLE))
    problem = ScheduleProblem.of_edges(2, [], merge_class=[0, 0])
    masks = np.array([1, 2, 3, 3], dtype=np.uint64)
    strategies = np.array([Strategy.CONCURRENT.code] * 3 + [Strategy.MERGE.code], dtype=np.uint8)
    assert model.price_stages(StageBatch(problem, masks, strategies)).tolist() == [5, np.inf, 7, 6]
    assert model.bounds(problem) is None


def test_boundaries() -> None:
    model = TableCostModel(PriceTable.model_validate(TABLE))
    assert [[model.price_boundary(left, right) for right in (False, True)] for left in (False, True)] == [
        [0, 1],
        [2, 3],
    ]


def write(folder: Path, **fields: object) -> str:
    path = folder / "prices.json"
    path.write_text(json.dumps(TABLE | fields))
    return f"table:{path}"


def test_device_of_a_table(tmp_path: Path) -> None:
    """The table's own, or the one asked for; never two."""
    t4 = iossim.device("t4")
    unnamed = write(tmp_path)
    assert create_cost_model(unnamed, None, Precision.FP32, "paper").identity.device == "table"
    assert create_cost_model(unnamed, t4, Precision.FP32, "paper").identity.device == "t4"
    named = write(tmp_path, device="my card")
    assert create_cost_model(named, None, Precision.FP32, "paper").identity.device == "my card"
    with pytest.raises(OptionError, match="is for device 'my card', not 't4'; leave out `device`"):
        create_cost_model(named, t4, Precision.FP32, "paper")


def test_stage_twice() -> None:
    stages = [{"units": ["0", "1"], "latency_us": 1}, {"units": ["1", "0"], "latency_us": 2}]
    with pytest.raises(ValueError, match="the concurrent stage of units '1', '0' is in the table twice"):
        PriceTable.model_validate({"stages": stages})
