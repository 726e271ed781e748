"""Two schedules of one network, by stages and as plans: what was merged, split, joined and moved, and what that is worth."""

import json
from itertools import combinations
from pathlib import Path

import pytest
from command_line import printed, printed_json, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_models import write_onnx
from random_networks import random_schedule

import iossim
from iossim import api
from iossim.base.errors import ScheduleError
from iossim.cost.capabilities import StreamCostModel
from iossim.cost.random import RandomCostModel
from iossim.execution.lower import lower_schedule
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.slice import Concat
from iossim.ir.ops.unary import Relu
from iossim.models.random_graphs import seeded_network
from iossim.report.diff_words import diff_lines, diff_tables
from iossim.schedule.batch import Strategy
from iossim.schedule.schedule import AnySchedule, BlockSchedule, Schedule, Stage, StreamSchedule
from iossim.schedule.streams import as_streams
from iossim.search.assemble import reprice_any, reprice_streams
from iossim.tasks.own_prices import own_prices
from iossim.tasks.schedule_diff import Change, diff
from iossim.tasks.stream_diff import diff_streams
from iossim.tasks.stream_explain import StreamExplanation
from iossim.tasks.task import slower_as_plan, under_other_engine


def made(*stages: str, merged: tuple[str, ...] = ()) -> Schedule:
    """A schedule of stages such as ``ab|c``, each letter a unit; those in ``merged`` merge."""
    parts = [
        Stage(
            strategy="merge" if stage in merged else "concurrent",
            groups=[list(group) for group in stage.split("|")],
            latency_us=10.0 + index,
        )
        for index, stage in enumerate(stages)
    ]
    return Schedule(
        network="made",
        source={"model": "made", "batch": 1},  # type: ignore[arg-type]
        graph_hash="0",
        device="table",
        precision="fp32",
        engine="",
        cost_model={"name": "table"},
        scheduler="made",
        latency_us=sum(part.latency_us for part in parts),
        blocks=[BlockSchedule(name="all", stages=parts)],
    )


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (made("a", "bc"), made("a", "bc"), [("same", (0,), (0,)), ("same", (1,), (1,))]),
        (made("a|b", "c"), made("a", "b", "c"), [("split", (0,), (0, 1)), ("same", (1,), (2,))]),
        (made("a", "b", "c"), made("a", "b|c"), [("same", (0,), (0,)), ("joined", (1, 2), (1,))]),
        (made("a|b", "c"), made("ab", "c", merged=("ab",)), [("merged", (0,), (0,)), ("same", (1,), (1,))]),
        (made("a", "b"), made("ab", merged=("ab",)), [("merged", (0, 1), (0,))]),
        (made("ab", merged=("ab",)), made("a", "b"), [("unmerged", (0,), (0, 1))]),
        (made("a|b", "c|d"), made("a|c", "b|d"), [("rearranged", (0, 1), (0, 1))]),
    ],
)
def test_changes(first: Schedule, second: Schedule, expected: list[object]) -> None:
    found = diff(first, second).passages
    assert [(str(each.change), each.first_stages, each.second_stages) for each in found] == expected


def test_what_is_told_of_tables() -> None:
    # Of a|b|c, d the first stage keeps a and b, and c goes to the second.
    assert diff(made("a|b|c", "d"), made("a|b", "c|d")).moved == ["c"]
    assert diff(made("a", "b", "c"), made("c", "a", "b")).moved == ["c"]
    found = diff(made("a", "b"), made("a|b"))
    assert (found.same_prices, found.tie, found.cross) == (True, None, None)
    assert found.unknown == ("the noise, which is known for simulated latencies only",)
    (passage,) = found.passages
    assert (passage.first_us, passage.second_us) == (21, 10)


@pytest.fixture(scope="module")
def by_joins() -> dict[str, Schedule]:
    """Schedules of SqueezeNet on a T4, with no sum fused into a convolution, and with three of four; and at batch 4."""
    found = {name: iossim.optimize("squeezenet", "t4", scheduler=name) for name in ("greedy", "ios-both")}
    return found | {"batch": iossim.optimize(iossim.load("squeezenet", batch=4), "t4", scheduler="sequential")}


