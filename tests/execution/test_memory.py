"""Memory planning: launches that may run at once never share bytes, by the checker and an independent one, and little is wasted."""

import random
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import combinations, permutations, product

import numpy as np
import pytest
from checked_execution import execute
from graph_builders import builder_with
from hypothesis import given, settings
from hypothesis import strategies as st
from other_plans import boxed
from plan_races import Races, accepted
from random_networks import random_inputs, random_network, random_schedule, sequential_schedule

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.base.errors import ScheduleError
from iossim.execution.backend import Choice
from iossim.execution.in_place import starting
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import (
    check_happens_before,
    interference,
    memory_lower_bound_bytes,
    memory_remarks,
    needed_bytes,
    plan_memory,
)
from iossim.execution.plan import (
    ALIGNMENT_BYTES,
    Box,
    Buffer,
    Command,
    Copy,
    Launch,
    Plan,
    Queue,
    Record,
    Synchronize,
    Wait,
)
from iossim.hardware.load import device
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.ir.types import DType, Precision, TensorType
from iossim.models.load import load
from iossim.schedule.batch import Strategy
from iossim.search.scheduler import schedule

SEEDS = st.integers(0, 2**20)
ENGINES = st.sampled_from(["paper", "graph"])


def chain(*channels: int) -> Network:
    """Pointwise convolutions one after another, of so many channels each."""
    b, value = builder_with("chain", x=(1, 1, 8, 8))
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


def workspaces(units: tuple[str, ...], strategy: Strategy, variant: str) -> Choice:
    """Every other launch needs one."""
    return Choice("some", 300 * (len("".join(units)) % 2))


@settings(max_examples=40)
@given(SEEDS, SEEDS, ENGINES, st.booleans(), st.booleans())
def test_every_synchronisation_that_is_needed_is_missed(
    network: int, schedule: int, engine: str, in_place: bool, in_arena: bool
) -> None:
    """With memory planned, storages that overlap at all count as one: the checker may object to more, never to less."""
    drawn = random_network(network, movers=in_place)
    plan = lower_schedule(random_schedule(drawn, schedule), drawn, engine, in_place=in_place, choices=workspaces)
    plan = plan_memory(plan) if in_arena else plan
    races = Races(plan)
    assert accepted(plan)
    assert not races.exist()
    for mutilated, is_race in races.mutations():
        assert accepted(mutilated) <= (not is_race) if in_arena else accepted(mutilated) == (not is_race)


@given(SEEDS, SEEDS, ENGINES, SEEDS)
def test_values_in_boxes_race_where_they_did(network: int, schedule: int, engine: str, boxes: int) -> None:
    """Boxes along the batch, rows and columns as well as channels."""
    drawn = random_network(network, movers=True)
    plan = boxed(lower_schedule(random_schedule(drawn, schedule), drawn, engine, in_place=True), boxes)
    assert accepted(plan)
    for mutilated, is_race in Races(plan).mutations():
        assert accepted(mutilated) == (not is_race)


@settings(max_examples=40)
@given(SEEDS)
def test_launches_of_boxes_that_meet_anywhere(seed: int) -> None:
    """Any boxes of one storage, such as overlapping halos, read and written in any order of queues, events and synchronises."""
    generator = random.Random(seed)
    whole = Buffer("whole", TensorType((3, 2, 4, 4)))
    buffers, commands = {"whole": whole}, list[Command]()
    queues = list(range(3))
    commands += [launch("first", queues[0], writes=["whole"]), Synchronize()]
    events = 0
    for number in range(generator.randint(2, 8)):
        starts = tuple(generator.randrange(size) for size in whole.type.shape)
        shape = tuple(generator.randint(1, size - start) for size, start in zip(whole.type.shape, starts, strict=True))
        box = Buffer(f"box{number}", TensorType(shape), "whole", starts)
        buffers[box.name] = box
        touched = {"writes" if generator.random() < 0.5 else "reads": [box.name]}
        commands.append(launch(f"f{number}", generator.choice(queues), **touched))
        if generator.random() < 0.6:
            commands += [Record(events, commands[-1].queue), Wait(events, generator.choice(queues))]
            events += 1
        if generator.random() < 0.2:
            commands.append(Synchronize())
    plan = Plan("hash", buffers, (), (), tuple(commands))
    races = Races(plan)
    assert accepted(plan) == (not races.exist())
    for mutilated, is_race in races.mutations():
        assert accepted(mutilated) == (not is_race)


def runs_into_a_race(plan: Plan, network: Network, inputs: Mapping[str, Array], seed: int) -> bool:
    try:
        execute(plan, network, inputs, seed)
    except ScheduleError as error:
        return "is not written yet; the plan lacks an event" in str(error)
    return False


def test_a_race_that_the_checker_reports_is_one_that_execution_can_run_into() -> None:
    found = 0
    for seed in range(12):
        network = random_network(seed)
        plan = lower_schedule(random_schedule(network, seed), network)
        lame = replace(plan, commands=tuple(c for c in plan.commands if not isinstance(c, Synchronize)))
        if accepted(replace(lame, commands=(*lame.commands, Synchronize()))):
            continue
        inputs = random_inputs(network)
        found += any(runs_into_a_race(lame, network, inputs, interleaving) for interleaving in range(40))
    assert found >= 3


