"""What devices send one another so that all have a sum, or the whole of what each has a part of: collectives as messages.

A collective is data: messages in the order in which each device sends them. :func:`apply` runs them on arrays,
``backends.edge_simulator`` times them one by one, and each has a closed form (Patarasuk and Yuan 2009, sections 2 and 3).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from iossim.base.errors import OptionError, did_you_mean
from iossim.execution.box import Box
from iossim.ir.op import Array


@dataclass(frozen=True, slots=True)
class Message:
    """A box of a value that one device sends another in a round; ``adds``: the receiver adds it to what it has.

    A device sends in a round once all that it is sent in earlier rounds is there.
    """

    round: int
    source: int
    target: int
    box: Box
    adds: bool = False

    @property
    def elements(self) -> int:
        return math.prod(self.box.shape)


@dataclass(frozen=True, slots=True)
class Collective:
    """``messages`` between ``devices``, by round; none is empty."""

    devices: int
    messages: tuple[Message, ...]

    @staticmethod
    def of(devices: int, messages: Sequence[Message]) -> Collective:
        return Collective(devices, tuple(each for each in messages if each.elements))

    @property
    def elements(self) -> int:
        """Sent in all."""
        return sum(each.elements for each in self.messages)

    def share_sent(self, parts: Sequence[Box]) -> float:
        """Of what a device made, one of ``parts`` each, what others are sent; of the device that sends most."""
        found = 0.0
        for device, part in enumerate(parts):
            kept = [part]
            for box in {each.box for each in self.messages if each.source == device}:
                kept = [rest for piece in kept for rest in piece.without(box)]
            found = max(found, 1 - sum(math.prod(each.shape) for each in kept) / math.prod(part.shape))
        return found

    def then(self, other: Collective) -> Collective:
        """This, and behind it the other."""
        behind = 1 + max((each.round for each in self.messages), default=-1)
        moved = (replace(each, round=behind + each.round) for each in other.messages)
        return Collective(self.devices, (*self.messages, *moved))

    def rounds_us(self, item_bytes: int, latency_us: float, bytes_per_us: float) -> float:
        """Round after round, each as long as the device takes that sends or receives most: what is exact of a ring."""
        sent: dict[tuple[int, int, bool], float] = defaultdict(float)
        for each in self.messages:
            took_us = latency_us + each.elements * item_bytes / bytes_per_us
            sent[each.round, each.source, False] += took_us
            sent[each.round, each.target, True] += took_us
        longest: dict[int, float] = defaultdict(float)
        for (number, _, _), took_us in sent.items():
            longest[number] = max(longest[number], took_us)
        return sum(longest.values())


def parts_of(devices: int, elements: int) -> list[Box]:
    """A flat buffer in parts that differ by an element at most."""
    bounds = [index * elements // devices for index in range(devices + 1)]
    return [Box((begin,), (end - begin,)) for begin, end in pairwise(bounds)]


def ring_reduce_scatter(parts: Sequence[Box]) -> Collective:
    """Afterwards device d has part d + 1 (modulo the devices) of the sum of what all have."""
    return _round_the_ring(parts, 0, adds=True)


def ring_all_gather(parts: Sequence[Box], ahead: int = 0) -> Collective:
    """From part d + ``ahead`` on device d to all parts on all devices."""
    return _round_the_ring(parts, ahead, adds=False)


def ring_all_reduce(parts: Sequence[Box]) -> Collective:
    """The sum of what all have on every device."""
    return ring_reduce_scatter(parts).then(ring_all_gather(parts, ahead=1))


def _round_the_ring(parts: Sequence[Box], ahead: int, adds: bool) -> Collective:
    """n - 1 rounds in which each device sends a part to the next one."""
    devices = len(parts)
    return Collective.of(
        devices,
        [
            Message(turn, device, (device + 1) % devices, parts[(device + ahead - turn) % devices], adds)
            for turn in range(devices - 1)
            for device in range(devices)
        ],
    )


def server_all_reduce(parts: Sequence[Box]) -> Collective:
    """The same sum by a parameter server: device 0 is sent all that the others have, adds it up, and sends the sum back."""
    others = range(1, len(parts))
    there = Collective.of(len(parts), [Message(0, device, 0, part, True) for device in others for part in parts])
    return there.then(Collective.of(len(parts), [Message(0, 0, device, part) for device in others for part in parts]))


def server_all_gather(parts: Sequence[Box]) -> Collective:
    """From part d on device d to all parts on all devices, by way of device 0."""
    others = range(1, len(parts))
    there = Collective.of(len(parts), [Message(0, device, 0, parts[device]) for device in others])
    back = [Message(0, 0, device, part) for device in others for own, part in enumerate(parts) if own != device]
    return there.then(Collective.of(len(parts), back))


def ring_exchange(wanted: Sequence[tuple[int, int, Box]], parts: Sequence[Box]) -> Collective:
    """Boxes from one device to another, each a source, a target and what is sent: directly where all are neighbours, all one
    way before the other, so that no port is waited for; else all parts go round."""
    devices = len(parts)
    if all((source - target) % devices in (1, devices - 1) for source, target, _ in wanted):
        one_way_first = sorted(wanted, key=lambda each: ((each[1] - each[0]) % devices, each[0]))
        return Collective.of(devices, [Message(0, *each) for each in one_way_first])
    return ring_all_gather(parts)


def server_exchange(wanted: Sequence[tuple[int, int, Box]], parts: Sequence[Box]) -> Collective:
    """The same by way of device 0."""
    there = [Message(0, source, 0, box) for source, target, box in wanted if source]
    back = [Message(1, 0, target, box) for source, target, box in wanted if target]
    return Collective.of(len(parts), [*dict.fromkeys(there), *back])


@dataclass(frozen=True, slots=True)
class Synchronisation:
    """A way to bring devices together. The closed forms take devices, the bytes of the whole, a link's latency and bytes a us."""

    name: str
    all_reduce: Callable[[Sequence[Box]], Collective]
    all_gather: Callable[[Sequence[Box]], Collective]
    exchange: Callable[[Sequence[tuple[int, int, Box]], Sequence[Box]], Collective]
    all_reduce_us: Callable[[int, int, float, float], float]
    all_gather_us: Callable[[int, int, float, float], float]


