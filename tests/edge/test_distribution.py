"""Networks divided among devices, and branches among units: what they compute and send, and that no other choice is faster; and collectives, by closed forms."""

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from edge_devices import made, outputs_equal
from graph_builders import builder_with
from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_networks import random_inputs, random_network

from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.base.errors import DeviceError, OptionError, PlanError
from iossim.edge import parts
from iossim.edge.capacity import check
from iossim.edge.collectives import SYNCHRONISATIONS, Collective, Message, apply
from iossim.edge.distributed import distributed
from iossim.edge.distribution import MIXES, Boxes, Mode, ModeSearch, Price, boxes_of
from iossim.edge.operators import Operator, operators
from iossim.edge.optimize import plan
from iossim.edge.parts import PartsCostModel, dealt, in_parts
from iossim.edge.plan import EdgePlan, Lane, one_by_one
from iossim.edge.runs import run_devices
from iossim.edge.simulator.events import Timed, simulate
from iossim.execution.plan import Box
from iossim.hardware.edge import Link, edge_device
from iossim.hardware.profile import Fact
from iossim.ir.network import Network
from iossim.ir.ops.nary import Add
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.problem import ScheduleProblem
from iossim.search.scheduler import schedule

DEVICE = edge_device("c6678")
LINK = DEVICE.links["srio"]
ways = st.sampled_from(sorted(SYNCHRONISATIONS))


def made_up(operator: Operator, boxes: Boxes) -> Price:
    """Made-up time of a box: more for a larger one, and different by operator and axis."""
    us = max(math.prod(box.shape) * (1 + len(operator.name) % 3) + sum(box.shape) for box in boxes) / 7
    return Price(us, 1 + operator.index % 2)


@settings(max_examples=15)
@given(st.integers(0, 10_000), st.integers(2, 4), ways, st.sampled_from(sorted(MIXES)))
def test_every_device_has_the_outputs(seed: int, devices: int, way: str, mix: str) -> None:
    network = random_network(seed, blocks=1, movers=True)
    found = ModeSearch(network, devices, LINK, SYNCHRONISATIONS[way], made_up).best(MIXES[mix])
    inputs = random_inputs(network)
    expected = evaluate_graph(network.graph, inputs)
    for outputs in run_devices(found, inputs, range(devices)):
        for name, array in expected.items():
            np.testing.assert_allclose(outputs[name], array, rtol=1e-4, atol=1e-5)


@settings(max_examples=10)
@given(st.integers(0, 10_000), st.integers(2, 3), ways)
@example(37, 3, "ring")  # a wait that depends on the number of passes
def test_no_choice_of_modes_takes_less(seed: int, devices: int, way: str) -> None:
    network = random_network(seed, blocks=1, units=4)
    found = ModeSearch(network, devices, LINK, SYNCHRONISATIONS[way], made_up).best()
    assert found.exact
    each = [[mode for mode in Mode if boxes_of(one, mode, devices) is not None] for one in operators(network)]
    least_us = min(taken_us(network, devices, way, modes) for modes in product(*each))
    assert found.latency_us == pytest.approx(least_us)