def test_units_that_differ_are_compared_by_what_both_have_in_common(by_joins: dict[str, Schedule]) -> None:
    first, second = by_joins["greedy"], by_joins["ios-both"]
    units = [{unit for stage in one.stages for unit in stage.units} for one in (first, second)]
    assert units[0] != units[1]
    found = diff(first, second)
    alone = [["+".join(parts) for parts in each] for each in found.to_json()["units_alone"]]
    # A unit of several parts is an add and the convolution before it, each a unit of the other schedule.
    assert sorted(map(len, alone)) == [0, len(units[0] ^ units[1])] == [0, 1]
    assert {unit.split("+")[1] for each in alone for unit in each} <= {f"fire{number}.add" for number in (2, 4, 6, 8)}
    for one, stages in ((first, "first_stages"), (second, "second_stages")):
        assert [number for each in found.passages for number in getattr(each, stages)] == list(range(len(one.stages)))
    assert sum(each.second_us - each.first_us for each in found.passages) == pytest.approx(
        second.latency_us - first.latency_us
    )
    assert found.tie is False
    text = "\n".join(diff_lines(found))
    assert f"alone: 1 ({[*alone[0], *alone[1]][0]})" in text
    # A stage of the same ops is another one where these are fused otherwise.
    found = diff(stage_by_block(first), stage_by_block(second))
    changes = [str(each.change) for each in found.passages]
    assert changes == ["same"] * 8 + ["other units"] + ["same"] * (len(first.blocks) - 9)
    for whole, shown in ((False, ["other units", ""]), (True, changes)):
        (table,) = diff_tables(found, whole)
        assert [*map(str, table.columns[1].cells)] == [*shown, ""]


def stage_by_block(schedule: Schedule) -> Schedule:
    blocks = []
    for block in schedule.blocks:
        whole = {"groups": [[unit for stage in block.stages for unit in stage.units]], "strategy": Strategy.CONCURRENT}
        blocks.append(block.model_copy(update={"stages": [block.stages[0].model_copy(update=whole)]}))
    return schedule.model_copy(update={"blocks": blocks})


def test_units_that_differ_run_where_the_other_belongs(by_joins: dict[str, Schedule]) -> None:
    best, there = by_joins["ios-both"], by_joins["batch"]
    found = diff(best, there)
    assert found.cross is not None
    assert any(found.to_json()["units_alone"])
    moved, network = api.at_batch(best, 4)
    assert found.cross.first_at_second_us == pytest.approx(iossim.simulate(moved, "t4", network=network).latency_us)
    streams = streams_of(best, api.at_batch(best, 1)[1])
    by_plans = diff_streams(there, streams)
    assert by_plans.cross is not None
    assert {one.unit for one in by_plans.units} == {part for parts in by_plans.parts[0].values() for part in parts}
    assert len(by_plans.units) == len({unit for stage in there.stages for unit in stage.units} | {
        unit for launch in streams.launches for unit in launch.units})  # fmt: skip


@settings(max_examples=20)
@given(st.integers(0, 999), st.integers(0, 99), st.integers(0, 99))
def test_passages_hold_every_stage_of_both_once(seed: int, first_seed: int, second_seed: int) -> None:
    network = seeded_network(seed)
    first = random_schedule(network, first_seed).model_copy(update={"cost_model": {"name": "random"}})
    second = random_schedule(network, second_seed).model_copy(update={"cost_model": {"name": "random"}})
    found = diff(first, second)
    assert [number for each in found.passages for number in each.first_stages] == list(range(len(first.stages)))
    assert [number for each in found.passages for number in each.second_stages] == list(range(len(second.stages)))
    for each in found.passages:
        ours = {unit for number in each.first_stages for unit in first.stages[number].units}
        assert ours == {unit for number in each.second_stages for unit in second.stages[number].units}
        assert set(each.moved) <= ours
    assert sum(each.first_us for each in found.passages) == pytest.approx(first.latency_us)
    back = diff(second, first)
    assert [each.second_stages for each in back.passages] == [each.first_stages for each in found.passages]
    assert not [each for each in diff(first, first).passages if each.change is not Change.SAME]


