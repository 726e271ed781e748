"""Measured prices: each distinct stage is measured once, kept, and priced without what stands around it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fake_backend import COPY_US, SYNCHRONISE_US, FakeBackend
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_networks import random_network

import iossim
from iossim.api import search_options
from iossim.base.errors import ScheduleError
from iossim.cost.measured.cost_model import CHUNK, MeasuredCostModel
from iossim.cost.measured.record import Kind
from iossim.cost.measured.stage_plans import boundary_network
from iossim.cost.measured.store import MeasurementStore
from iossim.cost.replay import ReplayCostModel, replay
from iossim.execution.backend import BackendError, Samples, Timing
from iossim.execution.lower import lower_stage
from iossim.execution.plan import Copy, Launch
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.slice import Concat
from iossim.ir.ops.unary import Relu
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.problem import ScheduleProblem, bits

QUICK = Timing(rounds=3, warm_up=0)


def model_of(path: Path, backend: FakeBackend | None = None, **fields: object) -> MeasuredCostModel:
    return MeasuredCostModel(backend or FakeBackend(), MeasurementStore(path / "store.sqlite"), QUICK, **fields)  # type: ignore[arg-type]


def replay_of(path: Path) -> ReplayCostModel:
    with MeasurementStore(path / "store.sqlite", read_only=True) as store:
        (context,) = store.contexts()
        return replay(store, context.number)


def inception_module() -> Network:
    """Two equal convolutions and a third of one input, their concat, and a convolution of that."""
    b = GraphBuilder("module")
    x = b.input("x", (1, 8, 14, 14))
    with b.block("block"):
        branches = []
        for name, channels in (("a", 8), ("b", 8), ("c", 16)):
            with b.unit(name, "Conv-Relu"):
                branches.append(b.add(Relu(), b.conv(x, channels, kernel=3, padding=1), name=name))
        joined = b.add(Concat(), *branches, name="joined")
        last = b.conv(joined, 4, name="last")
    return b.network([last])


def problem_of(network: Network, block: int = 0) -> ScheduleProblem:
    return ScheduleProblem.of_block(network, network.blocks[block])


def stages(problem: ScheduleProblem, *chosen: tuple[int, Strategy]) -> StageBatch:
    return StageBatch(
        problem,
        np.array([mask for mask, _ in chosen], dtype=np.uint64),
        np.array([strategy.code for _, strategy in chosen], dtype=np.uint8),
    )


def test_prices_are_of_stages_without_what_stands_around_them(tmp_path: Path) -> None:
    network = inception_module()
    problem = problem_of(network)
    backend = FakeBackend()
    model = model_of(tmp_path, backend)
    alone_us = [backend.launch_us(network, [name], Strategy.CONCURRENT) for name in ("a", "b", "c", "last")]
    assert alone_us[0] == alone_us[1]
    batch = stages(
        problem,
        (0b00001, Strategy.CONCURRENT),
        (0b00010, Strategy.CONCURRENT),
        (0b00101, Strategy.CONCURRENT),
        (0b00111, Strategy.MERGE),
        (0b01000, Strategy.CONCURRENT),  # the concat alone: its terms lie in it already
        (0b11000, Strategy.CONCURRENT),
        (0b11111, Strategy.CONCURRENT),
    )
    assert problem.unit_names == ("a", "b", "c", "joined", "last")
    prices = model.price_stages(batch)
    expected = [
        alone_us[0],
        alone_us[0],
        max(alone_us[0], alone_us[2]),
        0.7 * (2 * alone_us[0] + alone_us[2]),
        0.0,
        alone_us[3],
        2 * alone_us[0] + alone_us[2] + alone_us[3],
    ]
    assert prices == pytest.approx(expected, rel=1e-9)
    assert model.price_boundary(False, False) == 0.0
    for left, right in ((True, False), (False, True), (True, True)):
        assert model.price_boundary(left, right) == pytest.approx(SYNCHRONISE_US)
    # a and b are equal work, joined is none, and last behind joined is last alone: not 7 but 5 measurements.
    assert model.measured == 5
    assert model.bounds(problem) is None


def test_what_does_not_merge_cannot_run(tmp_path: Path) -> None:
    backend = FakeBackend()
    problem = problem_of(inception_module())
    model = model_of(tmp_path, backend)
    batch = stages(problem, (0b10001, Strategy.MERGE), (0b00001, Strategy.MERGE))
    assert model.price_stages(batch).tolist() == [np.inf, np.inf]
    assert model.measured == 0


def test_copies_behind_a_merge_are_measured(tmp_path: Path) -> None:
    """Units that lie apart in a concat merge at the price of two copies, and are other work than those that do not."""
    network = inception_module()
    problem = problem_of(network)
    backend = FakeBackend()
    model = model_of(tmp_path, backend)
    apart = stages(problem, (0b101, Strategy.MERGE), (0b110, Strategy.MERGE))
    signatures = model.signatures(apart)
    assert signatures[0] != signatures[1]
    merged_us = backend.launch_us(network, ["a", "c"], Strategy.MERGE)
    assert model.price_stages(apart) == pytest.approx([merged_us + 2 * COPY_US, merged_us])


def test_short_stages_run_many_times(tmp_path: Path) -> None:
    backend = FakeBackend()
    problem = problem_of(inception_module())
    model = model_of(tmp_path, backend)
    model.price_stages(stages(problem, (0b1, Strategy.CONCURRENT), (0b101, Strategy.CONCURRENT)))
    with MeasurementStore(tmp_path / "store.sqlite", read_only=True) as store:
        records = {record.kind: record for record in store.records()}
    for kind in (Kind.UNIT, Kind.STAGE):
        assert records[kind].samples.median_us >= model.target_us
        assert records[kind].samples.median_us <= 2 * model.target_us
        assert len(records[kind].samples.times_us) == QUICK.rounds
        assert records[kind].samples.conditions == {"load": 0.25}
        assert records[kind].samples.rejected == 1
    assert records[Kind.UNIT].synchronises == 1
    assert records[Kind.STAGE].synchronises == records[Kind.STAGE].copies > 1
    assert records[Kind.UNIT].words == "module, batch 1: a"
    assert records[Kind.STAGE].words == "module, batch 1: a | c"


def test_cold_stages_run_once_and_are_kept_apart(tmp_path: Path) -> None:
    problem = problem_of(inception_module())
    batch = stages(problem, (0b1, Strategy.CONCURRENT))
    warm = model_of(tmp_path)
    warm.price_stages(batch)
    cold = model_of(tmp_path)
    cold.timing = Timing(rounds=3, warm_up=0, cold=True)
    assert cold.price_stages(batch) == pytest.approx(warm.price_stages(batch))
    assert cold.measured == 1
    assert "caches=cold" in cold.identity.version
    assert "caches" not in warm.identity.version
    assert [record.copies for record in cold.measure(batch).values()] == [1]


def test_graph_engine_has_no_boundary(tmp_path: Path) -> None:
    """A stage forks and joins by itself, within its price."""
    backend = FakeBackend(engine="graph")
    network = inception_module()
    problem = problem_of(network)
    model = model_of(tmp_path, backend)
    assert model.price_boundary(True, True) == 0.0
    (price,) = model.price_stages(stages(problem, (0b101, Strategy.CONCURRENT)))
    slowest = max(backend.launch_us(network, [name], Strategy.CONCURRENT) for name in "ac")
    (record,) = model.measure(stages(problem, (0b101, Strategy.CONCURRENT))).values()
    assert record.synchronises == 1
    assert price == pytest.approx(slowest + SYNCHRONISE_US / record.copies)
    assert replay_of(tmp_path).price_stages(stages(problem, (0b101, Strategy.CONCURRENT))).tolist() == [price]


def test_the_store_is_asked_first(tmp_path: Path) -> None:
    network = iossim.load("squeezenet")
    problem = problem_of(network, 2)
    masks = np.array([1 << unit for unit in range(len(problem))], dtype=np.uint64)
    batch = StageBatch.concurrent(problem, masks)
    first = model_of(tmp_path)
    prices = first.price_stages(batch)
    assert first.measured > 0
    again = FakeBackend()
    second = model_of(tmp_path, again)
    assert second.price_stages(batch).tolist() == prices.tolist()
    assert second.boundary_us() == first.boundary_us()
    assert (second.measured, again.plans) == (0, 0)
    once_more = model_of(tmp_path, again=True)
    once_more.price_stages(batch)
    assert once_more.measured == first.measured


@pytest.mark.parametrize(
    "other", [FakeBackend(engine="graph"), FakeBackend(driver="2"), FakeBackend(options=(("threads", "2"),))]
)
def test_what_was_measured_otherwise_is_measured_again(tmp_path: Path, other: FakeBackend) -> None:
    batch = stages(problem_of(inception_module()), (0b1, Strategy.CONCURRENT))
    model_of(tmp_path).price_stages(batch)
    model = model_of(tmp_path, other)
    model.price_stages(batch)
    assert model.measured == 1


def test_the_algorithm_is_recorded_and_not_asked_for(tmp_path: Path) -> None:
    """A backend chooses among near equals by timing them, and may choose otherwise in the next process."""
    problem = problem_of(inception_module())
    batch = stages(problem, (0b101, Strategy.CONCURRENT), (0b11000, Strategy.CONCURRENT), (0b111, Strategy.MERGE))
    first = model_of(tmp_path, FakeBackend(algorithm="winograd"))
    records = first.measure(batch)
    assert [record.algorithm for record in records.values()] == ["winograd|winograd", "winograd", "winograd"]
    second = model_of(tmp_path, FakeBackend(algorithm="fft"))
    second.price_stages(batch)
    assert second.measured == 0
    assert [record.algorithm for record in model_of(tmp_path, FakeBackend(), again=True).measure(batch).values()] == [
        ""
    ] * 3


def test_an_interrupt_costs_one_chunk(tmp_path: Path) -> None:
    network = iossim.load("inception_v3")
    problem = problem_of(network, 3)
    masks = np.arange(1, 200, dtype=np.uint64)
    batch = StageBatch.concurrent(problem, masks)
    whole = model_of(tmp_path / "whole")
    expected = whole.price_stages(batch)
    assert whole.measured > 2 * CHUNK
    backend = FakeBackend()
    backend.interrupt_after = 6  # two for the boundary, two a chunk
    interrupted = model_of(tmp_path, backend)
    with pytest.raises(KeyboardInterrupt):
        interrupted.price_stages(batch)
    assert interrupted.measured == 2 * CHUNK
    resumed = model_of(tmp_path)
    assert resumed.price_stages(batch).tolist() == expected.tolist()
    assert resumed.measured == whole.measured - 2 * CHUNK


def test_a_chunk_that_takes_long_is_committed_in_parts(tmp_path: Path) -> None:
    """A thousand rounds of 1.5 ms or more: a commit for each stage."""
    problem = problem_of(iossim.load("squeezenet"), 2)
    batch = StageBatch.concurrent(problem, np.array([1 << unit for unit in range(len(problem))], dtype=np.uint64))
    heard: list[int] = []
    model = model_of(tmp_path, progress=lambda done, total: heard.append(done))
    model.timing = Timing(rounds=1000, warm_up=0)
    model.price_stages(batch)
    assert model.measured > 1
    assert heard == list(range(1, model.measured + 1))


def test_progress_tells_what_is_committed(tmp_path: Path) -> None:
    problem = problem_of(iossim.load("inception_v3"), 3)
    batch = StageBatch.concurrent(problem, np.arange(1, 100, dtype=np.uint64))
    heard: list[tuple[int, int, int]] = []

    def hear(done: int, total: int) -> None:
        with MeasurementStore(tmp_path / "store.sqlite", read_only=True) as store:
            held = [record for record in store.records() if record.kind is not Kind.BOUNDARY]
        heard.append((done, total, len(held)))

    model = model_of(tmp_path, progress=hear)
    model.price_stages(batch)
    assert [done for done, _, _ in heard] == [held for _, _, held in heard]
    assert heard[-1][:2] == (model.measured, model.measured)
    assert len(heard) == -(-model.measured // CHUNK)


def test_a_machine_that_is_never_idle_is_told(tmp_path: Path) -> None:
    class Disturbed(FakeBackend):
        def measure(self, network, plans, timing, progress=lambda done, total: None):  # type: ignore[no-untyped-def]
            return [Samples((), rejected=9) for _ in plans]

    model = model_of(tmp_path, Disturbed(engine="graph"))
    with pytest.raises(BackendError, match="accepted no round of a: 9 were disturbed"):
        model.price_stages(stages(problem_of(inception_module()), (0b1, Strategy.CONCURRENT)))


def test_a_problem_without_a_network_is_refused(tmp_path: Path) -> None:
    problem = ScheduleProblem.of_edges(2, [])
    with pytest.raises(ScheduleError, match="only units of a network"):
        model_of(tmp_path).price_stages(stages(problem, (0b1, Strategy.CONCURRENT)))


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10_000), order=st.randoms(use_true_random=False))
def test_prices_do_not_depend_on_the_batch(
    tmp_path_factory: pytest.TempPathFactory, seed: int, order: st.randoms
) -> None:  # type: ignore[valid-type]
    """Nor do replayed ones, nor does it matter which of equal stages is measured."""
    network = random_network(seed, blocks=1)
    problem = problem_of(network)
    chosen = [(mask, Strategy.CONCURRENT) for mask in range(1, problem.full + 1)]
    chosen += [(mask, Strategy.MERGE) for mask in range(1, problem.full + 1)]
    folder = tmp_path_factory.mktemp("store")
    straight = model_of(folder / "a").price_stages(stages(problem, *chosen))
    shuffled = order.sample(range(len(chosen)), len(chosen))  # type: ignore[attr-defined]
    model = model_of(folder / "b", FakeBackend())
    batch = stages(problem, *(chosen[index] for index in shuffled))
    prices = model.price_stages(batch)
    assert prices.tolist() == straight[shuffled].tolist()
    assert replay_of(folder / "b").price_stages(batch).tolist() == prices.tolist()
    signatures = model.signatures(batch)
    assert replay_of(folder / "b").signatures(batch) == signatures
    assert len({signature for signature in signatures if len(signature) == 32}) == model.measured


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000))
def test_equal_signatures_are_equal_work(seed: int) -> None:
    """The plans of stages of equal signature launch the same, group by group, and copy the same."""
    network = random_network(seed, blocks=1)
    problem = problem_of(network)
    chosen = [(mask, strategy) for mask in range(1, problem.full + 1) for strategy in Strategy]
    model = MeasuredCostModel(FakeBackend(), None)  # type: ignore[arg-type]
    found: dict[str, object] = {}
    for (mask, strategy), signature in zip(chosen, model.signatures(stages(problem, *chosen)), strict=True):
        if signature == "impossible":
            assert strategy is Strategy.MERGE
            continue
        groups = problem.groups(mask) if strategy is Strategy.CONCURRENT else [mask]
        plan = lower_stage(
            network, [[problem.units[u] for u in bits(group)] for group in groups], strategy, in_place=True
        )
        work: dict[int, list[str]] = {}
        for command in plan.commands:
            if isinstance(command, Launch):
                names = [network.signatures[network.unit_index[unit]] for unit in command.units]
                work.setdefault(command.queue.stream, []).append("+".join(names))
            elif isinstance(command, Copy):
                source = plan.buffers[command.source].type
                work.setdefault(command.queue.stream, []).append(f"copy {source}")
        assert found.setdefault(signature, sorted(work.values())) == sorted(work.values())
        assert (signature == "free") == (not work)


def test_the_boundarys_network_runs_everywhere() -> None:
    for precision in ("fp32", "fp16"):
        network = boundary_network(precision)
        assert [network.graph.types[name].dtype for name in network.graph.inputs] == [precision] * 5


def test_schedules_are_reproduced_from_the_store(tmp_path: Path) -> None:
    network = iossim.load("squeezenet")
    options = search_options("general", 3, 8)
    measured = iossim.optimize(network, None, cost_model=model_of(tmp_path), options=options)
    replayed = iossim.optimize(network, None, cost_model=replay_of(tmp_path), options=options)
    assert replayed.blocks == measured.blocks
    assert replayed.cost_model == measured.cost_model
    assert replayed.latency_us == measured.latency_us
