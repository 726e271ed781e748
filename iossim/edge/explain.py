"""Explanation of operators on an edge device: what bounds each, other splits, and the saving by linking.

The bound of an operator is computed, not guessed: the plan is timed again on devices on which one resource at a time is
free, and the time that an operator saves there is what that resource costs it. Barriers separate operators, so that
each saving is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from iossim.base.errors import OptionError, did_you_mean
from iossim.edge.optimize import SplitSearch
from iossim.edge.plan import EdgePlan, OperatorStep, OutputSlice, Variant, unit_work
from iossim.edge.planned import Dataflow
from iossim.edge.pricing import slice_us
from iossim.edge.simulator.events import simulate
from iossim.edge.splitting import Grid, Partition
from iossim.hardware.edge import EdgeDevice
from iossim.ir.types import Precision

#: Factor in speed or size that makes a resource free.
_MUCH = 1e6
#: A resource that costs an operator a smaller part of its time does not bound it.
LEAST_PART = 0.03
#: A resource that costs this part of what two together do bounds alone.
_NEARLY = 0.9
PAIRS = {
    "arithmetic and ports": ("arithmetic", "ports of units"),
    "DMA and external memory": ("DMA", "external memory"),
}


def _free(device: EdgeDevice, precision: Precision) -> dict[str, EdgeDevice]:
    """The device with each resource free: arithmetic, waiting for lines, shared resources, units' ports."""

    def faster(*names: str, **others: float) -> EdgeDevice:
        known = device.numbers()
        return device.changed({name: known[name] * _MUCH for name in names} | others)

    rate = f"multiply_adds_per_cycle.{precision}"
    dma = {"dma.channel_gbps": device.dma.channel_gbps.value * _MUCH, "dma.setup_us": 0.0}
    return {
        "arithmetic": faster(rate),
        "waiting for lines": device.changed({"cache_bytes": 10**15}),
        "ports of units": faster("port_gbps"),
        "shared memory": faster("shared.bandwidth_gbps"),
        "external memory": faster("external.bandwidth_gbps"),
        "DMA": device.changed(dma),
        # These overlap, so that either alone may hide the other.
        "arithmetic and ports": faster(rate, "port_gbps"),
        "DMA and external memory": faster("external.bandwidth_gbps", **dma),
    }


@dataclass(frozen=True, slots=True)
class OtherSplit:
    """A partition of the operator, and its time by the closed form that policies compare with."""

    partition: str
    priced_us: float


@dataclass(frozen=True, slots=True)
class Linked:
    """Consumer for which an operator's output is laid out: bytes that its readers move with and without that layout."""

    form: str
    readers: tuple[str, ...]
    bytes: int
    unlinked_bytes: int


@dataclass(frozen=True, slots=True)
class ExplainedOperator:
    """An operator of the full plan. ``saves_us`` is its saving with one resource free, by resource, the largest first.

    ``priced_us`` is the closed form of its own split, ``others`` those of each axis alone, and of the best of all grids
    if requested. ``linking_us`` is the saving by linking, of its inputs (``reads_linked``: the producers that lay them
    out for it) or of its output. ``chunks`` is the number of parts in which a unit's parameters arrive, the largest of
    ``chunk_bytes``.
    """

    operator: str
    kind: str
    time_us: float
    share: float
    partition: str
    slices: int
    whole: str
    chunks: int
    chunk_bytes: int
    parameter_bytes: int
    saves_us: Mapping[str, float]
    priced_us: float
    others: tuple[OtherSplit, ...]
    linking_us: float
    reads_linked: tuple[str, ...]
    linked: Linked | None

    @property
    def bound(self) -> str:
        """The costliest resource, a single one before two; ``several at once`` if none costs much."""
        most_us = max(self.saves_us.values())
        if most_us < LEAST_PART * self.time_us:
            return "several at once"
        near = [thing for thing, us in self.saves_us.items() if us >= _NEARLY * most_us]
        return min(near, key=lambda thing: thing in PAIRS)


