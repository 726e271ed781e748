"""Commands of each engine between stages, where merged outputs lie; and schedules of streams as plans."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import small_networks
from checked_execution import execute
from command_line import printed
from graph_builders import builder_with
from hypothesis import given, settings
from hypothesis import strategies as st
from other_plans import boxed, plan_from_json
from plan_races import Races, accepted
from random_networks import (
    make_schedule,
    make_stage,
    one_block,
    random_inputs,
    random_network,
    random_schedule,
    random_streams,
    sequential_schedule,
)

import iossim
from iossim.backends.numpy_reference.backend import evaluate_graph, numpy_outputs
from iossim.backends.simulator.events import run_schedule
from iossim.base.errors import OptionError, ScheduleError
from iossim.execution.backend import Choice, Choices, backend_from, create_backend
from iossim.execution.engine import AUTO, UNDIVIDED, Engine
from iossim.execution.lower import lower_schedule
from iossim.execution.measured_run import output_difference
from iossim.execution.memory import check_happens_before, plan_memory
from iossim.execution.plan import Box, Launch, Plan, Record, Region, Synchronize, Wait, plan_to_json, repeat
from iossim.hardware.load import device
from iossim.ir.network import Network
from iossim.ir.ops.nary import Add
from iossim.ir.ops.unary import Relu
from iossim.models.load import load
from iossim.schedule.batch import Strategy
from iossim.schedule.schedule import BlockSchedule, Schedule
from iossim.schedule.streams import with_barriers


@pytest.fixture
def diamond() -> Network:
    return small_networks.diamond(3, 4, 2, 2, 3)


def spelled(plan: Plan) -> list[str]:
    """Commands as short words: ``b@1`` is a launch of b on stream 1."""
    words = []
    for command in plan.commands:
        match command:
            case Launch():
                words.append(f"{'+'.join(command.units)}@{command.queue}")
            case Record():
                words.append(f"record{command.event}@{command.queue}")
            case Wait():
                words.append(f"wait{command.event}@{command.queue}")
            case Synchronize():
                words.append("sync")
    return words


def parallel(network: Network) -> Schedule:
    """Schedule of the diamond that runs ``b`` and ``c`` concurrently."""
    return one_block(network, make_stage([["a"]]), make_stage([["b"], ["c"]]), make_stage([["d"]]))


def test_the_paper_engine_synchronises_around_stages_of_several_groups_and_a_graph_forks_and_joins(
    diamond: Network,
) -> None:
    assert spelled(lower_schedule(parallel(diamond), diamond)) == ["a@0", "sync", "b@0", "c@1", "sync", "d@0", "sync"]
    assert spelled(lower_schedule(parallel(diamond), diamond, "graph")) == [
        "a@0", "record0@0", "wait0@1", "b@0", "c@1", "record1@1", "wait1@0", "d@0", "sync",
    ]  # fmt: skip
    single = one_block(diamond, make_stage([["a", "b"]]), make_stage([["c"]]), make_stage([["d"]]))
    assert spelled(lower_schedule(single, diamond)) == ["a@0", "b@0", "c@0", "d@0", "sync"]


def test_the_paper_engine_s_rule_holds_across_blocks() -> None:
    b, x = builder_with("two blocks", x=(1, 2, 3, 3))
    with b.block("first"):
        left, right = b.conv(x, 2, name="l"), b.conv(x, 2, name="r")
    with b.block("second"):
        total = b.add(Add(), left, right, name="sum")
    network = b.network([b.add(Relu(), total, name="end")])
    blocks = [
        BlockSchedule(name="first", stages=[make_stage([["l"], ["r"]])]),
        BlockSchedule(name="second", stages=[make_stage([["sum"]])]),
        BlockSchedule(name="end", stages=[make_stage([["end"]])]),
    ]
    plan = lower_schedule(make_schedule(network, blocks), network)
    assert spelled(plan) == ["l@0", "r@1", "sync", "sum@0", "end@0", "sync"]


def test_merged_outputs_are_slices_of_one_buffer(diamond: Network) -> None:
    schedule = one_block(diamond, make_stage([["a"]]), make_stage([["c", "b"]], "merge"), make_stage([["d"]]))
    plan = lower_schedule(schedule, diamond)
    assert spelled(plan) == ["a@0", "c+b@0", "d@0", "sync"]
    launch = plan.launches[1]
    assert (launch.strategy, launch.reads, launch.writes) == (Strategy.MERGE, ("a",), ("merged:c+b",))
    assert plan.region("c") == Region("merged:c+b", Box((0, 0, 0, 0), (1, 3, 4, 4)))
    assert plan.region("b") == Region("merged:c+b", Box((0, 3, 0, 0), (1, 2, 4, 4)))
    assert plan.buffers["merged:c+b"].type.shape == (1, 5, 4, 4)
    assert (plan.buffers["merged:c+b"].bytes, plan.buffers["b"].bytes) == (320, 0)


def test_what_a_plan_says_of_itself(diamond: Network) -> None:
    plan = lower_schedule(parallel(diamond), diamond)
    assert (plan.inputs, plan.outputs, plan.graph_hash) == (("x",), ("d",), diamond.graph.hash)
    assert plan.queues == (0, 1)
    assert [launch.reads for launch in plan.launches] == [("x",), ("a",), ("a",), ("b", "c")]
    assert plan.region("x") == Region("x", Box.whole(diamond.graph.types["x"].shape))


def test_a_schedule_that_does_not_fit_is_not_lowered(diamond: Network) -> None:
    with pytest.raises(ScheduleError, match="'b' \\(and 2 more\\) is in no stage"):
        lower_schedule(one_block(diamond, make_stage([["a"]])), diamond)


def test_groups_of_a_divided_stage_have_sms_of_their_own(diamond: Network) -> None:
    schedule = parallel(diamond)
    asked: list[tuple[list[list[int]], dict[str, str]]] = []

    def divided(groups: Sequence[Sequence[int]], variants: Mapping[str, str]) -> tuple[range, ...]:
        asked.append(([list(group) for group in groups], dict(variants)))
        return range(4), range(4, 10)

    plan = lower_schedule(schedule, diamond, "partition", divided=divided)
    assert asked == [([[1], [2]], {})]
    assert [launch.sms for launch in plan.launches] == [None, range(4), range(4, 10), None]
    assert str(plan.launches[1]) == "b on queue 0 (SMs 0-3)"
    check_happens_before(plan)
    assert plan_from_json(plan_to_json(plan)).commands == plan.commands
    left_open = lower_schedule(schedule, diamond, "partition")
    assert left_open.commands == lower_schedule(schedule, diamond, "graph").commands
    assert lower_schedule(schedule, diamond, "graph", divided=divided).commands == left_open.commands


def test_groups_on_the_same_sms_run_one_after_another(diamond: Network) -> None:
    both = range(4), range(4)
    plan = lower_schedule(parallel(diamond), diamond, "partition", divided=lambda groups, variants: both)
    assert {launch.queue for launch in plan.launches} == {0}
    check_happens_before(plan)


@pytest.mark.parametrize("sms", [(range(4), range(3, 8)), (range(4), None)])
def test_what_may_run_at_once_shares_no_sms(diamond: Network, sms: tuple[range | None, range | None]) -> None:
    of_unit = dict(zip("bc", sms, strict=True))
    plan = lower_schedule(parallel(diamond), diamond, "graph")
    commands = tuple(
        replace(command, sms=of_unit.get(command.units[0])) if isinstance(command, Launch) else command
        for command in plan.commands
    )
    with pytest.raises(ScheduleError, match=r"c on queue 1.* and b on queue 0.* may run at once and share SMs"):
        check_happens_before(replace(plan, commands=commands))


ROOT = Path(__file__).parents[2]


def test_engines_that_cannot_be(diamond: Network) -> None:
    streams = random_streams(diamond, 0)
    for name in ("", "graphs", "Paper"):
        known = rf"unknown engine '{name}'; .*known: auto, graph, onnxruntime, paper, partition"
        with pytest.raises(OptionError, match=known):
            lower_schedule(streams, diamond, name)
    with pytest.raises(OptionError, match="divides stages, and this schedule has streams"):
        lower_schedule(streams, diamond, "partition")
    assert create_backend("numpy_reference", engine=Engine.PARTITION).context.engine == "partition"
    for name in ("onnxruntime_cpu", "torch_cuda"):  # whatever else they lack
        with pytest.raises(OptionError, match=r"cannot run `engine` partition; give paper or graph$"):
            create_backend(name, engine=Engine.PARTITION)


@pytest.mark.parametrize(
    ("name", "engine"),
    [("v100-sxm2", "paper"), ("t4", "paper"), ("k80", "paper"), ("a30", "graph"), ("l4", "graph"), ("h100-sxm", "graph"),
     ("rtx-5090", "graph"), ("examples/cpu.yaml", "paper")],
)  # fmt: skip
def test_auto_is_one_graph_from_ampere_on(name: str, engine: str) -> None:
    profile = device(str(ROOT / name) if "/" in name else name)
    assert Engine.named(AUTO, profile) == engine
    if "/" not in name:
        assert backend_from("simulator", engine=AUTO, device=name).context.engine == engine


@pytest.mark.parametrize(("name", "engine"), [("t4", "paper"), ("l4", "graph")])
def test_auto_of_functions(name: str, engine: str) -> None:
    network = iossim.load("ios_sample")
    found = iossim.optimize(network, name)
    assert found.engine == engine
    assert found.latency_us == iossim.optimize(network, name, engine=engine).latency_us
    compared = iossim.compare(network, name, schedulers=["sequential"])
    assert compared.engine == compared.to_json()["engine"] == engine
    assert f"{engine} engine" in compared.title
    assert iossim.predict("ios_sample", name).engine == engine
    assert iossim.simulate(found, name, engine=AUTO).latency_us == iossim.simulate(found, name).latency_us


@pytest.mark.parametrize("command", ["optimize", "compare", "predict"])
def test_commands_say_which_engine_auto_is(command: str) -> None:
    for name, engine in (("t4", "paper"), ("l4", "graph")):
        assert f"{engine} engine" in printed(f"{command} ios_sample -d {name}").splitlines()[0]


def test_auto_without_a_device_is_the_engine_of_the_paper() -> None:
    assert Engine.named(AUTO) is Engine.PAPER
    assert backend_from("numpy_reference", engine=AUTO).context.engine == "paper"
    assert iossim.optimize("ios_sample", None, cost_model="random:1").engine == ""


SEEDS = st.integers(0, 2**20)
ENGINES = st.sampled_from(UNDIVIDED)
V100 = device("v100-sxm2")


@settings(max_examples=25)
@given(SEEDS, SEEDS, ENGINES, st.booleans())
def test_plans_are_saved(drawn: int, seed: int, engine: Engine, in_place: bool) -> None:
    network = random_network(drawn, movers=True)
    choices: Choices = lambda units, *_: Choice("some", 100 * len(units))  # noqa: E731
    plan = lower_schedule(random_schedule(network, seed), network, engine, in_place=in_place, choices=choices)
    for one in (plan, plan_memory(plan), boxed(plan, seed), repeat(plan, 2, False)):
        back = plan_from_json(plan_to_json(one))
        for field in fields(Plan):
            assert getattr(back, field.name) == getattr(one, field.name), field.name


@given(SEEDS, SEEDS, ENGINES, st.booleans(), st.booleans())
def test_streams_compute_what_the_graph_does(
    drawn: int, seed: int, engine: Engine, in_place: bool, were_stages: bool
) -> None:
    network = random_network(drawn, movers=in_place)
    schedule = with_barriers(random_schedule(network, seed)) if were_stages else random_streams(network, seed)
    lowered = lower_schedule(schedule, network, engine, in_place=in_place)
    check_happens_before(lowered)
    for mutilated, is_race in Races(lowered).mutations():
        assert accepted(mutilated) == (not is_race)
    plan = plan_memory(lowered)
    check_happens_before(plan)
    inputs = random_inputs(network)
    expected = evaluate_graph(network.graph, inputs)
    for name, array in execute(plan, network, inputs, seed).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-5)


@given(SEEDS, SEEDS, st.booleans())
def test_no_wait_of_a_stream_is_implied_by_others(drawn: int, seed: int, in_place: bool) -> None:
    """Though the schedule names all that is read, and values that lie in place are made by no launch."""
    network = random_network(drawn, movers=in_place)
    plan = lower_schedule(random_streams(network, seed), network, Engine.PAPER, in_place=in_place)
    assert all(is_race for _, is_race in Races(plan).mutations())


@settings(max_examples=20)
@given(SEEDS, SEEDS)
def test_stages_and_the_streams_that_they_are_launch_alike(drawn: int, seed: int) -> None:
    network = random_network(drawn, movers=True)
    stages = random_schedule(network, seed)
    plans = [lower_schedule(one, network, in_place=True) for one in (stages, with_barriers(stages))]
    assert plans[0].launches == plans[1].launches
    assert plans[0].buffers == plans[1].buffers


@pytest.mark.parametrize("engine", UNDIVIDED)
def test_the_event_driven_engine_prices_streams(engine: Engine) -> None:
    network = load("inception_v3")
    stages = sequential_schedule(network)
    alike = with_barriers(stages)
    # A single stream has nothing to wait for: the same launches in the same order.
    assert run_schedule(network, alike, V100, engine=engine).latency_us == pytest.approx(
        run_schedule(network, stages, V100, engine=engine).latency_us
    )
    freely = run_schedule(network, random_streams(network, 0), V100, engine=engine)
    one_by_one = run_schedule(network, stages, V100, engine=engine)
    assert {span.unit for span in freely.spans} == {span.unit for span in one_by_one.spans}
    assert len({span.stream for span in freely.spans}) == 3


@pytest.mark.parametrize("backend", ["numpy_reference", "onnxruntime_cpu"])
def test_backends_run_streams(backend: str) -> None:
    for seed in range(4):
        network = random_network(seed, movers=True)
        for engine in UNDIVIDED:
            runner = create_backend(backend, engine=engine)
            assert output_difference(network, random_streams(network, seed), runner, numpy_outputs).relative < 1e-4
