"""Capacity check of a plan at every instant: no memory holds more than its size, or two things at one address."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import NamedTuple

from iossim.base.errors import PlanError
from iossim.edge.linking import MemoryKind
from iossim.edge.plan import EdgePlan, OperatorStep, OutputSlice, Work, unit_work


@dataclass(frozen=True, slots=True)
class Held:
    """A range of bytes of a memory that is in use."""

    what: str
    memory: MemoryKind
    address: int
    bytes: int


class Use(NamedTuple):
    """Bytes in use during a slice of a step; ``private_bytes`` of the unit that holds most. ``external_bytes`` are
    feature maps, and parameters of the running operator that no on-chip memory holds whole.
    """

    private_bytes: int
    shared_bytes: int
    external_bytes: int


def held(plan: EdgePlan, index: int, part: OutputSlice) -> list[Held]:
    """Contents of the shared and of the external memory while a slice of a step runs."""
    types = plan.network.graph.types
    found = [Held(name, MemoryKind.EXTERNAL, address, types[name].bytes) for name, address in plan.parameters.items()]
    found += [
        Held(each.value, each.memory, each.address, each.bytes)
        for each in plan.buffers.values()
        if each.first <= plan.places[index][0] <= each.last
    ]
    return found + _for_a_while(plan, index, part)


def check(plan: EdgePlan) -> None:
    """Raise PlanError if a memory exceeds its capacity, or holds two things at one address, at any instant."""
    sizes = {MemoryKind.SHARED: plan.device.shared.bytes.value, MemoryKind.EXTERNAL: plan.device.external.bytes.value}
    known: set[object] = set()
    for stage in range(len(plan.stages)):
        _side_by_side(plan, stage)
    for index, step in enumerate(plan.steps):
        for part in step.slices:
            things = held(plan, index, part)
            for memory, size in sizes.items():
                own = (each for each in things if each.memory is memory)
                _apart(step, memory, sorted(own, key=lambda each: each.address), size)
            same = (step.operator.signature, step.is_cut, part.partition)  # a partition depends on the number of units
            if same not in known:
                known.add(same)
                for works in _distinct_works(plan, step, part):
                    _private(plan, step, works)


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
        (each.address, lane.first_unit, each.address + each.bytes, each.what)
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


def _for_a_while(plan: EdgePlan, index: int, part: OutputSlice) -> list[Held]:
    """Contents of the shared memory only while a slice of a step runs."""
    operator, types = plan.steps[index].operator, plan.network.graph.types
    staged = (*part.inputs, *([part.output] if part.output else []))
    found = [Held(f"{each.value} (staged)", MemoryKind.SHARED, each.address, each.bytes) for each in staged]
    if part.parameters_at is not None:
        size = sum(types[name].bytes for name in operator.parameters)
        found.append(Held(f"parameters of {operator.name}", MemoryKind.SHARED, part.parameters_at, size))
    return found


def _apart(step: OperatorStep, memory: MemoryKind, things: Sequence[Held], size: int) -> None:
    for one, other in pairwise(things):
        if one.address + one.bytes > other.address:
            raise PlanError(
                f"operator {step.operator.name!r}: {one.what} and {other.what} overlap in the {memory} memory"
            )
    if things and (end := things[-1].address + things[-1].bytes) > size:
        raise PlanError(
            f"operator {step.operator.name!r}: {things[-1].what} ends at {end:,} of {size:,} bytes of {memory} memory"
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


def _private(plan: EdgePlan, step: OperatorStep, works: Sequence[Work]) -> None:
    """Check that a private memory holds each chunk's parameters, with those of the next if they arrive meanwhile."""
    size = plan.device.private_bytes.value
    for one, other in zip_longest(works, works[1:]):
        held = (
            [one] if other is None or not other.ahead else sorted((one, other), key=lambda each: each.private_address)
        )
        if any(each.private_address + each.private_bytes > size for each in held):
            raise PlanError(
                f"operator {step.operator.name!r}: parameters exceed the {size:,} bytes of a private memory"
            )
        if len(held) == 2 and held[0].private_address + held[0].private_bytes > held[1].private_address:
            raise PlanError(f"operator {step.operator.name!r}: two chunks overlap in a private memory")


def uses(plan: EdgePlan, index: int) -> list[Use]:
    """Memory in use during each slice of a step."""
    step, found = plan.steps[index], []
    for part in step.slices:
        things, works = held(plan, index, part), unit_work(plan, step, part, 0)
        largest = max((work.chunk.parameter_bytes for work in works), default=0)
        is_outside = part.parameters_at is None and largest > plan.device.private_bytes.value
        parameters = step.operator.parameters if is_outside else ()
        maps = sum(each.bytes for each in things if each.memory is MemoryKind.EXTERNAL and each.what in plan.buffers)
        private_bytes = max((work.private_bytes for work in works), default=0)
        shared_bytes = sum(each.bytes for each in things if each.memory is MemoryKind.SHARED)
        parameter_bytes = sum(plan.network.graph.types[name].bytes for name in parameters)
        found.append(Use(private_bytes, shared_bytes, maps + parameter_bytes))
    return found
