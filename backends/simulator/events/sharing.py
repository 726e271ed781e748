"""How resident blocks share issue, L2, DRAM and power: the rates of the fluid.

Each kernel's demand is what it would use alone: its blocks on an SM as if they had that SM to themselves, and all of
them as if they had the device's DRAM and power to themselves, where the fastest of its blocks are slowed first. Then

- on each SM, all blocks slow down by the larger of the sums of demands for issue and for the L2 port, where that is above 1;
- if what then goes to DRAM is more than it carries, every block that uses it slows down by the excess; power likewise.

So demands share in proportion. Kernels that run side by side disturb each other besides, by the rule of the analytic
model: while more than one is resident on the device, all these sums count ``1 + interference`` times when they are compared
with what there is. What is over-asked is used in full by a kernel alone, and to one part in ``1 + interference`` by several:
the rest is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from iossim.backends.simulator.events.multiprocessors import KernelRun, MultiprocessorClass

#: Demands that exceed a capacity by less than this are rounding.
_ROUNDING = 1e-12


class Sharing(NamedTuple):
    """What ties the classes of SMs to each other."""

    #: Whether DRAM or power is the limit.
    coupled: bool = False
    #: How many times the sums of demands count.
    demand_factor: float = 1.0


def share(classes: Sequence[MultiprocessorClass], now: float, before: Sharing, interference: float) -> Sharing:
    """Set the rates of all blocks from ``now`` on, and when the first of each class ends.

    Classes are independent of each other unless DRAM or power is the limit: then they are *coupled*, and all their rates
    may change. So they may when a second kernel comes, or the last but one goes. ``before`` is what the call before
    returned; ``interference`` is the part by which kernels that run side by side add to what all ask for.
    """
    kernels = {run for found in classes for run in found.residents}
    demand_factor = 1.0 + interference if len(kernels) > 1 else 1.0
    dram: dict[KernelRun, float] = {}
    power: dict[KernelRun, float] = {}
    for found in classes:
        size = len(found.sms)
        for run, resident in found.residents.items():
            if resident.dram_us:
                dram[run] = dram.get(run, 0.0) + size * resident.dram_us * resident.base_rate
            if resident.power_us:
                power[run] = power.get(run, 0.0) + size * resident.power_us * resident.base_rate
    # The SMs only lower these demands: up to the whole of a resource they leave the classes independent.
    coupled = max(sum(dram.values()), sum(power.values())) * demand_factor > 1.0 + _ROUNDING
    all_anew = coupled or before.coupled or demand_factor != before.demand_factor
    anew = classes if all_anew else [found for found in classes if found.changed]
    caps = _caps(classes, dram, power) if coupled else {}
    for found in anew:
        found.advance(now)
        for run, resident in found.residents.items():
            resident.rate = min(resident.base_rate, caps[run]) if run in caps else resident.base_rate
        _use(found)
        slowdown = max(found.issue_use, found.l2_use) * demand_factor
        if slowdown > 1.0 + _ROUNDING:
            for resident in found.residents.values():
                resident.rate /= slowdown
            _use(found)
    if coupled:
        _slow_by_shared(classes, demand_factor)
    for found in anew:
        _find_next(found, now)
        found.changed = False
    return Sharing(coupled, demand_factor)


def _caps(
    classes: Sequence[MultiprocessorClass], dram: dict[KernelRun, float], power: dict[KernelRun, float]
) -> dict[KernelRun, float]:
    """For kernels that alone ask for more DRAM or power than there is, the highest rate that their blocks may have."""
    caps: dict[KernelRun, float] = {}
    for run, asked in dram.items():
        if asked > 1.0 + _ROUNDING:
            held = [(found, found.residents[run]) for found in classes if run in found.residents]
            caps[run] = _highest_rate((one.base_rate, len(found.sms) * one.dram_us) for found, one in held)
    for run, asked in power.items():
        if asked > 1.0 + _ROUNDING:
            held = [(found, found.residents[run]) for found in classes if run in found.residents]
            highest = _highest_rate((one.base_rate, len(found.sms) * one.power_us) for found, one in held)
            caps[run] = min(caps.get(run, highest), highest)
    return caps


def _highest_rate(asks: Iterable[tuple[float, float]]) -> float:
    """The rate to which blocks are slowed, fastest first, until what they ask for at their rates is 1 in all."""
    ordered = sorted(asks)
    left = 1.0
    weight = sum(device_us for _, device_us in ordered)
    for rate, device_us in ordered:
        if rate * weight >= left:
            break
        left -= rate * device_us
        weight -= device_us
    return left / weight


def _slow_by_shared(classes: Sequence[MultiprocessorClass], demand_factor: float) -> None:
    """Slow all blocks that use DRAM, or power, by what is asked of it in all, so many times, beyond the whole."""
    dram = max(1.0, sum(len(found.sms) * found.dram_use for found in classes) * demand_factor)
    power = max(1.0, sum(len(found.sms) * found.power_use for found in classes) * demand_factor)
    if max(dram, power) <= 1.0 + _ROUNDING:
        return
    for found in classes:
        for resident in found.residents.values():
            resident.rate /= max(dram if resident.dram_us else 1.0, power if resident.power_us else 1.0)
        _use(found)


def _use(found: MultiprocessorClass) -> None:
    """What each SM of a class uses at the rates set."""
    issue = l2 = dram = power = 0.0
    for run, resident in found.residents.items():
        work, rate = run.demand.work, resident.rate
        issue += resident.count * work.issue_us * rate
        l2 += resident.count * work.l2_us * rate
        dram += resident.dram_us * rate
        power += resident.power_us * rate
    found.issue_use, found.l2_use, found.dram_use, found.power_use = issue, l2, dram, power


def _find_next(found: MultiprocessorClass, now: float) -> None:
    found.next_us = min(
        (
            now + max(0.0, resident.cohorts[0].started + 1.0 - resident.progress) / resident.rate
            for resident in found.residents.values()
        ),
        default=float("inf"),
    )
