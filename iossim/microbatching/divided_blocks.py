"""A network whose blocks run in micro-batches: each is a copy of the block's units on a range of the batch, beside the others.

The result is an ordinary network: what a search, a cost model and a backend make of it needs nothing new. Copies share the
weights. A value that two neighbouring blocks divide alike goes from copy to copy; elsewhere it is split, or joined, by a unit
that is a view (:data:`~iossim.ir.network.BATCH_VIEW`). A join stands in the block that reads it first and a split in the block that
makes what it splits, so that either is in one group with a neighbour, and asks for no stage of its own.

Copies of a block are interchangeable: any schedule may be read with another numbering of them. So one operator of the block is
named whose copies need not start in another order than theirs; which one is chosen so that fewest states are left. The
same order of every operator at once would lose schedules: those in which one copy overtakes another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from math import inf

import numpy as np

from iossim.errors import GraphError
from iossim.execution.in_place import in_place_buffers
from iossim.ir.graph import Graph, Node
from iossim.ir.network import BATCH_VIEW, Block, Network, make_unit
from iossim.ir.op import Op
from iossim.ir.ops.concat import Concat
from iossim.ir.ops.slice import Slice
from iossim.ir.ops.split import Split
from iossim.ir.types import TensorType
from iossim.passes.unit_kinds import op_kind
from iossim.schedule.problem import MAX_UNITS, Masks, ScheduleProblem
from iossim.scheduling.clusters import MOST_TRANSITIONS, cluster_states, cluster_transitions
from iossim.scheduling.lattice import build_lattice

#: Neighbouring blocks are one in the result, so that their micro-batches need not wait for each other, up to about so many transitions.
JOINED = 300_000
_MOST_STATES = 50_000


def batch_of(network: Network) -> int | None:
    """The images that each input of the network has in front; None where they differ, or there are none."""
    sizes = {network.graph.types[name].shape[:1] for name in network.graph.inputs}
    return next(iter(sizes))[0] if len(sizes) == 1 and all(sizes) else None


def divisible(network: Network, block: Block, parts: int) -> bool:
    """Whether a block computes each image by itself, and so may be divided into ``parts``, and whether they are a problem's size."""
    batch = batch_of(network)
    if batch is None or parts < 1 or batch % parts or parts * len(block.units) >= MAX_UNITS:
        return False
    return all(
        part_of(network.graph, network.graph.nodes[node], batch, parts) is not None
        for unit in block.units
        for node in network.units[unit].nodes
    )


def part_of(graph: Graph, node: Node, batch: int, parts: int) -> Op | None:
    """The op that computes a range of the batch as the node computes the whole; None where images depend on each other.

    Every value that it reads besides weights, and every one that it makes, has the batch in front; of one part they must have
    the same shapes but for that.
    """
    varying = [name for name in node.inputs if name not in graph.constants]
    ranks = {len(graph.types[name].shape) for name in varying}
    values = [graph.types[name] for name in (*varying, *node.outputs)]
    if not varying or 0 in ranks or (len(ranks) > 1) or any(of.shape[:1] != (batch,) for of in values):
        return None
    if node.op.mixes_images(node.inputs[0] not in graph.constants):
        return None
    read = [graph.types[name] if name in graph.constants else _part(graph.types[name], parts) for name in node.inputs]
    expected = tuple(_part(graph.types[name], parts) for name in node.outputs)
    for op in (node.op, node.op.making(expected[0].shape)):
        try:
            if op is not None and op.infer(read) == expected:
                return op
        except GraphError:
            pass
    return None


def divide_blocks(
    network: Network, parts: Mapping[str, int], joined: int = JOINED, clusters: Iterable[Sequence[str]] = ()
) -> Network:
    """The network with each block named in ``parts`` in so many micro-batches; raises GraphError for one that is not divisible.

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
                for index in range(count):
                    nodes = [self._copy(of.graph.nodes[node], index, count) for node in own.nodes]
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
            interchangeable=tuple(self._first(run) for run in runs if run[0] in self.parts),
            clusters=tuple(self._clusters()),
        )
        return _with_copies_as_work(result)

    def _read(self, value: str, count: int, place: int) -> None:
        """Make what a block reads of a value for each of ``count`` micro-batches: parts that there are, or views of others."""
        if value not in self.block_of and value not in self.of.graph.inputs:
            return
        own = self.block_of.get(value)
        made = 1 if own is None else self.parts.get(own, 1)
        if own == place and made == count:
            return
        if made > 1 and made != count:
            if (value, 1) not in self._there:
                terms = tuple(part_name(value, index, made) for index in range(made))
                self._there[value, 1] = place
                self.blocks[place].append(_view(f"{value}.join", Concat(0), terms, (value,)))
            own = self._there[value, 1]
        if count > 1 and made != count and (value, count) not in self._there:
            names = tuple(part_name(value, index, count) for index in range(count))
            self._there[value, count] = place
            size = self.images // count
            readers = [unit for unit in self.of.blocks[place].units if value in self.of.units[unit].inputs]
            if own is None and len(readers) == 1:
                # Of an input that one unit of a micro-batch reads: in the group of that, instead of before all.
                for index, name in enumerate(names):
                    images = Slice((index * size,), ((index + 1) * size,), (0,), (1,))
                    self.blocks[place].append(_view(f"{name}.slice", images, (value,), (name,)))
                return
            at = place if own is None or len(self.blocks[own]) >= MAX_UNITS else own
            view = _view(f"{value}.in{count}", Split(0, (size,) * count), (value,), names)
            self.blocks[at].append(view)

    def _copy(self, node: Node, index: int, count: int) -> Node:
        """An op of micro-batch ``index``; of the whole, as it is."""
        if count == 1:
            return node
        op = part_of(self.of.graph, node, self.images, count)
        assert op is not None, "divisible"

        def named(value: str) -> str:
            return value if value in self.of.graph.constants else part_name(value, index, count)

        return Node(
            part_name(node.name, index, count), op, tuple(map(named, node.inputs)), tuple(map(named, node.outputs))
        )

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
        """Those of each micro-batch, of the blocks that are divided."""
        for names in self.of.clusters:
            count = self.parts.get(self._place_of_unit[names[0]], 1)
            for index in range(count if count > 1 else 0):
                yield tuple(part_name(name, index, count) for name in names)

    @cached_property
    def _place_of_unit(self) -> dict[str, int]:
        """The place of each unit's block."""
        units = self.of.units
        return {units[unit].name: place for place, block in enumerate(self.of.blocks) for unit in block.units}


def estimated_transitions(problem: ScheduleProblem, parts: int) -> float:
    """How many transitions a block in so many micro-batches has, where those of each are independent and none is left out."""
    from iossim.scheduling.counting import unpruned_transitions

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


def _part(of_type: TensorType, parts: int) -> TensorType:
    return replace(of_type, shape=(of_type.shape[0] // parts, *of_type.shape[1:]))
