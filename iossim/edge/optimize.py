"""Planning of a network for an edge device: partitions by a policy, links, and places in memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil, prod
from operator import itemgetter

from iossim.base.errors import DeviceError, OptionError, Progress, did_you_mean, ignore
from iossim.edge.linking import ALIGNMENT, AS_MADE, Layout, LinkedMap, MemoryKind, aligned, gaps, place, wanted
from iossim.edge.operators import Operator, Read, operators
from iossim.edge.plan import (
    EdgePlan,
    OperatorStep,
    OutputSlice,
    Staged,
    Stages,
    Variant,
    one_by_one,
    slice_load,
    step_load,
    unit_work,
)
from iossim.edge.splitting import Even, Partition, check_fits, even_parts, grids, part_counts
from iossim.execution.plan import Box
from iossim.hardware.edge import EdgeDevice
from iossim.ir.network import Network

#: Policies of splitting: that of Xenos (output channels, then rows, then columns, then the remainder), or search.
POLICIES = ("priority", "exhaustive")

#: Most splits of an operator that the exhaustive policy prices, those with the smallest largest share first.
MOST_TRIED = 500


@dataclass
class SplitSearch:
    """Splits the operators of a network on a device by a policy, for one plan or several; each split is searched once.

    An interrupt ends the search: its operator gets the best split so far, later ones the priority's. ``progress`` is
    called for each operator, out of ``total`` in all plans that the search is for.
    """

    policy: str = "priority"
    progress: Progress = ignore
    total: int = 0
    done: int = 0
    was_interrupted: bool = False
    #: Splits found, by all that their price depends on.
    known: dict[object, Partition] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise OptionError(f"unknown policy {self.policy!r}; {did_you_mean(self.policy, POLICIES)}")

    def split(self, found: EdgePlan, step: OperatorStep, units: int, part: OutputSlice) -> Partition:
        """Split of a slice of a step over so many units of a plan's device.

        The exhaustive policy takes the cheapest of all grids and the priority's split. A barrier separates operators,
        so that the best split of each is optimal for the whole. A unit computes at least its share of the arithmetic,
        which grows with its elements. Grids are priced in the order of the largest share, until that alone takes as
        long as the best split, or :data:`MOST_TRIED` splits were priced.
        """
        operator, space = step.operator, part.partition.space
        best: Partition = Even(space, units, operator.axes)
        if self.policy == "priority" or self.was_interrupted:
            return best

        def price_us(partition: Partition) -> float:
            return slice_load(found, step, replace(part, partition=partition)).us

        demand = operator.needed(space)
        rate = found.device.multiply_adds_per_us(found.precision)
        each_us = (demand.multiply_adds + demand.other_flops) / rate / prod(space.shape)
        try:
            best_us = price_us(best)
            sized = [(grid.elements(0), grid) for grid in grids(space, units, operator.axes)]
            for elements, grid in sorted(sized, key=itemgetter(0))[: MOST_TRIED - 1]:
                if each_us * elements >= best_us:
                    break
                if (grid_us := price_us(grid)) < best_us:
                    best, best_us = grid, grid_us
        except KeyboardInterrupt:
            self.was_interrupted = True
        return best

    def tell(self) -> None:
        """Report another finished operator."""
        self.done += 1
        self.progress(self.done, max(self.done, self.total))


@dataclass(frozen=True, eq=False)
class DeviceShare:
    """Share of one of several devices: ``spaces``, the box that it computes of each operator by index (by default all
    of it), and ``held``, the fraction of each feature map's elements that it holds (by default all).
    """

    spaces: Mapping[int, Box] = field(default_factory=dict)
    held: Mapping[str, float] = field(default_factory=dict)

    def space(self, operator: Operator) -> Box:
        return self.spaces.get(operator.index, Box.whole(operator.output.shape))


ALL = DeviceShare()


def plan(
    network: Network,
    device: EdgeDevice,
    variant: Variant = Variant.FULL,
    policy: str | SplitSearch = "priority",
    share: DeviceShare = ALL,
    stages: Stages | None = None,
) -> EdgePlan:
    """Plan of a network on a device, or of a device's share of it; ``stages`` are by default one operator after
    another. Raises DeviceError if an operator cannot fit, or the device lacks the network's precision.
    """
    search = SplitSearch(policy) if isinstance(policy, str) else policy
    device.multiply_adds_per_us(network.precision)
    if stages is None:
        stages = one_by_one(range(len(network.units)), device.units.value)
    bare = EdgePlan(network, device, network.precision, variant, (), stages, {}, {})
    placed = _placed(bare, {}, share)
    if variant is not Variant.FULL:
        return _with_steps(placed, search, share)
    # Links are chosen with all operators split: vanilla's reads of unlinked maps predict nothing of linked ones.
    costs_of = _costs(_with_steps(placed, search, share, leaves_whole=False))
    best = {value: min(costs, key=lambda each: (costs[each], each.is_linked)) for value, costs in costs_of}
    layouts = {value: layout for value, layout in best.items() if layout.is_linked}
    found = _with_steps(_placed(bare, layouts, share), search, share)
    return replace(found, links=tuple(_links(found)))


def _placed(bare: EdgePlan, layouts: Mapping[str, Layout], share: DeviceShare) -> EdgePlan:
    """The plan with addresses of parameters and feature maps."""
    network, device, graph, address = bare.network, bare.device, bare.network.graph, 0
    parameters: dict[str, int] = {}
    for name in graph.constants:
        parameters[name] = address
        address = aligned(address + graph.types[name].bytes)
    last = {name: len(bare.stages) for name in graph.outputs}
    made: list[tuple[str, int]] = [(name, -1) for name in graph.inputs]
    for index, stage in enumerate(bare.stages):
        for unit in (network.units[step] for lane in stage for step in lane.steps):
            made += [(value, index) for value in unit.outputs]
            for value in unit.inputs:
                last[value] = max(last.get(value, -1), index)
    lives = []
    for value, first in made:
        layout, kind = layouts.get(value, AS_MADE), graph.types[value]
        size = ceil(share.held.get(value, 1.0) * (layout.elements(kind.shape) * kind.dtype.bytes))
        lives.append((value, size, first, last.get(value, first), layout))
    buffers = place(lives, device.shared.bytes.value, address)
    outside = [each for each in buffers.values() if each.memory is MemoryKind.EXTERNAL]
    end = max((each.end for each in outside), default=address)
    if end > device.external.bytes.value:
        raise DeviceError(
            f"network {network.name!r} needs {end:,} bytes of external memory; {device.name} has "
            f"{device.external.bytes.value:,}"
        )
    return replace(bare, buffers=buffers, parameters=parameters)


def _with_steps(placed: EdgePlan, search: SplitSearch, share: DeviceShare, leaves_whole: bool = True) -> EdgePlan:
    """Plan with every operator split, or with ``leaves_whole`` unsplit as in vanilla if that takes less."""
    if placed.variant is not Variant.VANILLA:
        for operator in operators(placed.network):
            check_fits(operator, placed.device.private_bytes.value)
    steps = []
    for operator in operators(placed.network):
        units = placed.places[operator.index][1].units
        space = share.space(operator)
        step = _unsplit(placed, operator, space)
        if placed.variant is not Variant.VANILLA and not step.operator.unknown:
            sliced = OperatorStep(operator, tuple(_slices(placed, operator, space)))
            split = _partitioned(placed, sliced, search, units)
            can_stay = leaves_whole and units >= placed.device.unpartitioned_units.value
            if not can_stay or step_load(placed, split).us <= step_load(placed, step).us:
                step = split
            search.tell()
        steps.append(step)
    return replace(placed, steps=tuple(steps))


def _unsplit(placed: EdgePlan, operator: Operator, space: Box) -> OperatorStep:
    """An unsplit operator: on as many units as the toolchain uses, its parameters at their place in memory."""
    units = placed.device.unpartitioned_units.value
    partition = Even(space, 1, ()) if operator.unknown else Even(space, units, operator.axes)
    part = OutputSlice(partition, parameters_at=_shared_parameters(placed, operator))
    is_cut = placed.variant is not Variant.VANILLA and bool(operator.unknown)
    return OperatorStep(operator, (part,), is_cut)


def on_units(found: EdgePlan, step: OperatorStep, units: int, policy: str) -> OperatorStep:
    """A step of a plan on a given number of units, its slices and memories unchanged."""
    if not step.is_cut:
        most = min(units, found.device.unpartitioned_units.value)
        return step.split(lambda part: Even(part.partition.space, most, step.operator.axes))
    return _partitioned(found, step, SplitSearch(policy), units)


def _partitioned(placed: EdgePlan, step: OperatorStep, search: SplitSearch, units: int) -> OperatorStep:
    """The step with each of its slices split over so many units."""
    operator = step.operator

    def partition(part: OutputSlice) -> Partition:
        space = part.partition.space
        key = (operator.signature, space, units, placed.lies(operator), len(part.inputs), part.output is None)
        if key not in search.known:
            search.known[key] = search.split(placed, step, units, part)
        return search.known[key]

    return step if step.operator.unknown else step.split(partition)


def _slices(placed: EdgePlan, operator: Operator, space: Box) -> list[OutputSlice]:
    """Slices of a box of an operator whose feature maps are external: the fewest that fit the shared memory."""
    maps = [placed.buffers[name].memory for name in (*operator.inputs, *operator.outputs)]
    if MemoryKind.EXTERNAL not in maps or not operator.axes:
        return [OutputSlice(Even(space, 1, ()))]
    axis = operator.axes[min(1, len(operator.axes) - 1)]
    if axis == operator.axes[0] and operator.channel_quantum:
        counts = [1]
    else:
        counts = part_counts(space.shape[axis], space.shape[axis])
    room = _room(placed, operator.index)

    def first_fits(count: int) -> bool:
        return _staged(placed, operator, next(even_parts(space, axis, count)), *room) is not None

    # The first slice has a halo on one side only: if later ones do not fit, finer slices do.
    for count in counts[bisect_left(counts, True, key=first_fits) :]:
        found = [_staged(placed, operator, box, *room) for box in even_parts(space, axis, count)]
        fitting = [each for each in found if each is not None]
        if len(fitting) == count:
            return fitting
    return [OutputSlice(Even(space, 1, ()))]  # not even a row fits: units read the external memory themselves


def _shared_parameters(placed: EdgePlan, operator: Operator) -> int | None:
    """Address in shared memory of parameters that no unit can hold; None if one can, or there is no room."""
    size = sum(placed.network.graph.types[name].bytes for name in operator.parameters)
    if size <= placed.device.private_bytes.value:
        return None
    start, room = _room(placed, operator.index)
    return start if size <= room else None


def _room(placed: EdgePlan, index: int) -> tuple[int, int]:
    """A lane's part, by its units, of the largest free range of the shared memory while a step's stage runs."""
    stage, lane = placed.places[index]
    inside = (each for each in placed.buffers.values() if each.memory is MemoryKind.SHARED)
    beside = [each for each in inside if each.first <= stage <= each.last]
    start, room = max(gaps(beside, end=placed.device.shared.bytes.value), key=lambda gap: gap[1])
    units = sum(each.units for each in placed.stages[stage])
    first, end = (
        room * unit // units // ALIGNMENT * ALIGNMENT for unit in (lane.first_unit, lane.first_unit + lane.units)
    )
    return start + first, (room if lane.first_unit + lane.units == units else end) - first


def _staged(placed: EdgePlan, operator: Operator, box: Box, start: int, room: int) -> OutputSlice | None:
    """A slice, and what is staged for it from an address on; None if a box cannot be computed alone, or in the room."""
    demand, address, found = operator.demand(box), start, dict[str, Staged]()
    if demand is None:
        return None
    for value, part in (demand.read_boxes | {operator.outputs[0]: box}).items():
        buffer = placed.buffers[value]
        if buffer.memory is MemoryKind.EXTERNAL:
            copies = buffer.layout.copies(part, placed.network.graph.types[value].shape)
            found[value] = Staged(value, part, address, round(operator.bytes_of(value, part) * copies))
            address += aligned(found[value].bytes)
    output = found.pop(operator.outputs[0], None)
    return OutputSlice(Even(box, 1, ()), tuple(found.values()), output) if address - start <= room else None


def _links(found: EdgePlan) -> Iterator[LinkedMap]:
    for value, costs in _costs(found):
        layout = found.buffers[value].layout
        if layout.is_linked and layout in costs:
            yield LinkedMap.of(found.network, value, layout, costs)


def _costs(found: EdgePlan) -> Iterator[tuple[str, dict[Layout, int]]]:
    """Cost of each layout of the feature maps that operators make: bytes of readers' busiest units, and of writing."""
    types, cache_bytes = found.network.graph.types, found.device.cache_bytes.value
    reads: dict[str, list[tuple[Read, MemoryKind]]] = {}
    for step in found.steps:
        for part in step.slices if not step.operator.unknown else ():
            staged = {each.value for each in part.inputs}
            for work in unit_work(found, step, part, 0):
                for read in work.chunk.demand.reads:
                    where = MemoryKind.SHARED if read.value in staged else found.buffers[read.value].memory
                    reads.setdefault(read.value, []).append((read, where))
    makers = {value: index for index, unit in enumerate(found.network.units) for value in unit.outputs}
    for value, maker in makers.items():
        kind, buffer = types[value], found.buffers[value]
        item = kind.dtype.bytes
        seen = reads.get(value, [])
        layouts = dict.fromkeys([AS_MADE, *(wanted(read.order, kind.shape, item, cache_bytes) for read, _ in seen)])
        if len(layouts) == 1:
            continue
        # External data are written and read by DMA, which all units share.
        sharing = found.places[maker][1].units if buffer.memory is MemoryKind.SHARED else 1
        costs = {}
        for layout in layouts:
            visits = (found.visit(read, memory, layout) for read, memory in seen)
            costs[layout] = layout.elements(kind.shape) * item // sharing + sum(each.bytes for each in visits)
        yield value, costs
