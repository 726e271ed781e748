"""Stages and schedules on the simulator: sharing, host, boundaries, bounds, merges, timelines."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from cpus import cpu
from hypothesis import given
from hypothesis import strategies as st

from iossim.backends.simulator.cost_model import VERSION, SimulatorCostModel, create
from iossim.backends.simulator.stage_runs import kernel_spans, run_stage
from iossim.base.errors import OptionError, ScheduleError
from iossim.hardware.load import device
from iossim.hardware.lowering.residence import residences
from iossim.hardware.profile import DeviceProfile
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.unary import Relu
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.planned_stage import PlannedStage
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.testing.conformance import least_price_us

V100 = device("v100-sxm2")
ENGINES = ("paper", "graph")


def simulator(engine: str = "paper", name: str = "v100-sxm2") -> SimulatorCostModel:
    return create(device(name), Precision.FP32, engine)


def interfering(profile: DeviceProfile, interference: float) -> DeviceProfile:
    parameters = profile.parameters.model_copy(update={"interference": interference})
    return profile.model_copy(update={"parameters": parameters})


def problems(network: Network) -> list[ScheduleProblem]:
    return [ScheduleProblem.of_block(network, block) for block in network.blocks]


def price(model: SimulatorCostModel, problem: ScheduleProblem, *masks: int) -> list[float]:
    found: list[float] = model.price_stages(
        StageBatch.concurrent(problem, np.array(masks, dtype=np.uint64))
    ).tolist()  # fmt: skip
    return found


def parallel_convolutions(count: int, channels: int, size: int, batch: int = 1, chain: int = 1) -> ScheduleProblem:
    """``count`` chains of ``chain`` 3x3 convolutions on one input, in one block."""
    b = GraphBuilder("test")
    x = b.input("x", (batch, channels, size, size))
    outputs = []
    with b.block("block"):
        for group in range(count):
            y = x
            for link in range(chain):
                with b.unit(f"{group}.{link}", "Conv-Relu"):
                    y = b.add(Relu(), b.conv(y, channels, 3, padding=1))
            outputs.append(y)
    network = b.network(outputs)
    return ScheduleProblem.of_block(network, network.blocks[0])


def pointwise_convolutions(channels: int) -> Network:
    """Three small 1x1 convolutions of one input."""
    b = GraphBuilder("test")
    x = b.input("x", (1, channels, 14, 14))
    outputs = []
    with b.block("block"):
        for group in range(3):
            with b.unit(str(group), "Conv-Relu"):
                outputs.append(b.add(Relu(), b.conv(x, 32)))
    return b.network(outputs)


def random_masks(problem: ScheduleProblem, count: int, seed: int) -> list[int]:
    """Endings of random order ideals: the stages that a search asks for."""
    rng = np.random.default_rng(seed)
    predecessors, successors = problem.predecessors.tolist(), problem.successors.tolist()
    masks: list[int] = []
    for _ in range(count):
        ideal = stage = 0
        for unit in range(len(problem)):
            if predecessors[unit] & ~ideal == 0 and rng.random() < 0.85:
                ideal |= 1 << unit
        for unit in reversed(bits(ideal)):
            if successors[unit] & ideal & ~stage == 0 and rng.random() < 0.6:
                stage |= 1 << unit
        if stage:
            masks.append(stage)
    return masks


def test_small_kernels_overlap_and_large_ones_do_not() -> None:
    model = simulator("graph")
    small = parallel_convolutions(2, 64, 8)
    one, other, both = price(model, small, 1, 2, 3)
    assert max(one, other) <= both < 0.55 * (one + other)
    large = parallel_convolutions(2, 256, 56, batch=32)
    one, other, both = price(model, large, 1, 2, 3)
    assert both > 0.95 * (one + other)


def test_a_stream_too_many_hurts_on_a_full_device() -> None:
    model = simulator()
    large = parallel_convolutions(6, 256, 56, batch=32)
    alone = price(model, large, 1)[0]
    two, six = price(model, large, 0b11, 0b111111)
    # A stage begins and ends with one kernel that does not fill the device: six do so once, two three times.
    assert six > 3 * two * 0.99
    assert two > 2 * alone * 0.95
    # The more kernels disturb each other, the more so.
    disturbed = create(interfering(V100, 0.5), Precision.FP32, "paper")
    assert price(disturbed, large, 0b11)[0] > 1.2 * two


def test_many_tiny_kernels_wait_for_the_host() -> None:
    wide = parallel_convolutions(24, 8, 4)
    paper, graph = simulator("paper"), simulator("graph")
    assert price(paper, wide, wide.full)[0] >= 24 * V100.engine.library_call_us
    assert price(graph, wide, wide.full)[0] < 0.5 * price(paper, wide, wide.full)[0]


@pytest.mark.parametrize("engine", ENGINES)
def test_cutting_a_chain_into_stages_changes_nothing(engine: str) -> None:
    chain = parallel_convolutions(1, 64, 14, chain=6)
    model = simulator(engine)
    (whole,) = price(model, chain, chain.full)
    assert whole == pytest.approx(sum(price(model, chain, *[1 << unit for unit in range(6)])), rel=1e-12)
    assert whole == pytest.approx(sum(price(model, chain, 0b000111, 0b111000)), rel=1e-12)


def test_what_stands_between_stages() -> None:
    costs = V100.engine
    paper, graph = simulator("paper"), simulator("graph")
    sides = [(False, False), (False, True), (True, False), (True, True)]
    assert [paper.price_boundary(*side) for side in sides] == [0, *[costs.synchronise_us] * 3]
    fork, join = costs.fork_us, costs.join_us
    assert [graph.price_boundary(*side) for side in sides] == [0, fork, join, join + fork]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("name", "batch", "profile"),
    [
        *(("inception_v3", 1, V100), ("inception_v3", 16, V100), ("squeezenet", 1, V100), ("randwire", 1, V100)),
        *(("nasnet_a", 1, V100), ("squeezenet", 1, cpu(sm_count=2))),
    ],
)
@pytest.mark.parametrize("interference", [0.0, 0.12, 0.6])
def test_bounds_never_exceed_prices(
    engine: str, name: str, batch: int, profile: DeviceProfile, interference: float
) -> None:
    model = create(interfering(profile, interference), Precision.FP32, engine)
    for problem in {problem.key: problem for problem in problems(load(name, batch=batch))}.values():
        bounds = model.bounds(problem)
        assert np.isfinite(bounds.work_us).all()
        assert (bounds.work_us >= 0).all()
        assert (bounds.single_us >= bounds.serial_us).all()
        masks = [*random_masks(problem, 150, seed=1), *(1 << unit for unit in range(len(problem))), problem.full]
        for mask, found in zip(masks, price(model, problem, *masks), strict=True):
            groups = problem.groups(mask)
            assert found >= least_price_us(bounds, groups)
            if len(groups) == 1:
                assert found <= bounds.single_us[bits(mask)].sum() * (1 + 1e-8)


@given(st.integers(0, 10_000))
def test_groups_are_the_problems_groups(seed: int) -> None:
    """The compiled components agree with the problem's: seen in the streams of a stage's spans."""
    network = load("randwire")
    problem = max(problems(network), key=len)
    (mask, *_) = random_masks(problem, 5, seed)
    stage = PlannedStage(mask, Strategy.CONCURRENT).named(problem)
    spans = kernel_spans(run_stage(simulator().stages, network, stage), number=0)
    names = [{problem.unit_names[index] for index in bits(group)} for group in problem.groups(mask)]
    streams = [{span.unit for span in spans if span.stream == stream} for stream in range(len(names))]
    assert streams == names


def spans_side_by_side(*convolutions: tuple[int, int, int, int], times: int = 1) -> list[tuple[str, float, float]]:
    """Kernels of one stage in bf16 on an H100: name, start and end; of channels, filters, image and window.

    The last convolution runs so many ``times``, each on what the one before it made.
    """
    b, outputs = GraphBuilder("test", Precision.BF16), []
    with b.block("block"):
        for index, (channels, filters, size, window) in enumerate(convolutions):
            x = b.input(f"x{index}", (1, channels, size, size))
            for number in range(times if index == len(convolutions) - 1 else 1):
                x = b.conv(x, filters, window, padding=window // 2, name=f"c{index}.{number}")
            outputs.append(x)
    network = b.network(outputs)
    model = create(device("h100-sxm"), Precision.BF16, "graph")
    problem = ScheduleProblem.of_block(network, network.blocks[0])
    stage = PlannedStage(problem.full, Strategy.CONCURRENT).named(problem)
    spans = kernel_spans(run_stage(model.stages, network, stage), number=0)
    return [(span.name, span.start_us, span.end_us) for span in sorted(spans, key=lambda span: span.stream)]


#: 52 blocks of Hopper's, each of which has an SM for itself, and 4 small ones.
PERSISTENT, SMALL = (256, 256, 28, 3), (64, 32, 14, 1)


def test_blocks_are_placed_in_the_order_of_their_kernels() -> None:
    """Of three kernels with 52 blocks on 132 SMs the third waits, and so does a small one behind it."""
    (name, _, alone_us), (_, _, small_us) = spans_side_by_side(PERSISTENT)[0], spans_side_by_side(SMALL)[0]
    assert name == "xmma_sm90_64x64"
    *_, (_, start_us, end_us) = spans_side_by_side(PERSISTENT, PERSISTENT, SMALL)
    assert end_us - start_us < 1.1 * small_us
    assert end_us < alone_us
    first, second, third, (_, start_us, _) = spans_side_by_side(PERSISTENT, PERSISTENT, PERSISTENT, SMALL)
    assert alone_us < first[2] < 1.3 * alone_us
    assert third[2] > 1.4 * alone_us
    assert start_us >= 0.97 * min(first[2], second[2])  # the blocks of a kernel end one by one


def test_branches_of_a_graph_start_apart() -> None:
    apart_us = device("h100-sxm").engine.graph_apart_us
    assert 0.1 < apart_us < 0.3
    starts_us = [start_us for _, start_us, _ in spans_side_by_side(*[SMALL] * 5)]
    assert np.diff(starts_us) == pytest.approx([apart_us] * 4)
    assert V100.engine.graph_apart_us == 0.0


def test_a_kernel_behind_another_of_its_branch_starts_later_while_other_branches_run() -> None:
    follow_us = device("h100-sxm").engine.graph_follow_us
    (_, _, other_us), *chain = spans_side_by_side(PERSISTENT, SMALL, times=4)
    gaps_us = [after[1] - before[2] for before, after in pairwise(chain)]
    beside = [before[2] + follow_us < other_us for before in chain[:-1]]
    assert beside == sorted(beside, reverse=True)
    assert set(beside) == {True, False}
    assert gaps_us[: sum(beside)] == pytest.approx([follow_us] * sum(beside))
    assert gaps_us[-1] == 0.0  # the other branch has ended
    assert V100.engine.graph_follow_us == 0.0


def test_products_of_other_code_than_what_runs_start_later() -> None:
    costs, wider = device("h100-sxm").engine, (64, 32, 14, 3)
    names, starts_us, _ = zip(*spans_side_by_side(SMALL, SMALL, wider, SMALL), strict=True)
    assert names[0] == names[1] == names[3] != names[2]
    assert np.diff(sorted(starts_us))[-1] == pytest.approx(costs.graph_apart_us + costs.graph_code_us)
    assert starts_us[2] == max(starts_us)
    assert V100.engine.graph_code_us == 0.0 < costs.graph_code_us


def test_blocks_of_tensor_cores_on_one_sm_slow_each_other() -> None:
    """A block of Ampere's kind has room beside others, and keeps its SM busy all of its time."""
    wide = (16, 64, 90, 3)
    ((name, _, alone_us),) = spans_side_by_side(wide)
    assert name.startswith("mma_sm80")
    assert max(end for _, _, end in spans_side_by_side(wide, wide)) > 1.2 * alone_us


