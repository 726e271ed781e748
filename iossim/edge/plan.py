"""A plan: the place of all data and the work of each unit, with a barrier after each stage; and the time of a step.

A stage is one operator on all units, or concurrent lanes of operators, each on a part of the units. A plan is compact:
an :class:`OperatorStep` holds an operator's split, and :func:`unit_work` expands it for one unit, transfer by transfer
with bytes and addresses. Both the simulator and NumPy read this same work.

Searches compare splits of an operator by its closed-form time (:func:`slice_load`), the larger of the busiest unit's
and that of shared resources; the event-driven simulator times whole plans.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from iossim.edge.linking import Layout, LinkedMap, MemoryKind, PlacedMap, Visit, visit
from iossim.edge.operators import Demand, Operator, Read
from iossim.edge.splitting import Chunk, Partition, chunks, within_groups
from iossim.execution.plan import Box
from iossim.hardware.edge import EdgeDevice
from iossim.ir.network import Network
from iossim.ir.types import Precision


class Variant(StrEnum):
    """Subset of Xenos' optimisations in a plan. Each variant includes those before it."""

    VANILLA = "vanilla"
    HORIZONTAL = "horizontal"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Staged:
    """A box of a feature map of the external memory, temporarily in the shared one at ``address``."""

    value: str
    box: Box
    address: int
    bytes: int


@dataclass(frozen=True)
class OutputSlice:
    """A part of an operator's output: DMA brings ``inputs``, units work, DMA writes the ``output`` back.

    ``parameters_at`` is the address in shared memory, meanwhile, of all parameters of an unsplit operator that no
    private memory can hold.
    """

    partition: Partition
    inputs: tuple[Staged, ...] = ()
    output: Staged | None = None
    parameters_at: int | None = None

    @property
    def staged(self) -> tuple[Staged, ...]:
        return self.inputs if self.output is None else (*self.inputs, self.output)


@dataclass(frozen=True, eq=False)
class OperatorStep:
    """An operator. ``is_cut`` says whether its parameters are cut until they fit a unit's private memory; if unsplit,
    they are read in place.
    """

    operator: Operator
    slices: tuple[OutputSlice, ...]
    is_cut: bool = True

    def split(self, split: Callable[[OutputSlice], Partition]) -> OperatorStep:
        """The step with each of its slices divided so."""
        return replace(self, slices=tuple(replace(part, partition=split(part)) for part in self.slices))


@dataclass(frozen=True, slots=True)
class Lane:
    """Steps, by index, in sequence on ``units`` units from ``first_unit`` on, beside the stage's other lanes."""

    steps: tuple[int, ...]
    first_unit: int
    units: int


#: Lanes of each stage, in order; every step is in exactly one.
Stages = tuple[tuple[Lane, ...], ...]


def one_by_one(steps: Iterable[int], units: int) -> Stages:
    """Stages of one step each, on all units."""
    return tuple((Lane((step,), 0, units),) for step in steps)


