"""Joins of branches: element-wise ops after a product that read another branch as well.

Examples are a residual sum, or the product with a gate. Fused into the product before it, it costs next to nothing,
but the product waits for the other branch; unfused, the two may run concurrently. Prices decide which is faster
(:mod:`iossim.transforms.fused_joins`); this module makes units either way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

from iossim.ir.graph import Graph, Node, free_name
from iossim.ir.network import Network, Unit, make_unit
from iossim.ir.op import Role
from iossim.models.passes.blocks import cut_as_loaded, in_blocks, one_block
from iossim.models.passes.unit_kinds import unit_kind

#: An op that joins branches, and the product in whose epilogue it may be fused.
Join = tuple[Node, Node]


@dataclass(frozen=True)
class Joins:
    """Joins by the names of the units that they end: ``fused`` into products that could otherwise run beside the other
    branch, and ``apart`` from products that could have them as epilogue.
    """

    fused: Mapping[str, Join] = field(default_factory=dict)
    apart: Mapping[str, Join] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.fused) + len(self.apart)

    def counted(self, count: int) -> str:
        """Their number as text: ``4 adds``, or joins of branches if others than sums are among them."""
        sums = all(join.op.kind == "add" for join, _ in self._all)
        noun, rest = ("add", "") if sums else ("join", " of branches")
        return f"{count} {noun}{'s' * (count != 1)}{rest}"

    @property
    def products(self) -> str:
        """The ops that have, or may have, them as epilogue, as text: ``convolutions`` or ``products``."""
        return "convolutions" if all(each.op.channels_first.kind == "conv" for _, each in self._all) else "products"

    @property
    def _all(self) -> tuple[Join, ...]:
        return *self.fused.values(), *self.apart.values()


def joins_of(network: Network) -> Joins:
    """The joins of a network that may be fused or split; none if its units are those of micro-batches."""
    if network.interchangeable:
        return Joins()
    units = _Units(network.graph, network.units)
    fused = {unit.name: join for unit in network.units if (join := units.split(unit.name, dry=True))}
    apart = {unit.name: join for unit in network.units if (join := units.fuse(unit.name))}
    return Joins(fused, apart)


def with_joins(network: Network, fused: Collection[str] = (), apart: Collection[str] = ()) -> Network:
    """The network with the joins ``fused``, apart in it, fused, and those ``apart``, fused in it, split; unknown names
    and those of other units are ignored.

    If its blocks are those between cuts, they are cut anew; else each unit is in the block of its last op.
    """
    made = _Units(network.graph, network.units)
    for unit in network.units:
        if unit.name in apart:
            made.split(unit.name)
        elif unit.name in fused:
            made.fuse(unit.name)
    units = made.all()
    if cut_as_loaded(one_block(network, network.units)).blocks != network.blocks:
        return in_blocks(network, units)
    return cut_as_loaded(one_block(network, units))


def joins_apart(graph: Graph, units: Iterable[Unit]) -> tuple[Unit, ...]:
    """The units with all joins split off whose products might run concurrently with the other branch."""
    made = _Units(graph, units)
    for name in list(made.nodes):
        made.split(name)
    return made.all()


class _Units:
    """Units under change: by name the nodes (indices) of each, in topological order."""

    def __init__(self, graph: Graph, units: Iterable[Unit]) -> None:
        self.graph, self.given = graph, {unit.name: unit for unit in units}
        self.nodes = {name: unit.nodes for name, unit in self.given.items()}
        self._owner = {node: name for name, nodes in self.nodes.items() for node in nodes}
        #: For each node, itself and all its ancestors, as bits.
        self._before: list[int] = []
        for index, node in enumerate(graph.nodes):
            self._before.append(reduce(or_, (self._before[maker] for maker in self._makers(node)), 1 << index))

    def all(self) -> tuple[Unit, ...]:
        """The units in topological order; changed ones get the kind of their present ops."""
        graph, made = self.graph, []
        for name, nodes in self.nodes.items():
            unit = self.given.get(name)
            if unit is None or unit.nodes != nodes:
                unit = make_unit(graph, name, unit_kind(graph, [graph.nodes[index] for index in nodes]), nodes)
            made.append(unit)
        return tuple(sorted(made, key=lambda unit: unit.nodes[-1]))

    def split(self, name: str, dry: bool = False) -> Join | None:
        """Split a join from the product of its unit; None if there is no join that the product need not wait for.
        ``dry``: nothing is changed.
        """
        nodes = self.nodes[name]
        product = self._product(nodes)
        if product is None:
            return None
        early, late = self._before[product], set[int]()
        for index in nodes:
            makers = self._makers(self.graph.nodes[index])
            if any(maker in late or not (maker in nodes or early >> maker & 1) for maker in makers):
                late.add(index)
        without = [index for index in nodes if index not in late]
        least = [index for index in nodes if early >> index & 1]
        front = next((each for each in (without, least) if late and self._drains(each, product)), None)
        after = [index for index in nodes if index not in (front or nodes)]
        if front is None or not all(_joins_chain(self.graph.nodes[index]) for index in after):
            return None
        if not dry:
            self.nodes[name] = tuple(after)
            self._set(free_name(self.graph.nodes[front[-1]].name, self.nodes), front)
        return self._join(after, product)

    def fuse(self, name: str) -> Join | None:
        """Fuse a join unit into the deepest product whose only consumer it is; None if there is none."""
        nodes = self.nodes[name]
        outside = [maker for index in nodes for maker in self._makers(self.graph.nodes[index]) if maker not in nodes]
        shapes = {self._shape(index) for index in nodes}
        if len(set(outside)) < 2 or len(shapes) > 1 or not all(self.graph.nodes[i].op.is_elementwise for i in nodes):
            return None
        fitting: list[tuple[int, int, str]] = []
        for maker in outside:
            members = self.nodes[self._owner[maker]]
            product = self._product(members)
            if product is None or {self._shape(product), self._shape(maker)} != shapes:
                continue
            if self._is_read_by(members, maker, nodes):
                fitting.append((self._before[product].bit_count(), product, self._owner[maker]))
        if not fitting:
            return None
        _, product, chosen = max(fitting)
        self._set(name, sorted((*self.nodes.pop(chosen), *nodes)))
        return self._join(nodes, product)

    def _join(self, after: Sequence[int], product: int) -> Join:
        """The first of some ops that reads several computed values, and a product."""
        nodes = self.graph.nodes
        return next(nodes[index] for index in after if len(self._makers(nodes[index])) > 1), nodes[product]

    def _set(self, name: str, nodes: Sequence[int]) -> None:
        self.nodes[name] = tuple(nodes)
        self._owner.update(dict.fromkeys(nodes, name))

    def _product(self, nodes: Sequence[int]) -> int | None:
        """The last of some ops that is neither element-wise nor a view, if it is a product with an epilogue."""
        product = next((index for index in reversed(nodes) if not _joins_chain(self.graph.nodes[index])), None)
        return product if product is not None and self.graph.nodes[product].op.has_epilogue else None

    def _drains(self, nodes: Sequence[int], product: int) -> bool:
        """True if all but the last are read only among them, and the last is, or depends on, the product."""
        return bool(self._before[nodes[-1]] >> product & 1) and all(
            self._is_read_by((), index, nodes) for index in nodes[:-1]
        )

    def _is_read_by(self, members: Sequence[int], maker: int, readers: Sequence[int]) -> bool:
        """True if only the nodes ``readers`` read the output of ``maker``, the one value that leaves ``members``."""
        names = {self.graph.nodes[index].name for index in (*members, *readers)}
        own = {self.graph.nodes[index].name for index in members}
        for index in members or (maker,):
            for value in self.graph.nodes[index].outputs:
                found = {reader.name for reader in self.graph.consumers[value]}
                if value in self.graph.returned or not found <= names or (index != maker and not found <= own):
                    return False
        return True

    def _makers(self, node: Node) -> list[int]:
        position, producer = self.graph.position, self.graph.producer
        return [position[producer[value].name] for value in dict.fromkeys(node.inputs) if value in producer]

    def _shape(self, node: int) -> tuple[int, ...]:
        return self.graph.types[self.graph.nodes[node].outputs[0]].shape


def _joins_chain(node: Node) -> bool:
    return node.op.is_elementwise or node.op.role is Role.VIEW