@dataclass(frozen=True)
class DataflowExplanation:
    """All operators of a plan, and the saving of the whole network with each resource free."""

    found: Dataflow
    operators: tuple[ExplainedOperator, ...]
    saves_us: Mapping[str, float]

    @property
    def by_importance(self) -> list[ExplainedOperator]:
        return sorted(self.operators, key=lambda one: -one.time_us)

    def to_json(self) -> dict[str, Any]:
        plan = self.found.plans[Variant.FULL]
        return {
            "model": plan.network.source.model or plan.network.name,
            "device": self.found.device.name,
            "policy": self.found.policy,
            "full_us": self.found.total_us(Variant.FULL),
            "saves_us": dict(self.saves_us),
            "operators": [{**asdict(one), "bound": one.bound} for one in self.operators],
        }


def explain_dataflow(found: Dataflow, searched: Sequence[str] = ()) -> DataflowExplanation:
    """Explain the full plan of a network; every grid is priced for operators in ``searched`` (seconds on many units).
    Raises OptionError for an unknown operator.
    """
    names = [row.operator for row in found.operators]
    for name in searched:
        if name not in names:
            raise OptionError(f"`operator` {name!r} is not in the network; {did_you_mean(name, names)}")
    plan, timed = found.plans[Variant.FULL], found.times[Variant.FULL]
    free = {
        thing: simulate(replace(plan, device=device)) for thing, device in _free(found.device, plan.precision).items()
    }
    links = {link.value: link for link in plan.links}
    makers = {value: unit.name for unit in plan.network.units for value in unit.outputs}
    known: dict[object, tuple[float, tuple[OtherSplit, ...]]] = {}
    operators = []
    for index, step in enumerate(plan.steps):
        row = found.operators[index]
        saves_us = {
            thing: row.full_us - (end_us - start_us)
            for thing, other in free.items()
            for start_us, end_us in [other.steps[index]]
        }
        works = [unit_work(plan, step, part, 0) for part in step.slices]
        is_searched = row.operator in searched
        key = (step.operator.signature, len(step.slices), plan.lies(step.operator), is_searched)
        if key not in known:
            known[key] = _splits(plan, step, is_searched)
        priced_us, others = known[key]
        link = next((links[value] for value in step.operator.outputs if value in links), None)
        operators.append(
            ExplainedOperator(
                row.operator,
                row.kind,
                row.full_us,
                row.full_us / timed.total_us,
                row.partition,
                row.slices,
                row.whole,
                max(len(own) for own in works),
                max((work.chunk.parameter_bytes for own in works for work in own), default=0),
                sum(plan.network.graph.types[name].bytes for name in step.operator.parameters),
                dict(sorted(saves_us.items(), key=lambda one: -one[1])),
                priced_us,
                others,
                row.horizontal_us - row.full_us,
                tuple(makers[value] for value in step.operator.inputs if value in links),
                None if link is None else Linked(row.layout, link.readers, link.bytes, link.unlinked_bytes),
            )
        )
    whole_us = {thing: timed.total_us - other.total_us for thing, other in free.items()}
    ordered = dict(sorted(whole_us.items(), key=lambda one: -one[1]))
    return DataflowExplanation(found, tuple(operators), ordered)


def _splits(plan: EdgePlan, step: OperatorStep, is_searched: bool) -> tuple[float, tuple[OtherSplit, ...]]:
    """Price of a step's own split, of each axis alone, and of the best of all grids if that is searched."""
    own_us = sum(slice_us(plan, step, part) for part in step.slices)
    operator, units = step.operator, plan.device.units.value
    if step.whole or not operator.axes:
        return own_us, ()

    def priced_us(split: Callable[[OutputSlice], Partition]) -> float:
        return sum(slice_us(plan, step, replace(part, partition=split(part))) for part in step.slices)

    def along(part: OutputSlice, axis: int) -> Partition:
        space = part.partition.space
        return Grid(space, units, (axis,), (min(units, space.shape[axis]),))

    def best(part: OutputSlice) -> Partition:
        def split_us(partition: Partition) -> float:
            return slice_us(plan, step, replace(part, partition=partition))

        return SplitSearch("exhaustive").split(plan, operator, part.partition.space, units, split_us)

    others = []
    for axis in operator.axes:
        words = f"{operator.axis_name(axis)} {min(units, operator.output.shape[axis])}"
        others.append(OtherSplit(words, priced_us(partial(along, axis=axis))))
    if is_searched:
        parts = [f"{operator.axis_name(axis)} {count}" for axis, count in best(step.slices[0]).words]
        others.append(OtherSplit(", ".join(parts) or "whole", priced_us(best)))
    return own_us, tuple(dict.fromkeys(others))
