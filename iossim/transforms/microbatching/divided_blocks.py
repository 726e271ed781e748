"""A network whose blocks run in micro-batches: each is a copy of the block's units on a range of the batch, beside the others.

The result is an ordinary network: what a search, a cost model and a backend make of it needs nothing new. Copies share the
weights. A value that two neighbouring blocks divide alike goes from copy to copy; elsewhere it is split, or joined, by a unit
that is a view (:data:`~iossim.ir.network.BATCH_VIEW`). A join stands in the block that reads it first and a split in the block that
makes what it splits, so that either is in one group with a neighbour, and asks for no stage of its own.

A gradient of a weight is a sum over images: each micro-batch adds its own to what those before it left, and the first begins at nothing.

Copies of a block that adds nothing up are interchangeable: any schedule may be read with another numbering of them. So one operator of the block is
named whose copies need not start in another order than theirs; which one is chosen so that fewest states are left. The
same order of every operator at once would lose schedules: those in which one copy overtakes another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from math import inf

import numpy as np

from iossim.base.errors import GraphError
from iossim.execution.in_place import in_place_buffers
from iossim.ir.graph import Graph, Node
from iossim.ir.network import BATCH_VIEW, Block, Network, Unit, make_unit
from iossim.ir.op import Op
from iossim.ir.ops.add import Add
from iossim.ir.ops.concat import Concat
from iossim.ir.ops.slice import Slice
from iossim.ir.ops.split import Split
from iossim.models.passes.unit_kinds import op_kind
from iossim.schedule.problem import MAX_UNITS, Masks, ScheduleProblem
from iossim.search.clusters import MOST_TRANSITIONS, cluster_states, cluster_transitions
from iossim.search.lattice import build_lattice
from iossim.transforms.microbatching.divisible import UnitPart, batch_of, divisible, unit_part

#: Neighbouring blocks are one in the result, so that their micro-batches need not wait for each other, up to about so many transitions.
JOINED = 300_000
_MOST_STATES = 50_000


def divide_blocks(
    network: Network, parts: Mapping[str, int], joined: int = JOINED, clusters: Iterable[Sequence[str]] = ()
) -> Network:
    """The network with each block named in ``parts`` in so many micro-batches.

    Raises GraphError for one that is not divisible, and where a block and its views of others are no problem's size.
    Neighbouring blocks of as many micro-batches are one as long as that has at most about ``joined`` transitions. Of each of the
    ``clusters`` of units of one block a search keeps those of one micro-batch in one stage.
    """
    network = replace(network, clusters=tuple(map(tuple, clusters)))
    divided = {
        place: parts[block.name]
        for place, block in enumerate(network.blocks)
        if parts.get(block.name, 1) > 1
    }  # fmt: skip
    for place, count in divided.items():
        if not divisible(network, network.blocks[place], count):
            raise GraphError(f"block {network.blocks[place].name!r} cannot be divided into {count} parts")
    return _Division(network, divided, joined).network() if divided else network


def divided_units(network: Network, parts: Mapping[str, int]) -> dict[str, int]:
    """The units that are divided, and into how many micro-batches each."""
    return {
        network.units[unit].name: parts[block.name]
        for block in network.blocks
        if parts.get(block.name, 1) > 1
        for unit in block.units
    }


def part_name(name: str, index: int, parts: int) -> str:
    """What micro-batch ``index`` of a unit, an op or a value is called."""
    return f"{name}.{index + 1}of{parts}"


@dataclass(eq=False)
class _Made:
    """A unit of the result: its name, kind and ops."""

    name: str
    kind: str
    nodes: list[Node]


@dataclass(eq=False)
class _Division:
    """The result, as it grows block by block."""

    of: Network
    #: By place of the block.
    parts: Mapping[int, int]
    joined: int
    blocks: list[list[_Made]] = field(default_factory=list)
    #: What there is besides what a unit makes: values, and into how many parts, each with the place of the block that has it.
    _there: dict[tuple[str, int], int] = field(default_factory=dict)
    #: How many views each block has, by place.
    _views: Counter[int] = field(default_factory=Counter)
    #: The values that are sums over all images, whatever block makes them.
    _sums: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        network = self.of
        self.block_of = {
            value: place
            for place, block in enumerate(network.blocks)
            for unit in block.units
            for node in network.units[unit].nodes
            for value in network.graph.nodes[node].outputs
        }
        self.images = batch_of(network) or 1

    def network(self) -> Network:
        of = self.of
        for place, block in enumerate(of.blocks):
            self.blocks.append([])
            count = self.parts.get(place, 1)
            for unit in block.units:
                for value in of.units[unit].inputs:
                    self._read(value, count, place)
            for unit in block.units:
                own = of.units[unit]
                part = unit_part(of, own, self.images, count) if count > 1 else None
                if part is not None and part.sums:
                    self._sums.update(own.outputs)
                for index in range(count):
                    nodes = of.unit_nodes(own) if part is None else self._copy(own, part, index, count)
                    name = own.name if count == 1 else part_name(own.name, index, count)
                    self.blocks[place].append(_Made(name, own.kind, nodes))
            for value in of.graph.outputs:
                if self.block_of.get(value) == place:
                    self._read(value, 1, place)
        graph = Graph.create(
            {name: of.graph.types[name] for name in of.graph.inputs},
            of.graph.outputs,
            [node for block in self.blocks for made in block for node in made.nodes],
            of.graph.constants,
        )
        units = tuple(
            make_unit(graph, made.name, made.kind, [graph.position[node.name] for node in made.nodes])
            for block in self.blocks
            for made in block
        )
        for block, made in zip(of.blocks, self.blocks, strict=True):
            if len(made) > MAX_UNITS:
                raise GraphError(
                    f"block {block.name!r} has {len(made)} units with micro-batches and views, and may have {MAX_UNITS}"
                )
        runs = list(self._runs())
        ends = list(accumulate(sum(len(self.blocks[place]) for place in run) for run in runs))
        blocks = [
            Block(self._named(run), tuple(range(end - sum(len(self.blocks[place]) for place in run), end)))
            for run, end in zip(runs, ends, strict=True)
        ]
        result = replace(
            of,
            graph=graph,
            units=units,
            blocks=tuple(blocks),
            interchangeable=tuple(self._first(run) for run in runs if run[0] in self.parts and not self._adds(run)),
            clusters=tuple(self._clusters()),
        )
        return _with_copies_as_work(result)

    def _read(self, value: str, count: int, place: int) -> None:
        """Make what a block reads of a value for each of ``count`` micro-batches: parts that there are, or views of others."""
        if value not in self.block_of and value not in self.of.graph.inputs:
            return
        own = self.block_of.get(value)
        made = 1 if own is None or value in self._sums else self.parts.get(own, 1)
        if own == place and made == count:
            return
        if made > 1 and made != count:
            if (value, 1) not in self._there:
                terms = tuple(part_name(value, index, made) for index in range(made))
                assert own is not None, "what is in parts was made by a block"
                self._there[value, 1] = at = place if self._has_room(place) else own
                self._add_view(at, _view(f"{value}.join", Concat(0), terms, (value,)))
            own = self._there[value, 1]
        if count > 1 and made != count and (value, count) not in self._there:
            names = tuple(part_name(value, index, count) for index in range(count))
            self._there[value, count] = place
            size = self.images // count
            readers = [unit for unit in self.of.blocks[place].units if value in self.of.units[unit].inputs]
            if own is None and len(readers) == 1 and self._has_room(place, count):
                # Of an input that one unit of a micro-batch reads: in the group of that, instead of before all.
                for index, name in enumerate(names):
                    images = Slice((index * size,), ((index + 1) * size,), (0,), (1,))
                    self._add_view(place, _view(f"{name}.slice", images, (value,), (name,)))
                return
            at = place if own is None or not self._has_room(own) else own
            self._add_view(at, _view(f"{value}.in{count}", Split(0, (size,) * count), (value,), names))

    def _has_room(self, place: int, views: int = 1) -> bool:
        """Whether a block's units, and so many views more, are a problem's size."""
        units = self.parts.get(place, 1) * len(self.of.blocks[place].units)
        return units + self._views[place] + views <= MAX_UNITS

    def _add_view(self, place: int, view: _Made) -> None:
        self._views[place] += 1
        self.blocks[place].append(view)

    def _copy(self, unit: Unit, part: UnitPart, index: int, count: int) -> list[Node]:
        """The ops of micro-batch ``index``; of a sum with what was summed before, the last one under the sum's own name."""

        def named(value: str) -> str:
            return value if value in self.of.graph.constants else part_name(value, index, count)

        pairs = zip(self.of.unit_nodes(unit), part.ops, strict=True)
        nodes = [
            Node(
                part_name(node.name, index, count),
                op,
                tuple(map(named, node.inputs)),
                tuple(map(named, node.outputs)),
            )
            for node, op in pairs
        ]
        return self._added(unit.outputs[0], nodes, index, count) if part.sums else nodes

    @staticmethod
    def _added(value: str, nodes: list[Node], index: int, count: int) -> list[Node]:
        """The ops of a part of a sum, which add it to that of the micro-batch before: the first begins it (beta 0), others go on (1)."""
        *others, last = nodes
        total = value if index == count - 1 else part_name(value, index, count)
        if index == 0:
            return [*others, replace(last, outputs=(total,))]
        before = part_name(value, index - 1, count)
        if last.op.may_accumulate and last.op.sums_images:
            return [*others, replace(last, inputs=(*last.inputs, before), outputs=(total,))]
        own = f"{part_name(value, index, count)}.alone"
        addition = Node(f"{last.name}.add", Add(), (before, own), (total,))
        return [*others, replace(last, outputs=(own,)), addition]

    def _runs(self) -> Iterator[tuple[int, ...]]:
        """The blocks that are one in the result: neighbours of as many micro-batches, while few states come of it."""
        run: tuple[int, ...] = ()
        for place in range(len(self.blocks)):
            longer = (*run, place)
            if run and not self._joins(longer):
                yield run
                longer = (place,)
            run = longer
        yield run

    def _joins(self, run: Sequence[int]) -> bool:
        counts = {self.parts.get(place, 1) for place in run}
        if counts == {1} or len(counts) > 1 or sum(len(self.blocks[place]) for place in run) > MAX_UNITS:
            return False
        problem = self._copy_of(run)
        most = min(self.joined, MOST_TRANSITIONS) if problem.clusters else self.joined
        return estimated_transitions(problem, counts.pop()) <= most

    def _copy_of(self, run: Sequence[int]) -> ScheduleProblem:
        units = tuple(unit for place in run for unit in self.of.blocks[place].units)
        return ScheduleProblem.of_block(self.of, Block("copy", units))

    def _named(self, run: Sequence[int]) -> str:
        names = [self.of.blocks[place].name for place in run]
        name = names[0] if len(names) == 1 else f"{names[0]}..{names[-1]}"
        count = self.parts.get(run[0], 1)
        return name if count == 1 else f"{name} in {count}"

    def _adds(self, run: Sequence[int]) -> bool:
        """Whether its micro-batches add up, which orders them."""
        units = (self.of.units[unit] for place in run for unit in self.of.blocks[place].units)
        return any(not self._sums.isdisjoint(unit.outputs) for unit in units)

    def _first(self, run: Sequence[int]) -> tuple[str, ...]:
        """The copies of the operator that orders the micro-batches: of all the one that most states are left out for."""
        problem, count = self._copy_of(run), self.parts[run[0]]
        states = _states(problem)
        unit = 0
        if states is not None:
            having = [int((states >> np.uint64(index) & np.uint64(1)).sum()) for index in range(len(problem))]
            unit = max(range(len(problem)), key=lambda index: having[index] * (len(states) - having[index]))
        return tuple(part_name(problem.unit_names[unit], index, count) for index in range(count))

    def _clusters(self) -> Iterator[tuple[str, ...]]:
        """Those of each micro-batch, of the blocks that are divided; each with the views of what it alone makes, or alone reads."""
        of_place: dict[int, list[list[str]]] = {}
        for names in self.of.clusters:
            place = self._place_of_unit[names[0]]
            count = self.parts.get(place, 1)
            of_place.setdefault(place, []).extend(
                [part_name(name, index, count) for name in names] for index in range(count if count > 1 else 0)
            )
        for place, clusters in of_place.items():
            holding = {name: cluster for cluster in clusters for name in cluster}
            made = {value: unit.name for unit in self.blocks[place] for node in unit.nodes for value in node.outputs}
            for view in (unit for unit in self.blocks[place] if unit.kind == BATCH_VIEW):
                (node,) = view.nodes
                beside = {made[value] for value in node.inputs if value in made} or {
                    unit.name
                    for unit in self.blocks[place]
                    if any(not set(node.outputs).isdisjoint(each.inputs) for each in unit.nodes)
                }
                found = {id(holding.get(name)): holding.get(name) for name in beside}
                cluster = next(iter(found.values())) if len(found) == 1 else None
                if cluster is not None:
                    cluster.append(view.name)
                    holding[view.name] = cluster
            yield from map(tuple, clusters)

    @cached_property
    def _place_of_unit(self) -> dict[str, int]:
        """The place of each unit's block."""
        units = self.of.units
        return {units[unit].name: place for place, block in enumerate(self.of.blocks) for unit in block.units}


