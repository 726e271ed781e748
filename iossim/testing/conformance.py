"""Contracts of ops, cost models, schedulers, backends and device profiles, as classes of tests: subclass the one of
yours, and say how yours is made, or is called::

    @pytest.mark.parametrize("case", [OpCase(Mine(axis=1), (np.ones((2, 3), np.float32),))], ids=str)
    class TestMine(OpConformance):
        def reference(self, case):
            return [case.inputs[0].mean(1)]

    class TestMine(CostModelConformance):
        def cost_model(self, device):
            return MyCostModel(device)

    class TestMine(SchedulerConformance):
        scheduler = "mine"

    class TestMine(BackendConformance):
        def backend(self, engine):
            return MyBackend(engine)

    class TestMine(DeviceConformance):
        def profile(self):
            return iossim.device("path/to/mine.yaml")
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest

from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.base.errors import GraphError
from iossim.cost.create import create_cost_model
from iossim.cost.model import START, CostModel, StageBounds, problems_of
from iossim.cost.random import RandomCostModel
from iossim.execution.backend import Backend, Timing
from iossim.execution.engine import Engine
from iossim.execution.lower import lower_schedule
from iossim.execution.made_inputs import made_arrays
from iossim.execution.memory import with_memory
from iossim.execution.plan import Plan
from iossim.hardware.kind import DEVICE_KINDS
from iossim.hardware.load import device
from iossim.hardware.lowering.target import target_of
from iossim.hardware.plausibility import implausible
from iossim.hardware.profile import DeviceProfile
from iossim.ir.builder import GraphBuilder
from iossim.ir.constants import dtype_of
from iossim.ir.network import ModelSource, Network
from iossim.ir.op import Array, Op, op_class
from iossim.ir.types import Precision, TensorType
from iossim.models.layers import conv_relu, join
from iossim.models.load import load
from iossim.models.onnx.export import export_graph
from iossim.models.onnx.file import read_model
from iossim.models.onnx.inputs import bind
from iossim.models.onnx.translate import translate
from iossim.models.options import LoadOptions
from iossim.models.random_graphs import seeded_network
from iossim.schedule.batch import StageBatch
from iossim.schedule.fit import fit
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.schedule.schedule import Schedule
from iossim.search.assemble import reprice
from iossim.search.counting import distinct_stages
from iossim.search.options import StageSpace
from iossim.search.scheduler import schedule
from iossim.tasks.checks import race_free


@dataclass(frozen=True)
class OpCase:
    op: Op
    inputs: tuple[Array, ...]

    @property
    def types(self) -> list[TensorType]:
        return [TensorType(array.shape, dtype_of(array)) for array in self.inputs]

    def network(self) -> Network:
        """The op applied to its inputs; all but the first are weights."""
        b = GraphBuilder("one_op")
        x, *rest = self.types
        values = [b.input("x", x.shape) if x.dtype == b.dtype else b.constant("x", x.shape, x.dtype)]
        values += [b.constant(f"w{index}", each.shape, each.dtype) for index, each in enumerate(rest)]
        return b.network(list(b.add_all(self.op, *values)))

    def __str__(self) -> str:
        return f"{self.op.signature} of {', '.join(map(str, self.types))}"


class OpConformance:
    """Outputs have the inferred types, work is counted, and the op has prices and can be saved in files."""

    #: Tolerated absolute and relative difference of an output from the reference's.
    tolerance = 2e-5

    def reference(self, case: OpCase) -> Sequence[Array] | None:
        """The outputs, computed independently of the op; None if there is no reference."""
        return None

    def test_it_is_found_by_its_kind(self, case: OpCase) -> None:
        assert op_class(case.op.kind) is type(case.op)

    def test_outputs_are_of_the_inferred_types(self, case: OpCase) -> None:
        before = [array.copy() for array in case.inputs]
        outputs = case.op.evaluate(case.inputs)
        for array, expected in zip(outputs, case.op.infer(case.types), strict=True):
            assert (array.shape, array.dtype) == (expected.shape, expected.dtype.numpy)
        for array, kept in zip(case.inputs, before, strict=True):
            np.testing.assert_array_equal(array, kept)

    def test_outputs_are_those_of_the_reference(self, case: OpCase) -> None:
        expected = self.reference(case)
        if expected is not None:
            for found, value in zip(case.op.evaluate(case.inputs), expected, strict=True):
                np.testing.assert_allclose(found, value, rtol=self.tolerance, atol=self.tolerance)

    def test_inputs_that_do_not_fit_are_refused(self, case: OpCase) -> None:
        with pytest.raises(GraphError):
            case.op.infer([])

    def test_it_is_kept_as_json(self, case: OpCase) -> None:
        kept = json.loads(json.dumps(case.op.attributes()))
        again = Op.from_attributes(case.op.kind, kept)
        assert again == case.op
        assert again.signature == case.op.signature

    def test_its_work_is_counted(self, case: OpCase) -> None:
        outputs = case.op.infer(case.types)
        work = case.op.work(case.types, outputs)
        assert work.flops >= 2 * case.op.multiply_adds(case.types, outputs) >= 0
        assert 0 <= work.bytes <= sum(value.bytes for value in (*case.types, *outputs))

    @pytest.mark.parametrize("kind", DEVICE_KINDS.names())
    def test_each_kind_of_device_has_a_lowering(self, case: OpCase, kind: str) -> None:
        assert target_of(device("t4").model_copy(update={"kind": kind})).family(case.op) is not None

    def test_it_can_be_scheduled(self, case: OpCase) -> None:
        prices = create_cost_model("simulator", device("t4"), Precision.FP32, Engine.PAPER, None)
        assert 0 < schedule(case.network(), prices, "ios-both").latency_us < np.inf

    def test_it_is_read_from_the_onnx_that_it_writes(self, case: OpCase, tmp_path: Path) -> None:
        if not case.op.onnx_types:
            pytest.skip("it has no ONNX spelling")
        path = tmp_path / "one_op.onnx"
        onnx.save(export_graph(case.network().graph), path)
        (node,) = translate(bind(read_model(path), LoadOptions())).nodes
        assert node.op.signature == case.op.signature


def least_price_us(bounds: StageBounds, groups: list[int]) -> float:
    """Lower bound of a concurrent stage's price; its groups (masks) in the order of issue."""
    units = bits(sum(groups))
    issue_us = np.zeros(len(bounds.serial_us)) if bounds.issue_us is None else bounds.issue_us
    issued_us = np.cumsum([0.0, *(issue_us[bits(group)].sum() for group in groups)])[:-1]
    least_us = [before + bounds.serial_us[bits(group)].sum() for before, group in zip(issued_us, groups, strict=True)]
    least_us += bounds.work_us[units].sum(axis=0).tolist()
    if len(groups) == 1:
        least_us.append(bounds.single_us[units].sum())
    return float(max(least_us))


