"""Variants of units, from a schedule's file to prices, plans and the event-driven engine."""

from __future__ import annotations

import random

import numpy as np
import pytest
from checked_execution import execute
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import make_stage, random_inputs, random_network, random_schedule

from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.backends.simulator.events import run_plan, run_schedule
from iossim.backends.simulator.structured_error import StructuredError
from iossim.base.errors import PlanError, ScheduleError
from iossim.cost.facts import least_of_variants
from iossim.cost.model import CostModel, price_path
from iossim.cost.perturbed import PerturbedCostModel
from iossim.cost.random import RandomCostModel
from iossim.cost.table import PriceTable, TableCostModel
from iossim.execution.backend import create_backend
from iossim.execution.engine import Engine
from iossim.execution.lower import lower_schedule
from iossim.execution.measured_run import plan_for
from iossim.execution.memory import check_happens_before, plan_memory
from iossim.hardware.load import device
from iossim.ir.network import Network
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.schedule.batch import FASTEST, StageBatch, Strategy, Variants
from iossim.schedule.fit import fit
from iossim.schedule.masks import stage_hashes, unit_keys
from iossim.schedule.planned_stage import batch_of, planned
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.schedule.schedule import BlockSchedule, Schedule
from iossim.testing.conformance import least_price_us

V100 = device("v100-sxm2")
SEEDS = st.integers(0, 2**20)


def problem_of(network: Network) -> ScheduleProblem:
    return ScheduleProblem.of_block(network, network.blocks[0])


def names_of(model: SimulatorCostModel, problem: ScheduleProblem) -> list[list[str]]:
    """The names of each unit's variants, without the fastest's."""
    return [[variant.name for variant in own[1:]] for own in model.variants(problem)]


def random_batch(problem: ScheduleProblem, model: SimulatorCostModel, seed: int, count: int = 30) -> StageBatch:
    """Concurrent stages of some units, each of which runs as any of its variants, or as what is fastest alone."""
    generator = random.Random(seed)
    masks = np.array([generator.randint(1, problem.full) for _ in range(count)], dtype=np.uint64)
    known = names_of(model, problem)
    named = [[generator.choice((FASTEST, *names)) for names in known] for _ in range(count)]
    return StageBatch(problem, masks, np.zeros(count, np.uint8), Variants.of(named, len(problem)))


def with_variants(schedule: Schedule, network: Network, model: SimulatorCostModel, seed: int) -> Schedule:
    """Half of the units of its concurrent stages run as a variant."""
    generator = random.Random(seed)
    blocks = []
    for block, own in zip(network.blocks, schedule.blocks, strict=True):
        problem = ScheduleProblem.of_block(network, block)
        known = dict(zip(problem.unit_names, names_of(model, problem), strict=True))
        stages = [
            stage
            if stage.strategy == "merge"
            else stage.model_copy(
                update={
                    "variants": {
                        unit: generator.choice(known[unit])
                        for unit in stage.units
                        if known[unit] and generator.random() < 0.5
                    }
                }
            )
            for stage in own.stages
        ]
        blocks.append(BlockSchedule(name=own.name, stages=stages))
    return schedule.model_copy(update={"blocks": blocks})


def test_the_fastest_by_its_name_costs_what_it_does_without() -> None:
    model = SimulatorCostModel(V100, Precision.FP32)
    problem = problem_of(load("inception_v3"))
    masks = np.arange(1, 40, dtype=np.uint64)
    steps = [model.units.steps(problem.network, unit) for unit in problem.units]  # type: ignore[arg-type]
    fastest = ["+".join(one.algorithm for one, _ in model.units.whole.chosen(own)) for own in steps]
    named = StageBatch(problem, masks, np.zeros(39, np.uint8), Variants.of([fastest] * 39, len(problem)))
    plain = StageBatch.concurrent(problem, masks)
    np.testing.assert_array_equal(model.price_stages(named), model.price_stages(plain))
    none = StageBatch(problem, masks, np.zeros(39, np.uint8), Variants.of([[""] * len(problem)] * 39, len(problem)))
    np.testing.assert_array_equal(model.price_stages(none), model.price_stages(plain))


@settings(max_examples=25)
@given(SEEDS, SEEDS, st.sampled_from(["paper", "graph", "partition"]))
def test_stages_of_variants_cost_together_what_they_do_one_by_one(network: int, seed: int, engine: str) -> None:
    problem = problem_of(random_network(network))
    batch = random_batch(problem, SimulatorCostModel(V100, Precision.FP32, engine), seed, 12)
    together = SimulatorCostModel(V100, Precision.FP32, engine).price_stages(batch)
    model = SimulatorCostModel(V100, Precision.FP32, engine)
    alone = [model.price_stages(batch.take(np.array([stage])))[0] for stage in range(len(batch))]
    np.testing.assert_array_equal(together, alone)


