"""Contents of buffers: plans are accepted as they are lowered; and plans of two devices, checked, planned, saved and run."""

from __future__ import annotations

import random
from dataclasses import fields, replace

import numpy as np
import pytest
from boxed_plans import boxed
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_contents import accepted, check_contents
from plan_races import Races
from plan_reading import plan_from_json
from random_networks import (
    one_block,
    random_inputs,
    random_network,
    random_schedule,
    random_streams,
    sequential_schedule,
    unscheduled,
)

from iossim.backends.numpy_reference.execute import execute
from iossim.backends.simulator.events import run_plan, run_plan_on
from iossim.backends.simulator.events.program import Link
from iossim.base.errors import OptionError, PlanError, ScheduleError
from iossim.execution.backend import Choice
from iossim.execution.backends import create_backend
from iossim.execution.happens_before import check_happens_before
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import memory_lower_bound_bytes, plan_memory
from iossim.execution.plan import (
    Buffer,
    Command,
    Copy,
    Launch,
    Plan,
    Queue,
    Record,
    Synchronize,
    Transfer,
    Wait,
    accesses,
    repeat,
)
from iossim.execution.plan_json import plan_to_json
from iossim.hardware.load import device
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.types import TensorType
from iossim.schedule.batch import Strategy
from iossim.schedule.schedule import Stage


def on_two_devices(plan: Plan) -> Plan:
    """Streams of odd numbers on device 1, the others on device 0, where the inputs are; each value where it is written.

    The plan has no views and no workspaces. A launch that reads a value of the other device has it copied to a buffer of its
    own first, on its own queue.
    """
    assert not any(buffer.view_of for buffer in plan.buffers.values())
    device_of = dict.fromkeys(plan.inputs, 0)
    for launch in plan.launches:
        device_of |= dict.fromkeys(launch.writes, launch.queue.stream % 2)
    buffers = {name: replace(buffer, device=device_of.get(name, 0)) for name, buffer in plan.buffers.items()}
    commands: list[Command] = []
    for number, command in enumerate(plan.commands):
        if isinstance(command, Synchronize):
            commands.append(command)
            continue
        queue = Queue(command.queue.stream % 2, command.queue.stream)
        moved = replace(command, queue=queue)
        if isinstance(moved, Launch):
            reads = []
            for name in moved.reads:
                if device_of[name] != queue.device:
                    replica = f"{name} for command {number}"
                    buffers[replica] = replace(plan.buffers[name], name=replica, device=queue.device)
                    commands.append(Copy(name, replica, moved.units[0], queue))
                    reads.append(replica)
                else:
                    reads.append(name)
            moved = replace(moved, reads=tuple(reads))
        commands.append(moved)
    return replace(plan, buffers=buffers, commands=tuple(commands))


SEEDS = st.integers(0, 2**20)
V100, T4 = device("v100-sxm2"), device("t4")
NVLINK = Link(25.0, 2.0)


@given(SEEDS, SEEDS, st.sampled_from(["paper", "graph"]), st.booleans())
def test_plans_over_two_devices(drawn: int, seed: int, engine: str, in_arenas: bool) -> None:
    network = random_network(drawn)
    plan = on_two_devices(lower_schedule(random_streams(network, seed), network, engine))
    for mutilated, is_race in Races(plan).mutations():
        assert accepted(mutilated) == (not is_race)
    if in_arenas:
        plan = plan_memory(plan)
        assert memory_lower_bound_bytes(plan) <= plan.arena_bytes
        assert not Races(plan).exist()
    check_happens_before(plan)
    goes_there_and_back(plan)
    inputs = random_inputs(network)
    expected = unscheduled(network, inputs)
    for name, array in execute(plan, network, inputs, seed).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-5)


@settings(max_examples=15)
@given(SEEDS, SEEDS, st.sampled_from(["paper", "graph"]))
def test_each_device_runs_its_own_launches(drawn: int, seed: int, engine: str) -> None:
    network = random_network(drawn)
    plan = on_two_devices(lower_schedule(random_streams(network, seed), network, engine))
    runs = run_plan_on(plan, network, (V100, T4), engine, link=NVLINK, in_place=False)
    assert len({run.latency_us for run in runs}) == 1
    for number, run in enumerate(runs):
        own = {unit for launch in plan.launches if launch.queue.device == number for unit in launch.units}
        kernels = [span for span in run.spans if not span.name.startswith("transfer")]
        assert {span.unit for span in kernels} == own
        assert run.time_us[-1] == runs[0].latency_us
    crossing = [copy for copy in plan.commands if isinstance(copy, Copy)]
    assert sum(span.name.startswith("transfer") for run in runs for span in run.spans) == len(crossing)
    slower = run_plan_on(plan, network, (V100, T4), engine, link=Link(0.5, 200.0), in_place=False)
    assert (slower[0].latency_us > runs[0].latency_us) == bool(crossing)


