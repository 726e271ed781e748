"""Messages between devices, one after the other through the ports of each (SimPy): what a collective takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Sequence
from typing import Any

import simpy

from iossim.edge.collectives import Collective
from iossim.hardware.edge import Link

_Process = Generator[simpy.Event, Any, None]


def collective_us(collective: Collective, item_bytes: int, link: Link, ready_us: Sequence[float] = ()) -> list[float]:
    """When each device has all that it is sent, and has sent all that it sends.

    A device sends one message and receives one at a time; both are at it for the link's latency and as long as the bytes
    take. ``ready_us``: when each device begins, all at 0 by default.
    """
    environment = simpy.Environment()
    ports = [(simpy.Resource(environment), simpy.Resource(environment)) for _ in range(collective.devices)]
    bytes_per_us = link.bandwidth_gbps.value * 1e3
    arrivals: list[dict[int, list[simpy.Event]]] = [defaultdict(list) for _ in range(collective.devices)]
    done = [environment.event() for _ in collective.messages]
    for message, arrived in zip(collective.messages, done, strict=True):
        arrivals[message.target][message.round].append(arrived)
    ends_us = list(ready_us) or [0.0] * collective.devices

    def send(index: int) -> _Process:
        message = collective.messages[index]
        yield environment.timeout(ready_us[message.source] if ready_us else 0.0)
        earlier = arrivals[message.source]
        yield environment.all_of([event for turn in earlier if turn < message.round for event in earlier[turn]])
        with ports[message.source][0].request() as out:
            yield out
            with ports[message.target][1].request() as into:
                yield into
                size_bytes = message.elements * item_bytes
                yield environment.timeout(link.latency_us.value + size_bytes / bytes_per_us)
        for device in (message.source, message.target):
            ends_us[device] = max(ends_us[device], environment.now)
        done[index].succeed()

    for index in range(len(collective.messages)):
        environment.process(send(index))
    environment.run()
    return ends_us
