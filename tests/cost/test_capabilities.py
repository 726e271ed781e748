"""What a cost model can do besides pricing is one of three protocols, and a wrapper passes none of them on."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import iossim
import iossim.search
from iossim.cost.capabilities import DeviceCostModel, MeasuredBy, MeasuringCostModel, VariantCostModel
from iossim.cost.create import cost_model_names
from iossim.cost.model import WrappedCostModel
from iossim.execution.engine import Engine


@pytest.mark.parametrize("capability", [DeviceCostModel, VariantCostModel])
def test_the_simulator_has_each_capability_and_a_wrapper_of_it_none(capability: type) -> None:
    simulator = iossim.cost_model("simulator", "t4")
    assert isinstance(simulator, capability)
    assert not isinstance(WrappedCostModel(simulator), capability)
    assert not isinstance(iossim.cost_model("random:1"), capability)
    assert not isinstance(iossim.cost_model("perturbed:0.1", "t4"), capability)


def test_a_stand_in_for_hardware_says_so() -> None:
    truth = iossim.cost_model("perturbed:0.1", "t4")
    assert isinstance(truth, MeasuringCostModel)
    assert truth.measured_by is MeasuredBy.STAND_IN
    assert not isinstance(iossim.cost_model("simulator", "t4"), MeasuringCostModel)


def test_another_engine_leaves_all_else() -> None:
    prices = iossim.cost_model("simulator:in-place", "t4", "fp16")
    assert isinstance(prices, DeviceCostModel)
    there = prices.at(engine=Engine.GRAPH)
    assert there.identity == iossim.cost_model("simulator:in-place", "t4", "fp16", "graph").identity
    assert prices.at().identity == prices.identity


def test_a_simulator_that_is_off_has_another_identity() -> None:
    names = ("simulator", "simulator:structured-error=1", "simulator:structured-error=2")
    assert len({iossim.cost_model(name, "t4").identity for name in names}) == 3


def test_what_is_no_cost_model_has_no_name() -> None:
    assert {"perturbed", "random", "replay", "simulator", "table"} <= set(cost_model_names())
    assert not {"model", "create", "capabilities", "workspace_limit", "measured"} & set(cost_model_names())


def test_a_search_knows_the_contract_alone() -> None:
    (root,) = map(Path, iossim.search.__path__)
    modules = {
        node.module
        for path in root.rglob("*.py")
        if path.name not in ("scheduler.py", "company.py")  # these apply a limit on workspace, and choose kernels
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        and node.module
        and node.module.startswith(("iossim.cost", "iossim.backends"))
    }
    assert modules == {"iossim.cost.capabilities", "iossim.cost.model"}
