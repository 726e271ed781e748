"""One network over several devices (d-Xenos, section 5): operators split by outC, inH or inW, or whole on each.

A device is sent what it reads and does not hold before the operator runs: a halo by its neighbours, or all parts round
the ring (or by way of a parameter server). The paper enumerates the modes of every operator and profiles each; here
dynamic programming over the operators in order finds the same, as the future depends only on which device holds what of
the values still read.

Links and units work concurrently: a device first computes the part of an output that others are sent, and sends it
while it computes the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, cached_property
from itertools import accumulate, chain
from math import inf
from typing import NamedTuple

from iossim.edge.collectives import Collective, Synchronisation
from iossim.edge.operators import Operator, operators
from iossim.edge.optimize import DeviceShare
from iossim.execution.plan import Box
from iossim.hardware.edge import Link
from iossim.ir.network import Network


class Mode(StrEnum):
    """Division of an operator among devices. ``replicated``: every one of them computes all of it."""

    REPLICATED = "replicated"
    OUT_C = "outC"
    IN_H = "inH"
    IN_W = "inW"


#: Sets of allowed modes by name: the best of all, or one mode wherever an operator can be split so.
MIXES: Mapping[str, tuple[Mode, ...]] = {
    "mix": tuple(Mode),
    **{str(mode): (mode,) for mode in Mode if mode is not Mode.REPLICATED},
}

#: States with which the search goes on after an operator.
MOST_STATES = 1024

#: Box of an output that each device computes, or of a value that each holds.
Boxes = tuple[Box, ...]


class Price(NamedTuple):
    """Time of an operator on the slowest device, and its number of ``passes`` over the output there: several if a unit
    cannot hold all parameters.
    """

    us: float
    passes: int = 1


#: Price of an operator if each device computes its box.
Pricer = Callable[[Operator, Boxes], Price]


@dataclass(frozen=True, slots=True)
class Exchange:
    """Transfer of a value before an operator runs, and what each device then holds of it. ``share_sent`` is the largest
    fraction of its part of the value that a device sends.
    """

    value: str
    collective: Collective
    held: Boxes
    bytes: int
    us: float
    share_sent: float


@dataclass(frozen=True, eq=False)
class DistributedStep:
    """An operator in a mode; its exchanges are known once it is known what devices hold before it."""

    operator: Operator
    mode: Mode
    boxes: Boxes
    price: Price
    exchanges: tuple[Exchange, ...] = ()

    @cached_property
    def reads(self) -> dict[str, tuple[Box | None, ...]]:
        """Box of each input that each device reads; None where it reads nothing of it."""
        found = [self.operator.needed(box).read_boxes for box in self.boxes]
        return {value: tuple(own.get(value) for own in found) for value in self.operator.inputs}

    @property
    def exchange_us(self) -> float:
        return sum(each.us for each in self.exchanges)


def waited_us(exchanges: Sequence[Exchange], before: DistributedStep | None, before_us: float) -> float:
    """Time that an operator waits for the exchanges before it. Its predecessor, which takes ``before_us``, hides a
    part: all its computing if only older values are sent, and otherwise what it computes after the part sent.
    """
    covered_us = before_us
    if before is not None and (own := [each for each in exchanges if each.value in before.operator.outputs]):
        covered_us *= (1 - max(each.share_sent for each in own)) / before.price.passes
    return max(0.0, sum(each.us for each in exchanges) - covered_us)


@dataclass(frozen=True, eq=False)
class Distribution:
    """``gathers`` collect the network's outputs at the end. ``exact`` means that no better modes were pruned."""

    network: Network
    devices: int
    steps: tuple[DistributedStep, ...]
    gathers: tuple[Exchange, ...]
    exact: bool

    @cached_property
    def latency_us(self) -> float:
        """Latency with operators in order: each output is sent as soon as it is made, then all devices compute."""
        times_us = [step.price.us for step in self.steps]
        return sum(times_us) + sum(self.waits_us(times_us))

    def waits_us(self, times_us: Sequence[float]) -> list[float]:
        """Wait before each step, if the steps take so long, and for the network's outputs at the end."""
        before = [(None, 0.0), *zip(self.steps, times_us, strict=True)]
        return [waited_us(each, *one) for each, one in zip(self.exchanges, before, strict=True)]

    @property
    def exchanges(self) -> list[tuple[Exchange, ...]]:
        """Those before each step, and the gathers."""
        return [*(step.exchanges for step in self.steps), self.gathers]

    def share(self, device: int) -> DeviceShare:
        """Share of one device: what it computes, and the most that it ever holds of each value."""
        graph = self.network.graph
        held: dict[str, float] = {}
        for step in self.steps:
            boxes = step.operator.boxes(step.boxes[device])
            boxes |= {each.value: each.held[device] for each in step.exchanges}
            for value, box in boxes.items():
                part = math.prod(box.shape) / math.prod(graph.types[value].shape)
                held[value] = min(1.0, max(held.get(value, 0.0), part))
        return DeviceShare({step.operator.index: step.boxes[device] for step in self.steps}, held)

    @property
    def sent_bytes(self) -> int:
        return sum(each.bytes for each in chain(*self.exchanges))