@dataclass(frozen=True, eq=False)
class EdgePlan:
    """A plan for a device; ``parameters`` are addresses in the external memory."""

    network: Network
    device: EdgeDevice
    precision: Precision
    variant: Variant
    steps: tuple[OperatorStep, ...]
    stages: Stages
    buffers: Mapping[str, PlacedMap]
    parameters: Mapping[str, int]
    links: tuple[LinkedMap, ...] = ()

    def lies(self, operator: Operator) -> tuple[tuple[MemoryKind, Layout], ...]:
        """Memory and layout of an operator's feature maps: with its signature, these determine its times."""
        maps = (self.buffers[name] for name in (*operator.inputs, *operator.outputs))
        return tuple((each.memory, each.layout) for each in maps)

    def visit(self, read: Read, memory: MemoryKind, layout: Layout) -> Visit:
        """Cost of a read of a feature map in a memory and layout."""
        device, kind = self.device, self.network.graph.types[read.value]
        line = (device.shared if memory is MemoryKind.SHARED else device.external).line_bytes.value
        return visit(read.box, read.order, layout, kind.shape, kind.dtype.bytes, line, device.cache_bytes.value)

    @cached_property
    def placed_parameters(self) -> tuple[PlacedMap, ...]:
        types, external = self.network.graph.types, MemoryKind.EXTERNAL
        return tuple(PlacedMap(name, external, address, types[name].bytes) for name, address in self.parameters.items())

    @cached_property
    def places(self) -> Mapping[int, tuple[int, Lane]]:
        """Stage of each step, and its lane there."""
        return {step: (index, lane) for index, stage in enumerate(self.stages) for lane in stage for step in lane.steps}


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer between a unit and a memory; ``bytes`` counts whole lines, ``size`` the requested bytes."""

    what: str
    memory: MemoryKind
    address: int
    size: int
    bytes: int
    streamed: bool = True


@dataclass(frozen=True, slots=True)
class Work:
    """A unit's work on one chunk: it gets the parameters, reads, computes for ``compute_us`` and writes.

    Parameters that fit are in the unit's own private memory, at ``private_address``: DMA brings them (``by_dma``;
    ``ahead`` of time, while the unit works on the previous chunk, if both fit), or the unit reads them on demand. For
    parameters that do not fit, and are read in place, ``private_bytes`` is 0.
    """

    chunk: Chunk
    private_address: int
    private_bytes: int
    parameters: tuple[Transfer, ...]
    by_dma: bool
    ahead: bool
    reads: tuple[Transfer, ...]
    writes: tuple[Transfer, ...]
    compute_us: float


def unit_work(plan: EdgePlan, step: OperatorStep, part: OutputSlice, unit: int) -> tuple[Work, ...]:
    """Work of one unit for a slice of a step, chunk by chunk."""
    found: list[Work] = []
    operator, private = step.operator, plan.device.private_bytes.value
    rate = plan.device.multiply_adds_per_us(plan.precision)
    for box in within_groups(operator, part.partition.boxes(unit)):
        for chunk in chunks(operator, box, private if step.is_cut and not operator.unknown else None):
            demand, fits = chunk.demand, chunk.parameter_bytes <= private
            size, by_dma = chunk.parameter_bytes if fits else 0, step.is_cut and fits
            address, ahead = _beside(found[-1] if found else None, size, private) if by_dma else (0, False)
            parameters = tuple(_parameters(plan, operator, part, chunk, by_dma))
            reads, writes = tuple(_reads(plan, part, demand)), tuple(_writes(plan, step, part, chunk))
            # Any other operation takes as long as a multiply-add.
            compute_us = (demand.multiply_adds + demand.other_flops) / rate
            found.append(Work(chunk, address, size, parameters, by_dma, ahead, reads, writes, compute_us))
    return tuple(found)


def _beside(before: Work | None, size: int, private: int) -> tuple[int, bool]:
    """Address of parameters that arrive during the work on those of ``before``; 0, afterwards, if both do not fit."""
    if before is None or not before.by_dma or size <= before.private_address:
        return 0, True
    end = before.private_address + before.private_bytes
    return (end, True) if end + size <= private else (0, False)


def _parameters(
    plan: EdgePlan, operator: Operator, part: OutputSlice, chunk: Chunk, by_dma: bool
) -> Iterator[Transfer]:
    """Transfers of parameters; those not kept in the private memory are moved again for each row of the output."""
    again, at = 1, part.parameters_at
    if not by_dma and chunk.parameter_bytes > plan.device.private_bytes.value:
        box = chunk.demand.box
        again = box.shape[-2] if len(box.shape) > 1 else 1
    for name, box in chunk.demand.parameters.items():
        size = operator.bytes_of(name, box)
        yield Transfer(name, MemoryKind.EXTERNAL, plan.parameters[name], size, size if at is not None else size * again)
        if at is not None:
            yield Transfer(name, MemoryKind.SHARED, at, size, size * again)
            at += size


def _reads(plan: EdgePlan, part: OutputSlice, demand: Demand) -> Iterator[Transfer]:
    staged = {each.value: each for each in part.inputs}
    for read in demand.reads:
        buffer, size = (
            plan.buffers[read.value],
            math.prod(read.box.shape) * plan.network.graph.types[read.value].dtype.bytes,
        )
        memory = MemoryKind.SHARED if read.value in staged else buffer.memory
        address = staged[read.value].address if read.value in staged else buffer.address
        yield Transfer(read.value, memory, address, size, *plan.visit(read, memory, buffer.layout))


def _writes(plan: EdgePlan, step: OperatorStep, part: OutputSlice, chunk: Chunk) -> Iterator[Transfer]:
    """Transfers of the output, or of a partial sum, which all but the first also read back; one per band."""
    for value, box in step.operator.boxes(chunk.demand.box).items():
        buffer, size = plan.buffers[value], step.operator.bytes_of(value, box)
        memory = MemoryKind.SHARED if part.output is not None else buffer.memory
        address = part.output.address if part.output is not None else buffer.address
        shape = plan.network.graph.types[value].shape
        copies = buffer.layout.copies(Box.whole(shape), shape) if chunk.last and buffer.layout.rows else 1
        yield Transfer(value, memory, address, size, round(size * copies) + (0 if chunk.first else size))


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


def dma_us(plan: EdgePlan, size: int, units: int = 1) -> float:
    """Time of DMA to move so many bytes for each of ``units`` units."""
    dma, external = plan.device.dma, plan.device.external.bandwidth_gbps.value
    rate = min(external, min(dma.channels.value, units) * dma.channel_gbps.value)
    return dma.setup_us.value + units * size / rate / 1e3


def busy_units(part: OutputSlice) -> int:
    """Number of units with any work: they come first."""
    partition = part.partition
    return bisect_left(range(partition.units), True, 1, key=lambda unit: not partition.boxes(unit))


class Load(NamedTuple):
    """Time of a slice or a step, and the time for which it would fill the shared and the external memory alone."""

    us: float
    shared_us: float
    external_us: float


def slice_load(plan: EdgePlan, step: OperatorStep, part: OutputSlice) -> Load:
    """Load of a slice, from the work of unit 0, which has the most."""
    works, units = unit_work(plan, step, part, 0), busy_units(part)
    device = plan.device
    brought = [(sum(each.bytes for each in work.parameters), work) for work in works if work.by_dma]
    ahead = [size for size, work in brought if work.ahead and work is not works[0]]
    waited = [size for size, work in brought if not work.ahead or work is works[0]]
    unit_us = sum(work_us(plan, work) for work in works)
    moved = {MemoryKind.SHARED: 0, MemoryKind.EXTERNAL: 0}
    for work in works:
        for transfer in (*work.reads, *work.writes, *(() if work.by_dma else work.parameters)):
            moved[transfer.memory] += units * transfer.bytes
    shared_us = moved[MemoryKind.SHARED] / device.shared.bandwidth_gbps.value / 1e3
    external_us = moved[MemoryKind.EXTERNAL] / device.external.bandwidth_gbps.value / 1e3
    waited_us, ahead_us = (sum(dma_us(plan, size, units) for size in sizes) for sizes in (waited, ahead))
    staged_us = sum(dma_us(plan, each.bytes) for each in part.staged)
    by_dma = units * (sum(waited) + sum(ahead)) + sum(each.bytes for each in part.staged)
    return Load(
        staged_us + waited_us + max(unit_us, shared_us, external_us, ahead_us),
        shared_us,
        external_us + by_dma / device.external.bandwidth_gbps.value / 1e3,
    )


def step_load(plan: EdgePlan, step: OperatorStep) -> Load:
    """Load of a step: the sum of its slices."""
    loads = [slice_load(plan, step, part) for part in step.slices]
    return Load(*(sum(values) for values in zip(*loads, strict=True)))