def test_merging_small_pointwise_convolutions_pays() -> None:
    network = pointwise_convolutions(64)
    (problem,) = problems(network)
    model = simulator()
    separate = sum(price(model, problem, 1, 2, 4))
    batch = StageBatch(problem, np.array([7, 3], dtype=np.uint64), np.full(2, Strategy.MERGE.code, dtype=np.uint8))
    three, two = model.price_stages(batch)
    assert two <= three < 0.6 * separate


def test_what_does_not_merge_cannot_run_merged() -> None:
    chain = parallel_convolutions(1, 8, 8, chain=2)
    masks, merge = np.array([3, 3], dtype=np.uint64), np.array([1, 0], dtype=np.uint8)
    merged, concurrent = simulator().price_stages(StageBatch(chain, masks, merge))
    assert merged == np.inf
    assert np.isfinite(concurrent)


def test_equal_units_are_lowered_once() -> None:
    model = simulator()
    network = load("nasnet_a")
    for problem in problems(network):
        model.stages.prepare(problem)
    places = zip(network.signatures, residences(network, model.profile), strict=True)
    assert len(model.units) == len({(work, residence.key) for work, residence in places}) < len(network.units) / 3


def test_a_problem_without_a_network_is_refused() -> None:
    with pytest.raises(ScheduleError, match="no network"):
        price(simulator(), ScheduleProblem.of_edges(2, [(0, 1)]), 1)


def test_a_network_of_another_precision_is_refused() -> None:
    (problem, *_) = problems(load("squeezenet", dtype="fp16"))
    with pytest.raises(OptionError, match="computes in fp16, the simulator was made for fp32"):
        price(simulator(), problem, 1)


def test_bad_options_are_one_line() -> None:
    with pytest.raises(OptionError, match="unknown engine 'grph'; did you mean 'graph'"):
        create(V100, Precision.FP32, "grph")
    with pytest.raises(OptionError, match="knows no such argument; leave it out, or give in-place, copies or backend"):
        create(V100, Precision.FP32, "paper", "fast")
    with pytest.raises(OptionError, match="needs a device"):
        create(None, Precision.FP32, "paper")


def test_identity_tells_what_a_price_depends_on() -> None:
    identity = simulator("graph").identity.to_json()
    assert identity.pop("version") == f"{VERSION}+{V100.fingerprint}"
    assert identity == {"name": "simulator", "device": "v100-sxm2", "precision": "fp32", "engine": "graph"}
    renamed = V100.model_copy(update={"title": "another title"})
    assert interfering(V100, 0.5).fingerprint != V100.fingerprint == renamed.fingerprint
