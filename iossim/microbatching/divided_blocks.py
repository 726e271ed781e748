"""A network whose blocks run in micro-batches: each is a copy of the units on a range of the batch.

The result is an ordinary network, which searches, cost models and backends treat like any other. Copies share the
weights. Where two neighbouring blocks have the same micro-batches, each copy reads its own part of a value; elsewhere
a unit that is a view (:data:`~iossim.ir.network.BATCH_VIEW`) splits or joins the value. A join stands in the block
that reads it first and a split in the block that makes the value, so that the view shares a group with a neighbour
and needs no stage of its own.

A gradient of a weight is a sum over images: each micro-batch adds its part to the sum of those before it, and the
first starts the sum.

Copies of a block without sums are interchangeable: renumbering them changes no schedule's price. To avoid searching
equal schedules, the copies of one operator of the block must start in the order of their numbers; the operator is the
one that leaves the fewest states. Ordering the copies of every operator at once would lose the schedules in which one
copy overtakes another.

Blocks are divided for a search, into equal micro-batches (:func:`divide_blocks`); units, into micro-batches of any
sizes that then run one after another (:func:`divide_units`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby
from math import inf

import numpy as np

from iossim.base.errors import GraphError
from iossim.execution.in_place import in_place_buffers
from iossim.ir.graph import Graph, Node
from iossim.ir.network import BATCH_VIEW, Block, Network, Unit, make_unit
from iossim.ir.op import Op
from iossim.ir.ops.nary import Add
from iossim.ir.ops.slice import Concat, Slice, Split
from iossim.microbatching.divisible import UnitPart, divisible, unit_divisible, unit_part
from iossim.models.options import common_batch
from iossim.schedule.problem import MAX_UNITS, ScheduleProblem
from iossim.search.lattice import build_lattice

#: Neighbouring blocks are joined up to about this many transitions, so that their micro-batches need not wait for each
#: other.
JOINED = 300_000
_MOST_STATES = 50_000


def divide_blocks(network: Network, parts: Mapping[str, int], joined: int = JOINED) -> Network:
    """The network with each block named in ``parts`` in so many micro-batches.

    Raises GraphError for a block that is not divisible, or that is too large for a problem with its views of others.
    Neighbouring blocks with equal numbers of micro-batches are joined while that has at most about ``joined``
    transitions.
    """
    images = common_batch(network.graph) or 1
    divided: dict[int, tuple[int, ...]] = {}
    for place, block in enumerate(network.blocks):
        if (count := parts.get(block.name, 1)) > 1:
            if not divisible(network, block, count):
                raise GraphError(f"block {block.name!r} cannot be divided into {count} parts")
            divided[place] = (images // count,) * count
    return _Division(network, divided, joined).network() if divided else network


def divide_units(network: Network, sizes: Mapping[str, Sequence[int]]) -> Network:
    """The network with each unit named in ``sizes`` in micro-batches of these sizes, one after another.

    Each unit is a block of its own, or several where its micro-batches are more than a block may have units. Raises
    GraphError for a unit that is not divisible so.
    """
    for name, own in sizes.items():
        if not unit_divisible(network, network.unit(name), own):
            raise GraphError(f"unit {name!r} cannot be divided into micro-batches of {', '.join(map(str, own))}")
    apart = replace(network, blocks=tuple(Block(unit.name, (place,)) for place, unit in enumerate(network.units)))
    divided = {network.unit_index[name]: tuple(own) for name, own in sizes.items()}
    return _Division(apart, divided, 0, in_a_row=True).network()


def divided_units(network: Network, parts: Mapping[str, int]) -> dict[str, int]:
    """Number of micro-batches of each divided unit."""
    return {
        network.units[unit].name: parts[block.name]
        for block in network.blocks
        if parts.get(block.name, 1) > 1
        for unit in block.units
    }


def part_name(name: str, index: int, parts: int | str) -> str:
    """Name of micro-batch ``index`` of a unit, an op or a value."""
    return f"{name}.{index + 1}of{parts}"


def part_names(name: str, sizes: Sequence[int]) -> tuple[str, ...]:
    """Name of each of the micro-batches of these sizes."""
    return tuple(part_name(name, index, parts_text(sizes)) for index in range(len(sizes)))


def parts_text(sizes: Sequence[int]) -> str:
    """Number of micro-batches, and their sizes if these differ: ``1x64-6x32``; part of their names."""
    runs = [(size, len(list(equal))) for size, equal in groupby(sizes)]
    return str(len(sizes)) if len(runs) == 1 else "-".join(f"{count}x{size}" for size, count in runs)


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
    #: The sizes of the micro-batches of a block that is divided, by its place.
    sizes: Mapping[int, tuple[int, ...]]
    joined: int
    #: True if no schedule is searched: micro-batches run in a row, and a block may be cut anywhere.
    in_a_row: bool = False
    blocks: list[list[_Made]] = field(default_factory=list)
    #: The views that exist: the value and the sizes of its parts, with the place of the block that the view stands in.
    _there: dict[tuple[str, tuple[int, ...]], int] = field(default_factory=dict)
    #: Number of views of each block, by place.
    _views: Counter[int] = field(default_factory=Counter)
    #: The values that are sums over all images: whole, though their block is divided.
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
        self.images = common_batch(network.graph) or 1
        self.whole = (self.images,)

    def _count(self, place: int) -> int:
        return len(self.sizes.get(place, self.whole))

    def network(self) -> Network:
        of = self.of
        for place, block in enumerate(of.blocks):
            self.blocks.append([])
            sizes = self.sizes.get(place, self.whole)
            for unit in block.units:
                for value in of.units[unit].inputs:
                    self._read(value, sizes, place)
            for unit in block.units:
                own = of.units[unit]
                if len(sizes) == 1:
                    self.blocks[place].append(_Made(own.name, own.kind, of.unit_nodes(own)))
                    continue
                parts = {size: unit_part(of, own, self.images, size) for size in sizes}
                for index, (name, size) in enumerate(zip(part_names(own.name, sizes), sizes, strict=True)):
                    part = parts[size]
                    assert part is not None, "a block that is divided is divisible"
                    if part.sums:
                        self._sums.update(own.outputs)
                    self.blocks[place].append(_Made(name, own.kind, self._copy(own, part, index, sizes)))
            for value in of.graph.outputs:
                if self.block_of.get(value) == place:
                    self._read(value, self.whole, place)
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
            if len(made) > MAX_UNITS and not self.in_a_row:
                raise GraphError(
                    f"block {block.name!r} has {len(made)} units with micro-batches and views, and may have {MAX_UNITS}"
                )
        runs = list(self._runs())
        ends = list(accumulate(sum(len(self.blocks[place]) for place in run) for run in runs))
        blocks = [
            Block(self._named(run) if first == start else f"{self._named(run)}, from {first - start}", cut)
            for run, start, end in zip(runs, [0, *ends], ends, strict=False)
            for first in range(start, end, MAX_UNITS)
            for cut in [tuple(range(first, min(first + MAX_UNITS, end)))]
        ]
        searched = [] if self.in_a_row else [run for run in runs if run[0] in self.sizes and not self._adds(run)]
        result = replace(
            of, graph=graph, units=units, blocks=tuple(blocks), interchangeable=tuple(map(self._first, searched))
        )
        return _with_copies_as_work(result)

    def _read(self, value: str, sizes: tuple[int, ...], place: int) -> None:
        """Provide a value to a block in micro-batches of ``sizes``: as the parts that exist, or as views of others."""
        if value not in self.block_of and value not in self.of.graph.inputs:
            return
        own = self.block_of.get(value)
        made = self.whole if own is None or value in self._sums else self.sizes.get(own, self.whole)
        if made == sizes:
            return
        if len(made) > 1:
            if (value, self.whole) not in self._there:
                assert own is not None, "a value in parts was made by a block"
                self._there[value, self.whole] = at = place if self._has_room(place) else own
                self._add_view(at, _view(f"{value}.join", Concat(0), part_names(value, made), (value,)))
            own = self._there[value, self.whole]
        if len(sizes) > 1 and (value, sizes) not in self._there:
            names = part_names(value, sizes)
            self._there[value, sizes] = place
            readers = [unit for unit in self.of.blocks[place].units if value in self.of.units[unit].inputs]
            if own is None and len(readers) == 1 and self._has_room(place, len(sizes)):
                # One unit reads the input: each micro-batch slices its own part, in its group, without a split.
                for name, size, end in zip(names, sizes, accumulate(sizes), strict=True):
                    images = Slice((end - size,), (end,), (0,), (1,))
                    self._add_view(place, _view(f"{name}.slice", images, (value,), (name,)))
                return
            at = place if own is None or not self._has_room(own) else own
            self._add_view(at, _view(f"{value}.in{parts_text(sizes)}", Split(0, sizes), (value,), names))

    def _has_room(self, place: int, views: int = 1) -> bool:
        """True if a problem has room for a block's units and so many more views."""
        units = self._count(place) * len(self.of.blocks[place].units)
        return self.in_a_row or units + self._views[place] + views <= MAX_UNITS

    def _add_view(self, place: int, view: _Made) -> None:
        self._views[place] += 1
        self.blocks[place].append(view)

    def _copy(self, unit: Unit, part: UnitPart, index: int, sizes: Sequence[int]) -> list[Node]:
        """The ops of micro-batch ``index``. A sum also reads the sum before it; the last has the name of the whole."""
        count = parts_text(sizes)

        def named(value: str) -> str:
            return value if value in self.of.graph.constants else part_name(value, index, count)

        pairs = zip(self.of.unit_nodes(unit), part.ops, strict=True)
        nodes = [
            Node(
                part_name(node.name, index, count), op, tuple(map(named, node.inputs)), tuple(map(named, node.outputs))
            )
            for node, op in pairs
        ]
        return self._added(unit.outputs[0], nodes, index, sizes) if part.sums else nodes

    @staticmethod
    def _added(value: str, nodes: list[Node], index: int, sizes: Sequence[int]) -> list[Node]:
        """The ops of a part of a sum: the first micro-batch starts it (beta 0), each later one adds (beta 1)."""
        *others, last = nodes
        count = parts_text(sizes)
        total = value if index == len(sizes) - 1 else part_name(value, index, count)
        if index == 0:
            return [*others, replace(last, outputs=(total,))]
        before = part_name(value, index - 1, count)
        if last.op.may_accumulate and last.op.sums_images:
            return [*others, replace(last, inputs=(*last.inputs, before), outputs=(total,))]
        own = f"{part_name(value, index, count)}.alone"
        addition = Node(f"{last.name}.add", Add(), (before, own), (total,))
        return [*others, replace(last, outputs=(own,)), addition]

    def _runs(self) -> Iterator[tuple[int, ...]]:
        """Blocks that are joined: neighbours with equal numbers of micro-batches, and few states together."""
        run: tuple[int, ...] = ()
        for place in range(len(self.blocks)):
            longer = (*run, place)
            if run and not self._joins(longer):
                yield run
                longer = (place,)
            run = longer
        yield run

    def _joins(self, run: Sequence[int]) -> bool:
        counts = {self._count(place) for place in run}
        if (
            self.in_a_row
            or counts == {1}
            or len(counts) > 1
            or sum(len(self.blocks[place]) for place in run) > MAX_UNITS
        ):
            return False
        return estimated_transitions(self._copy_of(run), counts.pop()) <= self.joined

    def _copy_of(self, run: Sequence[int]) -> ScheduleProblem:
        units = tuple(unit for place in run for unit in self.of.blocks[place].units)
        return ScheduleProblem.of_block(self.of, Block("copy", units))

    def _named(self, run: Sequence[int]) -> str:
        names = [self.of.blocks[place].name for place in run]
        name = names[0] if len(names) == 1 else f"{names[0]}..{names[-1]}"
        count = self._count(run[0])
        return name if count == 1 else f"{name} in {count}"

    def _adds(self, run: Sequence[int]) -> bool:
        """True if the micro-batches of a run add up, which orders them."""
        units = (self.of.units[unit] for place in run for unit in self.of.blocks[place].units)
        return any(not self._sums.isdisjoint(unit.outputs) for unit in units)

    def _first(self, run: Sequence[int]) -> tuple[str, ...]:
        """The copies of the operator that orders the micro-batches: the one whose order leaves out the most states."""
        problem = self._copy_of(run)
        lattice = build_lattice(problem, _MOST_STATES)
        unit = 0
        if lattice is not None:
            having = [int((lattice.masks >> np.uint64(index) & np.uint64(1)).sum()) for index in range(len(problem))]
            unit = max(range(len(problem)), key=lambda index: having[index] * (len(lattice) - having[index]))
        return part_names(problem.unit_names[unit], self.sizes[run[0]])


def estimated_transitions(problem: ScheduleProblem, parts: int) -> float:
    """Number of transitions of a block in so many independent micro-batches, if none is left out."""
    from iossim.search.counting import unpruned_transitions

    lattice = build_lattice(problem, _MOST_STATES)
    return inf if lattice is None else (unpruned_transitions(lattice) + len(lattice)) ** parts


def _with_copies_as_work(network: Network) -> Network:
    """The network with each view that has to copy, since its value lies elsewhere already, as an ordinary unit."""
    moves = in_place_buffers(network).moves
    units = tuple(
        replace(unit, kind=network.graph.nodes[unit.nodes[0]].op.unit_kind)
        if unit.kind == BATCH_VIEW and moves.get(index)
        else unit
        for index, unit in enumerate(network.units)
    )
    return replace(network, units=units)


def _view(name: str, op: Op, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> _Made:
    return _Made(name, BATCH_VIEW, [Node(name, op, inputs, outputs)])
