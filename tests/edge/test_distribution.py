"""Networks divided among devices: what they compute and send, and that no other choice is faster; and collectives, by closed forms."""

from __future__ import annotations

import math
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import random_inputs, random_network

from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.base.errors import DeviceError, OptionError
from iossim.edge.collectives import SYNCHRONISATIONS, Collective, Message, apply
from iossim.edge.distributed import distributed
from iossim.edge.distribution import MIXES, Boxes, Mode, Price, boxes_of, distribute
from iossim.edge.operators import Operator, operators
from iossim.edge.runs import run_in_turn
from iossim.execution.box import Box
from iossim.hardware.edge import Link, edge_device
from iossim.hardware.profile import Fact
from iossim.ir.network import Network

DEVICE = edge_device("c6678")
LINK = DEVICE.links["srio"]
ways = st.sampled_from(sorted(SYNCHRONISATIONS))


def made_up(operator: Operator, boxes: Boxes) -> Price:
    """Some time for a box: more for a larger one, and other for each operator and axis."""
    us = max(math.prod(box.shape) * (1 + len(operator.name) % 3) + sum(box.shape) for box in boxes) / 7
    return Price(us, 1 + operator.index % 2)


@settings(max_examples=15)
@given(st.integers(0, 10_000), st.integers(2, 4), ways, st.sampled_from(sorted(MIXES)))
def test_every_device_has_the_outputs(seed: int, devices: int, way: str, mix: str) -> None:
    network = random_network(seed, blocks=1, movers=True)
    found = distribute(network, devices, LINK, SYNCHRONISATIONS[way], made_up, MIXES[mix])
    inputs = random_inputs(network)
    expected = evaluate_graph(network.graph, inputs)
    for outputs in run_in_turn(found, inputs):
        for name, array in expected.items():
            np.testing.assert_allclose(outputs[name], array, rtol=1e-4, atol=1e-5)


@settings(max_examples=10)
@given(st.integers(0, 10_000), st.integers(2, 3), ways)
def test_no_choice_of_modes_takes_less(seed: int, devices: int, way: str) -> None:
    network = random_network(seed, blocks=1, units=4)
    found = distribute(network, devices, LINK, SYNCHRONISATIONS[way], made_up)
    assert found.exact
    each = [[mode for mode in Mode if boxes_of(one, mode, devices) is not None] for one in operators(network)]
    least_us = min(taken_us(network, devices, way, modes) for modes in product(*each))
    assert found.latency_us == pytest.approx(least_us)


def taken_us(network: Network, devices: int, way: str, modes: tuple[Mode, ...]) -> float:
    """What a choice of modes takes, by counting every element that a device has."""
    types, ring = network.graph.types, SYNCHRONISATIONS[way]
    has: dict[str, list[Any]] = {name: [np.ones(types[name].shape, bool)] * devices for name in network.graph.inputs}
    parts: dict[str, Boxes] = {}
    total, made, before = 0.0, (), Price(0.0)

    def bring(value: str, wanted: list[Box | None]) -> tuple[float, float]:
        """What it takes, and what of its part the device sends that sends most of it."""
        sent = []
        for target, box in enumerate(wanted):
            if box is None or has[value][target][box.selection].all():
                continue
            # What is held is a box: what is missing of another is told by the boxes alone.
            for source, part in enumerate(parts[value]):
                common = box.common(part)
                if source != target and common is not None:
                    for piece in (
                        [common] if not has[value][target][common.selection].any() else rest(value, target, common)
                    ):
                        sent.append((source, target, piece))
        if not sent:
            return 0.0, 0.0
        whole = [Box.whole(types[value].shape)] * devices
        gathered = ring.all_gather(parts[value])
        collective = gathered if wanted == whole else ring.exchange(sent, parts[value])
        for target in range(devices):
            mask = has[value][target].copy()
            for message in collective.messages:
                if message.target == target:
                    for sent_box in message.boxes:
                        mask[sent_box.selection] = True
            has[value][target] = mask
        share = 0.0
        for source, part in enumerate(parts[value]):
            mask = np.zeros(types[value].shape, bool)
            for message in collective.messages:
                if message.source == source:
                    for sent_box in message.boxes:
                        mask[sent_box.selection] = True
            share = max(share, mask[part.selection].mean())
        us = collective.us(types[value].dtype.bytes, LINK)
        return us, share

    def bring_all(wanted: dict[str, list[Box | None]]) -> float:
        """What is waited for: what is made by the operator before is sent behind what of it is made first."""
        brought = {value: bring(value, boxes) for value, boxes in wanted.items() if value in parts}
        sent = {value: share for value, (us, share) in brought.items() if us}
        covers = before.us
        if shares := [share for value, share in sent.items() if value in made]:
            covers *= (1 - max(shares)) / before.passes
        return max(0.0, sum(us for us, _ in brought.values()) - covers)

    def rest(value: str, target: int, box: Box) -> list[Box]:
        """The box without what the device has of it, which is a box too."""
        mask = has[value][target][box.selection]
        held = np.argwhere(mask)
        low, high = held.min(0), held.max(0) + 1
        own = Box(
            tuple(int(a + b) for a, b in zip(box.starts, low, strict=True)),
            tuple(int(b - a) for a, b in zip(low, high, strict=True)),
        )
        return box.without(own)

    for operator, mode in zip(operators(network), modes, strict=True):
        boxes = boxes_of(operator, mode, devices)
        assert boxes is not None
        reads: dict[str, list[Box | None]] = {value: [None] * devices for value in operator.inputs}
        for device, box in enumerate(boxes):
            demand = operator.demand(box)
            assert demand is not None
            for read in demand.reads:
                known = reads[read.value][device]
                reads[read.value][device] = read.box if known is None else known.hull(read.box)
        total += bring_all(reads)
        made, before = operator.outputs, made_up(operator, boxes)
        total += before.us
        for value in operator.outputs:
            parts[value], has[value] = boxes, []
            for box in boxes:
                mask = np.zeros(types[value].shape, bool)
                mask[box.selection] = True
                has[value].append(mask)
    outputs = [value for value in network.graph.outputs if value in parts]
    return total + bring_all({value: [Box.whole(types[value].shape)] * devices for value in outputs})


