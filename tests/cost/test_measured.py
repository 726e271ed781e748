"""Measured prices: each distinct stage is measured once, kept, and priced without what stands around it."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from fake_backend import COPY_US, SYNCHRONISE_US, FakeBackend
from graph_builders import builder_with
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import random_network

import iossim
from iossim.base.errors import ScheduleError
from iossim.cost.measured.cost_model import CHUNK, MeasuredCostModel
from iossim.cost.measured.record import Kind
from iossim.cost.measured.stage_plans import boundary_network
from iossim.cost.measured.store import MeasurementStore
from iossim.cost.replay import ReplayCostModel, replay
from iossim.execution.backend import BackendError, Samples, Timing
from iossim.execution.lower import lower_stage
from iossim.execution.plan import Copy, Launch
from iossim.ir.network import Network
from iossim.ir.ops.slice import Concat
from iossim.ir.ops.unary import Relu
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.planned_stage import PlannedStage, batch_of, planned_of
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
    b, x = builder_with("module", x=(1, 8, 14, 14))
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


def stages(problem: ScheduleProblem, *masks: int, merged: Sequence[int] = ()) -> StageBatch:
    """Concurrent stages, then merged ones."""
    both = (Strategy.CONCURRENT, masks), (Strategy.MERGE, merged)
    return batch_of(problem, [PlannedStage(mask, strategy) for strategy, own in both for mask in own])


def test_prices_are_of_stages_without_what_stands_around_them(tmp_path: Path) -> None:
    network = inception_module()
    problem = problem_of(network)
    backend = FakeBackend()
    model = model_of(tmp_path, backend)
    a, b, c, last = (backend.launch_us(network, [name], Strategy.CONCURRENT) for name in ("a", "b", "c", "last"))
    assert a == b
    assert problem.unit_names == ("a", "b", "c", "joined", "last")
    # The fourth is the concat alone: its terms lie in it already.
    batch = stages(problem, 0b00001, 0b00010, 0b00101, 0b01000, 0b11000, 0b11111, merged=[0b00111, 0b10001, 0b00001])
    expected = [a, a, max(a, c), 0.0, last, 2 * a + c + last, 0.7 * (2 * a + c), np.inf, np.inf]
    assert model.price_stages(batch) == pytest.approx(expected, rel=1e-9)
    assert model.price_boundary(False, False) == 0.0
    for left, right in ((True, False), (False, True), (True, True)):
        assert model.price_boundary(left, right) == pytest.approx(SYNCHRONISE_US)
    # a and b are equal work, joined is none, last after joined is last alone, and two cannot run: not 9 but 5.
    assert model.measured == 5
    assert model.bounds(problem) is None


def test_copies_after_a_merge_are_measured(tmp_path: Path) -> None:
    """Units that lie apart in a concat merge at the price of two copies, and are other work than those that do not."""
    network, backend = inception_module(), FakeBackend()
    model = model_of(tmp_path, backend)
    apart = stages(problem_of(network), merged=[0b101, 0b110])
    signatures = model.signatures(apart)
    assert signatures[0] != signatures[1]
    merged_us = backend.launch_us(network, ["a", "c"], Strategy.MERGE)
    assert model.price_stages(apart) == pytest.approx([merged_us + 2 * COPY_US, merged_us])


def test_short_stages_run_many_times(tmp_path: Path) -> None:
    model = model_of(tmp_path)
    model.price_stages(stages(problem_of(inception_module()), 0b1, 0b101))
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
    batch = stages(problem_of(inception_module()), 0b1)
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
    backend, network = FakeBackend(engine="graph"), inception_module()
    batch = stages(problem_of(network), 0b101)
    model = model_of(tmp_path, backend)
    assert model.price_boundary(True, True) == 0.0
    (price,) = model.price_stages(batch)
    slowest = max(backend.launch_us(network, [name], Strategy.CONCURRENT) for name in "ac")
    (record,) = model.measure(batch).values()
    assert record.synchronises == 1
    assert price == pytest.approx(slowest + SYNCHRONISE_US / record.copies)
    assert replay_of(tmp_path).price_stages(batch).tolist() == [price]


def test_the_store_is_asked_first(tmp_path: Path) -> None:
    problem = problem_of(iossim.load("squeezenet"), 2)
    batch = stages(problem, *(1 << unit for unit in range(len(problem))))
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


def test_the_algorithm_is_recorded_and_not_asked_for(tmp_path: Path) -> None:
    """A backend chooses among near equals by timing them, and may choose otherwise in the next process."""
    batch = stages(problem_of(inception_module()), 0b101, 0b11000, merged=[0b111])
    records = model_of(tmp_path, FakeBackend(algorithm="winograd")).measure(batch)
    assert [record.algorithm for record in records.values()] == ["winograd|winograd", "winograd", "winograd"]
    second = model_of(tmp_path, FakeBackend(algorithm="fft"))
    second.price_stages(batch)
    assert second.measured == 0
    records = model_of(tmp_path, FakeBackend(), again=True).measure(batch)
    assert {record.algorithm for record in records.values()} == {""}


def test_an_interrupt_costs_one_chunk(tmp_path: Path) -> None:
    batch = stages(problem_of(iossim.load("inception_v3"), 3), *range(1, 200))
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
    batch = stages(problem, *(1 << unit for unit in range(len(problem))))
    heard: list[int] = []
    model = model_of(tmp_path, progress=lambda done, total: heard.append(done))
    model.timing = Timing(rounds=1000, warm_up=0)
    model.price_stages(batch)
    assert model.measured > 1
    assert heard == list(range(1, model.measured + 1))


def test_progress_tells_what_is_committed(tmp_path: Path) -> None:
    batch = stages(problem_of(iossim.load("inception_v3"), 3), *range(1, 100))
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


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    class Disturbed(FakeBackend):
        def measure(self, network, plans, timing, progress=lambda done, total: None):  # type: ignore[no-untyped-def]
            return [Samples((), rejected=9) for _ in plans]

    with pytest.raises(BackendError, match="accepted no round of a: 9 were disturbed"):
        model_of(tmp_path, Disturbed(engine="graph")).price_stages(stages(problem_of(inception_module()), 0b1))
    with pytest.raises(ScheduleError, match="only units of a network"):
        model_of(tmp_path).price_stages(stages(ScheduleProblem.of_edges(2, []), 0b1))


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000), order=st.randoms(use_true_random=False))
def test_prices_do_not_depend_on_the_batch(
    tmp_path_factory: pytest.TempPathFactory, seed: int, order: random.Random
) -> None:
    """Nor do replayed ones, nor does it matter which of equal stages is measured."""
    problem = problem_of(random_network(seed, blocks=1))
    every = range(1, problem.full + 1)
    chosen = stages(problem, *every, merged=every)
    folder = tmp_path_factory.mktemp("store")
    straight = model_of(folder / "a").price_stages(chosen)
    shuffled = np.array(order.sample(range(len(chosen)), len(chosen)))
    model, batch = model_of(folder / "b"), chosen.take(shuffled)
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
    every = range(1, problem.full + 1)
    batch = stages(problem, *every, merged=every)
    model = MeasuredCostModel(FakeBackend(), None)  # type: ignore[arg-type]
    found: dict[str, object] = {}
    for stage, signature in zip(planned_of(batch), model.signatures(batch), strict=True):
        if signature == "impossible":
            assert stage.strategy is Strategy.MERGE
            continue
        groups = [[problem.units[unit] for unit in bits(group)] for group in stage.groups(problem)]
        plan = lower_stage(network, groups, stage.strategy, in_place=True)
        work: dict[int, list[str]] = {}
        for command in plan.commands:
            if isinstance(command, Launch):
                names = [network.signatures[network.unit_index[unit]] for unit in command.units]
                work.setdefault(command.queue, []).append("+".join(names))
            elif isinstance(command, Copy):
                source = plan.buffers[command.source].type
                work.setdefault(command.queue, []).append(f"copy {source}")
        assert found.setdefault(signature, sorted(work.values())) == sorted(work.values())
        assert (signature == "free") == (not work)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_network_of_the_boundary_is_of_the_measured_precision(precision: str) -> None:
    graph = boundary_network(precision).graph
    assert {graph.types[name].dtype for name in graph.inputs} == {precision}
