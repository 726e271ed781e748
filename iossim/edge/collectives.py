"""Collectives as messages, which give all devices the whole of a value of which each has a part.

A collective is data: messages in the order in which each device sends them. :func:`apply` runs them on arrays, and
:meth:`Collective.us` is their time, for all-gathers in closed form (Patarasuk and Yuan 2009, section 3).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from operator import attrgetter

import numpy as np

from iossim.execution.plan import Box
from iossim.hardware.edge import Link
from iossim.ir.op import Array

#: A box of a value, with the devices that send and receive it.
Wanted = tuple[int, int, Box]

#: A transfer: a round, the source, the target, and the box of the value.
Sent = tuple[int, int, int, Box]


@dataclass(frozen=True, slots=True)
class Message:
    """Boxes of a value that one device sends another in a round, at one latency. A device sends in a round once all
    messages to it in earlier rounds have arrived.
    """

    round: int
    source: int
    target: int
    boxes: tuple[Box, ...]

    @property
    def elements(self) -> int:
        return sum(math.prod(box.shape) for box in self.boxes)

    def packed(self, held: Array) -> Array:
        """Elements that the source sends, box after box."""
        return np.concatenate([held[box.selection].ravel() for box in self.boxes])

    def unpack(self, packed: Array, held: Array) -> None:
        """Unpack received elements into the array of the target."""
        begin = 0
        for box in self.boxes:
            there = held[box.selection]
            there[...] = packed[begin : begin + there.size].reshape(there.shape)
            begin += there.size


@dataclass(frozen=True, slots=True)
class Collective:
    """``messages`` by round; none is empty."""

    messages: tuple[Message, ...]

    @staticmethod
    def of(sent: Iterable[Sent]) -> Collective:
        """Messages of transfers, one per round, source and target; their order is that of the first box of each."""
        boxes: dict[tuple[int, int, int], dict[Box, None]] = defaultdict(dict)
        for turn, source, target, box in sent:
            if math.prod(box.shape):
                boxes[turn, source, target][box] = None
        return Collective(tuple(Message(*who, tuple(each)) for who, each in boxes.items()))

    @property
    def elements(self) -> int:
        """Number of elements sent in total."""
        return sum(each.elements for each in self.messages)

    @property
    def rounds(self) -> list[list[Message]]:
        """Messages of each round."""
        return [list(own) for _, own in groupby(self.messages, attrgetter("round"))]

    def share_sent(self, parts: Sequence[Box]) -> float:
        """Largest share of its own part (one of ``parts``) that a device sends to others."""
        found = 0.0
        for device, part in enumerate(parts):
            kept = [part]
            for box in {box for each in self.messages if each.source == device for box in each.boxes}:
                kept = [rest for piece in kept for rest in piece.without(box)]
            found = max(found, 1 - sum(math.prod(each.shape) for each in kept) / math.prod(part.shape))
        return found

    def us(self, item_bytes: int, link: Link) -> float:
        """Time of the messages, round after round: a device sends one message at a time and receives one at a time, and
        a round is as long as the busiest of these ports.
        """
        total_us = 0.0
        for messages in self.rounds:
            ports_us: dict[tuple[int, bool], float] = defaultdict(float)
            for each in messages:
                sent_us = link.latency_us.value + each.elements * item_bytes / link.bandwidth_gbps.value / 1e3
                ports_us[each.source, False] += sent_us
                ports_us[each.target, True] += sent_us
            total_us += max(ports_us.values())
        return total_us


def ring(parts: Sequence[Box], wanted: Sequence[Wanted] | None = None) -> Collective:
    """All-gather from part d on device d, in n - 1 rounds in which each device sends a part to the next one: n equal
    parts of S bytes in total take (n - 1) (latency + S / n / bandwidth). If only some boxes are ``wanted``, and all of
    them by neighbours, they are sent directly, one direction before the other, so that no port is waited for.
    """
    devices = len(parts)
    if wanted is not None and all((source - target) % devices in (1, devices - 1) for source, target, _ in wanted):
        one_way_first = sorted(wanted, key=lambda each: ((each[1] - each[0]) % devices, each[0]))
        return Collective.of((0, *each) for each in one_way_first)
    turns = product(range(devices - 1), range(devices))
    sent = ((turn, each, (each + 1) % devices, parts[(each - turn) % devices]) for turn, each in turns)
    return Collective.of(sent)


def server(parts: Sequence[Box], wanted: Sequence[Wanted] | None = None) -> Collective:
    """All-gather, or exchange of the ``wanted`` boxes, by way of a parameter server, device 0: it receives each box,
    and then sends them on. An all-gather of n equal parts of S bytes in total takes (n - 1) (2 latency + S /
    bandwidth).
    """
    if wanted is None:
        pairs = product(range(len(parts)), repeat=2)
        wanted = [(source, target, parts[source]) for target, source in pairs if source != target]
    there: list[Sent] = [(0, source, 0, box) for source, target, box in wanted if source]
    back: list[Sent] = [(1, 0, target, box) for source, target, box in wanted if target]
    return Collective.of([*there, *back])


#: Function that brings together the parts on devices: all of them, or the wanted boxes.
Synchronisation = Callable[[Sequence[Box], Sequence[Wanted] | None], Collective]

#: Ways to bring parts together, by name: round a ring, or through a parameter server.
SYNCHRONISATIONS: Mapping[str, Synchronisation] = {"ring": ring, "server": server}


def apply(collective: Collective, held: Sequence[Array]) -> None:
    """Change the arrays of devices as the messages do; those of a round are sent before any arrives."""
    for messages in collective.rounds:
        sent = [each.packed(held[each.source]) for each in messages]
        for each, packed in zip(messages, sent, strict=True):
            each.unpack(packed, held[each.target])
