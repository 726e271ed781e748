"""Sharing of issue, pipes, L2, DRAM and power among resident blocks: the rates of the fluid model.

A kernel demands what it would use alone: its blocks on an SM as if they had that SM to themselves, and all of them as
if they had the device's DRAM, L2 and power to themselves, where the fastest of its blocks are slowed first. Then

- on each SM the demands for issue, for each arithmetic pipe and for the port to L2 add up; where a sum is above 1,
  all blocks that use it slow down by it, and those that use several by the largest;
- so do what then goes to DRAM, to the whole of L2, and to the board's power, over the whole device.

What the kernels that run touch adds up, too: what does not fit into L2 comes from DRAM (``kept_us``).

GPUs' kernels cost each other no more than these sums (an RTX 5090's kernels that use all of DRAM, of L2, or of the
fp64 pipe take 1.98, 2.01 and 2.00 times as long beside themselves). On a CPU, while more than one kernel is resident,
all these sums count ``1 + interference`` times, as in the analytic model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

from iossim.backends.simulator.events.multiprocessors import KernelRun, MultiprocessorClass, Resident, Through
from iossim.hardware.lowering.residence import lost_part

#: Demands that exceed a capacity by less than this are rounding.
_ROUNDING = 1e-12


#: Demand of a block on each resource that the device shares.
DEVICE_USES: dict[Through, Callable[[Resident], float]] = {
    Through.DRAM: attrgetter("dram_us"),
    Through.POWER: attrgetter("device_us.power_us"),
    Through.L2: attrgetter("device_us.l2_us"),
}


class Sharing(NamedTuple):
    """Shared resources that couple the classes of SMs."""

    #: Whether DRAM, L2 or power is the limit.
    coupled: bool = False
    #: Factor on the sums of demands.
    demand_factor: float = 1.0
    #: The kernels that are resident.
    kernels: frozenset[KernelRun] = frozenset()


class _Asked:
    """Each kernel's demand on every resource that SMs share, if it ran alone."""

    def __init__(self, classes: Sequence[MultiprocessorClass]) -> None:
        self.dram: dict[KernelRun, float] = {}
        self.power: dict[KernelRun, float] = {}
        self.l2: dict[KernelRun, float] = {}
        for found in classes:
            size = len(found.sms)
            for run, resident in found.residents.items():
                rate = size * resident.base_rate
                if resident.dram_us:
                    self.dram[run] = self.dram.get(run, 0.0) + resident.dram_us * rate
                if resident.device_us.power_us:
                    self.power[run] = self.power.get(run, 0.0) + resident.device_us.power_us * rate
                if resident.device_us.l2_us:
                    self.l2[run] = self.l2.get(run, 0.0) + resident.device_us.l2_us * rate

    def exceed(self, demand_factor: float) -> bool:
        """True where the demands exceed the device, or those of a kernel the reach of its SMs."""
        most = max(sum(self.dram.values()), sum(self.power.values()), sum(self.l2.values()))
        return most * demand_factor > 1.0 + _ROUNDING or any(
            asked > run.demand.work.reach + _ROUNDING for each in (self.dram, self.l2) for run, asked in each.items()
        )


def share(
    classes: Sequence[MultiprocessorClass], now: float, before: Sharing, interference: float, l2_bytes: float
) -> Sharing:
    """Set the rates of all blocks from ``now`` on, and when the first of each class ends.

    Classes are independent of each other unless DRAM, L2 or power is the limit: then they are *coupled*, and all
    their rates may change. So they may when other kernels are resident than before. ``before`` is what the call
    before returned; ``interference`` is the part by which kernels that run side by side add to what all ask for;
    ``l2_bytes`` of what kernels touch find room in L2.
    """
    kernels = frozenset(run for found in classes for run in found.residents)
    demand_factor = 1.0 + interference if len(kernels) > 1 else 1.0
    spilled_anew = kernels != before.kernels and _spill(classes, kernels, l2_bytes)
    asked = _Asked(classes)
    # The SMs only lower these demands: up to the whole of a resource they leave the classes independent.
    coupled = asked.exceed(demand_factor)
    all_anew = coupled or before.coupled or spilled_anew or demand_factor != before.demand_factor
    anew = classes if all_anew else [found for found in classes if found.changed]
    caps = _caps(classes, asked) if coupled else {}
    for found in anew:
        found.advance(now)
        for run, resident in found.residents.items():
            resident.own_rate = min(resident.base_rate, caps[run]) if run in caps else resident.base_rate
            resident.rate = resident.own_rate
            resident.sm_limit = resident.device_limit = None
        _use(found)
        _slow_on_sm(found, demand_factor)
        for resident in found.residents.values():
            resident.sm_rate = resident.rate
    if coupled:
        _slow_by_shared(classes, demand_factor)
    for found in anew:
        _find_next(found, now)
        found.changed = False
    return Sharing(coupled, demand_factor, kernels)


