"""Memory planning: what may be needed at the same time never shares bytes, and little is wasted."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, permutations, product

import numpy as np
import pytest
from checked_execution import execute
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import random_network, random_schedule, sequential_schedule

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.base.errors import ScheduleError
from iossim.execution.backend import Choice
from iossim.execution.box import Box
from iossim.execution.happens_before import check_happens_before
from iossim.execution.in_place import starting
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import interference, memory_lower_bound_bytes, memory_remarks, needed_bytes, plan_memory
from iossim.execution.plan import ALIGNMENT_BYTES, Plan
from iossim.hardware.load import device
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.schedule.batch import Strategy
from iossim.search.scheduler import schedule

SEEDS = st.integers(0, 2**20)
ENGINES = st.sampled_from(["paper", "graph"])


def chain(*channels: int) -> Network:
    """Pointwise convolutions one after another, of so many channels each."""
    b = GraphBuilder("chain")
    value = b.input("x", (1, 1, 8, 8))
    with b.block("only"):
        for index, count in enumerate(channels):
            value = b.conv(value, count, name=f"c{index}")
    return b.network([value])


def overlapping(plan: Plan) -> set[tuple[str, ...]]:
    """Pairs of storages that have bytes in common."""
    assert plan.offsets is not None
    ends = {storage.name: plan.offsets[storage.name] + storage.bytes for storage in plan.storages}
    return {
        (one, other)
        for one, other in combinations(sorted(ends), 2)
        if plan.offsets[one] < ends[other] and plan.offsets[other] < ends[one]
    }


def interfering(plan: Plan) -> set[tuple[str, ...]]:
    """Pairs of storages that must not have bytes in common."""
    names = [storage.name for storage in plan.storages]
    return {tuple(sorted((names[i], names[j]))) for i, j in np.argwhere(interference(plan)).tolist()}


@given(SEEDS, SEEDS, ENGINES)
def test_storages_are_aligned_inside_the_arena_and_apart_where_they_interfere(
    network: int, chosen: int, engine: str
) -> None:
    drawn = random_network(network, movers=True)
    plan = plan_memory(lower_schedule(random_schedule(drawn, chosen), drawn, engine, in_place=True))
    assert plan.offsets is not None
    assert set(plan.offsets) == {storage.name for storage in plan.storages}
    for storage in plan.storages:
        assert plan.offsets[storage.name] % ALIGNMENT_BYTES == 0
        assert plan.offsets[storage.name] + storage.bytes <= plan.arena_bytes
    assert not overlapping(plan) & interfering(plan)
    assert memory_lower_bound_bytes(plan) <= plan.arena_bytes


def test_a_chain_needs_its_largest_two_neighbours_and_its_input() -> None:
    network = chain(4, 1, 8, 2, 4, 1)
    plan = plan_memory(lower_schedule(sequential_schedule(network), network))
    plane = 8 * 8 * 4
    # c2 with c3 is the most beside the input, which is kept for the next run.
    assert plan.arena_bytes == (1 + 8 + 2) * plane == memory_lower_bound_bytes(plan)
    assert plan.storage_bytes == (1 + 4 + 1 + 8 + 2 + 4 + 1) * plane
    weight_bytes, activation_bytes = needed_bytes(network)
    assert activation_bytes == plan.arena_bytes
    needed = weight_bytes + activation_bytes
    assert memory_remarks(network, needed, "t4") == []
    (said,) = memory_remarks(network, needed - 1, "t4")
    assert said == "chain needs 0.0 GiB (weights, and activations of one unit after another), and t4 has 0.0"


def test_a_network_beyond_the_memory_of_a_device_is_told() -> None:
    prices = SimulatorCostModel(device("t4"), Precision.FP32)
    told = [any(" GiB " in one for one in prices.remarks(load("ios_sample", batch=batch))) for batch in (1, 1 << 15)]
    assert told == [False, True]


def test_workspaces_share_memory_with_what_is_not_alive_meanwhile() -> None:
    network = chain(1, 1, 1)

    def choices(units: tuple[str, ...], strategy: Strategy, variant: str) -> Choice:
        return Choice("with workspace", {"c0": 0, "c1": 10_000, "c2": 5_000}[units[0]])

    plan = lower_schedule(sequential_schedule(network), network, choices=choices)
    assert [launch.workspace for launch in plan.launches] == [None, "workspace:c1", "workspace:c2"]
    assert [plan.buffers[f"workspace:c{unit}"].bytes for unit in (1, 2)] == [10_000, 5_000]
    plane = 256
    assert plan_memory(plan).arena_bytes == 3 * plane + 10_240  # the input, two neighbours, and the workspace


@settings(max_examples=20)
@given(SEEDS, SEEDS, ENGINES)
def test_storages_that_are_made_to_share_memory_are_caught(network: int, chosen: int, engine: str) -> None:
    """Whatever two storages interfere: put in one place, the checker objects, and it is right to."""
    drawn = random_network(network, movers=True)
    plan = plan_memory(lower_schedule(random_schedule(drawn, chosen), drawn, engine, in_place=True))
    assert plan.offsets is not None
    check_happens_before(plan)
    inputs = {plan.region(name).storage for name in plan.inputs}
    for pair in interfering(plan):
        if inputs.isdisjoint(pair):
            # Both at one place of their own after all others.
            moved = plan.offsets | dict.fromkeys(pair, plan.arena_bytes)
            arena_bytes = plan.arena_bytes + max(plan.buffers[name].bytes for name in pair)
            with pytest.raises(ScheduleError):
                check_happens_before(replace(plan, offsets=moved, arena_bytes=arena_bytes))


def test_an_arena_one_alignment_too_small_gives_wrong_results() -> None:
    """The poison works: an arena that is said to be smaller than it is cannot hold the values."""
    network = chain(4, 2, 8, 2)
    plan = plan_memory(lower_schedule(sequential_schedule(network), network))
    assert plan.offsets is not None
    inputs = {"x": np.ones((1, 1, 8, 8), np.float32)}
    right = execute(plan, network, inputs)["c3"]
    assert np.isfinite(right).all()
    live = {"c1": plan.offsets["c2"] + ALIGNMENT_BYTES}
    wrong = execute(replace(plan, offsets={**plan.offsets, **live}), network, inputs)["c3"]
    assert not np.array_equal(right, wrong, equal_nan=True)


def test_greedy_packing_against_the_best_order_of_small_problems() -> None:
    """Of all orders of placing storages at the lowest free offset, one is optimal; the greedy ones are seldom far off."""
    ratios = []
    for seed in range(25):
        network = random_network(seed, blocks=1, units=5)
        plan = plan_memory(lower_schedule(random_schedule(network, seed), network))
        apart = interference(plan)
        sizes = [-(-storage.bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for storage in plan.storages]
        best = min(_peak(order, sizes, apart) for order in permutations(range(len(sizes))))
        assert memory_lower_bound_bytes(plan) <= best <= plan.arena_bytes
        ratios.append(plan.arena_bytes / best)
    assert np.mean(ratios) <= 1.02
    assert max(ratios) <= 1.2


def _peak(order: tuple[int, ...], sizes: list[int], apart: np.ndarray) -> int:
    offsets: dict[int, int] = {}
    for index in order:
        offset = 0
        for begin, end in sorted((o, o + sizes[i]) for i, o in offsets.items() if apart[index, i]):
            if begin - offset >= sizes[index]:
                break
            offset = max(offset, end)
        offsets[index] = offset
    return max(offsets[i] + sizes[i] for i in offsets)


@pytest.mark.parametrize(("model", "most"), [("squeezenet", 1.0), ("inception_v3", 1.1), ("nasnet_a", 1.2)])
def test_networks_take_a_fraction_of_what_all_their_values_take(model: str, most: float) -> None:
    """``most``: how far above the lower bound the arena is at most."""
    from iossim.cost.random import RandomCostModel

    network = load(model)
    plan = plan_memory(lower_schedule(schedule(network, RandomCostModel(), "greedy"), network, "graph", in_place=True))
    assert plan.arena_bytes <= most * memory_lower_bound_bytes(plan)
    assert plan.arena_bytes < 0.5 * plan.storage_bytes


WHOLES = st.lists(st.integers(1, 4), min_size=0, max_size=3).map(tuple)


@st.composite
def boxes(draw: st.DrawFn, count: int) -> tuple[tuple[int, ...], list[Box]]:
    """A whole, and boxes of it; some are empty."""
    whole = draw(WHOLES)
    found = []
    for _ in range(count):
        starts = tuple(draw(st.integers(0, size)) for size in whole)
        shape = tuple(draw(st.integers(0, size - start)) for size, start in zip(whole, starts, strict=True))
        found.append(Box(starts, shape))
    return whole, found


def elements(box: Box) -> set[tuple[int, ...]]:
    return set(product(*(range(start, start + size) for start, size in zip(box.starts, box.shape, strict=True))))


@given(boxes(2))
def test_overlap_and_what_is_left(drawn: tuple[tuple[int, ...], list[Box]]) -> None:
    _, (one, other) = drawn
    assert one.overlaps(other) == other.overlaps(one) == bool(elements(one) & elements(other))
    left = [elements(part) for part in one.without(other)]
    assert set().union(*left) == elements(one) - elements(other)
    assert sum(map(len, left)) == len(elements(one) - elements(other)), "parts do not overlap"


@given(boxes(5))
def test_coverage(drawn: tuple[tuple[int, ...], list[Box]]) -> None:
    _, (wanted, *parts) = drawn
    assert wanted.covered_by(parts) == (elements(wanted) <= set().union(*map(elements, parts)))


@given(boxes(1))
def test_the_index_picks_the_elements(drawn: tuple[tuple[int, ...], list[Box]]) -> None:
    whole, (box,) = drawn
    numbers = np.arange(np.prod(whole, dtype=int)).reshape(whole)
    picked = numbers[box.selection]
    assert isinstance(picked, np.ndarray)
    assert np.shares_memory(picked, numbers) or not picked.size
    assert set(picked.reshape(-1).tolist()) == {int(numbers[place]) for place in elements(box)}
    assert Box.whole(whole).shape == numbers.shape


def test_a_box_inside_a_box() -> None:
    assert Box((1, 0), (2, 3)).moved((4, 5)) == Box((5, 5), (2, 3))
    assert starting(4, 1, 7) == (0, 7, 0, 0)
