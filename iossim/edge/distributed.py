"""A network over several edge devices: the cheapest modes, planned on each device, and timed event by event."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from iossim.base.errors import DeviceError, OptionError, did_you_mean, public
from iossim.edge.collectives import SYNCHRONISATIONS
from iossim.edge.distribution import MIXES, Boxes, Distribution, ModeSearch, Price, Pricer
from iossim.edge.operators import Operator
from iossim.edge.optimize import DeviceShare, SplitSearch, plan
from iossim.edge.plan import EdgePlan, OperatorStep, OutputSlice, Variant, slice_load, step_load, unit_work
from iossim.edge.simulator.events import simulate
from iossim.edge.splitting import Even
from iossim.execution.plan import Box
from iossim.hardware.edge import EdgeDevice, Link, edge_device
from iossim.ir.network import Network
from iossim.tasks.requests import network_of


@dataclass(frozen=True, slots=True)
class DistributedRow:
    """An operator: its division among the devices, the bytes and time of what was sent for it, the time that it waited
    for that, and the slowest device's time.
    """

    operator: str
    kind: str
    mode: str
    sent_bytes: int
    exchange_us: float
    waited_us: float
    compute_us: float


@dataclass(frozen=True)
class Distributed:
    """A distribution timed event by event. ``one_us`` is the latency on one device, ``plans`` are those of the devices,
    ``gather_us`` is the wait at the end. ``mix``: ``mix``, or the one mode requested; ``by_mode_us`` has the latency of
    each mode that was tried alone.
    """

    distribution: Distribution
    plans: tuple[EdgePlan, ...]
    rows: tuple[DistributedRow, ...]
    gather_us: float
    device: EdgeDevice
    link: str
    sync: str
    mix: str
    one_us: float
    by_mode_us: Mapping[str, float] = field(default_factory=dict)
    optimise_s: float = 0.0

    def __repr__(self) -> str:
        where = f"{self.distribution.network.name} on {self.distribution.devices} x {self.device.name}"
        return f"<Distributed {where}: {self.latency_us / 1e3:,.3f} ms>"

    @property
    def compute_us(self) -> float:
        return sum(row.compute_us for row in self.rows)

    @property
    def waited_us(self) -> float:
        """Total wait for messages, including the gathers at the end."""
        return sum(row.waited_us for row in self.rows) + self.gather_us

    @property
    def latency_us(self) -> float:
        return self.compute_us + self.waited_us

    @property
    def speedup(self) -> float:
        return self.one_us / self.latency_us

    def to_json(self) -> dict[str, object]:
        network = self.distribution.network
        return {
            "model": network.source.model or network.name,
            "device": self.device.name,
            "devices": self.distribution.devices,
            **{name: getattr(self, name) for name in ("link", "sync", "mix", "one_us", "latency_us", "speedup")},
            "by_mode_us": dict(self.by_mode_us),
            **{name: getattr(self, name) for name in ("compute_us", "waited_us")},
            "sent_bytes": self.distribution.sent_bytes,
            "exact": self.distribution.exact,
            "optimise_s": self.optimise_s,
            "operators": [asdict(row) for row in self.rows],
        }


@public
def distributed(
    model: Network | str | Path,
    device: EdgeDevice | str | Path,
    devices: int,
    link: str | None = None,
    sync: str = "ring",
    mix: str = "mix",
    policy: str = "priority",
) -> Distributed:
    """A network over several equal edge devices (d-Xenos): how operators are divided, what is sent, and the time.

    ``link``: one of the device's (its first). ``sync``: ``ring`` or ``server``. ``mix``: ``mix``, or ``outC``,
    ``inH`` or ``inW`` for every operator that can be divided so. Modes are chosen at closed-form prices; among the mix
    and each mode alone, the fastest event by event is kept. Raises DeviceError if the device has no such link,
    OptionError for unknown names.
    """
    network, device = network_of(model), edge_device(device)
    if devices < 1:
        raise OptionError(f"`devices` is {devices}; give 1 or more")
    for option, value, known in (("mix", mix, MIXES), ("sync", sync, SYNCHRONISATIONS)):
        if value not in known:
            raise OptionError(f"unknown `{option}` {value!r}; {did_you_mean(value, known)}")
    name, joined = link_of(device, link)
    whole = plan(network, device, Variant.FULL, policy)
    one_us = simulate(whole).total_us
    start = time.perf_counter()
    search = ModeSearch(network, devices, joined, SYNCHRONISATIONS[sync], _pricer(network, device, devices, policy))
    candidates = {each: search.best(MIXES[each]) for each in (MIXES if mix == "mix" else [mix])}
    optimise_s = time.perf_counter() - start
    distinct = {
        found: Distributed(found, *_timed(found, device, policy), device, name, sync, mix, one_us)
        for found in dict.fromkeys(candidates.values())
    }
    totals_us = {
        found: sum(row.waited_us + row.compute_us for row in one.rows) + one.gather_us
        for found, one in distinct.items()
    }
    best = min(distinct, key=lambda found: totals_us[found])
    by_mode_us = {each: totals_us[found] for each, found in candidates.items() if each != "mix"}
    return replace(distinct[best], by_mode_us=by_mode_us, optimise_s=optimise_s)


def link_of(device: EdgeDevice, name: str | None) -> tuple[str, Link]:
    """Link of that name, by default the first; raises DeviceError if the device has none such."""
    if not device.links:
        raise DeviceError(f"device {device.name!r} has no links to others; give it some in its profile, or one device")
    if name is None:
        return next(iter(device.links.items()))
    if name not in device.links:
        raise DeviceError(f"device {device.name!r} has no link {name!r}; it has {', '.join(device.links)}")
    return name, device.links[name]


def _pricer(network: Network, device: EdgeDevice, devices: int, policy: str) -> Pricer:
    """Closed-form time of the slowest device for its box, each holding its part of every map."""
    held = {value: 1 / devices for unit in network.units for value in unit.outputs}
    placed = plan(network, device, Variant.FULL, policy, DeviceShare(held=held))
    search, units = SplitSearch(policy), device.units.value

    def box_price(step: OperatorStep, space: Box) -> Price:
        part = OutputSlice(search.split(placed, step, units, OutputSlice(Even(space, 1, ()))))
        return Price(slice_load(placed, step, part).us, max(1, len(unit_work(placed, step, part, 0))))

    def price(operator: Operator, boxes: Boxes) -> Price:
        step = placed.steps[operator.index]
        if step.operator.unknown:
            return Price(step_load(placed, step).us)
        return max(box_price(step, box) for box in dict.fromkeys(boxes))

    return price


def _timed(
    found: Distribution, device: EdgeDevice, policy: str
) -> tuple[tuple[EdgePlan, ...], tuple[DistributedRow, ...], float]:
    """Plans of the devices, a row for each operator, and the wait at the end, all timed event by event."""
    shares = [found.share(each) for each in range(found.devices)]
    plans = [plan(found.network, device, Variant.FULL, policy, each) for each in shares]
    times_us = [max(each) for each in zip(*(simulate(one).steps_us for one in plans), strict=True)]
    *waits_us, gather_us = found.waits_us(times_us)
    rows: list[DistributedRow] = []
    for step, wait_us, us in zip(found.steps, waits_us, times_us, strict=True):
        sent = sum(one.bytes for one in step.exchanges)
        operator, mode = step.operator, str(step.mode)
        rows.append(DistributedRow(operator.name, operator.kind, mode, sent, step.exchange_us, wait_us, us))
    return tuple(plans), tuple(rows), gather_us