def _ring_gather_us(devices: int, size_bytes: int, latency_us: float, bytes_per_us: float) -> float:
    return (devices - 1) * (latency_us + size_bytes / devices / bytes_per_us)


def _ring_reduce_us(devices: int, size_bytes: int, latency_us: float, bytes_per_us: float) -> float:
    return 2 * _ring_gather_us(devices, size_bytes, latency_us, bytes_per_us)


def _server_reduce_us(devices: int, size_bytes: int, latency_us: float, bytes_per_us: float) -> float:
    return 2 * (devices - 1) * (devices * latency_us + size_bytes / bytes_per_us)


def _server_gather_us(devices: int, size_bytes: int, latency_us: float, bytes_per_us: float) -> float:
    return (devices - 1) * (devices * latency_us + size_bytes / bytes_per_us)


SYNCHRONISATIONS = {
    each.name: each
    for each in (
        Synchronisation("ring", ring_all_reduce, ring_all_gather, ring_exchange, _ring_reduce_us, _ring_gather_us),
        Synchronisation(
            "server", server_all_reduce, server_all_gather, server_exchange, _server_reduce_us, _server_gather_us
        ),
    )
}


def synchronisation(name: str) -> Synchronisation:
    """The one of that name; raises OptionError."""
    if name not in SYNCHRONISATIONS:
        raise OptionError(f"unknown `sync` {name!r}; {did_you_mean(name, SYNCHRONISATIONS)}")
    return SYNCHRONISATIONS[name]


def apply(collective: Collective, held: Sequence[Array]) -> None:
    """Change the arrays that the devices hold as the messages do; those of a round are sent before any of them arrives."""
    for number in sorted({each.round for each in collective.messages}):
        messages = [each for each in collective.messages if each.round == number]
        sent = [held[each.source][each.box.selection].copy() for each in messages]
        for each, values in zip(messages, sent, strict=True):
            there = held[each.target][each.box.selection]
            there[...] = there + values if each.adds else values