@settings(max_examples=25)
@given(SEEDS, SEEDS, st.sampled_from(["paper", "graph"]), st.booleans())
def test_bounds_of_any_variant_hold_for_every_choice(network: int, seed: int, engine: str, off: bool) -> None:
    model = SimulatorCostModel(V100, Precision.FP32, Engine.named(engine), error=StructuredError(0) if off else None)
    problem = problem_of(random_network(network))
    bounds = least_of_variants(model.bounds_of_variants(problem))
    batch = random_batch(problem, model, seed)
    for mask, price_us in zip(batch.masks.tolist(), model.price_stages(batch).tolist(), strict=True):
        assert price_us >= least_price_us(bounds, problem.groups(mask))


@settings(max_examples=25)
@given(SEEDS, SEEDS, st.sampled_from(["paper", "graph", "partition"]), st.booleans())
def test_bounds_of_each_variant_hold_where_it_runs(network: int, seed: int, engine: str, off: bool) -> None:
    """Of stages of several groups; variants of equal keys have equal prices."""
    model = SimulatorCostModel(V100, Precision.FP32, Engine.named(engine), error=StructuredError(0) if off else None)
    problem = problem_of(random_network(network))
    bounds, names = model.bounds_of_variants(problem), [[one.name for one in own] for own in model.variants(problem)]
    batch = random_batch(problem, model, seed)
    prices_us = model.price_stages(batch)
    assert batch.variants is not None
    for stage, mask in enumerate(batch.masks.tolist()):
        groups = problem.groups(mask)
        if len(groups) == 1:
            continue
        at = {u: names[u].index(batch.variants.names[u][batch.variants.chosen[stage, u]]) for u in bits(mask)}
        serial_us = max(sum(bounds[u].bounds.serial_us[at[u]] for u in bits(group)) for group in groups)
        work_us = sum(bounds[u].bounds.work_us[at[u]] for u in bits(mask))
        assert prices_us[stage] >= max(serial_us, *np.asarray(work_us).tolist()) * (1 - 1e-9)


def test_bounds_of_the_fastest_do_not_hold_for_every_choice() -> None:
    """A variant that is slower alone may ask less of a resource than the fastest: so there are bounds of any variant."""
    model = SimulatorCostModel(V100, Precision.FP32)
    problem = problem_of(load("inception_v3"))
    fastest, least = model.bounds(problem), least_of_variants(model.bounds_of_variants(problem))
    assert (least.work_us <= fastest.work_us).all()
    assert (least.work_us < 0.9 * fastest.work_us).any()
    assert (least.serial_us <= fastest.serial_us).all()


def test_a_merged_stage_has_no_variants() -> None:
    network = random_network(3)
    problem = problem_of(network)
    model = SimulatorCostModel(V100, Precision.FP32)
    named = [[names[0] if names else FASTEST for names in names_of(model, problem)]]
    batch = StageBatch(
        problem, np.array([problem.full], np.uint64), np.array([1], np.uint8), Variants.of(named, len(problem))
    )
    assert model.price_stages(batch).tolist() == [np.inf]


def test_hashes_tell_variants_of_units_that_a_stage_holds() -> None:
    problem = ScheduleProblem.of_edges(3, [(0, 1)])
    keys = unit_keys(problem.signatures)
    named = [["a", "", ""], ["", "", ""], ["b", "", ""], ["a", "", "c"], ["a", "", ""]]
    batch = StageBatch(problem, np.array([3, 3, 3, 3, 7], np.uint64), np.zeros(5, np.uint8), Variants.of(named, 3))
    hashes = stage_hashes(batch, keys)
    assert hashes[0] == hashes[3]  # unit 2 is not in the stage
    assert len({*hashes.tolist()}) == 4
    plain = stage_hashes(StageBatch.concurrent(problem, batch.masks), keys)
    assert hashes[1] == plain[1]


@pytest.mark.parametrize("model", [RandomCostModel(), TableCostModel(PriceTable(stages=[]))], ids=["random", "table"])
def test_cost_models_that_know_no_variants_say_so(model: CostModel) -> None:
    problem = ScheduleProblem.of_edges(2, [])
    masks, strategies = np.array([3], np.uint64), np.zeros(1, np.uint8)
    with pytest.raises(PlanError, match="stages of 'problem' name variants of their units, which are not known here"):
        model.price_stages(StageBatch(problem, masks, strategies, Variants.of([["a", ""]], 2)))
    model.price_stages(StageBatch(problem, masks, strategies, Variants.of([["", ""]], 2)))


def test_a_model_with_an_error_passes_variants_on() -> None:
    inner = SimulatorCostModel(V100, Precision.FP32)
    batch = random_batch(problem_of(random_network(2)), inner, 0)
    exact, off = inner.price_stages(batch), PerturbedCostModel(inner, sigma=0.1).price_stages(batch)
    assert (off != exact).all()
    assert np.abs(np.log(off / exact)).max() < 1