def _spill(classes: Sequence[MultiprocessorClass], kernels: Iterable[KernelRun], l2_bytes: float) -> bool:
    """Tell kernels what L2 loses of theirs, now that these run; whether that has changed for any."""
    keep = [run for run in kernels if run.demand.work.kept_us]
    if not keep:
        return False
    # In order of launches: a sum must not depend on that of a set.
    touched = sum(run.demand.work.footprint_bytes for run in sorted(kernels, key=lambda run: run.number))
    changed = False
    for run in keep:
        alone = lost_part(run.demand.work.footprint_bytes, l2_bytes)
        spilled = (lost_part(touched, l2_bytes) - alone) / (1.0 - alone) if alone < 1.0 else 0.0
        if spilled != run.spilled:
            changed = True
            run.spilled = spilled
            for found in classes:
                if run in found.residents:
                    found.residents[run].spill()
    return changed


def _caps(classes: Sequence[MultiprocessorClass], asked: _Asked) -> dict[KernelRun, float]:
    """For kernels that alone ask for more than there is, or their SMs can draw, the highest rate of their blocks."""
    caps: dict[KernelRun, float] = {}
    for limit, of_kernel in ((Through.DRAM, asked.dram), (Through.POWER, asked.power), (Through.L2, asked.l2)):
        device_us = DEVICE_USES[limit]
        for run, part in of_kernel.items():
            most = 1.0 if limit is Through.POWER else run.demand.work.reach
            if part > most + _ROUNDING:
                held = [(found, found.residents[run]) for found in classes if run in found.residents]
                asks = ((one.base_rate, len(found.sms) * device_us(one)) for found, one in held)
                highest = _highest_rate(asks, most)
                caps[run] = min(caps.get(run, highest), highest)
    return caps


def _highest_rate(asks: Iterable[tuple[float, float]], most: float) -> float:
    """The rate to which blocks are slowed, fastest first, until they ask for ``most`` in all."""
    ordered = sorted(asks)
    left = most
    weight = sum(device_us for _, device_us in ordered)
    for rate, device_us in ordered:
        if rate * weight >= left:
            break
        left -= rate * device_us
        weight -= device_us
    return left / weight


def _slow_on_sm(found: MultiprocessorClass, demand_factor: float) -> None:
    """Slow all blocks on an SM by the demand, times ``demand_factor``, beyond the capacity that they use there."""
    issue, l2 = found.issue_use * demand_factor, found.l2_use * demand_factor
    pipes: dict[str, float] = {}
    for run, resident in found.residents.items():
        work = run.demand.work
        if work.pipe_us:
            pipes[work.pipe] = pipes.get(work.pipe, 0.0) + resident.count * work.pipe_us * resident.rate
    if max(issue, l2, max(pipes.values(), default=0.0) * demand_factor) <= 1.0 + _ROUNDING:
        return
    for run, resident in found.residents.items():
        work = run.demand.work
        excess, limit = 1.0 + _ROUNDING, None
        if work.issue_us and issue > excess:
            excess, limit = issue, Through.ISSUE
        if work.pipe_us and pipes[work.pipe] * demand_factor > excess:
            excess, limit = pipes[work.pipe] * demand_factor, Through.PIPE
        if work.l2_us and l2 > excess:
            excess, limit = l2, Through.L2
        if limit is not None:
            resident.rate /= excess
            resident.sm_limit = limit
    _use(found)


def _slow_by_shared(classes: Sequence[MultiprocessorClass], demand_factor: float) -> None:
    """Slow all blocks that use DRAM, L2 or power by the total demand, times ``demand_factor``, beyond its capacity."""
    dram = sum(len(found.sms) * found.dram_use for found in classes) * demand_factor
    power = sum(len(found.sms) * found.power_use for found in classes) * demand_factor
    l2 = sum(len(found.sms) * found.l2_device_use for found in classes) * demand_factor
    if max(dram, power, l2) <= 1.0 + _ROUNDING:
        return
    for found in classes:
        for resident in found.residents.values():
            excess, limit = 1.0 + _ROUNDING, None
            if resident.dram_us and dram > excess:
                excess, limit = dram, Through.DRAM
            if resident.device_us.power_us and power > excess:
                excess, limit = power, Through.POWER
            if resident.device_us.l2_us and l2 > excess:
                excess, limit = l2, Through.L2
            if limit is not None:
                resident.rate /= excess
                resident.device_limit = limit
        _use(found)


def _use(found: MultiprocessorClass) -> None:
    """Use of shared resources by each SM of a class at the current rates."""
    issue = l2 = dram = power = l2_device = 0.0
    for run, resident in found.residents.items():
        work, rate = run.demand.work, resident.rate
        issue += resident.count * work.issue_us * rate
        l2 += resident.count * work.l2_us * rate
        dram += resident.dram_us * rate
        power += resident.device_us.power_us * rate
        l2_device += resident.device_us.l2_us * rate
    found.issue_use, found.l2_use, found.dram_use, found.power_use = issue, l2, dram, power
    found.l2_device_use = l2_device


def _find_next(found: MultiprocessorClass, now: float) -> None:
    next_us = float("inf")
    for resident in found.residents.values():
        left = resident.cohorts[0].started + 1.0 - resident.progress
        end_us = now + left / resident.rate if left > 0.0 else now
        next_us = min(next_us, end_us)
    found.next_us = next_us
