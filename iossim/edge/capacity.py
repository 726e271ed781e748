"""Capacity check of a plan at every instant: no memory holds more than its size, or two things at one address."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from iossim.base.errors import PlanError
from iossim.edge.linking import MemoryKind, PlacedMap
from iossim.edge.plan import EdgePlan, OperatorStep, OutputSlice, Work, unit_work


class Use(NamedTuple):
    """Bytes in use during a slice of a step; ``private_bytes`` of the unit that holds most. ``external_bytes`` are
    feature maps, and parameters of the running operator that no on-chip memory holds whole.
    """

    private_bytes: int
    shared_bytes: int
    external_bytes: int


def held(plan: EdgePlan, index: int, part: OutputSlice) -> list[PlacedMap]:
    """Contents of the shared and of the external memory while a slice of a step runs."""
    stage = plan.places[index][0]
    maps = [each for each in plan.buffers.values() if each.first <= stage <= each.last]
    return [*plan.placed_parameters, *maps, *_for_a_while(plan, index, part)]


def check(plan: EdgePlan) -> None:
    """Raise PlanError if a memory exceeds its capacity, or holds two things at one address, at any instant."""
    known: set[object] = set()
    for stage in range(len(plan.stages)):
        _side_by_side(plan, stage)
    for index, step in enumerate(plan.steps):
        for part in step.slices:
            _apart(plan, step, held(plan, index, part))
            same = (step.operator.signature, step.is_cut, part.partition)  # a partition depends on the number of units
            if same not in known:
                known.add(same)
                for works in _distinct_works(plan, step, part):
                    # A chunk's parameters are held with those of the next one if these arrive meanwhile.
                    chunks = [
                        PlacedMap(f"chunk {number}", MemoryKind.PRIVATE, work.private_address, work.private_bytes)
                        for number, work in enumerate(works, 1)
                    ]
                    for place, following in enumerate([*works[1:], None]):
                        _apart(plan, step, chunks[place : place + 1 + bool(following and following.ahead)])


def _side_by_side(plan: EdgePlan, stage: int) -> None:
    """Check that concurrent lanes have their own units and addresses, and read only what was made before."""
    lanes = sorted(plan.stages[stage], key=lambda lane: lane.first_unit)
    end = 0
    for lane in lanes:
        name = plan.steps[lane.steps[0]].operator.name
        if lane.first_unit < end or lane.first_unit + lane.units > plan.device.units.value:
            raise PlanError(f"operator {name!r} runs on units of another lane, or on units that do not exist")
        end = lane.first_unit + lane.units
        made: set[str] = set()
        for step in (plan.steps[index] for index in lane.steps):
            for value in step.operator.inputs:
                if value not in made and plan.buffers[value].first >= stage:
                    raise PlanError(f"operator {step.operator.name!r} reads {value!r} before it is made")
            made.update(step.operator.outputs)
    staged = sorted(
        (each.address, lane.first_unit, each.end, each.value)
        for lane in lanes
        for index in lane.steps
        for part in plan.steps[index].slices
        for each in _for_a_while(plan, index, part)
    )
    reach: dict[int, int] = {}
    for address, owner, until, what in staged:
        if any(address < before for other, before in reach.items() if other != owner):
            raise PlanError(f"{what} overlaps another buffer in the shared memory")
        reach[owner] = max(reach.get(owner, 0), until)


def _for_a_while(plan: EdgePlan, index: int, part: OutputSlice) -> list[PlacedMap]:
    """Contents of the shared memory only while a slice of a step runs."""
    operator, types, shared = plan.steps[index].operator, plan.network.graph.types, MemoryKind.SHARED
    found = [PlacedMap(f"{each.value} (staged)", shared, each.address, each.bytes) for each in part.staged]
    if part.parameters_at is not None:
        size = sum(types[name].bytes for name in operator.parameters)
        found.append(PlacedMap(f"parameters of {operator.name}", shared, part.parameters_at, size))
    return found


def _apart(plan: EdgePlan, step: OperatorStep, things: Sequence[PlacedMap]) -> None:
    name, device = step.operator.name, plan.device
    sizes = {
        MemoryKind.PRIVATE: device.private_bytes.value,
        MemoryKind.SHARED: device.shared.bytes.value,
        MemoryKind.EXTERNAL: device.external.bytes.value,
    }
    for memory, size in sizes.items():
        own = sorted((each for each in things if each.memory is memory), key=lambda each: each.address)
        for one, other in pairwise(own):
            if one.end > other.address:
                raise PlanError(f"operator {name!r}: {one.value} and {other.value} overlap in the {memory} memory")
        if own and (last := own[-1]).end > size:
            raise PlanError(
                f"operator {name!r}: {last.value} ends at {last.end:,} of {size:,} bytes of {memory} memory"
            )


def _distinct_works(plan: EdgePlan, step: OperatorStep, part: OutputSlice) -> Iterator[Sequence[Work]]:
    """Work of units until every shape of box occurred: boxes of the same shape hold equally many parameters."""
    seen: set[object] = set()
    quantum = step.operator.channel_quantum or 1
    for unit in range(part.partition.units):
        boxes = part.partition.boxes(unit)
        shapes = {(box.shape, box.starts[1] % quantum if quantum > 1 else 0) for box in boxes}
        if not shapes <= seen:
            seen |= shapes
            yield unit_work(plan, step, part, unit)


def uses(plan: EdgePlan, index: int) -> list[Use]:
    """Memory in use during each slice of a step."""
    step, found = plan.steps[index], []
    for part in step.slices:
        things, works = held(plan, index, part), unit_work(plan, step, part, 0)
        largest = max((work.chunk.parameter_bytes for work in works), default=0)
        is_outside = part.parameters_at is None and largest > plan.device.private_bytes.value
        parameters = step.operator.parameters if is_outside else ()
        maps = sum(each.bytes for each in things if each.memory is MemoryKind.EXTERNAL and each.value in plan.buffers)
        private_bytes = max((work.private_bytes for work in works), default=0)
        shared_bytes = sum(each.bytes for each in things if each.memory is MemoryKind.SHARED)
        parameter_bytes = sum(plan.network.graph.types[name].bytes for name in parameters)
        found.append(Use(private_bytes, shared_bytes, maps + parameter_bytes))
    return found
