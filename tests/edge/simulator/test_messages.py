"""Messages one by one take what the closed forms of collectives say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iossim.edge.collectives import SYNCHRONISATIONS, Collective, Message, parts_of
from iossim.edge.simulator.messages import collective_us
from iossim.execution.box import Box
from iossim.hardware.device import Fact
from iossim.hardware.edge import Link

FLOAT_BYTES = 4
HALF = Box((0,), (500,))


def link(bandwidth_gbps: float, latency_us: float) -> Link:
    return Link(
        bandwidth_gbps=Fact(value=bandwidth_gbps, source="test"), latency_us=Fact(value=latency_us, source="test")
    )


@given(
    st.integers(1, 16),
    st.integers(10_000, 1_000_000),
    st.sampled_from([0.1, 1.0, 2.0]),
    st.sampled_from([0.0, 1.5, 40.0]),
    st.sampled_from(sorted(SYNCHRONISATIONS)),
)
def test_what_the_closed_forms_say(
    devices: int, elements: int, bandwidth_gbps: float, latency_us: float, name: str
) -> None:
    way, between = SYNCHRONISATIONS[name], link(bandwidth_gbps, latency_us)
    for made, form in ((way.all_reduce, way.all_reduce_us), (way.all_gather, way.all_gather_us)):
        took_us = max(collective_us(made(parts_of(devices, elements)), FLOAT_BYTES, between))
        expected_us = form(devices, elements * FLOAT_BYTES, latency_us, bandwidth_gbps * 1e3)
        assert took_us == pytest.approx(expected_us, rel=0.01)
        if name == "ring":
            assert made(parts_of(devices, elements)).rounds_us(
                FLOAT_BYTES, latency_us, bandwidth_gbps * 1e3
            ) == pytest.approx(took_us)


def test_a_server_has_one_link_for_all() -> None:
    ring, server = (
        max(collective_us(SYNCHRONISATIONS[name].all_reduce(parts_of(8, 1 << 20)), FLOAT_BYTES, link(2.0, 1.0)))
        for name in ("ring", "server")
    )
    assert server > 7 * ring


def test_a_late_device_holds_up_the_others() -> None:
    pair = Collective(2, (Message(0, 0, 1, HALF), Message(1, 1, 0, HALF)))
    assert collective_us(pair, FLOAT_BYTES, link(1.0, 3.0)) == [10.0, 10.0]
    assert collective_us(pair, FLOAT_BYTES, link(1.0, 3.0), (100.0, 0.0)) == [110.0, 110.0]
    assert collective_us(pair, FLOAT_BYTES, link(1.0, 3.0), (0.0, 100.0)) == [105.0, 105.0]


def test_nothing_is_sent_by_one_device() -> None:
    assert collective_us(SYNCHRONISATIONS["ring"].all_reduce(parts_of(1, 99)), FLOAT_BYTES, link(1.0, 3.0)) == [0.0]