A, B = 0, 1
WHOLE = Buffer("whole", TensorType((1, 4, 2, 2)))
LEFT, RIGHT = (Buffer(n, TensorType((1, 2, 2, 2)), "whole", (0, c, 0, 0)) for n, c in (("left", 0), ("right", 2)))
OTHER, SCRATCH = Buffer("other", TensorType((1, 1, 2, 2))), Buffer("scratch", TensorType((64,), DType.UINT8))


def launch(name: str, queue: Queue, reads: Sequence[str] = (), writes: Sequence[str] = ()) -> Launch:
    return Launch((name,), Strategy.CONCURRENT, tuple(reads), tuple(writes), queue)


def plan_of(*commands: Command, outputs: Sequence[str] = ()) -> Plan:
    return Plan("hash", {b.name: b for b in (WHOLE, LEFT, RIGHT, OTHER, SCRATCH)}, (), tuple(outputs), commands)


F, G, H = (
    launch(name, A, reads, writes)
    for name, reads, writes in (("f", (), ["left"]), ("g", (), ["right"]), ("h", ["left"], ()))
)
EVENT = (Record(0, A), Wait(0, B))
READ_LEFT, WRITE_LEFT = launch("r", B, reads=["left"]), launch("w", B, writes=["left"])
COPY = Copy("left", "right", "g", B)


@pytest.mark.parametrize(
    ("commands", "message"),
    [
        (
            [launch("f", A, writes=["whole"]), launch("g", B, reads=["right"])],
            "^g on queue 1 reads 'right', f on queue 0 writes 'whole', and nothing orders the two; put an event",
        ),
        ([F, launch("g", B, writes=["right"])], ""),
        ([F, launch("g", B, writes=["whole"])], "g on queue 1 writes 'whole', f on queue 0 writes 'left'"),
        ([F, Synchronize(), H, WRITE_LEFT], "w on queue 1 writes 'left', h on queue 0 reads 'left'"),
        ([F, Synchronize(), H, *EVENT, WRITE_LEFT], ""),
        ([F, launch("g", A, reads=["whole"])], "g on queue 0 reads 'whole', which nothing has written before"),
        ([F, G, launch("h", A, reads=["whole"])], ""),
        # An event orders what came before it, and no more; events order transitively.
        ([F, Record(0, A), G, Wait(0, B), READ_LEFT], ""),
        (
            [F, Record(0, A), G, Wait(0, B), launch("r", B, reads=["right"])],
            "r .* reads 'right', g on queue 0 writes 'right'",
        ),
        ([F, *EVENT, Record(1, B), Wait(1, 2), launch("h", 2, reads=["left"])], ""),
        ([Wait(7, B), Record(7, A)], "queue 1 waits for event 7, which is recorded nowhere before"),
        ([Record(7, A), Record(7, A)], "event 7 is recorded twice"),
        ([F, *EVENT, COPY], ""),
        ([F, COPY], "the copy of 'left' to 'right' on queue 1 reads 'left', f on queue 0"),
        (
            [replace(F, workspace="scratch"), replace(G, queue=B, workspace="scratch")],
            "g on queue 1 writes 'scratch', f on queue 0 writes 'scratch'",
        ),
    ],
)
def test_plans_by_hand(commands: list[Command], message: str) -> None:
    refused(plan_of(*commands), message)


def refused(plan: Plan, message: str) -> None:
    """Checks a plan, which is accepted if nothing is said of it."""
    with pytest.raises(ScheduleError, match=message) if message else nullcontext():
        check_happens_before(plan)


def test_the_host_reads_outputs_after_a_synchronise_only() -> None:
    refused(plan_of(F, Synchronize(), outputs=["left"]), "")
    refused(plan_of(F, outputs=["left"]), "the host reads 'left', f on queue 0 writes 'left'")


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        (None, ""),
        ({"whole": 0, "other": 256}, ""),
        ({"whole": 0, "other": 0}, "h on queue 0 reads 'left', to whose memory g on queue 0 writes 'other'"),
    ],
)
def test_memory_that_another_storage_has_overwritten(offsets: dict[str, int] | None, message: str) -> None:
    offsets = offsets and {**offsets, "scratch": 512}
    refused(replace(plan_of(F, launch("g", A, writes=["other"]), H), offsets=offsets), message)


def test_only_what_adds_may_update_in_place() -> None:
    b, value = builder_with("chain", x=(2, 3, 4, 4))
    with b.block("only"):
        for index in range(3):
            value = b.conv(value, 3, name=f"c{index}")
    network = b.network([value])
    plan = lower_schedule(sequential_schedule(network), network)
    together = replace(plan.buffers["c1"], name="c0", view_of="c1", starts=(0,) * 4)
    wrong = replace(plan, buffers={**plan.buffers, "c0": together})
    with pytest.raises(ScheduleError, match="nothing orders the two"):
        check_happens_before(wrong)
    adding = tuple(replace(one, adds_to="c0") if one in plan.launches[1:2] else one for one in plan.commands)  # type: ignore[type-var]
    check_happens_before(replace(wrong, commands=adding))