#: Tolerated relative difference of sums of the same numbers in another order.
ROUNDING = 1e-9


class CostModelConformance(ABC):
    """Prices are finite or inf, the same in any batch and for equal work, and never below the bounds."""

    #: Seeds of the priced networks, each with two blocks of equal size.
    seeds = (1, 2, 3)
    units = 6

    @abstractmethod
    def cost_model(self, device: DeviceProfile) -> CostModel:
        """A new cost model; ``device`` is a small GPU for those that need one."""

    @pytest.fixture
    def prices(self, iossim_device: DeviceProfile) -> CostModel:
        return self.cost_model(iossim_device)

    def networks(self) -> list[Network]:
        return [seeded_network(seed, units=self.units, blocks=2) for seed in self.seeds]

    def test_two_of_the_same_have_one_identity(self, prices: CostModel, iossim_device: DeviceProfile) -> None:
        assert prices.identity == self.cost_model(iossim_device).identity
        assert prices.identity.name

    def test_prices_are_microseconds_of_each_stage(self, prices: CostModel) -> None:
        for network in self.networks():
            for batch in batches(network):
                found = prices.price_stages(batch)
                assert found.dtype == np.float64
                assert found.shape == (len(batch),)
                assert not np.isnan(found).any()
                assert (found >= 0).all()

    def test_a_price_does_not_depend_on_its_batch(self, prices: CostModel, iossim_device: DeviceProfile) -> None:
        for network in self.networks():
            for batch in batches(network):
                together = prices.price_stages(batch)
                backwards = np.arange(len(batch))[::-1]
                other = self.cost_model(iossim_device)
                again = other.price_stages(batch.take(backwards))[backwards]
                np.testing.assert_allclose(again, together, rtol=ROUNDING)

    def test_equal_work_has_equal_prices(self, prices: CostModel) -> None:
        for one, other in zip(self.networks(), self.networks(), strict=True):
            for first, second in zip(batches(one), batches(other), strict=True):
                assert np.array_equal(prices.price_stages(first), prices.price_stages(second))

    def test_boundaries_take_time_or_none(self, prices: CostModel) -> None:
        for left in (False, True):
            for right in (False, True):
                assert 0 <= prices.price_boundary(left, right) < np.inf

    def test_bounds_never_exceed_prices(self, prices: CostModel) -> None:
        for network in self.networks():
            for batch in batches(network):
                bounds = prices.bounds(batch.problem)
                if bounds is None:
                    continue
                found = prices.price_stages(batch)
                for mask, price_us in zip(batch.masks.tolist(), found.tolist(), strict=True):
                    assert least_price_us(bounds, list(batch.problem.groups(mask))) <= price_us * (1 + ROUNDING)

    def test_a_search_finds_no_worse_than_one_by_one(self, prices: CostModel) -> None:
        for network in self.networks():
            sequential, best = (schedule(network, prices, name) for name in ("sequential", "ios-both"))
            assert best.latency_us <= sequential.latency_us * (1 + ROUNDING)

    def test_blocks_that_look_alike_are_solved_by_their_own_prices(self, prices: CostModel) -> None:
        """Their units have equal work but different names; proofs about a schedule are checked for all schedules."""
        network = twin_network()
        for plain, told_apart in zip(batches(network), problems_of(network, prices), strict=True):
            asked = StageBatch.concurrent(told_apart, plain.masks)
            np.testing.assert_array_equal(prices.price_stages(asked), prices.price_stages(plain))
        found = schedule(network, prices, "ios-parallel")
        assert found.latency_us == pytest.approx(least_latency_us(network, prices), rel=ROUNDING)
        assert found.lower_bound_us is None or found.lower_bound_us <= found.latency_us * (1 + ROUNDING)