def test_on_one_device_the_noise_decides() -> None:
    network = iossim.load("ios_sample")
    best = iossim.optimize(network, "v100-sxm2")
    one_by_one = iossim.optimize(network, "v100-sxm2", scheduler="sequential")
    assert diff(best, best).tie is True
    assert (diff(best, best).decided_otherwise, diff(best, best).regrets) == ((0, 0), (0.0, 0.0))
    found = diff(best, one_by_one)
    assert found.tie is False
    assert found.decided_otherwise == (len(best.stages) - 1, len(one_by_one.stages) - 1)
    assert found.regrets == pytest.approx(
        (best.latency_us / one_by_one.latency_us - 1, one_by_one.latency_us / best.latency_us - 1)
    )


def test_where_prices_differ_each_runs_where_the_other_belongs() -> None:
    one = iossim.optimize("ios_sample", "v100-sxm2")
    other = iossim.optimize(iossim.load("ios_sample", batch=32), "t4", scheduler="greedy")
    found = diff(one, other)
    assert not found.same_prices
    assert found.cross is not None
    # The first one is optimal where it was made; at its own place nothing is faster.
    assert found.cross.second_at_first_us >= one.latency_us * (1 - 1e-9)
    again = iossim.simulate(one.model_copy(update={"graph_hash": other.graph_hash, "source": other.source}), "t4")
    assert found.cross.first_at_second_us == pytest.approx(again.latency_us)
    assert found.regrets is not None
    assert found.regrets[0] == pytest.approx(again.latency_us / other.latency_us - 1)
    assert found.regrets[1] >= -1e-9


@pytest.mark.parametrize(("engine", "other"), [("paper", "graph"), ("graph", "paper")])
def test_it_is_what_that_engine_says(engine: str, other: str) -> None:
    network, pruned = iossim.load("squeezenet"), api.search_options("general", 3, 8)
    prices = api.cost_model("simulator", "h100-sxm", engine=engine)
    found = iossim.optimize(network, None, engine=engine, cost_model=prices)
    there = under_other_engine(network, found, prices)
    assert there is not None
    assert there.engine == other
    assert there.same_schedule_us == iossim.simulate(found, "h100-sxm", engine=other).latency_us
    best, plain = (
        iossim.optimize(network, "h100-sxm", engine=other, scheduler=name, options=pruned).latency_us
        for name in ("ios-both", "sequential")
    )
    assert there.best_us == min(best, there.same_schedule_us)
    assert there.sequential_us == plain


def test_another_engine_searches_stages_and_other_prices_have_none() -> None:
    network, prices = iossim.load("ios_sample"), api.cost_model("simulator", "h100-sxm", engine="graph")
    stages = iossim.optimize(network, None, cost_model=prices)
    kept = stages.model_copy(update={"scheduler": "ios-streams"})  # no streams were faster
    assert under_other_engine(network, kept, prices) == under_other_engine(network, stages, prices)
    assert under_other_engine(network, stages, RandomCostModel()) is None
    # The same schedule is the best if the search there finds none better.
    there = under_other_engine(network, stages, prices, api.search_options(max_group_size=1, max_groups=1))
    assert there is not None
    assert there.best_us == there.same_schedule_us < there.sequential_us


