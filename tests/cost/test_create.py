"""Cost models by name, what they can do besides pricing, and those of a table and of random prices."""

import ast
import json
from pathlib import Path

import numpy as np
import pytest
from brute_force import problems
from case_files import cases
from hypothesis import given
from hypothesis import strategies as st

import iossim
import iossim.search
from iossim.base.errors import IossimError, OptionError
from iossim.cost.capabilities import DeviceCostModel, MeasuredBy, MeasuringCostModel, VariantCostModel
from iossim.cost.create import cost_model_names, create_cost_model
from iossim.cost.measured.cost_model import MeasuredCostModel
from iossim.cost.model import WrappedCostModel
from iossim.cost.random import RandomCostModel
from iossim.cost.table import PriceTable, TableCostModel
from iossim.execution.backend import backend_names
from iossim.execution.engine import Engine
from iossim.ir.types import Precision
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.problem import ScheduleProblem, bits

CASES = cases(__file__, "mistakes.yaml")


def test_names() -> None:
    """Those with a file of their own, and the backends, which measure."""
    names = cost_model_names()
    assert names == sorted(set(names))
    assert {"perturbed", "random", "replay", "simulator", "table", *backend_names()} <= set(names)
    assert not {"capabilities", "create", "measured", "model", "workspace_limit"} & set(names)


def test_a_backend_measures_into_the_store_that_is_chosen(tmp_path: Path) -> None:
    model = iossim.cost_model("numpy_reference", engine="paper", store=tmp_path / "store.sqlite")
    assert isinstance(model, MeasuredCostModel)
    assert (model.identity.name, model.identity.engine) == ("numpy_reference", "paper")
    assert model.store.path == tmp_path / "store.sqlite"


@pytest.mark.parametrize(("spec", "arguments", "message"), CASES["cost model"])
def test_what_is_no_cost_model(spec: str, arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(IossimError, match=message):
        iossim.cost_model(spec, *arguments, store=tmp_path / "chosen.sqlite")


def test_what_a_name_makes() -> None:
    made = iossim.cost_model("simulator", "t4", "fp16", "graph").identity
    assert (made.name, made.device, made.precision, made.engine) == ("simulator", "t4", "fp16", "graph")
    assert iossim.cost_model("random:7").identity.device == "random"
    assert iossim.cost_model("random:7", "t4").identity.device == "t4"
    assert (
        iossim.cost_model("random", "t4") == iossim.cost_model("random:0", "t4") != iossim.cost_model("random:1", "t4")
    )
    off = ("simulator", "simulator:structured-error=1", "simulator:structured-error=2")
    assert len({iossim.cost_model(name, "t4").identity for name in off}) == 3


def test_a_wrapper_has_no_capability_of_what_it_wraps() -> None:
    simulator, stand_in = iossim.cost_model("simulator", "t4"), iossim.cost_model("perturbed:0.1", "t4")
    for capability in (DeviceCostModel, VariantCostModel):
        assert isinstance(simulator, capability)
        for other in (WrappedCostModel(simulator), stand_in, iossim.cost_model("random:1")):
            assert not isinstance(other, capability)
    assert not isinstance(simulator, MeasuringCostModel)
    assert isinstance(stand_in, MeasuringCostModel)
    assert stand_in.measured_by is MeasuredBy.STAND_IN


def test_another_engine_leaves_all_else() -> None:
    prices = iossim.cost_model("simulator:in-place", "t4", "fp16")
    assert isinstance(prices, DeviceCostModel)
    there = prices.at(engine=Engine.GRAPH)
    assert there.identity == iossim.cost_model("simulator:in-place", "t4", "fp16", "graph").identity
    assert prices.at().identity == prices.identity


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
    assert modules == {"iossim.cost.capabilities", "iossim.cost.facts", "iossim.cost.model"}


TABLE = {
    "boundary_us": {"single_to_concurrent": 1, "concurrent_to_single": 2, "concurrent_to_concurrent": 3},
    "stages": [
        {"units": ["0"], "latency_us": 5},
        {"units": ["1", "0"], "latency_us": 7},
        {"units": ["0", "1"], "strategy": "merge", "latency_us": 6},
    ],
}


def test_a_table_has_the_prices_of_stages_and_boundaries() -> None:
    model = TableCostModel(PriceTable.model_validate(TABLE))
    problem = ScheduleProblem.of_edges(2, [], merge_class=[0, 0])
    masks = np.array([1, 2, 3, 3], dtype=np.uint64)
    strategies = np.array([Strategy.CONCURRENT.code] * 3 + [Strategy.MERGE.code], dtype=np.uint8)
    assert model.price_stages(StageBatch(problem, masks, strategies)).tolist() == [5, np.inf, 7, 6]
    between = [model.price_boundary(left, right) for left in (False, True) for right in (False, True)]
    assert between == [0, 1, 2, 3]
    twice = [{"units": ["0", "1"], "latency_us": 1}, {"units": ["1", "0"], "latency_us": 2}]
    with pytest.raises(ValueError, match="the concurrent stage of units '1', '0' is in the table twice"):
        PriceTable.model_validate({"stages": twice})


def test_the_device_of_a_table_is_its_own_or_the_one_asked_for(tmp_path: Path) -> None:
    t4, path = iossim.device("t4"), tmp_path / "prices.json"
    for own, asked, expected in ((None, None, "table"), (None, t4, "t4"), ("my card", None, "my card")):
        path.write_text(json.dumps(TABLE | {"device": own}))
        assert create_cost_model(f"table:{path}", asked, Precision.FP32, "paper").identity.device == expected
    with pytest.raises(OptionError, match="is for device 'my card', not 't4'; leave out `device`"):
        create_cost_model(f"table:{path}", t4, Precision.FP32, "paper")


# Random prices are held to the contract of all cost models in tests/test_conformance.py.


@given(problems(6))
def test_random_merges_are_of_one_class_only(problem: ScheduleProblem) -> None:
    model, masks = RandomCostModel(1), np.arange(1, problem.full + 1, dtype=np.uint64)
    merged = model.price_stages(StageBatch(problem, masks, np.full(len(masks), Strategy.MERGE.code, dtype=np.uint8)))
    serial_us = model.bounds(problem).serial_us
    for mask, price in zip(masks.tolist(), merged.tolist(), strict=True):
        units = bits(mask)
        classes = set(problem.merge_class[units].tolist())
        if len(units) > 1 and len(classes) == 1 and classes != {-1}:
            assert 0 < price <= serial_us[units].sum()
        else:
            assert price == np.inf


@given(problems(6), st.integers(0, 10), st.data())
def test_a_random_price_is_the_same_in_a_part_of_the_block(
    problem: ScheduleProblem, seed: int, data: st.DataObject
) -> None:
    """Else a block that is solved in parts, or prices kept by signature, would not cost what the schedule says."""
    model, other = RandomCostModel(seed), RandomCostModel(seed + 1)
    mask = data.draw(st.integers(1, problem.full))
    part = problem.restrict(bits(mask))
    for strategy in Strategy:
        strategies = np.array([strategy.code], dtype=np.uint8)
        batch = StageBatch(problem, np.array([mask], dtype=np.uint64), strategies)
        whole = model.price_stages(batch).tolist()
        assert model.price_stages(StageBatch(part, np.array([part.full], dtype=np.uint64), strategies)) == whole
        assert whole == [np.inf] or other.price_stages(batch) != whole
    assert model.identity != other.identity
