"""How resident blocks share issue, L2 and DRAM: the rates of the fluid.

Each kernel's demand is what it would use alone: its blocks on an SM as if they had that SM to themselves, and all of
them as if they had the device's DRAM to themselves, where the fastest of its blocks are slowed first. Then

- on each SM, all blocks stretch by the larger of the sums of demands for issue and for the L2 port, where that is above 1;
- if what then goes to DRAM is more than it carries, every block that uses it stretches by the excess.

So demands share in proportion, and what is over-asked is used in full. Nothing stands for the interference of kernels
(``crowding`` of the analytic model): that blocks crowd some SMs while others have room is simulated here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from iossim.backends.simulator.events.multiprocessors import KernelRun, MultiprocessorClass

#: Demands that exceed a capacity by less than this are rounding.
_ROUNDING = 1e-12


def share(classes: Sequence[MultiprocessorClass], now: float, was_coupled: bool) -> bool:
    """Set the rates of all blocks from ``now`` on, and when the first of each class ends.

    Classes are independent of each other unless DRAM is the limit: then they are *coupled*, and all their rates may
    change. ``was_coupled`` is what the call before returned: whether they were.
    """
    demand_us: dict[KernelRun, float] = {}
    for found in classes:
        size = len(found.sms)
        for run, resident in found.residents.items():
            if resident.dram_us:
                demand_us[run] = demand_us.get(run, 0.0) + size * resident.dram_us * resident.base_rate
    caps = {
        run: _highest_rate(classes, run) for run, asked in demand_us.items() if asked > 1.0 + _ROUNDING
    }  # fmt: skip
    # Not more than this goes to DRAM, as stretching on the SMs only lowers it.
    coupled = bool(caps) or sum(demand_us.values()) > 1.0 + _ROUNDING
    anew = classes if coupled or was_coupled else [found for found in classes if found.changed]
    for found in anew:
        found.advance(now)
        _share_multiprocessor(found, caps)
    if coupled:
        excess = sum(len(found.sms) * found.dram_use for found in classes)
        if excess > 1.0 + _ROUNDING:
            for found in classes:
                _stretch_dram(found, excess)
    for found in anew:
        _find_next(found, now)
        found.changed = False
    return coupled


def _highest_rate(classes: Iterable[MultiprocessorClass], run: KernelRun) -> float:
    """The rate above which no block of a kernel may go, so that it does not ask for more DRAM than there is."""
    asks = sorted(
        (resident.base_rate, len(found.sms) * resident.dram_us)
        for found in classes
        if (resident := found.residents.get(run)) is not None
    )
    left = 1.0
    weight = sum(dram_us for _, dram_us in asks)
    for rate, dram_us in asks:
        if rate * weight >= left:
            break
        left -= rate * dram_us
        weight -= dram_us
    return left / weight


def _share_multiprocessor(found: MultiprocessorClass, caps: dict[KernelRun, float]) -> None:
    issue = l2 = dram = 0.0
    for run, resident in found.residents.items():
        rate = resident.base_rate
        if run in caps:
            rate = min(rate, caps[run])
        resident.rate = rate
        work = run.demand.work
        issue += resident.count * work.issue_us * rate
        l2 += resident.count * work.l2_us * rate
        dram += resident.dram_us * rate
    stretch = max(issue, l2)
    if stretch > 1.0 + _ROUNDING:
        for resident in found.residents.values():
            resident.rate /= stretch
        issue, l2, dram = issue / stretch, l2 / stretch, dram / stretch
    found.issue_use, found.l2_use, found.dram_use = issue, l2, dram


def _stretch_dram(found: MultiprocessorClass, excess: float) -> None:
    """Slow the blocks that use DRAM."""
    issue = l2 = dram = 0.0
    for run, resident in found.residents.items():
        if resident.dram_us:
            resident.rate /= excess
        work = run.demand.work
        issue += resident.count * work.issue_us * resident.rate
        l2 += resident.count * work.l2_us * resident.rate
        dram += resident.dram_us * resident.rate
    found.issue_use, found.l2_use, found.dram_use = issue, l2, dram


def _find_next(found: MultiprocessorClass, now: float) -> None:
    found.next_us = min(
        (
            now + max(0.0, resident.cohorts[0].started + 1.0 - resident.progress) / resident.rate
            for resident in found.residents.values()
        ),
        default=float("inf"),
    )