def estimated_transitions(problem: ScheduleProblem, parts: int) -> float:
    """How many transitions a block in so many micro-batches has, where those of each are independent and none is left out."""
    from iossim.search.counting import unpruned_transitions

    if problem.clusters:
        states = cluster_states(problem)
        return inf if states is None else float(cluster_transitions(states) + len(states)) ** parts
    lattice = build_lattice(problem, _MOST_STATES)
    return inf if lattice is None else (unpruned_transitions(lattice) + len(lattice)) ** parts


def _states(problem: ScheduleProblem) -> Masks | None:
    """All sets of units that may be done; None where they are too many."""
    if problem.clusters:
        states = cluster_states(problem)
        return None if states is None else np.array(states, dtype=np.uint64)
    lattice = build_lattice(problem, _MOST_STATES)
    return None if lattice is None else lattice.masks


def _with_copies_as_work(network: Network) -> Network:
    """The network where what a view must copy, since it lies elsewhere already, is an op like any other."""
    moves = in_place_buffers(network).moves
    units = tuple(
        replace(unit, kind=op_kind(network.graph.nodes[unit.nodes[0]].op))
        if unit.kind == BATCH_VIEW and moves.get(index)
        else unit
        for index, unit in enumerate(network.units)
    )
    return replace(network, units=units)


def _view(name: str, op: Op, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> _Made:
    return _Made(name, BATCH_VIEW, [Node(name, op, inputs, outputs)])
