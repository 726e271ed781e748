"""A network as a scheduler sees it: a graph, its schedule units, and its blocks.

A *schedule unit* is the smallest schedulable entity: a named fusion of primitive ops that runs as a whole
(Conv-Relu, Relu-SepConv, a concat of adds). A *block* is a sequence of units between cuts of
the graph (:mod:`iossim.models.passes.blocks`); blocks are scheduled independently (IOS thesis, section 3.3.1).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, cast
from weakref import WeakKeyDictionary

from iossim.base.display import Displayed, counted
from iossim.base.errors import GraphError
from iossim.ir.graph import Graph, Node
from iossim.ir.types import Precision

if TYPE_CHECKING:
    from iossim.ir.ops.foreign import Foreign

#: The kind of a unit that slices a batch, or joins it again, in place: no work for a device.
BATCH_VIEW = "BatchView"


@dataclass(frozen=True, slots=True)
class Unit:
    """A named fusion of the nodes ``nodes`` (indices into the graph's, in topological order).

    ``inputs`` are the values that it reads from outside, excluding constants; ``outputs`` are those of its values that
    are read outside, or that the graph returns.
    """

    name: str
    kind: str
    nodes: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """Units (indices into the network's) that are scheduled together, in topological order."""

    name: str
    units: tuple[int, ...]

    @staticmethod
    def of_all(units: Sequence[Unit]) -> tuple[Block, ...]:
        """The one block of a network that is not cut."""
        return (Block("all", tuple(range(len(units)))),)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The origin of a network, sufficient to load it again: a zoo name or a file, and how it was bound."""

    model: str
    batch: int = 1
    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, eq=False)
class Network(Displayed):
    """A graph partitioned into units, and the units into blocks. Units and blocks are in topological order."""

    name: str
    graph: Graph
    units: tuple[Unit, ...]
    blocks: tuple[Block, ...]
    precision: Precision = Precision.FP32
    source: ModelSource = field(default_factory=lambda: ModelSource(""))
    #: The constants (names) that training updates, if known.
    weights: frozenset[str] | None = None
    #: Changes that hide some schedules from a search, one sentence each (a block that had to be split).
    notes: tuple[str, ...] = ()
    #: Deviations of the network as read from its file, one sentence each.
    reading: tuple[str, ...] = ()
    #: Units (names) of one block, interchangeable micro-batches of one operator: starting them in order loses nothing.
    interchangeable: tuple[tuple[str, ...], ...] = ()
    given: Network | None = None  #: before transforms changed it, if they did: speed-ups are relative to it.

    def __post_init__(self) -> None:
        in_units = sorted(index for unit in self.units for index in unit.nodes)
        if in_units != list(range(len(self.graph.nodes))):
            raise GraphError(f"network {self.name!r}: its units do not hold each op exactly once")
        in_blocks = sorted(index for block in self.blocks for index in block.units)
        if in_blocks != list(range(len(self.units))):
            raise GraphError(f"network {self.name!r}: its blocks do not hold each unit exactly once")
        names = [unit.name for unit in self.units]
        if len(set(names)) != len(names):
            raise GraphError(f"network {self.name!r}: two units have the same name")

    def __repr__(self) -> str:
        return (
            f"<Network {self.name}: batch {self.source.batch}, {self.precision}, {len(self.graph.nodes)} ops, "
            f"{counted(len(self.units), 'unit')} in {counted(len(self.blocks), 'block')}>"
        )

    @cached_property
    def unit_of_value(self) -> dict[str, int]:
        """The unit that produces each value."""
        return {
            value: index
            for index, unit in enumerate(self.units)
            for node in unit.nodes
            for value in self.graph.nodes[node].outputs
        }

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """Predecessors of each unit: the units whose outputs it reads."""
        of_value = self.unit_of_value
        return tuple(
            tuple(sorted({of_value[value] for value in unit.inputs if value in of_value})) for unit in self.units
        )

    @cached_property
    def unit_index(self) -> dict[str, int]:
        return {unit.name: index for index, unit in enumerate(self.units)}

    def unit(self, name: str) -> Unit:
        return self.units[self.unit_index[name]]

    def unit_nodes(self, unit: Unit) -> list[Node]:
        return [self.graph.nodes[index] for index in unit.nodes]

    def constants_of(self, unit: Unit) -> list[str]:
        """The constants that a unit reads."""
        read = (name for node in self.unit_nodes(unit) for name in node.inputs)
        return [name for name in dict.fromkeys(read) if name in self.graph.constants]

    def multiply_adds(self, unit: Unit) -> int:
        return sum(map(self.graph.multiply_adds, self.unit_nodes(unit)))

    @cached_property
    def signatures(self) -> tuple[str, ...]:
        """Hash of each unit's ops, their attributes, wiring and types: equal work has equal signatures."""
        return tuple(self._signature(unit) for unit in self.units)

    def _signature(self, unit: Unit) -> str:
        graph = self.graph
        local: dict[str, str] = {}
        parts: list[str] = [str(self.precision), *([BATCH_VIEW] if unit.kind == BATCH_VIEW else [])]
        for node in self.unit_nodes(unit):
            read = []
            for value in node.inputs:
                if value not in local:
                    kind = "constant" if value in graph.constants else "input"
                    local[value] = f"{kind}{len(local)}:{graph.types[value]}"
                read.append(local[value])
            parts.append(f"{node.op.signature}<{';'.join(read)}>")
            for value in node.outputs:
                local[value] = f"value{len(local)}:{graph.types[value]}"
        parts += [local[value] for value in unit.outputs]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]

    def with_blocks(self, blocks: Iterable[Block], *notes: str) -> Network:
        return replace(self, blocks=tuple(blocks), notes=(*self.notes, *notes))

    @property
    def weights_to_learn(self) -> tuple[str, ...]:
        """The constants that training updates; if unknown, the floating-point ones with more than one element."""
        return tuple(
            name
            for name, each in self.graph.constants.items()
            if each.type.dtype.is_floating
            and (each.type.elements > 1 if self.weights is None else name in self.weights)
        )

    @property
    def _foreign_ops(self) -> list[Foreign]:
        return [cast("Foreign", node.op) for node in self.graph.of_kind.get("foreign", ())]

    @cached_property
    def foreign(self) -> dict[str, int]:
        """The operators without a class in iossim, by name, with their counts."""
        found = Counter(op.op_type for op in self._foreign_ops)
        return dict(sorted(found.items()))

    @property
    def foreign_listed(self) -> str:
        """The operators without a class, as text: their names, and counts above one."""
        return ", ".join(f"{name} ({count})" if count > 1 else name for name, count in self.foreign.items())

    @cached_property
    def remarks(self) -> tuple[str, ...]:
        """Unknown or changed properties of the network and their treatment, a sentence each."""
        if not self.foreign:
            return self.reading
        remarks = [
            *self.reading,
            f"Priced as memory traffic, since iossim does not know what they compute: {self.foreign_listed}.",
        ]
        products = {op.op_type for op in self._foreign_ops if op.is_product}
        if products:
            names = ", ".join(sorted(products))
            remarks.append(f"These run matrix products or convolutions, and take far longer than priced: {names}.")
        return tuple(remarks)

    def statistics(self) -> dict[str, int]:
        """Counts that describe the network: units, blocks, multiply-adds, parameters."""
        graph = self.graph
        origins = [constant.origin for constant in graph.constants.values()]
        return {
            "ops": len(graph.nodes),
            "units": len(self.units),
            "blocks": len(self.blocks),
            "macs": sum(map(self.multiply_adds, self.units)),
            "parameters": sum({id(each): each.type.elements for each in origins}.values()),
        }


P = ParamSpec("P")
R = TypeVar("R")


def once_a_network(found: Callable[Concatenate[Network, P], R]) -> Callable[Concatenate[Network, P], R]:
    """Decorator of a function that is computed once for each network and further arguments, and kept like that one."""
    known: WeakKeyDictionary[Network, dict[object, R]] = WeakKeyDictionary()

    @wraps(found)
    def kept(network: Network, /, *given: P.args, **named: P.kwargs) -> R:
        own, key = known.setdefault(network, {}), (given, *named.items())
        if key not in own:
            own[key] = found(network, *given, **named)
        return own[key]

    return kept


def make_unit(graph: Graph, name: str, kind: str, nodes: Iterable[int]) -> Unit:
    """A unit of the given nodes; its inputs and outputs are derived from the graph."""
    indices = tuple(sorted(nodes))
    return Unit(name, kind, indices, *boundary(graph, [graph.nodes[index] for index in indices]))


def boundary(graph: Graph, nodes: Sequence[Node]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The external inputs of nodes, excluding constants, and their outputs that are read outside or returned."""
    made = {value: None for node in nodes for value in node.outputs}
    members = {node.name for node in nodes}
    inputs = {value: None for node in nodes for value in node.inputs if value not in made}
    outputs = (
        value
        for value in made
        if value in graph.returned or any(reader.name not in members for reader in graph.consumers[value])
    )
    return tuple(value for value in inputs if value not in graph.constants), tuple(outputs)


def subgraph(graph: Graph, nodes: Sequence[Node], inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
    """A subset of a graph's nodes as a graph of its own, from ``inputs`` to ``outputs``."""
    read = {value for node in nodes for value in node.inputs}
    constants = {name: constant for name, constant in graph.constants.items() if name in read}
    return Graph.create({name: graph.types[name] for name in inputs}, outputs, nodes, constants)
