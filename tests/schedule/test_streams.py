"""Schedules of streams: what is valid, in which order they are issued, and files of both kinds."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from checked_execution import execute
from graph_builders import builder_with
from hypothesis import given
from hypothesis import strategies as st
from random_networks import (
    issued_streams,
    random_inputs,
    random_network,
    random_schedule,
    random_stream_batch,
    sequential_schedule,
)

from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.base.errors import ScheduleError
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import check_happens_before, with_memory
from iossim.ir.network import Network
from iossim.ir.ops.nary import Add
from iossim.schedule.fit import fit
from iossim.schedule.schedule import Schedule, StreamLaunch, StreamSchedule, read_schedule
from iossim.schedule.streams import as_streams, issue_order, reduced_waits, with_barriers

SEEDS = st.integers(0, 2**20)
Launches = list[tuple[str, ...]]


@pytest.fixture
def network() -> Network:
    """``b`` and ``c`` read ``a``, ``d`` reads both; ``b`` and ``c`` may merge."""
    builder, x = builder_with("diamond", x=(1, 2, 4, 4))
    a = builder.conv(x, 2, name="a")
    b, c = builder.conv(a, 2, name="b"), builder.conv(a, 2, name="c")
    return builder.network([builder.add(Add(), b, c, name="d")])


def streams_of(network: Network, *streams: Launches) -> StreamSchedule:
    """Streams of launches, each the unit (or units, joined by ``+``) and what it waits for."""
    made = [[StreamLaunch(units=unit.split("+"), after=list(after)) for unit, *after in own] for own in streams]
    return with_barriers(sequential_schedule(network)).model_copy(update={"streams": made})


def issued(schedule: StreamSchedule) -> list[str]:
    return [f"{'+'.join(launch.units)}@{stream}" for stream, launch in issue_order(schedule)]


def test_the_first_stream_that_can_go_on_is_issued(network: Network) -> None:
    schedule = streams_of(network, [("a",), ("b",), ("d", "c")], [("c", "a")])
    fit(schedule, network)
    assert issued(schedule) == ["a@0", "b@0", "c@1", "d@0"]
    merged = streams_of(network, [("a",)], [("b+c", "a"), ("d",)])
    fit(merged, network)
    assert issued(merged) == ["a@0", "b+c@1", "d@1"]


def test_the_host_issues_in_the_order_that_is_given(network: Network) -> None:
    schedule = streams_of(network, [("a",), ("b",), ("d", "c")], [("c", "a")])
    given = schedule.model_copy(update={"issue": [0, 1, 0, 0]})
    fit(given, network)
    assert issued(given) == ["a@0", "c@1", "b@0", "d@0"]
    assert StreamSchedule.model_validate_json(given.model_dump_json()) == given
    with pytest.raises(ScheduleError, match="stream 1: 'c' is issued before 'a', which it waits for; swap the two"):
        fit(schedule.model_copy(update={"issue": [1, 0, 0, 0]}), network)
    for wrong in ([0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 2]):
        with pytest.raises(ScheduleError, match="the order of issue does not name each stream once for each"):
            fit(schedule.model_copy(update={"issue": wrong}), network)


@pytest.mark.parametrize(
    ("streams", "message"),
    [
        ([[("a",), ("b",), ("c",)]], "the schedule: unit 'd' is in no stream; add it or write"),
        ([[("a",), ("b",), ("c",), ("d",), ("e",)]], "stream 0: 'e' is no unit of the network; known: a, b, c, d"),
        ([[("a",), ("b",), ("d", "c")], [("c", "a"), ("b",)]], "stream 1: unit 'b' is scheduled twice; keep one"),
        ([[("a",), ("b", "e"), ("c",), ("d",)]], "stream 0: 'e' is no unit of the network"),
        ([[("a",), ("b",), ("d",)], [("c", "a")]], "stream 0: unit 'd' reads 'c', and nothing orders the two; let it"),
        ([[("b",), ("a",), ("c",), ("d",)]], "stream 0: unit 'b' reads 'a', and nothing orders the two"),
        (
            [[("a", "d"), ("b",)], [("c", "a"), ("d", "b")]],
            "stream 0: 'a' waits for 'd', which never ends before: streams wait for each other",
        ),
        ([[("a", "a"), ("b",), ("c",), ("d",)]], "stream 0: 'a' waits for 'a', which never ends before"),
        ([[("a",), ("b",), ("c+d",)]], "stream 0: units c, d do not merge"),
    ],
)
def test_streams_that_are_not_valid(network: Network, streams: list[Launches], message: str) -> None:
    with pytest.raises(ScheduleError, match=re.escape(message)):
        fit(streams_of(network, *streams), network)


def test_one_format_holds_both(network: Network, tmp_path: Path) -> None:
    stages = sequential_schedule(network)
    streams = with_barriers(stages)
    for schedule, name in ((stages, "stages.json"), (streams, "streams.json")):
        schedule.save(tmp_path / name)
        assert read_schedule(tmp_path / name) == schedule
    assert Schedule.read(tmp_path / "stages.json") == stages
    with pytest.raises(
        ScheduleError, match=r"streams.json is of streams, and has no stages; iossim.api.read_any_schedule reads it"
    ):
        Schedule.read(tmp_path / "streams.json")
    written = json.loads((tmp_path / "streams.json").read_text())
    assert written["format_version"] == 2
    (tmp_path / "old.json").write_text(json.dumps(written | {"format_version": 1}))
    with pytest.raises(ScheduleError, match="has format 1, this iossim reads 2"):
        read_schedule(tmp_path / "old.json")
    (tmp_path / "wrong.json").write_text(json.dumps(written | {"streams": [[{"units": []}]]}))
    with pytest.raises(ScheduleError, match=r"is not valid: field 'streams.0.0.units'"):
        read_schedule(tmp_path / "wrong.json")


@given(SEEDS, st.integers(1, 4) | st.none())
def test_stages_as_streams(seed: int, most: int | None) -> None:
    """The same units; without barriers they compute what the graph does, and with them are issued as they were."""
    network = random_network(seed)
    saved = random_schedule(network, seed)
    streams, barred = as_streams(saved, network, most), with_barriers(saved)
    for one in (streams, barred):
        fit(one, network)
        assert StreamSchedule.model_validate_json(one.model_dump_json()) == one
    assert len(streams.streams) <= (most or saved.streams)
    assert all(streams.streams)
    if most == 1:
        assert not any(launch.after for launch in streams.launches)
    order = [unit for _, launch in issue_order(barred) for unit in launch.units]
    assert order == [unit for stage in saved.stages for unit in stage.units]
    plan = with_memory(lower_schedule(streams, network, "graph"))
    check_happens_before(plan)
    inputs = random_inputs(network, seed)
    found = execute(plan, network, inputs)
    for name, expected in evaluate_graph(network.graph, inputs).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-4)


@given(SEEDS, st.integers(1, 5))
def test_streams_that_share(seed: int, most: int) -> None:
    """Fewer streams run the same launches as the host issued them; of the waits each is needed."""
    network = random_network(seed)
    streams = issued_streams(network, random_stream_batch(network, seed, count=1))
    fit(streams, network)
    for stream, own in enumerate(streams.streams):
        for place, launch in enumerate(own):
            for gone in launch.after:
                kept = launch.model_copy(update={"after": [unit for unit in launch.after if unit != gone]})
                changed = [list(one) for one in streams.streams]
                changed[stream][place] = kept
                with pytest.raises(ScheduleError, match="nothing orders the two"):
                    fit(streams.model_copy(update={"streams": changed}), network)
    found = as_streams(streams, network, most)
    fit(found, network)
    assert len(found.streams) == min(most, len(streams.streams))
    assert [launch.units for _, launch in issue_order(found)] == [launch.units for _, launch in issue_order(streams)]
    assert most < len(streams.streams) or found is streams
    check_happens_before(with_memory(lower_schedule(found, network, "paper")))


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


def test_a_sequence_is_one_stream() -> None:
    network = random_network(3)
    assert len(as_streams(sequential_schedule(network), network).streams) == 1
