"""The price of a stage whose groups run on SMs of their own: the partition engine.

A group of a stage of several has a part of the SMs (a green context, made beforehand) and runs its units one after
another on it: its kernels' waves are over fewer SMs, and draw what DRAM bandwidth these can. DRAM and the board's
power are shared by all groups:

    price = max(longest group, DRAM time of all, power time of all).

Parts come in the sizes that the device allows (:mod:`iossim.hardware.green_contexts`). Where there are more groups
than parts, group ``i`` runs on the part ``i`` modulo their number, one after another. One group, or a merged stage,
has the whole device.

The parts make the longest group shortest, so that a schedule need not name them: each begins as small as it may be,
and the longest group gets the next size that shortens it, until none is left. Any division with a shorter longest
group gives each part at least what it has now, so that the result is the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from iossim.backends.simulator.device_rates import DeviceRates
from iossim.backends.simulator.device_sharing import ALONE
from iossim.backends.simulator.kernel_rows import kernel_table
from iossim.backends.simulator.kernel_times import DRAM, POWER, time_kernels
from iossim.backends.simulator.preparation import PreparedProblem
from iossim.backends.simulator.unit_prices import UnitPrice
from iossim.base.compiled import Floats, Integers, jit
from iossim.cost.model import SAFE, StageBounds
from iossim.hardware.profile import DeviceProfile
from iossim.schedule.masks import find_groups, lowest_bit, unit_keys
from iossim.schedule.problem import Masks
from iossim.schedule.streams import flat

#: Groups of a stage at most, as of a concurrent one.
_MOST_GROUPS = 64


class PreparedPartition(NamedTuple):
    """The units of a problem on parts of a device.

    ``sizes``: the numbers of SMs that a part may have, rising, of ``sms``. ``unit_us`` is what a unit takes on each,
    ``[units, sizes]``, ``shared_us`` what it asks of DRAM and of power, each of which takes that long for it,
    ``[units, sizes, 2]``, and ``single_us`` what it takes in a stage of one group, ``[units]``. ``unit_keys``,
    ``[units]``: equal for units of equal times.
    """

    sms: int
    sizes: Integers
    unit_us: Floats
    shared_us: Floats
    single_us: Floats
    unit_keys: Masks

    @staticmethod
    def of(
        profile: DeviceProfile,
        whole_rates: DeviceRates,
        whole: Sequence[UnitPrice],
        by_size: Sequence[tuple[int, Sequence[UnitPrice]]],
    ) -> PreparedPartition:
        """``by_size`` has the prices of all units on parts of each size, ``whole`` those on all SMs."""
        shape = len(whole), len(by_size)
        unit_us = np.array([[unit.device_us for unit in units] for _, units in by_size]).T.reshape(shape)
        shared_us = np.array([[_shared_us(unit, profile, whole_rates) for unit in units] for _, units in by_size])
        single_us = np.array([unit.single_us for unit in whole])
        shared_us = np.ascontiguousarray(shared_us.reshape(len(by_size), len(whole), 2).transpose(1, 0, 2))
        keys = unit_keys(
            [
                np.concatenate([[single], alone, shared.ravel()]).tobytes().hex()
                for single, alone, shared in zip(single_us, unit_us, shared_us, strict=True)
            ]
        )
        sizes = np.array([size for size, _ in by_size], dtype=np.int64)
        return PreparedPartition(profile.sm_count, sizes, np.ascontiguousarray(unit_us), shared_us, single_us, keys)

    def price(self, masks: Masks, predecessors: Masks) -> Floats:
        """The price of each mask as a stage of groups, us, shape ``[len(masks)]``."""
        prices = np.empty(len(masks), dtype=np.float64)
        _price(masks, predecessors, self, prices)
        return prices

    def bounds(self) -> StageBounds:
        """Lower bounds of the prices of stages.

        A part of ``n`` SMs that is used for ``t`` takes ``n * t`` of all SMs' time, and a unit the least over the
        sizes. DRAM and power are as they are.
        """
        serial_us = np.minimum(self.unit_us.min(axis=1), self.single_us)
        area_us = (self.unit_us * self.sizes).min(axis=1) / self.sms
        work_us = np.column_stack([area_us, self.shared_us.min(axis=1)])
        work_us = np.minimum(work_us, self.single_us[:, None])
        return StageBounds(serial_us * SAFE, self.single_us * SAFE, work_us * SAFE)

    def divide(self, groups: Sequence[Sequence[int]]) -> tuple[tuple[range, ...], float]:
        """The SMs of each group of a stage of several, units by index; groups may share a part. And its price, us.

        As :meth:`price` has it, of any number of units.
        """
        contexts = parts_of(len(groups), self)
        chain_us, chosen = np.empty((contexts, len(self.sizes))), np.empty(contexts, dtype=np.int64)
        price_us = _price_groups(*flat(groups), len(groups), self, chain_us, chosen)
        ends = np.cumsum(self.sizes[chosen]).tolist()
        parts = [range(begin, end) for begin, end in pairwise([0, *ends])]
        return tuple(parts[number % contexts] for number in range(len(groups))), price_us


def divided_spans(
    prepared: PreparedProblem, groups: Sequence[Sequence[int]], sms: Sequence[range], price_us: float
) -> Floats:
    """Part, start and end of each kernel of a stage, ``[kernels, 3]``; all are slowed as the stage is."""
    begin, columns, *_ = prepared.kernels
    parts = list(dict.fromkeys(sms))
    ended_us = [0.0] * len(parts)
    spans = np.zeros((len(columns), 3))
    for group, own in zip(groups, sms, strict=True):
        part = parts.index(own)
        for unit in group:
            for kernel in range(begin[unit], begin[unit + 1]):
                start_us = ended_us[part]
                ended_us[part] += columns[kernel, ALONE]
                spans[kernel] = part, start_us, ended_us[part]
    longest_us = max(ended_us)
    if longest_us:
        spans[:, 1:] *= price_us / longest_us
    return spans


@jit
def parts_of(groups: int, partition: PreparedPartition) -> int:
    """Number of parts of a stage, by its number of groups."""
    most: int = partition.sms // partition.sizes[0]
    return min(groups, most)


@jit
def _divide(chain_us: Floats, contexts: int, partition: PreparedPartition, chosen: Integers) -> float:
    """Choose the sizes of the parts; ``chain_us`` has a row a part. Returns the longest."""
    sizes = partition.sizes
    left = partition.sms - contexts * sizes[0]
    for part in range(contexts):
        chosen[part] = 0
    while True:
        longest = 0
        for part in range(1, contexts):
            if chain_us[part, chosen[part]] > chain_us[longest, chosen[longest]]:
                longest = part
        now_us: float = chain_us[longest, chosen[longest]]
        size = chosen[longest] + 1
        while size < len(sizes) and chain_us[longest, size] >= now_us:
            size += 1
        if size == len(sizes) or sizes[size] - sizes[chosen[longest]] > left:
            return now_us
        left -= sizes[size] - sizes[chosen[longest]]
        chosen[longest] = size


@jit
def _price(masks: Masks, predecessors: Masks, partition: PreparedPartition, prices: Floats) -> None:
    groups = np.empty(_MOST_GROUPS + 1, dtype=np.uint64)
    units = np.empty(_MOST_GROUPS, dtype=np.int64)
    begin = np.empty(_MOST_GROUPS + 1, dtype=np.int64)
    chain_us = np.empty((_MOST_GROUPS, len(partition.sizes)), dtype=np.float64)
    chosen = np.empty(_MOST_GROUPS, dtype=np.int64)
    for index in range(len(masks)):
        count = find_groups(masks[index], predecessors, groups)
        place = 0
        alone_us = 0.0
        for group in range(count):
            begin[group] = place
            members = groups[group]
            while members:
                units[place] = lowest_bit(members)
                alone_us += partition.single_us[units[place]]
                members &= members - np.uint64(1)
                place += 1
        begin[count] = place
        prices[index] = _price_groups(units, begin, count, partition, chain_us, chosen) if count > 1 else alone_us


@jit
def _price_groups(
    units: Integers, begin: Integers, count: int, partition: PreparedPartition, chain_us: Floats, chosen: Integers
) -> float:
    """The price of a stage of several groups: ``units[begin[g] : begin[g + 1]]`` are those of group ``g``."""
    contexts = parts_of(count, partition)
    for part in range(contexts):
        chain_us[part] = 0.0
    for group in range(count):
        for place in range(begin[group], begin[group + 1]):
            for size in range(len(partition.sizes)):
                chain_us[group % contexts, size] += partition.unit_us[units[place], size]
    longest_us = _divide(chain_us, contexts, partition, chosen)
    dram_us = 0.0
    power_us = 0.0
    for group in range(count):
        size = chosen[group % contexts]
        for place in range(begin[group], begin[group + 1]):
            dram_us += partition.shared_us[units[place], size, 0]
            power_us += partition.shared_us[units[place], size, 1]
    return max(longest_us, dram_us, power_us)


def _shared_us(unit: UnitPrice, profile: DeviceProfile, rates: DeviceRates) -> tuple[float, float]:
    """Time of a unit at DRAM's whole bandwidth, and at the board's power."""
    if not unit.kernels:
        return 0.0, 0.0
    times = time_kernels(kernel_table(profile.limits, unit.kernels), rates)
    return float(times[:, DRAM].sum()), float(times[:, POWER].sum())
