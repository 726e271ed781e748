"""Time that kernels lose to each other, and through which resource, while the engine runs.

A kernel's progress is counted in time of its own alone: what its blocks do in a microsecond, over what all of them do
in its time alone. What a microsecond falls short of is lost, in this order (``sharing``):

- to those that hold the SMs' slots, while it has blocks that wait for room;
- to all that touch L2, while that has no room for what it would keep for it;
- to those beside its blocks on an SM, in proportion to what they ask of what limits them there;
- to those that use DRAM, L2 or power, in proportion, where that is the limit.

A kernel may catch up later, so what was lost moment by moment is scaled to what it took longer in the end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from math import fsum

from iossim.backends.simulator.events.multiprocessors import KernelRun, MultiprocessorClass, Resident, Through, overlap
from iossim.backends.simulator.events.sharing import DEVICE_USES

#: By the other kernel, and through what: time, or time in a microsecond.
Lost = dict[tuple[KernelRun, Through], float]
Weights = dict[KernelRun, float]

#: Longer than alone by less than this part is rounding.
_ROUNDING = 1e-9


class Losses:
    """An :data:`~iossim.backends.simulator.events.device.Observer` that adds up what is lost."""

    def __init__(self) -> None:
        self._now = 0.0
        self._rates: dict[KernelRun, Lost] = {}
        self._lost: dict[KernelRun, Lost] = {}
        #: From when to when how many warps each kernel held: those that wait are not on any SM.
        self._held: list[tuple[float, float, Weights]] = []
        self._holders: Weights = {}

    def __call__(self, now: float, classes: list[MultiprocessorClass]) -> None:
        passed_us = now - self._now
        if passed_us > 0.0:
            if self._holders:
                self._held.append((self._now, now, self._holders))
            for run, rates in self._rates.items():
                lost = self._lost.setdefault(run, {})
                for key, rate in rates.items():
                    lost[key] = lost.get(key, 0.0) + rate * passed_us
        self._now = now
        self._holders = _held_warps(classes)
        self._rates = _lost_in_a_microsecond(classes, self._holders) if len(self._holders) > 1 else {}

    def runs(self) -> list[KernelRun]:
        """All kernels that were seen, in the order of their launches."""
        seen = {run for _, _, holders in self._held for run in holders}
        return sorted(seen, key=lambda run: run.number)

    def of(self, run: KernelRun) -> Lost:
        """Losses of a kernel that has ended, relative to running alone since it was ready; empty if none."""
        alone_us = _alone_us(run)
        longer_us = run.end_us - run.ready_us - alone_us
        if longer_us <= _ROUNDING * max(alone_us, run.end_us):
            return {}
        lost = dict(self._lost.get(run, {}))
        _add(lost, Through.SLOTS, run.start_us - run.ready_us, self._holders_between(run, run.ready_us, run.start_us))
        if not lost:
            # Its blocks lie as others left them room, who have gone since.
            _add(lost, Through.SLOTS, longer_us, self._holders_between(run, run.ready_us, run.end_us))
        total = fsum(lost.values())
        return {key: us * longer_us / total for key, us in lost.items() if us} if total else {}

    def _holders_between(self, run: KernelRun, begin_us: float, end_us: float) -> Weights:
        """For how long the room that a kernel may use was each other's, in parts by the warps held."""
        found: Weights = {}
        first = bisect_right(self._held, begin_us, key=lambda held: held[1])
        for since_us, until_us, holders in islice(self._held, first, None):
            if since_us >= end_us:
                break
            passed_us = min(until_us, end_us) - max(since_us, begin_us)
            others = {
                other: warps for other, warps in holders.items() if other is not run and overlap(run.sms, other.sms)
            }
            if others:
                total = sum(others.values())
                for other, warps in others.items():
                    found[other] = found.get(other, 0.0) + passed_us * warps / total
        return found


def _held_warps(classes: Iterable[MultiprocessorClass]) -> Weights:
    held: Weights = {}
    for found in classes:
        for run, resident in found.residents.items():
            warps = len(found.sms) * resident.count * run.demand.footprint.warps
            held[run] = held.get(run, 0.0) + warps
    return held


def _lost_in_a_microsecond(classes: list[MultiprocessorClass], held: Weights) -> dict[KernelRun, Lost]:
    lost: dict[KernelRun, Lost] = {run: {} for run in held}
    alone_us = {run: _alone_us(run) for run in held}
    # Progress of each kernel in a microsecond, in its time alone, at two of its blocks' rates.
    base = dict.fromkeys(held, 0.0)
    own = dict.fromkeys(held, 0.0)
    by_device: dict[tuple[KernelRun, Through], float] = {}
    for found in classes:
        size = len(found.sms)
        for run, resident in found.residents.items():
            scale = size * resident.device_us.part * alone_us[run]
            base[run] += scale * resident.base_rate
            own[run] += scale * resident.own_rate
            if resident.sm_limit is not None:
                beside = {other: _sm_use(one, resident) for other, one in found.residents.items() if other is not run}
                _add(lost[run], resident.sm_limit, scale * (resident.own_rate - resident.sm_rate), beside)
            if resident.device_limit is not None:
                key = run, resident.device_limit
                by_device[key] = by_device.get(key, 0.0) + scale * (resident.sm_rate - resident.rate)
    for run in held:
        if run.pending:
            others = {other: warps for other, warps in held.items() if other is not run and overlap(run.sms, other.sms)}
            _add(lost[run], Through.SLOTS, max(0.0, 1.0 - base[run]), others)
        if run.spilled:
            touching = {other: other.demand.work.footprint_bytes for other in held if other is not run}
            _add(lost[run], Through.L2, max(0.0, min(1.0, base[run]) - own[run]), touching)
    uses: dict[Through, Weights] = {}
    for (run, limit), us in by_device.items():
        if limit not in uses:
            uses[limit] = _weights(classes, DEVICE_USES[limit])
        _add(lost[run], limit, us, {other: use for other, use in uses[limit].items() if other is not run})
    return lost


def _alone_us(run: KernelRun) -> float:
    return run.demand.alone_us - run.demand.work.gap_us


def _weights(classes: Iterable[MultiprocessorClass], use: Callable[[Resident], float]) -> Weights:
    weights: Weights = {}
    for found in classes:
        for run, resident in found.residents.items():
            weights[run] = weights.get(run, 0.0) + len(found.sms) * use(resident) * resident.sm_rate
    return weights


def _sm_use(one: Resident, slowed: Resident) -> float:
    """Demand of blocks on the resources that limit others on their SM."""
    work = one.run.demand.work
    if slowed.sm_limit is Through.ISSUE:
        block_us = work.issue_us
    elif slowed.sm_limit is Through.L2:
        block_us = work.l2_us
    else:
        block_us = work.pipe_us if work.pipe == slowed.run.demand.work.pipe else 0.0
    return one.count * block_us * one.own_rate


def _add(lost: Lost, through: Through, us: float, weights: Mapping[KernelRun, float]) -> None:
    """Add a loss, in proportion to weights."""
    total = sum(weights.values())
    if us > 0.0 and total:
        for other, weight in weights.items():
            if weight:
                lost[other, through] = lost.get((other, through), 0.0) + us * weight / total