def twin_network() -> Network:
    """Two equal blocks of three convolutions of one input, and their sum."""
    b = GraphBuilder("twins")
    x = b.input("image", (1, 8, 14, 14))
    for block in ("first", "second"):
        with b.block(block):
            branches = [conv_relu(b, f"{block}.{n}", x, 8, k, padding=k // 2) for n, k in enumerate((1, 3, 3))]
            x = join(b, f"{block}.sum", [branches])
    return b.network([x], ModelSource("twins"))


def least_latency_us(network: Network, prices: CostModel) -> float:
    """Minimum latency of all schedules of concurrent stages, from every state of every block in turn."""
    best = {START: 0.0}
    for batch in batches(network):
        stages = list(zip(batch.masks.tolist(), prices.price_stages(batch).tolist(), strict=True))
        reached = {(0, bit): us for bit, us in best.items()}
        for done in range(batch.problem.full):
            ready = batch.problem.ancestors.tolist()
            for mask, price_us in stages:
                if mask & done or any(ready[unit] & ~(done | mask) for unit in bits(mask)):
                    continue
                bit = int(len(batch.problem.groups(mask)) > 1)
                for before in {before for state, before in reached if state == done}:
                    between_us = 0.0 if before == START else prices.price_boundary(bool(before), bool(bit))
                    total_us = reached[done, before] + between_us + price_us
                    reached[done | mask, bit] = min(total_us, reached.get((done | mask, bit), np.inf))
        best = {bit: us for (state, bit), us in reached.items() if state == batch.problem.full}
    return min(best.values())


def batches(network: Network) -> list[StageBatch]:
    """For each block of a network, all its concurrent stages."""
    problems = [ScheduleProblem.of_block(network, block) for block in network.blocks]
    return [StageBatch.concurrent(problem, distinct_stages(problem, StageSpace())) for problem in problems]


class SchedulerConformance:
    """Schedules fit their network, have the latency of their stages, run without races, and are reproducible."""

    scheduler: str
    #: Seeds of networks and of prices.
    seeds = (1, 2, 3)

    @pytest.fixture(params=(1, 2, 3))
    def network(self, request: pytest.FixtureRequest) -> Network:
        return seeded_network(request.param, units=7, blocks=2)

    @pytest.fixture
    def prices(self, network: Network) -> RandomCostModel:
        return RandomCostModel(seed=len(network.graph.nodes))

    @pytest.fixture
    def found(self, network: Network, prices: RandomCostModel) -> Schedule:
        return schedule(network, prices, self.scheduler)

    def test_it_says_whose_it_is(self, found: Schedule) -> None:
        assert found.scheduler == self.scheduler
        assert found.complete

    def test_it_fits_its_network(self, found: Schedule, network: Network) -> None:
        fit(found, network)

    def test_its_latency_is_the_sum_of_its_stages(
        self, found: Schedule, network: Network, prices: RandomCostModel
    ) -> None:
        total_us = sum(stage.latency_us + stage.boundary_us for stage in found.stages)
        assert found.latency_us == pytest.approx(total_us)
        assert reprice(found, network, prices).latency_us == pytest.approx(found.latency_us)

    def test_its_plan_runs_without_races(self, found: Schedule, network: Network) -> None:
        for engine in ("paper", "graph"):
            check = race_free(lower_schedule(found, network, engine))
            assert check.holds, str(check)

    def test_the_same_network_has_the_same_schedule(self, found: Schedule, network: Network) -> None:
        again = schedule(network, RandomCostModel(seed=len(network.graph.nodes)), self.scheduler)
        assert again.model_copy(update={"search_s": found.search_s}) == found

    def test_it_is_no_faster_than_its_bound(self, found: Schedule) -> None:
        if found.lower_bound_us is not None:
            assert found.lower_bound_us <= found.latency_us * (1 + 1e-9)

    def test_progress_goes_up_to_all_units(self, network: Network, prices: RandomCostModel) -> None:
        told: list[tuple[int, int]] = []
        schedule(network, prices, self.scheduler, progress=lambda done, total: told.append((done, total)))
        assert all(before <= after for (before, _), (after, _) in pairwise(told))
        assert all(done <= total == len(network.units) for done, total in told)


class BackendConformance(ABC):
    """Plans of random schedules compute what the graph does, however often they run, and are timed plan by plan."""

    engines = ("paper", "graph")
    seeds = (1, 2, 3)
    #: Tolerated difference of an output from NumPy's, relative to the largest value.
    tolerance = 1e-4

    @abstractmethod
    def backend(self, engine: str) -> Backend:
        """A backend under that engine."""

    def plans(self, network: Network, backend: Backend) -> list[Plan]:
        """The network's plans by schedulers at random prices, values in place, with their memory planned."""
        prices = RandomCostModel(seed=5)
        found = (schedule(network, prices, name) for name in ("sequential", "greedy", "ios-both"))
        choices, engine = backend.choices(network), backend.context.engine
        return [with_memory(lower_schedule(each, network, engine, in_place=True, choices=choices)) for each in found]

    @pytest.mark.parametrize("seed", seeds)
    def test_outputs_are_those_of_the_graph(self, seed: int) -> None:
        network = seeded_network(seed, units=6, blocks=2)
        inputs = made_arrays(network.graph.inputs, network.graph.types)
        expected = evaluate_graph(network.graph, inputs)
        for engine in self.engines:
            backend = self.backend(engine)
            for plan in self.plans(network, backend):
                for _ in range(2):
                    found = backend.execute(network, plan, inputs)
                    assert found.keys() == expected.keys()
                    for name, value in expected.items():
                        assert np.abs(found[name] - value).max() <= self.tolerance * max(1.0, np.abs(value).max())

    def test_each_plan_is_timed(self) -> None:
        network = seeded_network(1, units=6, blocks=1)
        for engine in self.engines:
            backend = self.backend(engine)
            plans = self.plans(network, backend)
            samples = backend.measure(network, plans, Timing(rounds=2, warm_up=1))
            assert len(samples) == len(plans)
            assert all(time_us > 0 for each in samples for time_us in each.times_us)

    def test_it_says_what_its_times_depend_on(self) -> None:
        for engine in self.engines:
            context = self.backend(engine).context
            assert context.engine == engine
            assert context.backend
            assert context.device
            assert context == self.backend(engine).context


class DeviceConformance(ABC):
    """A profile is plausible, and schedules on it are finite, and no slower than the sequential one."""

    models = ("squeezenet", "ios_sample")

    @abstractmethod
    def profile(self) -> DeviceProfile: ...

    def test_it_is_plausible(self) -> None:
        assert implausible(self.profile()) == []

    @pytest.mark.parametrize("model", models)
    def test_networks_can_be_scheduled(self, model: str) -> None:
        network = load(model)
        prices = create_cost_model("simulator", self.profile(), Precision.FP32, Engine.PAPER, None)
        sequential, best = (schedule(network, prices, name) for name in ("sequential", "ios-both"))
        assert 0 < best.latency_us <= sequential.latency_us < np.inf

    def test_larger_batches_take_no_less(self) -> None:
        latencies_us = []
        for batch in (1, 4, 16):
            network = load("squeezenet", batch=batch)
            prices = create_cost_model("simulator", self.profile(), network.precision, Engine.PAPER, None)
            latencies_us.append(schedule(network, prices, "sequential").latency_us)
        assert latencies_us == sorted(latencies_us)
