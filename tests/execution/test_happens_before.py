"""The checker against an independent one (reachability in the graph of commands), on plans whole and mutilated."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

import pytest
from checked_execution import execute
from hypothesis import given, settings
from hypothesis import strategies as st
from other_plans import boxed
from plan_races import Races, accepted
from random_networks import random_inputs, random_network, random_schedule, sequential_schedule

from iossim.base.errors import ScheduleError
from iossim.execution.backend import Choice
from iossim.execution.happens_before import check_happens_before
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import plan_memory
from iossim.execution.plan import Buffer, Command, Copy, Launch, Plan, Queue, Record, Synchronize, Wait
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.ir.types import DType, TensorType
from iossim.schedule.batch import Strategy

SEEDS = st.integers(0, 2**20)
ENGINES = st.sampled_from(["paper", "graph"])


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
    b = GraphBuilder("chain")
    value = b.input("x", (2, 3, 4, 4))
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