def test_a_mix_is_no_worse_than_any_mode_and_a_server_no_better_than_a_ring() -> None:
    network = random_network(3, blocks=1)
    latency_us = {mix: distributed(network, DEVICE, 3, mix=mix).latency_us for mix in MIXES}
    assert latency_us["mix"] == min(latency_us.values())
    assert latency_us["mix"] <= distributed(network, DEVICE, 3, sync="server").latency_us


def test_one_device_is_that_device() -> None:
    found = distributed(random_network(3, blocks=1), DEVICE, 1)
    assert found.speedup == pytest.approx(1.0)
    assert found.distribution.sent_bytes == 0


def test_what_cannot_be() -> None:
    network = random_network(3, blocks=1)
    alone = DEVICE.model_copy(update={"links": {}})
    with pytest.raises(DeviceError, match="'c6678' has no links to others"):
        distributed(network, alone, 4)
    with pytest.raises(DeviceError, match="has no link 'sri'; it has srio, ethernet"):
        distributed(network, DEVICE, 4, "sri")
    with pytest.raises(OptionError, match="`devices` is 0; give 1 or more"):
        distributed(network, DEVICE, 0)
    with pytest.raises(OptionError, match="unknown `mix` 'inD'; did you mean 'in"):
        distributed(network, DEVICE, 2, mix="inD")
    with pytest.raises(OptionError, match="unknown `sync` 'rings'; did you mean 'ring'"):
        distributed(network, DEVICE, 2, sync="rings")


FLOAT_BYTES = 4


def parts_of(devices: int, elements: int) -> list[Box]:
    """A flat buffer in parts that differ by an element at most."""
    bounds = [index * elements // devices for index in range(devices + 1)]
    return [Box((begin,), (end - begin,)) for begin, end in pairwise(bounds)]


def link(bandwidth_gbps: float, latency_us: float) -> Link:
    return Link(
        bandwidth_gbps=Fact(value=bandwidth_gbps, source="test"), latency_us=Fact(value=latency_us, source="test")
    )


@given(st.integers(1, 9), st.integers(0, 40), ways)
def test_every_device_has_all_parts(devices: int, elements: int, name: str) -> None:
    whole, parts = np.arange(elements), parts_of(devices, elements)
    held = [np.full(elements, -1) for _ in parts]
    for each, part in zip(held, parts, strict=True):
        each[part.selection] = whole[part.selection]
    apply(SYNCHRONISATIONS[name].all_gather(parts), held)
    for each in held:
        np.testing.assert_array_equal(each, whole)


@given(st.integers(2, 9), st.data(), ways)
def test_what_is_wanted_arrives(devices: int, data: st.DataObject, name: str) -> None:
    whole, parts = np.arange(24), parts_of(devices, 24)
    pairs = st.tuples(st.integers(0, devices - 1), st.integers(0, devices - 1)).filter(lambda pair: pair[0] != pair[1])
    wanted = [(source, target, parts[source]) for source, target in data.draw(st.lists(pairs, unique=True))]
    held = [np.full(24, -1) for _ in parts]
    for each, part in zip(held, parts, strict=True):
        each[part.selection] = whole[part.selection]
    apply(SYNCHRONISATIONS[name].exchange(wanted, parts), held)
    for _, target, box in wanted:
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
        collective = SYNCHRONISATIONS[name].all_gather(parts_of(devices, elements))
        assert collective.us(FLOAT_BYTES, link(bandwidth_gbps, latency_us)) == pytest.approx(expected_us, rel=0.01)


@given(st.integers(2, 9))
def test_a_server_sends_each_worker_one_message(devices: int) -> None:
    parts = parts_of(devices, 100)
    gather = SYNCHRONISATIONS["server"].all_gather(parts)
    assert [(each.source, each.target) for each in gather.messages if each.source == 0] == [
        (0, worker) for worker in range(1, devices)
    ]
    halos = [(source, 1, part) for source, part in enumerate(parts) if source != 1]
    exchange = SYNCHRONISATIONS["server"].exchange(halos, parts)
    assert sum(each.source == 0 for each in exchange.messages) == 1


def test_a_device_sends_and_receives_one_message_at_a_time() -> None:
    half = Box((0,), (500,))
    sent = [(0, 0, 1, half), (1, 1, 0, half), (1, 2, 0, half), (1, 0, 2, half)]
    assert Collective.of(3, sent[:1]).us(FLOAT_BYTES, link(1.0, 3.0)) == 5.0
    assert Collective.of(3, sent).us(FLOAT_BYTES, link(1.0, 3.0)) == 15.0


def test_empty_boxes_are_not_sent_and_those_of_a_pair_go_together() -> None:
    one, other = Box((0,), (3,)), Box((5,), (2,))
    sent = [(0, 0, 1, one), (0, 0, 1, Box((3,), (0,))), (0, 0, 1, other), (0, 0, 1, one)]
    assert Collective.of(2, sent).messages == (Message(0, 0, 1, (one, other)),)
