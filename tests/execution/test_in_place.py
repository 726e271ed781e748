"""Which units move nothing, and where values lie for that."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from checked_execution import execute
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import make_stage, one_block, random_inputs, random_network, random_schedule

from iossim.api import optimize
from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.base.errors import ScheduleError
from iossim.execution.in_place import Slot, in_place_buffers
from iossim.execution.lower import lower_schedule, lower_stage
from iossim.execution.memory import check_happens_before, plan_memory
from iossim.execution.plan import Box, Copy, Launch, Plan, Region, Synchronize, repeat
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.reshape import Reshape
from iossim.ir.ops.slice import Concat, Slice, Split
from iossim.ir.ops.unary import Relu
from iossim.ir.types import DType, TensorType
from iossim.models.load import load
from iossim.schedule.batch import Strategy

SEEDS = st.integers(0, 2**20)


def network_of(build: Callable[[GraphBuilder], list[str]], batch: int = 1) -> Network:
    b = GraphBuilder("made")
    b.input("x", (batch, 4, 3, 3))
    with b.block("only"):
        outputs = build(b)
    return b.network(outputs)


def fire(b: GraphBuilder) -> list[str]:
    """Two convolutions of one input, and their concat."""
    left, right = b.conv("x", 2, name="left"), b.conv("x", 3, kernel=3, padding=1, name="right")
    return [b.add(Concat(), left, right, name="cat")]


def channels(storage: str, begin: int, end: int, batch: int = 1) -> Region:
    """Channels of a storage of 3x3 images."""
    return Region(storage, Box((0, begin, 0, 0), (batch, end - begin, 3, 3)))


def channel(value: str, begin: int) -> Slot:
    return Slot(value, (0, begin, 0, 0))


def launched(plan: Plan) -> list[str]:
    return [str(command) for command in plan.commands if isinstance(command, Launch | Copy)]


def index(network: Network, *names: str) -> list[int]:
    return [network.unit_index[name] for name in names]


def test_terms_are_written_into_the_concat() -> None:
    network = network_of(fire)
    schedule = one_block(network, make_stage([["left"], ["right"]]), make_stage([["cat"]]))
    plan = lower_schedule(schedule, network, in_place=True)
    assert launched(plan) == ["left on queue 0", "right on queue 1"]
    assert (plan.region("left"), plan.region("right")) == (channels("cat", 0, 2), channels("cat", 2, 5))
    assert [storage.name for storage in plan.storages] == ["x", "cat"]
    # One synchronise: the stage of the concat holds no work that had to be kept apart.
    assert sum(isinstance(command, Synchronize) for command in plan.commands) == 1


def test_a_merged_convolution_writes_into_the_concat_if_the_order_is_the_same() -> None:
    network = network_of(fire)

    def merged(*names: str) -> Plan:
        stages = make_stage([list(names)], "merge"), make_stage([["cat"]])
        return lower_schedule(one_block(network, *stages), network, in_place=True)

    together = merged("left", "right")
    assert launched(together) == ["left+right on queue 0"]
    assert together.region("merged:left+right") == channels("cat", 0, 5)
    swapped = merged("right", "left")
    assert launched(swapped) == [
        "right+left on queue 0",
        "the copy of 'right@merged:right+left' to 'right' on queue 0",
        "the copy of 'left@merged:right+left' to 'left' on queue 0",
    ]
    types, placed = network.graph.types, in_place_buffers(network)
    assert placed.copies(index(network, "right", "left")) == (types["right"], types["left"])
    inputs = random_inputs(network)
    expected = evaluate_graph(network.graph, inputs)["cat"]
    for plan in (together, swapped):
        np.testing.assert_allclose(execute(plan_memory(plan), network, inputs)["cat"], expected, rtol=1e-5, atol=1e-5)


def test_units_inside_values_of_other_ranks_are_not_adjacent() -> None:
    """A convolution that follows, as a unit, a part of rows."""

    def build(b: GraphBuilder) -> list[str]:
        rows = b.add(Relu(), b.input("rows", (4, 16)), name="whole")
        first, second = b.add_all(Split(1, (8, 8)), rows, name="part")
        cat = b.add(Concat(), b.conv("x", 8, name="left"), b.conv("x", 8, name="right"), name="cat")
        return [first, second, cat]

    network = network_of(build)
    buffers = in_place_buffers(network)
    places = [buffers.merging(unit) for unit in index(network, "left", "right")]
    assert places == ["at:(0, 0, 0, 0)", "follows"]


def test_what_cannot_be_in_place_is_copied() -> None:
    def build(b: GraphBuilder) -> list[str]:
        left = b.conv("x", 2, name="left")
        first = b.add(Concat(), left, "x", left, name="first")  # an input of the network, and a value twice
        return [first, b.add(Concat(), first, left, name="second")]  # a concat in a concat, and a value in two

    network = network_of(build)
    placement = in_place_buffers(network)
    assert placement.slots == {"left": channel("first", 0), "first": channel("second", 0)}
    assert placement.slot("left") == channel("second", 0)
    first, second = index(network, "first", "second")
    assert placement.moves == {
        first: (("x", channel("first", 2)), ("left", channel("first", 6))),
        second: (("left", channel("second", 8)),),
    }
    assert placement.signature(first) == "copies:1,0"
    assert placement.signature(network.unit_index["left"]) == ""
    plan = lower_stage(network, [index(network, "left", "first", "second")], Strategy.CONCURRENT, in_place=True)
    assert launched(plan) == [
        "left on queue 0",
        "the copy of 'x' to 'x@first:0,2,0,0' on queue 0",
        "the copy of 'left' to 'left@first:0,6,0,0' on queue 0",
        "the copy of 'left' to 'left@second:0,8,0,0' on queue 0",
    ]
    assert {plan.region(name) for name in ("x@first:0,2,0,0", "left@first:0,6,0,0", "left@second:0,8,0,0")} == {
        channels("second", 2, 6), channels("second", 6, 8), channels("second", 8, 10)
    }  # fmt: skip


@pytest.mark.parametrize("rows", [1, 16])
def test_views_by_themselves_are_copied_into_a_concat(rows: int) -> None:
    """As a stack of values that a concat has already: whether or not the copy has gaps."""

    def build(b: GraphBuilder) -> list[str]:
        parts = [b.add(Relu(), b.input(name, (rows, 32)), name=f"{name}r") for name in ("a", "b")]
        views = [b.add(Reshape((rows, 1, 32)), part, name=f"{part}v") for part in parts]
        alone = b.add(Reshape((rows, 8, 4)), parts[0], name="alone")
        return [b.add(Concat(1), *parts, name="cat"), b.add(Concat(1), *views, name="stack"), b.add(Relu(), alone)]

    network = network_of(build)
    placement = in_place_buffers(network)
    seen, alone = index(network, "arv", "brv"), network.unit_index["alone"]
    for unit in seen:
        assert placement.copies([unit]) == (TensorType((rows, 1, 32), DType.FLOAT32),)
        assert placement.signature(unit).startswith("copies")
    assert not placement.copies([alone])
    stages = optimize(network, "t4", engine="graph", scheduler="sequential").stages
    us = {stage.groups[0][0]: stage.latency_us for stage in stages}
    assert us["arv"] == us["brv"] > 1 > us["alone"] == us["stack"] == 0


def test_splits_and_slices_are_views() -> None:
    def build(b: GraphBuilder) -> list[str]:
        y = b.conv("x", 6, name="y")
        parts = b.add_all(Split(1, (2, 4)), y, name="split")
        tail = b.add(Slice((-2,), (100,), (1,), (1,)), parts[1], name="tail")
        return [b.conv(parts[0], 1, name="a"), b.conv(tail, 1, name="b")]

    network = network_of(build, batch=2)
    placement = in_place_buffers(network)
    assert placement.slot("tail") == channel("y", 4)
    assert placement.signature(network.unit_index["b"]) == "strided:0"
    plan = lower_stage(network, [index(network, "y", "split", "tail", "a", "b")], Strategy.CONCURRENT, in_place=True)
    assert launched(plan) == ["y on queue 0", "a on queue 0", "b on queue 0"]
    assert (plan.region("split.0"), plan.region("tail")) == (channels("y", 0, 2, batch=2), channels("y", 4, 6, batch=2))


@pytest.mark.parametrize("queries", [16, 15])
def test_parts_of_rows_are_views_where_they_are_aligned(queries: int) -> None:
    b = GraphBuilder("attention")
    projections = b.add(MatMul(), b.input("x", (1, 6, 8)), b.constant("w", (8, 32)), name="projections")
    q, k = b.add_all(Split(2, (queries, 32 - queries)), projections, name="split")
    network = b.network([b.add(Relu(), q, name="q"), b.add(Relu(), k, name="k")])
    plan = lower_stage(network, [index(network, "projections", "split", "q", "k")], Strategy.CONCURRENT, in_place=True)
    moved = ["projections on queue 0", "q on queue 0", "k on queue 0"]
    assert launched(plan) == (moved if queries == 16 else [moved[0], "split on queue 0", *moved[1:]])
    placed = in_place_buffers(network)
    assert placed.signature(network.unit_index["k"]) == ("strided:0" if queries == 16 else "")
    if queries == 16:
        assert plan.region("split.1") == Region("projections", Box((0, 0, 16), (1, 6, 16)))


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda b: [b.add(Concat(2), b.conv("x", 2, name="a"), b.conv("x", 2, name="b"))], id="rows"),
        pytest.param(lambda b: [b.add(Slice((0,), (4,), (1,), (2,)), b.conv("x", 4, name="a"))], id="every other"),
        pytest.param(lambda b: [b.add(Slice((0,), (2,), (3,), (1,)), b.conv("x", 4, name="a"))], id="columns"),
        pytest.param(
            lambda b: [b.add(Concat(), b.conv("x", 2, name="a"), b.constant("w", (1, 1, 3, 3)))], id="with a weight"
        ),
    ],
)
def test_other_moves_are_work(build: Callable[[GraphBuilder], list[str]]) -> None:
    network = network_of(build)
    assert in_place_buffers(network).slots == {}
    assert in_place_buffers(network).moves == {}


def test_a_stage_by_itself() -> None:
    """Inputs and outputs of a stage are the values that pass its border, in place in what they are parts of."""
    network = network_of(fire, batch=2)
    plan = lower_stage(network, [index(network, "left"), index(network, "right")], Strategy.CONCURRENT, in_place=True)
    assert (plan.inputs, plan.outputs) == (("x",), ("left", "right"))
    assert plan.region("right") == channels("cat", 2, 5, batch=2)
    only_cat = lower_stage(network, [index(network, "cat")], Strategy.CONCURRENT, in_place=True)
    assert (only_cat.inputs, only_cat.outputs, launched(only_cat)) == (("left", "right"), ("cat",), [])
    merged = lower_stage(network, [index(network, "left", "right")], Strategy.MERGE, in_place=True)
    assert launched(merged) == ["left+right on queue 0"]
    with pytest.raises(ScheduleError, match="a merged stage has one group, not 2"):
        lower_stage(network, [index(network, "left"), index(network, "right")], Strategy.MERGE)


@settings(max_examples=20)
@given(SEEDS, SEEDS, st.sampled_from(["paper", "graph"]), st.booleans(), st.integers(1, 3))
def test_stages_by_themselves_and_repeated_compute_what_the_graph_does(
    drawn: int, chosen: int, engine: str, in_place: bool, copies: int
) -> None:
    network = random_network(drawn, movers=True)
    inputs = random_inputs(network)
    values = evaluate_graph(replace(network.graph, outputs=tuple(network.graph.types)), inputs)
    for stage in random_schedule(network, chosen).stages:
        groups = [index(network, *group) for group in stage.groups]
        single = lower_stage(network, groups, stage.strategy, engine, in_place=in_place)
        plan = repeat(single, copies, synchronise=engine == "paper")
        assert len(plan.launches) == copies * len(single.launches)
        planned = plan_memory(plan)
        check_happens_before(planned)
        found = execute(planned, network, {name: values[name] for name in plan.inputs}, chosen)
        for name in plan.outputs:
            np.testing.assert_allclose(found[name], values[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("model", "concats"), [("squeezenet", 8), ("inception_v3", 11)])
def test_the_concats_of_the_zoo_move_nothing(model: str, concats: int) -> None:
    network = load(model)
    placement = in_place_buffers(network)
    assert len(placement.moves) == concats
    assert all(moves == () for moves in placement.moves.values())


def test_what_nothing_reads_has_no_place() -> None:
    network = network_of(lambda b: [b.conv("x", 2), b.conv("x", 3, name="unread")][:1])
    (unread,) = (number for number, unit in enumerate(network.units) if not unit.outputs)
    assert in_place_buffers(network).merging(unread) == ""


def halves(b: GraphBuilder) -> list[str]:
    """Four images in two micro-batches, and their join."""
    parts = b.add_all(Split(0, (1, 3)), "x", name="split")
    made = [b.conv(part, 2, name=f"half{index}") for index, part in enumerate(parts)]
    return [b.add(Concat(0), *made, name="join")]


def test_micro_batches_are_ranges_of_the_batch() -> None:
    network = network_of(halves, batch=4)
    placed = in_place_buffers(network)
    assert placed.moves == {0: (), 3: ()}
    plan = plan_memory(lower_stage(network, [[1], [2]], Strategy.CONCURRENT, in_place=True))
    first, second = network.graph.nodes[3].inputs
    assert plan.region(first) == Region("join", Box((0, 0, 0, 0), (1, 2, 3, 3)))
    assert plan.region(second) == Region("join", Box((1, 0, 0, 0), (3, 2, 3, 3)))
    assert not any("strided" in placed.signature(unit) for unit in (1, 2)), "images are contiguous"
    check_happens_before(plan)
    shifted = replace(plan.buffers[second], starts=(0, 0, 0, 0))
    with pytest.raises(ScheduleError, match="nothing orders the two"):
        check_happens_before(replace(plan, buffers={**plan.buffers, second: shifted}))