@settings(max_examples=20)
@given(SEEDS, SEEDS)
def test_a_schedule_with_variants_there_and_back(network: int, seed: int) -> None:
    drawn = random_network(network)
    model = SimulatorCostModel(V100, Precision.FP32)
    plain = random_schedule(drawn, seed)
    assert "variants" not in plain.model_dump_json()
    chosen = with_variants(plain, drawn, model, seed)
    fit(chosen, drawn)
    assert Schedule.model_validate_json(chosen.model_dump_json()) == chosen
    for block, own in zip(drawn.blocks, chosen.blocks, strict=True):
        problem = ScheduleProblem.of_block(drawn, block)
        stages = planned(problem, own)
        for stage, there in zip(own.stages, stages, strict=True):
            assert there.named(problem).variants == stage.variants
            assert there.spread(range(len(problem))) == there
        single = [model.price_stages(batch_of(problem, [stage]))[0] for stage in stages]
        assert price_path(problem, stages, model).prices_us == tuple(single)
    spans = model.timeline(drawn, chosen)
    expected = sum(
        price_path(
            ScheduleProblem.of_block(drawn, block), planned(ScheduleProblem.of_block(drawn, block), own), model
        ).cost_us()
        for block, own in zip(drawn.blocks, chosen.blocks, strict=True)
    )
    assert max((span.end_us for span in spans), default=0.0) >= 0.9 * expected


@settings(max_examples=15)
@given(SEEDS, SEEDS, st.sampled_from(["paper", "graph"]))
def test_plans_of_variants_run_and_compute_the_same(network: int, seed: int, engine: str) -> None:
    drawn = random_network(network)
    model = SimulatorCostModel(V100, Precision.FP32, Engine(engine))
    chosen = with_variants(random_schedule(drawn, seed), drawn, model, seed)
    backend = create_backend("simulator", engine=Engine(engine), options={"device": "v100-sxm2"})
    plan = plan_memory(lower_schedule(chosen, drawn, engine, choices=backend.choices(drawn)))
    check_happens_before(plan)
    named = {unit: variant for stage in chosen.stages for unit, variant in stage.variants.items()}
    assert {name: one.algorithm for one in plan.launches for name in one.units if one.algorithm} == named
    inputs = random_inputs(drawn)
    expected = evaluate_graph(drawn.graph, inputs)
    for name, array in execute(plan, drawn, inputs, seed).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-5)
    # The kernels are those of the variants: their names say so, and the plan without a backend's choices runs alike.
    assert run_plan(plan, drawn, V100, engine).latency_us == run_schedule(drawn, chosen, V100, engine=engine).latency_us


def test_the_arena_holds_the_workspace_of_the_candidate_that_was_chosen() -> None:
    network = load("squeezenet")
    model = SimulatorCostModel(V100, Precision.FP32)
    backend = create_backend("simulator", options={"device": "v100-sxm2"})
    units = [(block.name, [network.units[unit].name for unit in block.units]) for block in network.blocks]
    choices, workspaces = backend.choices(network), {}
    problem = problem_of(network)
    for name, own in zip(problem.unit_names, model.variants(problem), strict=True):
        for variant in own:
            assert choices((name,), Strategy.CONCURRENT, variant.name).workspace_bytes == variant.workspace_bytes
    for kind in ("implicit_gemm", "gemm", "winograd"):
        blocks = []
        for (name, own), block in zip(units, network.blocks, strict=True):
            known = dict(zip(own, names_of(model, ScheduleProblem.of_block(network, block)), strict=True))
            stages = []
            for unit in own:
                fitting = [variant for variant in known[unit] if variant.startswith(kind)]
                variants = {unit: fitting[0]} if fitting else {}
                stages.append(make_stage([[unit]]).model_copy(update={"variants": variants}))
            blocks.append(BlockSchedule(name=name, stages=stages))
        plain = random_schedule(network, 0)
        plan = plan_for(plain.model_copy(update={"blocks": blocks}), network, backend)
        workspaces[kind] = sum(buffer.bytes for name, buffer in plan.buffers.items() if name.startswith("workspace"))
        assert plan.arena_bytes >= workspaces[kind]
    assert len(set(workspaces.values())) > 1
    assert max(workspaces.values()) > 0


def test_what_a_schedule_may_not_name() -> None:
    network = random_network(5)
    schedule = random_schedule(network, 0, merge=False)
    first, *rest = schedule.blocks[0].stages
    unit = first.units[0]

    def naming(**variants: str) -> Schedule:
        changed = first.model_copy(update={"variants": variants})
        blocks = [schedule.blocks[0].model_copy(update={"stages": [changed, *rest]}), *schedule.blocks[1:]]
        return schedule.model_copy(update={"blocks": blocks})

    with pytest.raises(ScheduleError, match="stage 0: it names a variant of 'nothing', which it does not hold; known:"):
        fit(naming(nothing="winograd"), network)
    wrong = naming(**{unit: "no such"})
    fit(wrong, network)
    with pytest.raises(PlanError, match=r"no such"):
        run_schedule(network, wrong, V100)
    problem = problem_of(network)
    with pytest.raises(PlanError, match=r"no such"):
        price_path(problem, planned(problem, wrong.blocks[0]), SimulatorCostModel(V100, Precision.FP32))
    for backend in ("numpy_reference", "onnxruntime_cpu"):
        with pytest.raises(PlanError, match=f"the schedule runs {unit} as 'no such', and backend {backend} "):
            lower_schedule(wrong, network, choices=create_backend(backend).choices(network))
