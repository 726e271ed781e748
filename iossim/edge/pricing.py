"""Closed-form time of a step, for searches: the larger of the busiest unit's time and that of shared resources.

The event-driven simulator times whole plans; this compares splits of one operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from iossim.edge.linking import MemoryKind
from iossim.edge.plan import EdgePlan, OperatorStep, OutputSlice, Staged, Transfer, Work, unit_work


def rate_gbps(plan: EdgePlan, memory: MemoryKind) -> float:
    """Bandwidth of one unit alone from and to a memory."""
    device = plan.device
    external = device.external.bandwidth_gbps.value
    return device.port_gbps.value if memory is MemoryKind.SHARED else min(device.port_gbps.value, external)


def moving_us(plan: EdgePlan, transfers: Sequence[Transfer]) -> float:
    """Time of a unit's transfers in sequence, if it were alone."""
    return sum(each.bytes / rate_gbps(plan, each.memory) / 1e3 for each in transfers)


def work_us(plan: EdgePlan, work: Work) -> float:
    """Time of a unit for a chunk once its parameters have arrived; streams overlap computing."""
    direct = () if work.by_dma else work.parameters
    waited = [each for each in (*direct, *work.reads) if not each.streamed]
    streamed = [each for each in (*direct, *work.reads) if each.streamed]
    return moving_us(plan, waited) + max(work.compute_us, moving_us(plan, [*streamed, *work.writes]))


def dma_us(plan: EdgePlan, sizes: Sequence[int], units: int = 1) -> float:
    """Time of DMA to move each of ``sizes`` for ``units`` units."""
    dma, external = plan.device.dma, plan.device.external.bandwidth_gbps.value
    if not sizes:
        return 0.0
    channels = min(dma.channels.value, units * len(sizes))
    rate = min(external, channels * dma.channel_gbps.value)
    return dma.setup_us.value + units * sum(sizes) / rate / 1e3


def busy_units(part: OutputSlice) -> int:
    """Number of units with any work: they come first."""
    low, high = 1, part.partition.units
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if part.partition.boxes(middle - 1) else (low, middle - 1)
    return low


class Load(NamedTuple):
    """Time of a slice or a step, and the time for which it would fill the shared and the external memory alone."""

    us: float
    shared_us: float
    external_us: float


def slice_us(plan: EdgePlan, step: OperatorStep, part: OutputSlice) -> float:
    """Time of a slice."""
    return slice_load(plan, step, part).us


def slice_load(plan: EdgePlan, step: OperatorStep, part: OutputSlice) -> Load:
    """Load of a slice, from the work of unit 0, which has the most."""
    works, units = unit_work(plan, step, part, 0), busy_units(part)
    device = plan.device
    ahead = [_parameter_bytes(work) for work in works[1:] if work.by_dma and work.ahead]
    waited = [_parameter_bytes(work) for work in works[:1] if work.by_dma]
    waited += [_parameter_bytes(work) for work in works[1:] if work.by_dma and not work.ahead]
    unit_us = sum(work_us(plan, work) for work in works)
    moved = {MemoryKind.SHARED: 0, MemoryKind.EXTERNAL: 0}
    for work in works:
        for transfer in (*work.reads, *work.writes, *(() if work.by_dma else work.parameters)):
            moved[transfer.memory] += units * transfer.bytes
    shared_us = moved[MemoryKind.SHARED] / device.shared.bandwidth_gbps.value / 1e3
    external_us = moved[MemoryKind.EXTERNAL] / device.external.bandwidth_gbps.value / 1e3
    waited_us = sum(dma_us(plan, [size], units) for size in waited)
    ahead_us = sum(dma_us(plan, [size], units) for size in ahead)
    staged: list[Staged] = [*part.inputs, *([part.output] if part.output else [])]
    staged_us = sum(dma_us(plan, [each.bytes]) for each in staged)
    by_dma = units * (sum(waited) + sum(ahead)) + sum(each.bytes for each in staged)
    return Load(
        staged_us + waited_us + max(unit_us, shared_us, external_us, ahead_us),
        shared_us,
        external_us + by_dma / device.external.bandwidth_gbps.value / 1e3,
    )


def _parameter_bytes(work: Work) -> int:
    return sum(each.bytes for each in work.parameters)


def step_load(plan: EdgePlan, step: OperatorStep) -> Load:
    """Load of a step: the sum of its slices."""
    loads = [slice_load(plan, step, part) for part in step.slices]
    return Load(*(sum(values) for values in zip(*loads, strict=True)))
