"""Collectives leave on every device what they are named after, and take what their closed forms say."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iossim.base.errors import OptionError
from iossim.edge.collectives import SYNCHRONISATIONS, Collective, Message, apply, synchronisation
from iossim.execution.box import Box
from iossim.hardware.edge import Link
from iossim.hardware.profile import Fact

FLOAT_BYTES = 4
names = st.sampled_from(sorted(SYNCHRONISATIONS))


def parts_of(devices: int, elements: int) -> list[Box]:
    """A flat buffer in parts that differ by an element at most."""
    bounds = [index * elements // devices for index in range(devices + 1)]
    return [Box((begin,), (end - begin,)) for begin, end in pairwise(bounds)]


def link(bandwidth_gbps: float, latency_us: float) -> Link:
    return Link(
        bandwidth_gbps=Fact(value=bandwidth_gbps, source="test"), latency_us=Fact(value=latency_us, source="test")
    )


@given(st.integers(1, 9), st.integers(0, 40), names)
def test_every_device_has_all_parts(devices: int, elements: int, name: str) -> None:
    whole, parts = np.arange(elements), parts_of(devices, elements)
    held = [np.full(elements, -1) for _ in parts]
    for each, part in zip(held, parts, strict=True):
        each[part.selection] = whole[part.selection]
    apply(SYNCHRONISATIONS[name].all_gather(parts), held)
    for each in held:
        np.testing.assert_array_equal(each, whole)


@given(st.integers(2, 9), st.data(), names)
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


def test_a_way_that_is_unknown() -> None:
    with pytest.raises(OptionError, match="unknown `sync` 'rings'; did you mean 'ring'"):
        synchronisation("rings")
