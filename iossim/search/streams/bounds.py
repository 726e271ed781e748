"""Lower bounds of schedules of streams: critical paths, and work over each resource in each interval of time.

A launch cannot start before its *head*, nor end later than its *tail* before the end of all: both follow from paths,
and from the work of all that must come before or after it. In the interval that begins at a head ``r`` and ends a
tail ``q`` before the end of all, launch ``j`` leaves of its work at least

    work[j] - share[j] * (max(0, r - head[j]) + max(0, q - tail[j])),

since outside it has so much time at most. So all takes at least ``r + q`` and the sum of these over the capacity, one.
That is the energetic reasoning of Erschler and Lopez (Energy-based approach for task scheduling under time and
resources constraints, 1990) for work that may run slower, and never faster, than alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_

import numpy as np

from iossim.base.compiled import Floats
from iossim.cost.facts import LaunchWork
from iossim.cost.model import SAFE
from iossim.schedule.problem import bits
from iossim.schedule.streams import StreamProblem

Check = Callable[[], None]


def stream_bound_us(problem: StreamProblem, work: LaunchWork, check: Check = lambda: None) -> float:
    """Lower bound of every schedule of a problem, us: the host begins to issue when the device is there.

    ``check`` is called all along, and may raise to end it.
    """
    parts = cut(problem)
    device_us = sum(_part_bound_us(problem, work, part, check) for part in parts)
    # The host issues a launch after all that it reads, and before all that reads it.
    tails = _tails_us(problem, work)
    before = ancestors(problem.reads)
    issued_us = [
        sum(work.host_us[one] for one in bits(mask)) + work.host_us[launch] for launch, mask in enumerate(before)
    ]
    host_us = max((own + tail for own, tail in zip(issued_us, tails, strict=True)), default=0.0)
    return max(device_us, host_us, float(work.host_us.sum())) * SAFE


def cut(problem: StreamProblem) -> list[list[int]]:
    """The launches in parts: each ends in a launch that is in order with all others, but perhaps the last."""
    before, count = ancestors(problem.reads), len(problem)
    behind = [0] * count
    for mask in before:
        for one in bits(mask):
            behind[one] += 1
    parts: list[list[int]] = [[]]
    for launch in range(count):
        parts[-1].append(launch)
        if before[launch].bit_count() + behind[launch] == count - 1:
            parts.append([])
    return [part for part in parts if part]


def ancestors(reads: Sequence[Sequence[int]]) -> list[int]:
    """For each launch, by what each reads, the mask of those that must have ended before it starts."""
    found: list[int] = []
    for own in reads:
        found.append(reduce(or_, (found[before] | 1 << before for before in own), 0))
    return found


def critical_us(problem: StreamProblem, work: LaunchWork) -> list[float]:
    """For each launch the longest path from its start, us: the priority of list scheduling."""
    return [tail + float(own) for tail, own in zip(_tails_us(problem, work), work.serial_us, strict=True)]


def _tails_us(problem: StreamProblem, work: LaunchWork) -> list[float]:
    """For each launch the longest path from its end, us."""
    found = [0.0] * len(problem)
    for launch in reversed(range(len(problem))):
        found[launch] = max((found[one] + float(work.serial_us[one]) for one in problem.readers[launch]), default=0.0)
    return found


def _part_bound_us(problem: StreamProblem, work: LaunchWork, part: Sequence[int], check: Check) -> float:
    own, last = problem.part(part), len(part) - 1
    serial_us, needs, share = (values[list(part)] for values in (work.serial_us, work.work_us, work.share))
    heads = _heads(own.reads, serial_us, needs, share, check)
    # The same from the end, where order is reversed.
    backwards = [[last - one for one in readers] for readers in reversed(own.readers)]
    tails = _heads(backwards, serial_us[::-1], needs[::-1], share[::-1], check)[::-1]
    path_us = float((heads + serial_us + tails).max())
    lost_behind = np.maximum(0.0, tails[:, None] - tails[None, :])[:, :, None] * share[None]  # [q, j, resource]
    most_us = path_us
    for head in np.unique(heads):
        check()
        left = needs - share * np.maximum(0.0, head - heads)[:, None]
        kept = np.maximum(0.0, left[None] - lost_behind).sum(axis=1)  # [q, resource]
        # An interval in which no launch must run may be of no length.
        most_us = max(most_us, float(np.where(kept > 0.0, head + tails[:, None] + kept, 0.0).max()))
    return most_us


def _heads(reads: Sequence[Sequence[int]], serial_us: Floats, needs: Floats, share: Floats, check: Check) -> Floats:
    """Earliest start of each launch, us, by the paths to it and by the work of all before it."""
    heads = np.zeros(len(reads))
    for launch, mask in enumerate(ancestors(reads)):
        check()
        if not mask:
            continue
        path_us = max(heads[one] + serial_us[one] for one in reads[launch])
        members = bits(mask)
        starts = np.unique(heads[members])
        left = (
            needs[members][None]
            - share[members][None] * np.maximum(0.0, starts[:, None] - heads[members][None, :])[:, :, None]
        )
        worked_us = float((starts[:, None] + np.maximum(0.0, left).sum(axis=1)).max())
        heads[launch] = max(path_us, worked_us)
    return heads
