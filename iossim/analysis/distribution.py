"""A network over several edge devices: the modes that cost least, planned on each device, and timed event by event."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from iossim.backends.edge_simulator.events import simulate
from iossim.backends.edge_simulator.messages import collective_us
from iossim.dataflow.collectives import synchronisation
from iossim.dataflow.distribution import MIXES, Boxes, Distribution, Exchange, distribute
from iossim.dataflow.operators import Operator
from iossim.dataflow.optimize import POLICIES, Share, plan
from iossim.dataflow.plan import Plan, Slice, Step, Variant
from iossim.dataflow.pricing import slice_us
from iossim.devices.edge import EdgeDevice, Link
from iossim.errors import DeviceError, OptionError, did_you_mean
from iossim.ir.network import Network


@dataclass(frozen=True, slots=True)
class DistributedRow:
    """An operator: how it is divided among the devices, what was sent for it, and the slowest device's time."""

    operator: str
    kind: str
    mode: str
    sent_bytes: int
    exchange_us: float
    compute_us: float


@dataclass(frozen=True)
class Distributed:
    """``one_us`` is the same network on one device. ``mix``: ``mix``, or the one mode asked for."""

    distribution: Distribution
    device: EdgeDevice
    link: str
    sync: str
    mix: str
    one_us: float
    optimise_s: float
    rows: tuple[DistributedRow, ...]
    gather_us: float

    @property
    def compute_us(self) -> float:
        return sum(row.compute_us for row in self.rows)

    @property
    def exchange_us(self) -> float:
        return sum(row.exchange_us for row in self.rows) + self.gather_us

    @property
    def latency_us(self) -> float:
        return self.compute_us + self.exchange_us

    @property
    def speedup(self) -> float:
        return self.one_us / self.latency_us

    def to_json(self) -> dict[str, Any]:
        network = self.distribution.network
        return {
            "model": network.source.model or network.name,
            "device": self.device.name,
            "devices": self.distribution.devices,
            "link": self.link,
            "sync": self.sync,
            "mix": self.mix,
            "one_us": self.one_us,
            "latency_us": self.latency_us,
            "speedup": self.speedup,
            "compute_us": self.compute_us,
            "exchange_us": self.exchange_us,
            "sent_bytes": self.distribution.sent_bytes,
            "exact": self.distribution.exact,
            "optimise_s": self.optimise_s,
            "operators": [asdict(row) for row in self.rows],
        }


def distributed(
    network: Network,
    device: EdgeDevice,
    devices: int,
    link: str | None = None,
    sync: str = "ring",
    mix: str = "mix",
    policy: str = "priority",
) -> Distributed:
    """The best division of a network among equal devices.

    Modes are chosen at closed-form prices; of the mix and each mode by itself the one that takes least event by event is
    kept. Raises DeviceError where the device has no such link, OptionError for what is unknown.
    """
    if devices < 1:
        raise OptionError(f"`devices` is {devices}; give 1 or more")
    if mix not in MIXES:
        raise OptionError(f"unknown `mix` {mix!r}; {did_you_mean(mix, MIXES)}")
    name, joined = _link(device, link)
    way = synchronisation(sync)
    whole = plan(network, device, Variant.FULL, policy)
    one_us = simulate(whole).total_us
    start = time.perf_counter()
    compute_us = _prices(network, device, devices, policy)
    sets = [MIXES[mix]] if mix != "mix" else list(MIXES.values())
    candidates = [distribute(network, devices, joined, way, compute_us, modes) for modes in sets]
    optimise_s = time.perf_counter() - start
    timed = [_timed(each, device, joined, policy) for each in dict.fromkeys(candidates)]
    (rows, gather_us), chosen = min(
        zip(timed, dict.fromkeys(candidates), strict=True),
        key=lambda pair: sum(row.compute_us + row.exchange_us for row in pair[0][0]) + pair[0][1],
    )
    return Distributed(chosen, device, name, way.name, mix, one_us, optimise_s, rows, gather_us)


def _link(device: EdgeDevice, name: str | None) -> tuple[str, Link]:
    if not device.links:
        raise DeviceError(
            f"device {device.name!r} has no links to others; give it some in its profile, or one device"
        )
    if name is None:
        return next(iter(device.links.items()))
    if name not in device.links:
        raise DeviceError(f"device {device.name!r} has no link {name!r}; it has {', '.join(device.links)}")
    return name, device.links[name]


def _prices(network: Network, device: EdgeDevice, devices: int, policy: str) -> Callable[[Operator, Boxes], float]:
    """What the slowest device takes for its box, in closed form: where each holds its part of every feature map, and no more."""
    held = {value: 1 / devices for unit in network.units for value in unit.outputs}
    placed = plan(network, device, Variant.FULL, policy, Share(held=held))
    choose, units = POLICIES[policy], device.units.value

    def box_us(operator: Operator, step: Step, space: Any) -> float:
        def price_us(partition: Any) -> float:
            return slice_us(placed, step, Slice(partition))

        return price_us(choose(operator, space, units, price_us))

    def compute_us(operator: Operator, boxes: Boxes) -> float:
        step = placed.steps[operator.index]
        if step.whole:
            return sum(slice_us(placed, step, part) for part in step.slices)
        return max(box_us(operator, step, box) for box in dict.fromkeys(boxes))

    return compute_us


def _timed(
    found: Distribution, device: EdgeDevice, link: Link, policy: str
) -> tuple[tuple[DistributedRow, ...], float]:
    plans = _plans(found, device, policy)
    times = [simulate(each).steps for each in plans]
    types = found.network.graph.types

    def sent_us(exchanges: Sequence[Exchange]) -> float:
        return sum(max(collective_us(one.collective, types[one.value].dtype.bytes, link)) for one in exchanges)

    rows = tuple(
        DistributedRow(
            step.operator.name,
            step.operator.kind,
            str(step.mode),
            sum(one.collective.elements * types[one.value].dtype.bytes for one in step.exchanges),
            sent_us(step.exchanges),
            max(steps[index][1] - steps[index][0] for steps in times),
        )
        for index, step in enumerate(found.steps)
    )
    return rows, sent_us(found.gathers)


def _plans(found: Distribution, device: EdgeDevice, policy: str) -> list[Plan]:
    """A plan a device; devices with equal boxes are one."""
    shares = [found.share(each) for each in range(found.devices)]
    return [plan(found.network, device, Variant.FULL, policy, each) for each in shares]