@dataclass(frozen=True, eq=False)
class _Held:
    """A value that is still read: the part that each device made, and what it holds now. Equal ones are one object."""

    value: str
    parts: Boxes
    boxes: Boxes


class _State(NamedTuple):
    """A state with its history: the last step, and the state before it."""

    cost_us: float
    step: DistributedStep | None = None
    before: _State | None = None

    def waited_us(self, exchanges: Sequence[Exchange]) -> float:
        """Wait for the exchanges that come next."""
        return waited_us(exchanges, self.step, self.step.price.us if self.step else 0.0)

    @property
    def steps(self) -> tuple[DistributedStep, ...]:
        """All steps, from the first one."""
        found, state = list[DistributedStep](), self
        while state.step is not None and state.before is not None:
            found.append(state.step)
            state = state.before
        return tuple(reversed(found))


class ModeSearch:
    """Search for modes with the least latency of the whole network; choices and exchanges are found once.

    Inputs and parameters are on every device from the start, and the outputs must be in the end. A state is which
    device holds what of the values still read; this determines how the previous operator was divided, and so the wait
    for an exchange. If more than :data:`MOST_STATES` remain after an operator, only the cheapest are kept, and the
    answer is not called exact.
    """

    def __init__(self, network: Network, devices: int, link: Link, way: Synchronisation, pricer: Pricer) -> None:
        self.network, self.devices, self.link, self.way, self.pricer = network, devices, link, way, pricer
        self.operators = operators(network)
        self.last = {value: index for index, unit in enumerate(network.units) for value in unit.inputs}
        self.last |= dict.fromkeys(network.graph.outputs, len(network.units))
        self.hold = cache(_Held)
        self.divided, self.exchanged = cache(self._divided), cache(self._exchanged)

    def best(self, modes: Sequence[Mode] = MIXES["mix"]) -> Distribution:
        """The best distribution with these modes. Each alone is tried first: states that cannot beat the best of those,
        however little the remaining operators take, are pruned.
        """
        best = None
        for mode in modes if len(modes) > 1 else ():
            best = self._run((mode,), best) or best
        found = self._run(modes, best) or best
        assert found is not None
        return found

    def _run(self, modes: Sequence[Mode], best: Distribution | None) -> Distribution | None:
        """Best distribution with these modes; None if none is better than ``best``, which is then as exact as this."""
        limit_us = best.latency_us if best is not None else inf
        least_us = (min(each.price.us for each in self.choices(one, modes)) for one in reversed(self.operators))
        rest_us = list(accumulate(least_us, initial=0.0))[::-1]
        states: dict[tuple[_Held, ...], _State] = {self.begun(): _State(0.0)}
        exact = True
        for operator in self.operators:
            reached: dict[tuple[_Held, ...], _State] = {}
            for choice in self.choices(operator, modes):
                boxes = list(map(operator.boxes, choice.boxes))
                made = tuple(
                    self.hold(value, *2 * [tuple(own[value] for own in boxes)])
                    for value in operator.outputs
                    if value in self.last
                )
                rest = rest_us[operator.index + 1]
                for held, state in states.items():
                    moved = [self.exchanged(each, choice) for each in held]
                    exchanges = tuple(each for each, _ in moved if each is not None)
                    cost_us = state.cost_us + choice.price.us + state.waited_us(exchanges)
                    if cost_us + rest >= limit_us:
                        continue
                    after = (*(each for _, each in moved if self.last[each.value] > operator.index), *made)
                    known = reached.get(after)
                    if known is None or cost_us < known.cost_us:
                        reached[after] = _State(cost_us, replace(choice, exchanges=exchanges), state)
            if len(reached) > MOST_STATES:
                cheapest = sorted(reached.items(), key=lambda item: item[1].cost_us)[:MOST_STATES]
                reached, exact = dict(cheapest), False
            states = reached
        ends = [
            (state.cost_us + state.waited_us(gathers), state, gathers)
            for held, state in states.items()
            for gathers in [self.gathers(held)]
        ]
        latency_us, last, gathers = min(ends, key=lambda one: one[0], default=(inf, None, ()))
        if last is None or latency_us >= limit_us:
            return None if best is None else replace(best, exact=exact)
        return Distribution(self.network, self.devices, last.steps, gathers, exact)

    def everywhere(self, value: str) -> Boxes:
        return (Box.whole(self.network.graph.types[value].shape),) * self.devices

    def begun(self) -> tuple[_Held, ...]:
        inputs = (value for value in self.network.graph.inputs if value in self.last)
        return tuple(self.hold(value, *2 * [self.everywhere(value)]) for value in inputs)

    def gathers(self, held: tuple[_Held, ...]) -> tuple[Exchange, ...]:
        found = (self._exchange(each, self.everywhere(each.value)) for each in held)
        return tuple(each for each in found if each is not None)

    def choices(self, operator: Operator, modes: Sequence[Mode]) -> list[DistributedStep]:
        """Choices for ``modes`` that split the operator; if none does, every device computes all of it."""
        found = self.divided(operator)
        return [each for each in found if each.mode in modes] or [one for one in found if one.mode is Mode.REPLICATED]

    def _divided(self, operator: Operator) -> list[DistributedStep]:
        """The operator in each mode that splits it, without exchanges."""
        found = ((mode, boxes_of(operator, mode, self.devices)) for mode in Mode)
        return [DistributedStep(operator, mode, boxes, self.pricer(operator, boxes)) for mode, boxes in found if boxes]

    def _exchanged(self, held: _Held, step: DistributedStep) -> tuple[Exchange | None, _Held]:
        """Exchange that gives each device what it reads, None if none is needed; and what is held then."""
        found = self._exchange(held, step.reads[held.value]) if held.value in step.reads else None
        return found, held if found is None else self.hold(held.value, held.parts, found.held)

    def _exchange(self, held: _Held, wanted: tuple[Box | None, ...]) -> Exchange | None:
        sent: list[tuple[int, int, Box]] = []
        for target, (box, has) in enumerate(zip(wanted, held.boxes, strict=True)):
            for missing in box.without(has) if box is not None else ():
                for source, part in enumerate(held.parts):
                    common = missing.common(part)
                    if common is not None and source != target:
                        sent.append((source, target, common))
        if not sent:
            return None
        whole, gather = self.everywhere(held.value), self.way(held.parts, None)
        collective = gather if wanted == whole else self.way(held.parts, sent)
        after = whole if collective == gather else tuple(map(_together, held.boxes, wanted))
        item_bytes = self.network.graph.types[held.value].dtype.bytes
        size, us = collective.elements * item_bytes, collective.us(item_bytes, self.link)
        return Exchange(held.value, collective, after, size, us, collective.share_sent(held.parts))


def _together(has: Box, more: Box | None) -> Box:
    """Union of the held box and a further one: their hull if it contains no more, else the further one."""
    if more is None:
        return has
    both = has.hull(more)
    return both if both.covered_by((has, more)) else more


def boxes_of(operator: Operator, mode: Mode, devices: int) -> Boxes | None:
    """Box of each device, equal up to one; None if the mode cannot split the operator among so many."""
    whole = Box.whole(operator.output.shape)
    if mode is Mode.REPLICATED:
        return (whole,) * devices
    axis = next((each for each in operator.axes if operator.axis_name(each) == mode), None)
    if operator.unknown or axis is None:
        return None
    # Channels of one group stay together.
    quantum = max(1, operator.channel_quantum) if mode is Mode.OUT_C else 1
    pieces = whole.shape[axis] // quantum
    if pieces < devices:
        return None
    found = []
    for device in range(devices):
        begin, end = ((device + more) * pieces // devices * quantum for more in (0, 1))
        found.append(whole.along(axis, begin, end - begin))
    return tuple(found)