def taken_us(network: Network, devices: int, way: str, modes: tuple[Mode, ...]) -> float:
    """Latency of a choice of modes, found by tracking every element that a device has."""
    types = network.graph.types
    has = {name: [np.ones(types[name].shape, bool) for _ in range(devices)] for name in network.graph.inputs}
    parts: dict[str, Boxes] = {}
    total, made, before = 0.0, (), Price(0.0)

    def marked(value: str, boxes: Iterable[Box]) -> np.ndarray:
        mask = np.zeros(types[value].shape, bool)
        for box in boxes:
            mask[box.selection] = True
        return mask

    def bring(value: str, wanted: list[Box | None]) -> tuple[float, float]:
        """Time to send the value, and the largest share of its part that a device sends."""
        sent = [
            (source, target, piece)
            for target, box in enumerate(wanted)
            if box is not None and not has[value][target][box.selection].all()
            for source, part in enumerate(parts[value])
            if source != target and (common := box.common(part)) is not None
            for piece in missing(has[value][target], common)
        ]
        if not sent:
            return 0.0, 0.0
        whole = [Box.whole(types[value].shape)] * devices
        collective = SYNCHRONISATIONS[way](parts[value], None if wanted == whole else sent)
        share = 0.0
        for device, part in enumerate(parts[value]):
            has[value][device] |= marked(value, (b for m in collective.messages if m.target == device for b in m.boxes))
            own = marked(value, (b for m in collective.messages if m.source == device for b in m.boxes))
            share = max(share, own[part.selection].mean())
        return collective.us(types[value].dtype.bytes, LINK), share

    def bring_all(wanted: dict[str, list[Box | None]]) -> float:
        """Time of waiting: the predecessor first makes what is sent of its output, and computes the rest meanwhile."""
        brought = {value: bring(value, boxes) for value, boxes in wanted.items() if value in parts}
        covers = before.us
        if shares := [share for value, (us, share) in brought.items() if us and value in made]:
            covers *= (1 - max(shares)) / before.passes
        return max(0.0, sum(us for us, _ in brought.values()) - covers)

    for operator, mode in zip(operators(network), modes, strict=True):
        boxes = boxes_of(operator, mode, devices)
        assert boxes is not None
        reads: dict[str, list[Box | None]] = {value: [None] * devices for value in operator.inputs}
        for device, box in enumerate(boxes):
            demand = operator.demand(box)
            assert demand is not None
            for value, read in demand.read_boxes.items():
                reads[value][device] = read
        total += bring_all(reads)
        made, before = operator.outputs, made_up(operator, boxes)
        total += before.us
        for value in operator.outputs:
            parts[value], has[value] = boxes, [marked(value, [box]) for box in boxes]
    outputs = [value for value in network.graph.outputs if value in parts]
    return total + bring_all({value: [Box.whole(types[value].shape)] * devices for value in outputs})


def missing(has: np.ndarray, box: Box) -> list[Box]:
    """The box without what a device has of it, which is a box too."""
    held = np.argwhere(has[box.selection])
    if not len(held):
        return [box]
    low, high = held.min(0), held.max(0) + 1
    starts = tuple((low + box.starts).tolist())
    return box.without(Box(starts, tuple((high - low).tolist())))


