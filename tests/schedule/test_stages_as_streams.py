"""Stages as streams: the same work, ordered wherever data crosses, and by nothing more."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_networks import random_inputs, random_network, random_schedule, sequential_schedule, unscheduled

from iossim.backends.numpy_reference.execute import execute
from iossim.base.errors import OptionError, ScheduleError
from iossim.execution.happens_before import check_happens_before
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import with_memory
from iossim.execution.plan import Launch, Plan, Record, Wait
from iossim.ir.network import Network
from iossim.schedule.fit import fit
from iossim.schedule.schedule import StreamSchedule, issue_order
from iossim.schedule.streams import IssuedLaunch, as_streams, in_streams, reduced_waits

seeds = st.integers(0, 10_000)


@given(seeds, st.one_of(st.none(), st.integers(1, 4)))
def test_the_same_units_in_order_without_races(seed: int, most: int | None) -> None:
    network = random_network(seed)
    saved = random_schedule(network, seed)
    streams = as_streams(saved, network, most)
    fit(streams, network)
    assert len(streams.streams) <= (most or saved.streams)
    assert all(streams.streams)
    plan = with_memory(lower_schedule(streams, network, "graph"))
    check_happens_before(plan)


@given(seeds)
def test_outputs_are_those_of_the_graph(seed: int) -> None:
    network = random_network(seed)
    streams = as_streams(random_schedule(network, seed), network, 2)
    inputs = random_inputs(network, seed)
    found = execute(with_memory(lower_schedule(streams, network, "graph")), network, inputs)
    for name, expected in unscheduled(network, inputs).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-4)


def random_streams(network: Network, seed: int, most: int = 4) -> StreamSchedule:
    """Every launch of a random order in a random stream."""
    generator = random.Random(seed)
    done: set[int] = set()
    order: list[IssuedLaunch] = []
    while len(done) < len(network.units):
        ready = [
            unit
            for unit in range(len(network.units))
            if unit not in done and done.issuperset(network.predecessors[unit])
        ]
        unit = generator.choice(ready)
        done.add(unit)
        order.append(IssuedLaunch((network.units[unit].name,), generator.randrange(most)))
    template = as_streams(sequential_schedule(network), network)
    return template.model_copy(update=in_streams(network, order))


@given(seeds)
def test_random_streams_run_and_each_wait_is_needed(seed: int) -> None:
    """Without any wait a unit reads what nothing orders before it, and the checker finds the race in the plan."""
    network = random_network(seed)
    streams = random_streams(network, seed)
    assert StreamSchedule.model_validate_json(streams.model_dump_json()) == streams
    fit(streams, network)
    check_happens_before(with_memory(lower_schedule(streams, network, "paper")))
    for stream, own in enumerate(streams.streams):
        for place, launch in enumerate(own):
            for gone in launch.after:
                kept = launch.model_copy(update={"after": [unit for unit in launch.after if unit != gone]})
                changed = [list(one) for one in streams.streams]
                changed[stream][place] = kept
                without = StreamSchedule.model_construct(**{**dict(streams), "streams": changed})
                with pytest.raises(ScheduleError, match="nothing orders the two"):
                    fit(without, network)
                plan = lower_schedule(streams, network, "paper")
                at = waits_of(plan, network, launch.units[0], gone)
                commands = tuple(command for number, command in enumerate(plan.commands) if number not in at)
                with pytest.raises(ScheduleError):
                    check_happens_before(replace(plan, commands=commands))


def waits_of(plan: Plan, network: Network, unit: str, before: str) -> set[int]:
    """The places of the waits in front of a unit's launch for the event behind that of another."""
    launches = {command.units[0]: number for number, command in enumerate(plan.commands) if isinstance(command, Launch)}
    record = plan.commands[launches[before] + 1]
    assert isinstance(record, Record)
    found = [
        number
        for number, command in enumerate(plan.commands[: launches[unit]])
        if isinstance(command, Wait) and command.event == record.event
    ]
    return {found[-1]}


@given(st.lists(st.tuples(st.integers(0, 3), st.sets(st.integers(0, 11), max_size=4)), min_size=1, max_size=12))
def test_waits_are_the_transitive_reduction(drawn: list[tuple[int, set[int]]]) -> None:
    """By brute force: an edge between streams stays unless a longer way leads along the others and the streams."""
    stream_of = [stream for stream, _ in drawn]
    reads = [{before for before in own if before < launch} for launch, (_, own) in enumerate(drawn)]
    chains = {
        (max(before), launch)
        for launch, stream in enumerate(stream_of)
        if (before := [one for one in range(launch) if stream_of[one] == stream])
    }
    edges = chains | {(before, launch) for launch, own in enumerate(reads) for before in own}

    def leads(start: int, end: int, without: tuple[int, int]) -> bool:
        return start == end or any(
            leads(after, end, without) for one, after in edges - {without} if one == start and after <= end
        )

    expected = {edge for edge in edges - chains if not leads(*edge, edge) and stream_of[edge[0]] != stream_of[edge[1]]}
    found = {(before, launch) for launch, own in enumerate(reduced_waits(stream_of, reads)) for before in own}
    assert found == expected


def test_a_single_stream_has_no_waits() -> None:
    network = random_network(3)
    (own,) = as_streams(random_schedule(network, 3), network, 1).streams
    assert not [launch for launch in own if launch.after]
    assert len(as_streams(sequential_schedule(network), network).streams) == 1


@given(seeds, st.integers(1, 5))
def test_streams_that_share(seed: int, most: int) -> None:
    """Fewer streams run the same launches as the host issued them."""
    network = random_network(seed)
    given_streams = random_streams(network, seed)
    found = as_streams(given_streams, network, most)
    fit(found, network)
    assert len(found.streams) == min(most, len(given_streams.streams))
    assert [launch.units for _, launch in issue_order(found)] == [
        launch.units for _, launch in issue_order(given_streams)
    ]
    if most >= len(given_streams.streams):
        assert found is given_streams
    check_happens_before(with_memory(lower_schedule(found, network, "paper")))


def test_no_streams_are_refused() -> None:
    network = random_network(3)
    with pytest.raises(OptionError, match="`streams` 0 is not possible"):
        as_streams(random_schedule(network, 3), network, 0)