def two_units() -> tuple[Network, Plan]:
    """``b`` on device 1 reads what ``a`` makes on device 0, after an event and a copy."""
    builder = GraphBuilder("two")
    x = builder.input("x", (1, 4, 32, 32))
    with builder.block("only"):
        b = builder.conv(builder.conv(x, 4, name="a"), 4, name="b")
    network = builder.network([b])
    kind = TensorType((1, 4, 32, 32))
    buffers = [Buffer("x", kind), Buffer("a", kind), Buffer("a there", kind, device=1), Buffer("b", kind, device=1)]
    here, there = Queue(0, 0), Queue(1, 0)
    commands = (
        Launch(("a",), Strategy.CONCURRENT, ("x",), ("a",), here),
        Record(0, here),
        Wait(0, there),
        Copy("a", "a there", "b", there),
        Launch(("b",), Strategy.CONCURRENT, ("a there",), ("b",), there),
        Synchronize(),
    )
    return network, Plan(network.graph.hash, {one.name: one for one in buffers}, ("x",), ("b",), commands)


def test_a_transfer_takes_its_bytes_over_the_bandwidth_and_the_latency() -> None:
    network, plan = two_units()
    assert plan.devices == (0, 1)
    copy = plan.commands[3]
    assert isinstance(copy, Copy)
    size_bytes = 4 * 32 * 32 * 4
    assert plan.transfer(copy) == Transfer(0, 1, size_bytes)
    first, second = run_plan_on(plan, network, (V100, V100), link=Link(2.0, 7.0))
    (a,) = {span.unit: span for span in first.spans}.values()
    transfer, *_, b = second.spans
    assert (transfer.name, transfer.unit) == ("transfer 0 to 1", "b")
    assert transfer.start_us >= a.end_us
    assert transfer.end_us - transfer.start_us == pytest.approx(size_bytes / 2e3 + 7.0)
    assert b.start_us >= transfer.end_us
    assert first.latency_us == second.latency_us == b.end_us


def test_transfers_of_one_link_take_turns_and_those_of_two_do_not() -> None:
    network, plan = two_units()
    kind = plan.buffers["a"].type
    more = {f"{name}{place}": Buffer(f"{name}{place}", kind, device=place) for name in "pq" for place in (0, 1)}
    both = (Copy("p0", "p1", "a", Queue(1, 1)), Copy("q0", "q1", "a", Queue(1, 2)))
    across = (both[0], Copy("q1", "q0", "a", Queue(0, 2)))
    ends = []
    for copies in (both, across):
        changed = replace(plan, buffers={**plan.buffers, **more}, commands=(*copies, Synchronize()), outputs=())
        runs = run_plan_on(changed, network, (V100, V100), "graph", link=Link(0.1, 5.0))
        spans = sorted((span for run in runs for span in run.spans), key=lambda span: span.start_us)
        ends.append(max(span.end_us for span in spans))
        assert (spans[1].start_us > spans[0].start_us) == (copies is both)
    link_us = kind.bytes / 100
    assert ends == [pytest.approx(2 * link_us + 5.0), pytest.approx(link_us + 5.0)]


def test_a_launch_touches_its_own_device_alone() -> None:
    _, plan = two_units()
    check_happens_before(plan)
    launch = plan.commands[4]
    assert isinstance(launch, Launch)
    for change, name in (({"reads": ("a",)}, "a"), ({"writes": ("x",)}, "x"), ({"workspace": "x"}, "x")):
        commands = (*plan.commands[:4], replace(launch, **change), *plan.commands[5:])
        with pytest.raises(ScheduleError, match=f"b on queue 1:0 touches '{name}', which is on device 0; copy it"):
            check_happens_before(replace(plan, commands=commands))
    stray = replace(plan.commands[3], queue=Queue(2, 0))  # type: ignore[type-var]
    with pytest.raises(ScheduleError, match="the copy of 'a' to 'a there' on queue 2:0 touches 'a'"):
        check_happens_before(replace(plan, commands=(*plan.commands[:3], stray, *plan.commands[4:])))
    unordered = replace(plan, commands=plan.commands[:1] + plan.commands[3:])
    with pytest.raises(ScheduleError, match="nothing orders the two"):
        check_happens_before(unordered)


def test_storages_of_two_devices_may_have_the_same_place() -> None:
    _, plan = two_units()
    planned = plan_memory(plan)
    assert planned.arena_bytes == 2 * plan.buffers["a"].bytes
    assert planned.offsets is not None
    check_happens_before(replace(planned, offsets={**planned.offsets, "x": 0, "a": 16384, "a there": 0, "b": 16384}))


def test_what_runs_one_device_refuses_two() -> None:
    network, plan = two_units()
    with pytest.raises(OptionError, match="the plan uses 2 devices, and 1 are given; give a profile for each"):
        run_plan(plan, network, V100)
    with pytest.raises(OptionError, match="crosses devices, and nothing joins them; give a link"):
        run_plan_on(plan, network, (V100, V100))
    with pytest.raises(
        PlanError, match="the plan is of devices 0 and 1, and backend onnxruntime_cpu runs device 0 alone"
    ):
        create_backend("onnxruntime_cpu").execute(network, plan, random_inputs(network))