def test_a_schedule_that_the_lead_of_the_host_makes_slower_than_sequential_says_so() -> None:
    """A convolution hides the host's time for the short units behind it: no sum of stages has that."""
    b = GraphBuilder("made")
    b.input("x", (1, 128, 28, 28))
    short = b.input("s", (1, 8, 28, 28))
    with b.block("only"):
        left = b.conv("x", 128, kernel=3, padding=1)
        for _ in range(3):
            short = b.add(Relu(), short)
        joined = b.add(Concat(), left, short)
    network, prices = b.network([joined]), api.cost_model("simulator", "v100-sxm2", engine="paper")
    made = iossim.compare(network, None, cost_model=prices)
    assert made.best.latency_us < made["sequential"].latency_us
    (said,) = slower_as_plan(network, made.best, prices)
    assert f"note: {said}" in str(made)
    alone_us, best_us = (
        iossim.simulate_events(one, network=network).latency_us for one in (made["sequential"], made.best)
    )
    assert f"sequential takes {alone_us / 1e3:.3f} ms" in said
    assert alone_us < best_us
    assert said in iossim.optimize(network, None, cost_model=prices, scheduler=made.best.scheduler).remarks
    assert slower_as_plan(network, made["sequential"], prices) == []
    on_graph = api.cost_model("simulator", "v100-sxm2", engine="graph")
    assert slower_as_plan(network, iossim.optimize(network, None, cost_model=on_graph), on_graph) == []


def test_a_network_of_views_takes_no_time_anywhere(tmp_path: Path) -> None:
    """Found by a fuzz: every ratio of latencies was a division by zero."""
    write_onnx(tmp_path / "views.onnx", "y = Flatten (x)", {"x": [2, 3, 4]})
    kept, plain = tmp_path / "kept", f"{tmp_path / 'views.onnx'} -d v100-sxm2"
    told = printed_json(f"compare {plain} --json")
    assert told["other_engine"] is None
    assert {(each["latency_us"], each["speedup"]) for each in told["schedules"]} == {(0.0, 1.0)}
    assert printed_json(f"optimize {plain} --json")["latency_us"] == 0.0
    told = printed_json(f"optimize {plain} --scheduler ios-streams --out {kept} --json")
    assert (told["latency_us"], told["scheduler"]) == (0.0, "ios-streams")
    assert printed_json(f"diff {kept}/schedule.json {kept}/schedule.json --json")["regrets"] == [0.0, 0.0]
    beside = f"coschedule {tmp_path / 'views.onnx'} squeezenet -d a100-sxm-40gb"
    (tmp_path / "requests.csv").write_text("time_ms,model\n0,views\n5,squeezenet\n5,views\n")
    told = printed_json(f"{beside} --objective latency --arrivals {tmp_path / 'requests.csv'} --json")
    assert {way["ends_us"]["views"] for way in told["ways"]} == {0.0}
    assert len(told["served"]) == 3
    assert "the models take no time" in refused(f"coschedule {plain} --arrivals poisson")


def test_a_network_that_gains_nothing_on_streams_is_told_what_a_graph_gains() -> None:
    """Found by a new user: on an H100 nothing in GoogLeNet's kind was worth running side by side, unless as one graph."""
    told = printed_json("compare inception_v3 -d h100 --engine paper -r 3 -s 8 --json")["other_engine"]
    assert told["engine"] == "graph"
    assert told["sequential_us"] / told["best_us"] > 1.5
    said = printed("compare inception_v3 -d h100 --engine paper -r 3 -s 8").splitlines()
    (line,) = (one for one in said if one.startswith("With --engine graph it takes "))
    assert f"{told['best_us'] / 1e3:.3f} ms" in line
    remarks = json.loads(printed("optimize inception_v3 -d h100 --engine paper -r 3 -s 8 --json"))["remarks"]
    assert remarks == [line]


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
    other = (0, 2, 1)
    update = {"streams": [streams.streams[number] for number in other], "issue": [other[one] for one in streams.issue]}
    found = diff_streams(streams, streams.model_copy(update=update))
    assert found.moved == []
    assert [one.second_stream for one in found.units] == [other[one.first_stream] for one in found.units]
    assert found.merged_alone == ([], [])


def test_of_streams_that_become_one_the_units_of_all_but_the_longest_have_moved(network: Network) -> None:
    streams = streams_of(stages_of(network, "graph"), network)
    longest = max(streams.streams, key=len)
    moved = {unit for own in streams.streams if own is not longest for launch in own for unit in launch.units}
    assert set(diff_streams(streams, as_streams(streams, network, 1)).moved) == moved != set()


def test_a_unit_that_moves_is_told(network: Network) -> None:
    """The last unit of the network goes to a stream of its own, after the one before it."""
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
