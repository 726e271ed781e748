"""What a step takes, in closed form, for searches: the busiest unit or what all share, whichever is slower.

The event-driven simulator times whole plans; this compares ways to split one operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from iossim.edge.linking import MemoryKind
from iossim.edge.plan import EdgePlan, OperatorStep, OutputSlice, Staged, Transfer, Work, unit_work


def rate_gbps(plan: EdgePlan, memory: MemoryKind) -> float:
    """What one unit moves from and to a memory by itself."""
    device = plan.device
    external = device.external.bandwidth_gbps.value
    return device.port_gbps.value if memory is MemoryKind.SHARED else min(device.port_gbps.value, external)


def moving_us(plan: EdgePlan, transfers: Sequence[Transfer]) -> float:
    """What a unit takes for transfers one after another, were it alone."""
    return sum(each.bytes / rate_gbps(plan, each.memory) / 1e3 for each in transfers)


def work_us(plan: EdgePlan, work: Work) -> float:
    """What a unit takes for a chunk once its parameters are there; streams go on while it computes."""
    direct = () if work.by_dma else work.parameters
    waited = [each for each in (*direct, *work.reads) if not each.streamed]
    streamed = [each for each in (*direct, *work.reads) if each.streamed]
    return moving_us(plan, waited) + max(work.compute_us, moving_us(plan, [*streamed, *work.writes]))


def dma_us(plan: EdgePlan, sizes: Sequence[int], units: int = 1) -> float:
    """What DMA takes to move each of ``sizes`` for ``units`` units."""
    dma, external = plan.device.dma, plan.device.external.bandwidth_gbps.value
    if not sizes:
        return 0.0
    channels = min(dma.channels.value, units * len(sizes))
    rate = min(external, channels * dma.channel_gbps.value)
    return dma.setup_us.value + units * sum(sizes) / rate / 1e3


def busy_units(part: OutputSlice) -> int:
    """How many units have anything to do: those with something come first."""
    low, high = 1, part.partition.units
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if part.partition.boxes(middle - 1) else (low, middle - 1)
    return low


class Load(NamedTuple):
    """What a slice or a step takes, and for how long it would fill the shared and the external memory by itself."""

    us: float
    shared_us: float
    external_us: float


def slice_us(plan: EdgePlan, step: OperatorStep, part: OutputSlice) -> float:
    """What a slice takes."""
    return slice_load(plan, step, part).us


def slice_load(plan: EdgePlan, step: OperatorStep, part: OutputSlice) -> Load:
    """From the work of unit 0, which has the most."""
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
    """Of a step: its slices one after another."""
    loads = [slice_load(plan, step, part) for part in step.slices]
    return Load(*(sum(values) for values in zip(*loads, strict=True)))
