"""Cost models by name, what they can do besides pricing, and those of a table and of random prices."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import iossim
import iossim.search
from iossim.base.errors import IossimError, OptionError
from iossim.cost.capabilities import DeviceCostModel, MeasuredBy, MeasuringCostModel, VariantCostModel
from iossim.cost.create import cost_model_names, create_cost_model
from iossim.cost.measured.cost_model import MeasuredCostModel
from iossim.cost.measured.store_file import StoreError
from iossim.cost.model import WrappedCostModel
from iossim.cost.random import RandomCostModel
from iossim.cost.table import PriceTable, TableCostModel
from iossim.execution.backends import backend_names
from iossim.execution.engine import Engine
from iossim.ir.types import Precision
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.problem import ScheduleProblem, bits


def test_names() -> None:
    """Those with a file of their own, and the backends, which measure."""
    names = cost_model_names()
    assert names == sorted(set(names))
    assert {"random", "replay", "simulator", "table", *backend_names()} <= set(names)
    assert not {"create", "measured", "measurement_store", "model", "path", "profiling"} & set(names)


def test_a_backend_measures(tmp_path: Path) -> None:
    model = create_cost_model("numpy_reference", None, Precision.FP32, "paper", tmp_path / "store.sqlite")
    assert isinstance(model, MeasuredCostModel)
    assert model.identity.name == "numpy_reference"
    assert model.identity.engine == "paper"
    assert model.store.path == tmp_path / "store.sqlite"
    with pytest.raises(OptionError, match="measures 'cpu', not 't4'; leave out `device`"):
        create_cost_model("numpy_reference", iossim.device("t4"), Precision.FP32, "paper", tmp_path / "store.sqlite")
    with pytest.raises(OptionError, match="has no option 'threads'"):
        create_cost_model("numpy_reference:threads=2", None, Precision.FP32, "paper", tmp_path / "store.sqlite")
    with pytest.raises(OptionError, match="'two' is not a setting"):
        create_cost_model("numpy_reference:two", None, Precision.FP32, "paper", tmp_path / "store.sqlite")


def test_what_a_name_makes() -> None:
    t4 = iossim.device("t4")
    assert create_cost_model("simulator", t4, Precision.FP16, "graph").identity.to_json() == {
        "name": "simulator",
        "device": "t4",
        "precision": "fp16",
        "engine": "graph",
        "version": create_cost_model("simulator", t4, Precision.FP16, "graph").identity.version,
    }
    assert create_cost_model("random:7", None, Precision.FP32, "paper").identity.device == "random"
    assert create_cost_model("random:7", t4, Precision.FP32, "paper").identity.device == "t4"
    assert create_cost_model("random", t4, Precision.FP32, "paper") == create_cost_model(
        "random:0", t4, Precision.FP32, "paper"
    )


@pytest.mark.parametrize("spec", ["", ":", "create", "path", "model", "measured", "Simulator", "os"])
def test_what_is_no_cost_model(spec: str) -> None:
    with pytest.raises(OptionError, match=r"known: .*random.*simulator.*table"):
        create_cost_model(spec, None, Precision.FP32, "paper")


@pytest.mark.parametrize(
    "arguments",
    [("simulator", None), ("simulator", "t5"), ("simulator", "t4", "fp17"), ("simulator", "t4", "fp32", "grap")],
)
def test_mistakes(arguments: tuple[str, ...]) -> None:
    with pytest.raises(IossimError):
        iossim.cost_model(*arguments)


def test_replay_reads_the_store_that_is_chosen(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no measurement store .*chosen\.sqlite"):
        create_cost_model("replay", None, Precision.FP32, "paper", tmp_path / "chosen.sqlite")


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
    assert modules == {"iossim.cost.capabilities", "iossim.cost.facts", "iossim.cost.model"}


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


@st.composite
def problems(draw: st.DrawFn) -> ScheduleProblem:
    count = draw(st.integers(1, 6))
    pairs = [(low, high) for high in range(count) for low in range(high)]
    edges = [pair for pair in pairs if draw(st.booleans())]
    merge_class = [draw(st.integers(-1, 1)) for _ in range(count)]
    return ScheduleProblem.of_edges(count, edges, merge_class)


def every_stage(problem: ScheduleProblem) -> StageBatch:
    """All sets of units, valid endings or not."""
    return StageBatch.concurrent(problem, np.arange(1, problem.full + 1, dtype=np.uint64))


@settings(max_examples=30, deadline=None)
@given(problem=problems(), seed=st.integers(0, 10))
def test_bounds_hold(problem: ScheduleProblem, seed: int) -> None:
    model = RandomCostModel(seed)
    batch = every_stage(problem)
    prices = model.price_stages(batch)
    bounds = model.bounds(problem)
    for mask, price in zip(batch.masks.tolist(), prices.tolist(), strict=True):
        groups = problem.groups(mask)
        units = bits(mask)
        floor = max(
            *(sum(bounds.serial_us[bits(group)]) for group in groups), *bounds.work_us[units].sum(axis=0).tolist()
        )
        assert price >= floor * (1 - 1e-12)
        if len(groups) == 1:
            assert price >= sum(bounds.single_us[units]) * (1 - 1e-12)
        assert price > 0


@settings(max_examples=30, deadline=None)
@given(problem=problems(), seed=st.integers(0, 10))
def test_prices_do_not_depend_on_the_batch(problem: ScheduleProblem, seed: int) -> None:
    model = RandomCostModel(seed)
    batch = every_stage(problem)
    together = model.price_stages(batch)
    backwards = model.price_stages(StageBatch.concurrent(problem, batch.masks[::-1].copy()))
    assert backwards[::-1].tolist() == together.tolist()
    assert RandomCostModel(seed).price_stages(batch).tolist() == together.tolist()


@settings(max_examples=30, deadline=None)
@given(problem=problems())
def test_merges_of_one_class_only(problem: ScheduleProblem) -> None:
    batch = every_stage(problem)
    merged = RandomCostModel(1).price_stages(
        StageBatch(problem, batch.masks, np.full(len(batch), Strategy.MERGE.code, dtype=np.uint8))
    )
    serial_us = RandomCostModel(1).bounds(problem).serial_us
    for mask, price in zip(batch.masks.tolist(), merged.tolist(), strict=True):
        units = bits(mask)
        classes = set(problem.merge_class[units].tolist())
        if len(units) > 1 and len(classes) == 1 and classes != {-1}:
            assert 0 < price <= serial_us[units].sum()
        else:
            assert price == np.inf


@settings(max_examples=20, deadline=None)
@given(problem=problems(), seed=st.integers(0, 10), data=st.data())
def test_a_stage_costs_the_same_in_a_part_of_its_block(
    problem: ScheduleProblem, seed: int, data: st.DataObject
) -> None:
    """Else a block that is solved in parts, or prices kept by signature, would not cost what the schedule says."""
    model = RandomCostModel(seed)
    mask = data.draw(st.integers(1, problem.full))
    part = problem.restrict(bits(mask))
    for strategy in Strategy:
        strategies = np.array([strategy.code], dtype=np.uint8)
        whole = model.price_stages(StageBatch(problem, np.array([mask], dtype=np.uint64), strategies))
        alone = model.price_stages(StageBatch(part, np.array([part.full], dtype=np.uint64), strategies))
        assert alone.tolist() == whole.tolist()


def test_seeds_differ() -> None:
    problem = ScheduleProblem.of_edges(3, [])
    first, second = (RandomCostModel(seed).price_stages(every_stage(problem)).tolist() for seed in (0, 1))
    assert first != second
    assert RandomCostModel(7).identity != RandomCostModel(8).identity
