"""Schedules of streams: what is valid, in which order they are issued, and files of both kinds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import random_network, random_schedule, sequential_schedule

from iossim.base.errors import ScheduleError
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.nary import Add
from iossim.schedule.fit import fit
from iossim.schedule.schedule import Schedule, StreamLaunch, StreamSchedule, issue_order, read_schedule
from iossim.schedule.streams import with_barriers

SEEDS = st.integers(0, 2**20)
Launches = list[tuple[str, ...]]


@pytest.fixture
def network() -> Network:
    """``b`` and ``c`` read ``a``, ``d`` reads both; ``b`` and ``c`` may merge."""
    builder = GraphBuilder("diamond")
    x = builder.input("x", (1, 2, 4, 4))
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


@settings(max_examples=30, deadline=None)
@given(SEEDS, SEEDS)
def test_stages_as_streams_are_valid_and_issued_in_the_same_order(drawn: int, seed: int) -> None:
    network = random_network(drawn)
    stages = random_schedule(network, seed)
    streams = with_barriers(stages)
    fit(streams, network)
    order = [unit for _, launch in issue_order(streams) for unit in launch.units]
    assert order == [unit for stage in stages.stages for unit in stage.units]
    assert StreamSchedule.model_validate_json(streams.model_dump_json()) == streams


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
