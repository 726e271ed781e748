"""The checker against an independent one (reachability in the graph of commands), on plans whole and mutilated."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from boxed_plans import boxed
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_contents import accepted
from plan_races import Races
from random_networks import random_inputs, random_network, random_schedule, unscheduled

from iossim.backends.numpy_reference.execute import execute
from iossim.base.errors import ScheduleError
from iossim.execution.backend import Choice
from iossim.execution.happens_before import check_happens_before
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import plan_memory
from iossim.execution.plan import Buffer, Command, Copy, Launch, Plan, Queue, Record, Synchronize, Wait
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.ir.types import DType, TensorType
from iossim.schedule.batch import Strategy

SEEDS = st.integers(0, 2**20)
ENGINES = st.sampled_from(["paper", "graph"])


def workspaces(units: tuple[str, ...], strategy: Strategy, variant: str) -> Choice:
    """Every other launch needs one."""
    return Choice("some", 300 * (len("".join(units)) % 2))


@settings(max_examples=40, deadline=None)
@given(SEEDS, SEEDS, ENGINES, st.booleans())
def test_every_synchronisation_that_is_needed_is_missed(
    network: int, schedule: int, engine: str, in_place: bool
) -> None:
    drawn = random_network(network, movers=in_place)
    chosen = random_schedule(drawn, schedule)
    plan = lower_schedule(chosen, drawn, engine, in_place=in_place, choices=workspaces)
    races = Races(plan)
    assert accepted(plan)
    assert not races.exist()
    for mutilated, is_race in races.mutations():
        assert accepted(mutilated) == (not is_race)


@settings(max_examples=30, deadline=None)
@given(SEEDS, SEEDS, ENGINES)
def test_and_so_is_one_that_only_shared_memory_needs(network: int, schedule: int, engine: str) -> None:
    """With memory planned, storages that overlap at all count as one: the checker may object to more, never to less."""
    drawn = random_network(network, movers=True)
    chosen = random_schedule(drawn, schedule)
    plan = plan_memory(lower_schedule(chosen, drawn, engine, in_place=True, choices=workspaces))
    races = Races(plan)
    assert accepted(plan)
    assert not races.exist()
    assert not any(is_race and accepted(mutilated) for mutilated, is_race in races.mutations())


@settings(max_examples=30, deadline=None)
@given(SEEDS, SEEDS, ENGINES, SEEDS)
def test_values_in_boxes_race_where_they_did(network: int, schedule: int, engine: str, boxes: int) -> None:
    """Boxes along the batch, rows and columns as well as channels."""
    drawn = random_network(network, movers=True)
    plan = boxed(lower_schedule(random_schedule(drawn, schedule), drawn, engine, in_place=True), boxes)
    assert accepted(plan)
    for mutilated, is_race in Races(plan).mutations():
        assert accepted(mutilated) == (not is_race)


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_launches_of_boxes_that_meet_anywhere(seed: int) -> None:
    """Any boxes of one storage, such as overlapping halos, read and written in any order of queues, events and synchronises."""
    generator = random.Random(seed)
    whole = Buffer("whole", TensorType((3, 2, 4, 4)))
    buffers, commands = {"whole": whole}, list[Command]()
    queues = [Queue(0, stream) for stream in range(3)]
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


def test_most_synchronisations_are_needed() -> None:
    needed = total = 0
    for seed in range(20):
        network = random_network(seed)
        for engine in ("paper", "graph"):
            plan = lower_schedule(random_schedule(network, seed), network, engine)
            for index, command in enumerate(plan.commands):
                if isinstance(command, Synchronize | Wait):
                    mutilated = replace(plan, commands=plan.commands[:index] + plan.commands[index + 1 :])
                    total += 1
                    needed += not accepted(mutilated)
    assert needed > total / 3


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


A, B = Queue(0, 0), Queue(0, 1)
WHOLE = Buffer("whole", TensorType((1, 4, 2, 2)))
LEFT, RIGHT = (Buffer(n, TensorType((1, 2, 2, 2)), "whole", (0, c, 0, 0)) for n, c in (("left", 0), ("right", 2)))


def launch(name: str, queue: Queue, reads: Sequence[str] = (), writes: Sequence[str] = ()) -> Launch:
    return Launch((name,), Strategy.CONCURRENT, tuple(reads), tuple(writes), queue)


def plan_of(*commands: Command, outputs: Sequence[str] = ()) -> Plan:
    return Plan("hash", {b.name: b for b in (WHOLE, LEFT, RIGHT)}, (), tuple(outputs), commands)


def test_the_pair_is_named() -> None:
    plan = plan_of(launch("f", A, writes=["whole"]), launch("g", B, reads=["right"]))
    with pytest.raises(
        ScheduleError,
        match=r"^g on queue 0:1 reads 'right', f on queue 0:0 writes 'whole', and nothing orders the two; put an event",
    ):
        check_happens_before(plan)


def test_writes_to_different_slices_do_not_conflict() -> None:
    check_happens_before(plan_of(launch("f", A, writes=["left"]), launch("g", B, writes=["right"])))


def test_two_unordered_writes_conflict() -> None:
    with pytest.raises(ScheduleError, match="g on queue 0:1 writes 'whole', f on queue 0:0 writes 'left'"):
        check_happens_before(plan_of(launch("f", A, writes=["left"]), launch("g", B, writes=["whole"])))


def test_a_write_must_come_after_an_earlier_read() -> None:
    commands = (launch("f", A, writes=["left"]), Synchronize(), launch("g", A, reads=["left"]))
    with pytest.raises(ScheduleError, match="h on queue 0:1 writes 'left', g on queue 0:0 reads 'left'"):
        check_happens_before(plan_of(*commands, launch("h", B, writes=["left"])))
    check_happens_before(plan_of(*commands, Record(0, A), Wait(0, B), launch("h", B, writes=["left"])))


def test_a_read_of_what_nothing_wrote() -> None:
    with pytest.raises(ScheduleError, match="g on queue 0:0 reads 'whole', which nothing has written before"):
        check_happens_before(plan_of(launch("f", A, writes=["left"]), launch("g", A, reads=["whole"])))


def test_an_event_orders_what_came_before_it_and_no_more() -> None:
    early = (launch("f", A, writes=["left"]), Record(0, A))
    late = (launch("g", A, writes=["right"]), Wait(0, B))
    check_happens_before(plan_of(*early, *late, launch("h", B, reads=["left"])))
    with pytest.raises(ScheduleError, match="h on queue 0:1 reads 'right', g on queue 0:0 writes 'right'"):
        check_happens_before(plan_of(*early, *late, launch("h", B, reads=["right"])))


def test_events_order_transitively() -> None:
    third = Queue(0, 2)
    check_happens_before(
        plan_of(
            launch("f", A, writes=["left"]), Record(0, A), Wait(0, B), Record(1, B), Wait(1, third),
            launch("h", third, reads=["left"]),
        )
    )  # fmt: skip


def test_the_host_reads_outputs_after_a_synchronise_only() -> None:
    check_happens_before(plan_of(launch("f", A, writes=["left"]), Synchronize(), outputs=["left"]))
    with pytest.raises(ScheduleError, match="the host reads 'left', f on queue 0:0 writes 'left'"):
        check_happens_before(plan_of(launch("f", A, writes=["left"]), outputs=["left"]))


def test_events_that_do_not_add_up() -> None:
    with pytest.raises(ScheduleError, match="queue 0:1 waits for event 7, which is recorded nowhere before"):
        check_happens_before(plan_of(Wait(7, B), Record(7, A)))
    with pytest.raises(ScheduleError, match="event 7 is recorded twice"):
        check_happens_before(plan_of(Record(7, A), Record(7, A)))


def test_outputs_do_not_depend_on_the_interleaving() -> None:
    network = random_network(11)
    inputs = random_inputs(network)
    plan = lower_schedule(random_schedule(network, 3), network, "graph")
    expected = unscheduled(network, inputs)
    for seed in range(20):
        for name, array in execute(plan, network, inputs, seed).items():
            assert abs(array - expected[name]).max() <= 1e-5 * max(1.0, abs(expected[name]).max())


def test_a_workspace_that_two_queues_share() -> None:
    plan = plan_of(
        replace(launch("f", A, writes=["left"]), workspace="scratch"),
        replace(launch("g", B, writes=["right"]), workspace="scratch"),
    )
    scratch = Buffer("scratch", TensorType((64,), DType.UINT8))
    shared = replace(plan, buffers={**plan.buffers, "scratch": scratch})
    with pytest.raises(ScheduleError, match="g on queue 0:1 writes 'scratch', f on queue 0:0 writes 'scratch'"):
        check_happens_before(shared)


def test_a_copy_reads_and_writes() -> None:
    copy = Copy("left", "right", "g", B)
    check_happens_before(plan_of(launch("f", A, writes=["left"]), Record(0, A), Wait(0, B), copy))
    with pytest.raises(ScheduleError, match="the copy of 'left' to 'right' on queue 0:1 reads 'left', f on queue 0:0"):
        check_happens_before(plan_of(launch("f", A, writes=["left"]), copy))


def test_memory_that_another_storage_has_overwritten() -> None:
    other = Buffer("other", TensorType((1, 1, 2, 2)))
    commands = [launch("f", A, writes=["left"]), launch("g", A, writes=["other"]), launch("h", A, reads=["left"])]
    plan = replace(plan_of(*commands), buffers={b.name: b for b in (WHOLE, LEFT, RIGHT, other)})
    check_happens_before(plan)
    check_happens_before(replace(plan, offsets={"whole": 0, "other": 256}))
    with pytest.raises(
        ScheduleError, match="h on queue 0:0 reads 'left', to whose memory g on queue 0:0 writes 'other'"
    ):
        check_happens_before(replace(plan, offsets={"whole": 0, "other": 0}))


def test_a_whole_is_written_by_parts() -> None:
    parts = [launch("f", A, writes=["left"]), launch("g", A, writes=["right"])]
    check_happens_before(plan_of(*parts, launch("h", A, reads=["whole"])))