def goes_there_and_back(plan: Plan) -> None:
    back = plan_from_json(plan_to_json(plan))
    for field in fields(Plan):
        assert getattr(back, field.name) == getattr(plan, field.name)


@settings(max_examples=25)
@given(SEEDS, SEEDS, st.sampled_from(["paper", "graph"]), st.booleans())
def test_plans_hold_what_is_read_and_are_saved(network: int, schedule: int, engine: str, in_place: bool) -> None:
    drawn = random_network(network, movers=True)
    chosen = random_schedule(drawn, schedule)
    plan = lower_schedule(
        chosen, drawn, engine, in_place=in_place, choices=lambda units, *_: Choice("some", 100 * len(units))
    )
    for one in (plan, plan_memory(plan), boxed(plan, schedule), repeat(plan, 2, False)):
        check_contents(one, drawn)
        goes_there_and_back(one)


def shifted(plan: Plan, generator: random.Random) -> Plan | None:
    """With one view that something touches moved by one, along some axis; None where none can move."""
    touched = {name for command in plan.commands for names in accesses(command) for name in names}
    moves = []
    for buffer in plan.buffers.values():
        if buffer.view_of is not None and buffer.name in touched:
            whole = plan.buffers[buffer.view_of].type.shape
            for axis, (start, size) in enumerate(zip(buffer.starts, buffer.type.shape, strict=True)):
                moves += [(buffer, axis, by) for by in (-1, 1) if 0 <= start + by <= whole[axis] - size]
    if not moves:
        return None
    buffer, axis, by = generator.choice(moves)
    starts = tuple(start + by * (index == axis) for index, start in enumerate(buffer.starts))
    return replace(plan, buffers={**plan.buffers, buffer.name: replace(buffer, starts=starts)})


@settings(max_examples=25)
@given(SEEDS, SEEDS)
def test_a_shifted_view_is_caught_where_it_matters(network: int, schedule: int) -> None:
    drawn = random_network(network, movers=True)
    plan = lower_schedule(random_schedule(drawn, schedule), drawn, "graph", in_place=True)
    changed = shifted(boxed(plan, schedule) if schedule % 2 else plan, random.Random(schedule))
    if changed is not None and accepted(changed, drawn):
        inputs = random_inputs(drawn)
        expected, made = execute(plan, drawn, inputs), execute(changed, drawn, inputs)
        for name in expected:
            # The last bit of a sum may depend on where its terms are aligned.
            np.testing.assert_allclose(made[name], expected[name], rtol=1e-5, atol=1e-6, strict=True)


def chain() -> tuple[Network, Plan]:
    """Three convolutions in a row, of images of one size."""
    b = GraphBuilder("chain")
    value = b.input("x", (2, 3, 4, 4))
    with b.block("only"):
        for index in range(3):
            value = b.conv(value, 3, name=f"c{index}")
    network = b.network([value])
    return network, lower_schedule(sequential_schedule(network), network)


def test_a_launch_that_reads_something_else_is_named() -> None:
    network, plan = chain()
    first, second, third, end = plan.commands
    wrong = replace(plan, commands=(first, second, replace(third, reads=("c0",)), end))  # type: ignore[type-var]
    check_happens_before(wrong)
    with pytest.raises(ScheduleError, match="c2 on queue 0:0 reads 'c0' for 'c1', and that is not what it holds"):
        check_contents(wrong, network)


def test_only_what_adds_may_update_in_place() -> None:
    network, plan = chain()
    storage = plan.buffers["c1"]
    together = {**plan.buffers, "c0": replace(storage, name="c0", view_of="c1", starts=(0,) * 4)}
    wrong = replace(plan, buffers=together)
    with pytest.raises(ScheduleError, match="nothing orders the two"):
        check_happens_before(wrong)
    commands = [replace(one, adds_to="c0") if one in plan.launches[1:2] else one for one in plan.commands]  # type: ignore[type-var]
    said = replace(wrong, commands=tuple(commands))
    check_happens_before(said)
    with pytest.raises(ScheduleError, match="c1 on queue 0:0 adds to 'c0', and its unit does not"):
        check_contents(said, network)


def test_a_merged_convolution_holds_its_parts_in_order() -> None:
    b = GraphBuilder("merged")
    b.input("x", (1, 3, 4, 4))
    with b.block("only"):
        parts = [b.conv("x", 2, name=name) for name in ("left", "right")]
    network = b.network(parts)
    stage = Stage(strategy=Strategy.MERGE, groups=[["left", "right"]], latency_us=0)
    plan = lower_schedule(one_block(network, stage), network)
    check_contents(plan, network)
    left, right = plan.buffers["left"], plan.buffers["right"]
    swapped = {**plan.buffers, "left": replace(left, starts=right.starts), "right": replace(right, starts=left.starts)}
    check_happens_before(replace(plan, buffers=swapped))
    with pytest.raises(ScheduleError, match="the host reads 'left'"):
        check_contents(replace(plan, buffers=swapped), network)
