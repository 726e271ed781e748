"""Two schedules as plans: who is beside whom agrees with brute force, streams have no names, latencies are the plans'."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import iossim
from iossim import api
from iossim.base.errors import ScheduleError
from iossim.cost.capabilities import StreamCostModel
from iossim.execution.lower import lower_schedule
from iossim.ir.network import Network
from iossim.schedule.schedule import AnySchedule, Schedule, StreamSchedule
from iossim.schedule.streams import as_streams
from iossim.search.assemble import reprice_any, reprice_streams
from iossim.tasks.own_prices import own_prices
from iossim.tasks.stream_diff import diff_streams
from iossim.tasks.stream_explain import StreamExplanation

ENGINES = st.sampled_from(["paper", "graph"])


@pytest.fixture(scope="module")
def network() -> Network:
    return iossim.load("squeezenet")


def stages_of(network: Network, engine: str, scheduler: str = "ios-both", device: str = "v100-sxm2") -> Schedule:
    return iossim.optimize(network, device, engine=engine, scheduler=scheduler)


def prices_of(schedule: AnySchedule) -> StreamCostModel:
    found = own_prices(schedule)
    assert isinstance(found, StreamCostModel)
    return found


def streams_of(stages: Schedule, network: Network) -> StreamSchedule:
    return reprice_streams(as_streams(stages, network), network, prices_of(stages))


def plan_us(schedule: AnySchedule, network: Network, at: AnySchedule) -> float:
    return prices_of(at).plan_us(network, lower_schedule(schedule, network, at.engine))


def beside(run: StreamExplanation) -> set[frozenset[str]]:
    """By every two launches."""
    found = set()
    for one, other in combinations(run.launches, 2):
        shared_us = min(one.end_us, other.end_us) - max(one.start_us, other.start_us)
        if shared_us > 1e-6:
            found |= {frozenset((a, b)) for a in run.units_of[one.unit] for b in run.units_of[other.unit]}
    return found


@settings(max_examples=6)
@given(ENGINES, st.sampled_from(["greedy", "ios-both", "ios-parallel"]), st.booleans())
def test_plans_are_compared_as_they_run(network: Network, engine: str, scheduler: str, swapped: bool) -> None:
    stages = stages_of(network, engine, scheduler)
    pair: tuple[AnySchedule, AnySchedule] = (stages, streams_of(stages, network))[:: -1 if swapped else 1]
    found = diff_streams(*pair)
    assert found.same_prices
    assert found.cross is None
    for given_one, run, told, pairs in zip(pair, found.runs, (found.first, found.second), found.pairs, strict=True):
        latency_us = plan_us(given_one, network, stages)
        assert run.latency_us == pytest.approx(latency_us, rel=1e-9)
        assert told.latency_us == run.latency_us
        assert sum(run.path_us.values()) == pytest.approx(latency_us, rel=1e-6)
        assert pairs == beside(run)
    assert found.regrets is not None
    assert found.regrets[0] == pytest.approx(found.first.latency_us / found.second.latency_us - 1)
    assert {one.unit for one in found.units} == {unit.name for unit in network.units}
    for unit in found.units:
        assert set(unit.beside_first_alone).isdisjoint(unit.beside_second_alone)
        for one in unit.beside_second_alone:
            assert frozenset((unit.unit, one)) in found.pairs[1] - found.pairs[0]


def test_streams_by_other_numbers_are_the_same(network: Network) -> None:
    streams = streams_of(stages_of(network, "graph"), network)
    assert len(streams.streams) == 3
    numbers = streams.issue or [stream for stream, own in enumerate(streams.streams) for _ in own]
    assert set(numbers) == {0, 1, 2}
    swapped = streams.model_copy(
        update={
            "streams": [streams.streams[0], streams.streams[2], streams.streams[1]],
            "issue": [(0, 2, 1)[stream] for stream in streams.issue],
        }
    )
    found = diff_streams(streams, swapped)
    assert found.moved == []
    assert [one.second_stream for one in found.units] == [(0, 2, 1)[one.first_stream] for one in found.units]
    assert found.merged_alone == ([], [])


def test_a_unit_that_moves_is_told(network: Network) -> None:
    """The last unit of the network goes to a stream of its own, behind the one before it."""
    streams = streams_of(stages_of(network, "graph"), network)
    end = network.units[-1].name
    (own,) = (one for one in streams.streams if one[-1].units == [end])
    last = own[-1]
    moved = last.model_copy(update={"after": [*last.after, own[-2].units[-1]]})
    update = {"streams": [*(one[:-1] if one is own else one for one in streams.streams), [moved]], "issue": []}
    found = diff_streams(streams, streams.model_copy(update=update))
    assert found.moved == last.units
    assert [one.unit for one in found.units if one.changed] == last.units
    assert found.second.latency_us == found.first.latency_us  # in a graph it follows by an edge, in whatever stream


def test_setups_of_two_devices_and_batch_sizes_are_crossed(network: Network) -> None:
    there = iossim.load("squeezenet", batch=4)
    stages = stages_of(there, "graph", device="a100-sxm-40gb")
    streams = streams_of(stages_of(network, "graph"), network)
    found = diff_streams(stages, streams)
    assert not found.same_prices
    assert found.cross is not None
    moved = streams.model_copy(update={"graph_hash": there.graph.hash})
    assert found.cross.second_at_first_us == pytest.approx(plan_us(moved, there, stages))
    assert found.second.latency_us == pytest.approx(plan_us(streams, network, streams))
    back = diff_streams(streams, stages)
    assert back.cross is not None
    assert back.cross.first_at_second_us == pytest.approx(found.cross.second_at_first_us)
    assert back.regrets == pytest.approx(found.regrets[::-1] if found.regrets else None)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"engine": "partition"}, "engine partition divides stages"),
        ({"cost_model": "random:1"}, "priced by 'random', which prices stages alone"),
    ],
)
def test_a_setup_without_streams_is_told(network: Network, options: dict[str, str], reason: str) -> None:
    device = None if "cost_model" in options else "v100-sxm2"
    stages = iossim.optimize(network, device, **options)  # type: ignore[arg-type]
    streams = streams_of(stages_of(network, "graph"), network)
    found = diff_streams(stages, streams)
    assert found.cross is None
    assert found.regrets is None
    assert any(reason in unknown for unknown in found.unknown)
    assert found.first.latency_us == stages.latency_us
    assert found.runs[1].latency_us == pytest.approx(streams.latency_us)


def test_other_networks_are_refused(network: Network) -> None:
    other = stages_of(iossim.load("ios_sample"), "graph")
    with pytest.raises(ScheduleError, match="belong to different networks: unit 'a' is in the second one alone"):
        diff_streams(streams_of(stages_of(network, "graph"), network), other)


def test_schedules_of_either_kind_are_priced_at_another_batch_size(network: Network, tmp_path: Path) -> None:
    stages = stages_of(network, "graph")
    there = iossim.load("squeezenet", batch=4)
    for schedule in (stages, streams_of(stages, network)):
        schedule.save(tmp_path / "schedule.json")
        saved, loaded = api.read_any_schedule(tmp_path / "schedule.json", batch=4)
        assert loaded.graph.hash == there.graph.hash
        priced = iossim.simulate(saved, network=loaded)
        assert (priced.source.batch, priced.device) == (4, "v100-sxm2")
        moved = schedule.model_copy(update={"graph_hash": there.graph.hash})
        assert priced.latency_us == reprice_any(moved, there, prices_of(schedule)).latency_us
        assert priced.latency_us > schedule.latency_us
        assert iossim.simulate_events(saved, network=loaded).latency_us == pytest.approx(priced.latency_us, rel=0.05)
