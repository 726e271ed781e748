"""Contents of buffers: plans are accepted as they are lowered, and saved."""

from __future__ import annotations

import random
from dataclasses import fields, replace

import numpy as np
import pytest
from checked_execution import execute
from hypothesis import given, settings
from hypothesis import strategies as st
from other_plans import boxed, plan_from_json
from plan_contents import accepted, check_contents
from random_networks import one_block, random_inputs, random_network, random_schedule, sequential_schedule

from iossim.base.errors import ScheduleError
from iossim.execution.backend import Choice
from iossim.execution.happens_before import check_happens_before
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import plan_memory
from iossim.execution.plan import Plan, accesses, repeat
from iossim.execution.plan_json import plan_to_json
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.schedule.batch import Strategy
from iossim.schedule.schedule import Stage

SEEDS = st.integers(0, 2**20)


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
    with pytest.raises(ScheduleError, match="c2 on queue 0 reads 'c0' for 'c1', and that is not what it holds"):
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
    with pytest.raises(ScheduleError, match="c1 on queue 0 adds to 'c0', and its unit does not"):
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