def test_one_device_is_that_device() -> None:
    found = distributed(random_network(3, blocks=1), DEVICE, 1)
    assert found.speedup == pytest.approx(1.0)
    assert found.distribution.sent_bytes == 0


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"link": "sri"}, DeviceError, "has no link 'sri'; it has srio, ethernet"),
        ({"devices": 0}, OptionError, "`devices` is 0; give 1 or more"),
        ({"mix": "inD"}, OptionError, "unknown `mix` 'inD'; did you mean 'in"),
        ({"sync": "rings"}, OptionError, "unknown `sync` 'rings'; did you mean 'ring'"),
        ({"device": DEVICE.model_copy(update={"links": {}})}, DeviceError, "'c6678' has no links to others"),
    ],
)
def test_what_cannot_be_distributed(options: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        distributed(**{"model": random_network(3, blocks=1), "device": DEVICE, "devices": 2, **options})


FLOAT_BYTES = 4


def parts_of(devices: int, elements: int) -> list[Box]:
    """Parts of a flat buffer that differ by one element at most."""
    bounds = [index * elements // devices for index in range(devices + 1)]
    return [Box((begin,), (end - begin,)) for begin, end in pairwise(bounds)]


def link(bandwidth_gbps: float, latency_us: float) -> Link:
    return Link(
        bandwidth_gbps=Fact(value=bandwidth_gbps, source="test"), latency_us=Fact(value=latency_us, source="test")
    )


def after(collective: Collective, parts: list[Box], whole: np.ndarray) -> list[np.ndarray]:
    """Arrays of devices after a collective, each of which had its part of the whole."""
    held = [np.full(len(whole), -1) for _ in parts]
    for each, part in zip(held, parts, strict=True):
        each[part.selection] = whole[part.selection]
    apply(collective, held)
    return held


@given(st.integers(1, 9), st.integers(0, 40), st.data(), ways)
def test_what_is_wanted_arrives(devices: int, elements: int, data: st.DataObject, name: str) -> None:
    whole, parts = np.arange(elements), parts_of(devices, elements)
    everything = [(source, target, parts[source]) for source, target in product(range(devices), repeat=2)]
    some = st.lists(st.sampled_from([one for one in everything if one[0] != one[1]] or everything), unique=True)
    wanted = data.draw(st.none() | some) if devices > 1 else None
    held = after(SYNCHRONISATIONS[name](parts, wanted), parts, whole)
    for _, target, box in everything if wanted is None else wanted:
        np.testing.assert_array_equal(held[target][box.selection], whole[box.selection])


@given(
    st.integers(1, 16),
    st.integers(10_000, 1_000_000),
    st.sampled_from([0.1, 1.0, 2.0]),
    st.sampled_from([0.0, 1.5, 40.0]),
)
def test_all_gathers_take_what_their_closed_forms_say(
    devices: int, elements: int, bandwidth_gbps: float, latency_us: float
) -> None:
    whole_us = elements * FLOAT_BYTES / bandwidth_gbps / 1e3
    for name, expected_us in (
        ("ring", (devices - 1) * (latency_us + whole_us / devices)),
        ("server", (devices - 1) * (2 * latency_us + whole_us)),
    ):
        collective = SYNCHRONISATIONS[name](parts_of(devices, elements), None)
        assert collective.us(FLOAT_BYTES, link(bandwidth_gbps, latency_us)) == pytest.approx(expected_us, rel=0.01)


def test_a_device_sends_and_receives_one_message_at_a_time() -> None:
    half = Box((0,), (500,))
    sent = [(0, 0, 1, half), (1, 1, 0, half), (1, 2, 0, half), (1, 0, 2, half)]
    assert Collective.of(sent[:1]).us(FLOAT_BYTES, link(1.0, 3.0)) == 5.0
    assert Collective.of(sent).us(FLOAT_BYTES, link(1.0, 3.0)) == 15.0


def test_empty_boxes_are_not_sent_and_those_of_a_pair_go_together() -> None:
    one, other = Box((0,), (3,)), Box((5,), (2,))
    sent = [(0, 0, 1, one), (0, 0, 1, Box((3,), (0,))), (0, 0, 1, other), (0, 0, 1, one)]
    assert Collective.of(sent).messages == (Message(0, 0, 1, (one, other)),)


@given(st.lists(st.lists(st.floats(0, 100), min_size=6, max_size=6), min_size=2, max_size=4))
def test_no_other_deal_has_a_shorter_longest_group(times: list[list[float]]) -> None:
    curves = np.minimum.accumulate(np.array(times), axis=1)
    levels = dealt(curves)
    assert levels.sum() == curves.shape[1]
    assert levels.min() >= 1

    def longest(chosen: tuple[int, ...]) -> float:
        return max(float(curve[level - 1]) for curve, level in zip(curves, chosen, strict=True))

    everything = product(range(1, curves.shape[1] + 1), repeat=len(curves))
    assert longest(tuple(levels)) == min(longest(each) for each in everything if sum(each) <= curves.shape[1])


def branches() -> Network:
    """Two convolutions with few output channels on one map: neither can use eight units well by itself."""
    b, x = builder_with("branches", x=(1, 32, 16, 16))
    with b.unit("left", "Conv"):
        left = b.conv(x, 4, 3, padding=1)
    with b.unit("right", "Conv"):
        right = b.conv(x, 4, 3, padding=1)
    with b.unit("after", "Conv"):
        after = b.conv(left, 4, 1)
    return b.network([after, right])


def rows_of_branches() -> Network:
    """Two blocks of two such convolutions each, and their sums."""
    b, x = builder_with("rows", x=(1, 32, 16, 16))
    for row in "01":
        with b.block(row):
            sides = [b.conv(x, 4, 3, padding=1, name=f"{row} {side}") for side in ("left", "right")]
            x = b.add(Add(), *sides, name=f"{row} sum")
    return b.network([x])


def lanes_of(network: Network, **device: int) -> EdgePlan:
    """``left`` and ``after`` beside ``right``."""
    own = made(**device)
    stages = ((Lane((0, 2), 0, 5), Lane((1,), 5, 3)),)
    return plan(network, own, stages=stages)


@pytest.mark.parametrize("shared", [4 << 20, 30_000])
def test_lanes_compute_what_the_network_does(shared: int) -> None:
    network = branches()
    found = lanes_of(network, shared__bytes=shared)
    outputs_equal(found)
    timed = simulate(found)
    assert timed.steps[0][0] == timed.steps[1][0] == 0.0
    assert timed.steps[2][0] == timed.steps[0][1]
    assert set() < {unit for span in timed.spans if span.step == 1 for unit in span.units} <= {5, 6, 7}


def test_what_lanes_may_not_do_is_found() -> None:
    found = lanes_of(branches())
    for lane in (Lane((1,), 5, 3), Lane((1,), 6, 3)):
        with pytest.raises(PlanError, match="'right' runs on units of another lane, or on units that do not exist"):
            check(replace(found, stages=((Lane((0, 2), 0, 6), lane),)))
    too_early = replace(found, stages=((Lane((0,), 0, 4), Lane((2,), 4, 2), Lane((1,), 6, 2)),))
    with pytest.raises(PlanError, match=r"'after' reads .* before it is made"):
        check(too_early)
    sliced = lanes_of(branches(), shared__bytes=30_000)
    clashing = [
        replace(
            step,
            slices=tuple(
                replace(part, inputs=tuple(replace(each, address=0) for each in part.inputs)) for part in step.slices
            ),
        )
        for step in sliced.steps
    ]
    with pytest.raises(PlanError, match="overlap"):
        check(replace(sliced, steps=tuple(clashing)))


@given(st.integers(0, 1000))
def test_bounds_hold_and_a_group_alone_takes_all_units(seed: int) -> None:
    network = random_network(seed, blocks=1)
    model = PartsCostModel(plan(network, made(cache_bytes=256)), "priority")
    problem = ScheduleProblem.of_block(network, network.blocks[0])
    masks = np.arange(1, min(256, 1 << len(problem)), dtype=np.uint64)
    prices, bounds = model.price_stages(StageBatch.concurrent(problem, masks)), model.bounds(problem)
    assert bounds is not None
    held = (masks[:, None] >> np.arange(len(problem), dtype=np.uint64) & np.uint64(1)).astype(float)
    assert (prices >= (held @ bounds.work_us).max(axis=1) * (1 - 1e-9)).all()
    alone = held.sum(axis=1) == 1
    assert prices[alone] == pytest.approx(held[alone] @ bounds.single_us)
    batch = StageBatch.concurrent(problem, masks)
    assert np.isinf(model.price_stages(replace(batch, strategies=np.full(len(batch), Strategy.MERGE.code)))).all()


def test_the_search_finds_branches_that_had_better_run_side_by_side() -> None:
    network, device = branches(), made()
    whole = plan(network, device)
    timed = simulate(whole)
    found = in_parts(whole, timed, "priority")
    outputs_equal(found.plan)
    assert found.total_us <= timed.total_us
    assert found.proposed >= len(found.rows)
    by_search = schedule(network, PartsCostModel(whole, "priority"), "ios-parallel")
    alone = schedule(network, PartsCostModel(whole, "priority"), "sequential")
    assert by_search.latency_us <= alone.latency_us
    assert whole.stages == one_by_one(range(3), 8)
    assert sorted(step for stage in found.plan.stages for lane in stage for step in lane.steps) == [0, 1, 2]


@pytest.mark.parametrize(
    ("prices_us", "best_us"),
    [((9, 8, 7, 6), 6), ((9, 8, 4, 6), 4), ((9, 4, 8, 7), 4), ((5, 9, 9, 6), 5), ((5, 3, 9, 6), 3), ((5, 9, 2, 6), 2)],
)
def test_a_block_is_in_parts_where_the_whole_plan_gains(
    prices_us: tuple[int, ...], best_us: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prices of no block, the second, the first, and both: from the better of none and both, block by block."""
    network, device = rows_of_branches(), made()
    whole = plan(network, device)

    def timed(found: EdgePlan) -> Timed:
        wide = {
            found.steps[step].operator.name[0]
            for stage in found.stages
            if len(stage) > 1
            for lane in stage
            for step in lane.steps
        }
        return replace(simulate(found), total_us=prices_us[2 * ("0" in wide) + ("1" in wide)])

    monkeypatch.setattr(parts, "simulate", timed)
    assert in_parts(whole, timed(whole), "priority").total_us == best_us


@given(st.integers(0, 500))
def test_parts_are_never_slower_and_fit(seed: int) -> None:
    network = random_network(seed, blocks=2)
    whole = plan(network, made(units=5))
    timed = simulate(whole)
    found = in_parts(whole, timed, "priority")
    check(found.plan)
    assert found.total_us <= timed.total_us
