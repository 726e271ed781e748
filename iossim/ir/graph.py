"""The computation graph: immutable, validated by ``Graph.create``, hashed by structure.

A graph is a directed acyclic graph of nodes (primitive ops) over named values. Values are graph inputs,
constants (weights) or outputs of nodes. Names are for people: they do not enter the hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic

from typing_extensions import TypeVar

from iossim.base.errors import GraphError
from iossim.ir.constants import Constant
from iossim.ir.op import Op, Work
from iossim.ir.types import LARGEST_TENSOR_BYTES, MOST_DIMENSIONS, TensorType

#: The class of an op, where it is known.
OpT_co = TypeVar("OpT_co", bound=Op, default=Op, covariant=True)


@dataclass(frozen=True, slots=True)
class Node(Generic[OpT_co]):
    """One op applied to values."""

    name: str
    op: OpT_co
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in topological order; ``types`` gives the type of every value.

    Build one with :meth:`create` (which infers types and validates) or :class:`iossim.ir.builder.GraphBuilder`.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    types: Mapping[str, TensorType]
    constants: Mapping[str, Constant]

    def __repr__(self) -> str:
        inputs = ", ".join(f"{name} {self.types[name]}" for name in self.inputs)
        return f"<Graph of {len(self.nodes)} ops: {inputs} -> {', '.join(self.outputs)}>"

    @staticmethod
    def create(
        inputs: Mapping[str, TensorType],
        outputs: Iterable[str],
        nodes: Iterable[Node],
        constants: Mapping[str, Constant],
    ) -> Graph:
        """Sort, infer and validate; raises GraphError naming the offending op."""
        given = tuple(nodes)
        check_names(given, {*inputs, *constants})
        ordered = sorted_nodes(given, {value for node in given for value in node.outputs})
        types = {**inputs, **{name: constant.type for name, constant in constants.items()}}
        for name, value_type in types.items():
            _check_size(value_type, repr(name))
        for node in ordered:
            types.update(zip(node.outputs, inferred_types(node, types), strict=True))
        results = tuple(outputs)
        for name in results:
            if name not in types:
                raise GraphError(f"graph output {name!r} is made by no op")
        used = {name for node in ordered for name in node.inputs} | set(results)
        kept = {name: constant for name, constant in constants.items() if name in used}
        types = {name: value for name, value in types.items() if name in kept or name not in constants}
        return Graph(tuple(inputs), results, ordered, types, kept)

    @cached_property
    def returned(self) -> frozenset[str]:
        """The outputs as a set, for fast lookup: there may be many."""
        return frozenset(self.outputs)

    @cached_property
    def producer(self) -> Mapping[str, Node]:
        """The node that produces each value."""
        return {value: node for node in self.nodes for value in node.outputs}

    def private_producer(self, value: str) -> Node | None:
        """The producer of ``value``, if that is its only output, has one consumer and is not returned."""
        producer = self.producer.get(value)
        if producer is None or len(producer.outputs) != 1 or value in self.returned:
            return None
        return producer if len(self.consumers[value]) == 1 else None

    def private_consumer(self, value: str) -> Node | None:
        """The consumer of ``value``, if there is one, and the graph does not return it."""
        consumers = self.consumers[value]
        return consumers[0] if len(consumers) == 1 and value not in self.returned else None

    def makers(self, value: str) -> tuple[Node, ...]:
        """The producer of a value, if any."""
        node = self.producer.get(value)
        return () if node is None else (node,)

    def number(self, value: str) -> float | None:
        """The number that a constant of one element holds, if that is at hand; None for any other value."""
        held = self.constants.get(value)
        is_known = held is not None and held.type.elements == 1 and held.is_at_hand and not held.is_absent
        return float(held.loadable.load().item()) if held is not None and is_known else None

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Node, ...]]:
        """The consumers of each value, in topological order, each once."""
        readers: dict[str, list[Node]] = {name: [] for name in self.types}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                readers[name].append(node)
        return {name: tuple(nodes) for name, nodes in readers.items()}

    @cached_property
    def position(self) -> Mapping[str, int]:
        """The position of each node in the topological order, by name."""
        return {node.name: index for index, node in enumerate(self.nodes)}

    @cached_property
    def of_kind(self) -> Mapping[str, tuple[Node, ...]]:
        """The nodes of each kind of op, in topological order."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            found.setdefault(node.op.kind, []).append(node)
        return {kind: tuple(nodes) for kind, nodes in found.items()}

    def input_types(self, node: Node) -> list[TensorType]:
        return [self.types[name] for name in node.inputs]

    def output_types(self, node: Node) -> list[TensorType]:
        return [self.types[name] for name in node.outputs]

    def multiply_adds(self, node: Node) -> int:
        return node.op.multiply_adds(self.input_types(node), self.output_types(node))

    def work(self, node: Node) -> Work:
        return node.op.work(self.input_types(node), self.output_types(node))

    @cached_property
    def hash(self) -> str:
        """Hash of the structure: ops, attributes, types and edges, but not names or weights.

        Every value is hashed from its producer, then every node again from its consumers, so that nodes with equal
        ancestors are distinguished by their position.
        """
        types = {name: str(value) for name, value in self.types.items()}
        above: dict[str, str] = {}
        for position, name in enumerate(self.inputs):
            above[name] = _digest("input", str(position), types[name])
        of_type = {each: _digest("constant", each) for each in {types[name] for name in self.constants}}
        above.update({name: of_type[types[name]] for name in self.constants})
        for node in self.nodes:
            made = _digest(node.op.signature, *[above[name] for name in node.inputs])
            for position, name in enumerate(node.outputs):
                above[name] = _digest(made, str(position), types[name])
        below: dict[str, list[str]] = {name: [] for name in types}
        for position, name in enumerate(self.outputs):
            below[name].append(_digest("output", str(position)))
        whole: list[str] = []
        for node in reversed(self.nodes):
            seen = [_digest(above[name], *sorted(below[name])) for name in node.outputs]
            place = _digest(node.op.signature, *[above[name] for name in node.inputs], *seen)
            whole.append(place)
            for position, name in enumerate(node.inputs):
                below[name].append(_digest(place, str(position)))
        whole += [_digest("value", above[name], *sorted(below[name])) for name in (*self.inputs, *self.constants)]
        return _digest(*sorted(whole))[:32]


def _check_size(value: TensorType, what: str) -> None:
    if len(value.shape) > MOST_DIMENSIONS or value.bytes > LARGEST_TENSOR_BYTES:
        raise GraphError(
            f"{what} would be {value}, and no tensor has more than {LARGEST_TENSOR_BYTES >> 40} TiB or "
            f"{MOST_DIMENSIONS} dimensions; check the sizes"
        )


def inferred_types(node: Node, types: Mapping[str, TensorType]) -> tuple[TensorType, ...]:
    """The types of a node's outputs; raises GraphError naming the op if its inputs do not fit it."""
    try:
        inferred = node.op.infer([types[name] for name in node.inputs])
    except GraphError as error:
        raise GraphError(f"op {node.name!r} ({node.op.kind}): {error}") from None
    if len(inferred) != len(node.outputs):
        raise GraphError(
            f"op {node.name!r} ({node.op.kind}) makes {len(inferred)} outputs but names {len(node.outputs)}"
        )
    for value_type in inferred:
        if any(dimension < 1 for dimension in value_type.shape):
            raise GraphError(
                f"op {node.name!r} ({node.op.kind}) would make an empty tensor {value_type}; "
                "its input is too small for its kernel"
            )
        _check_size(value_type, f"the output of op {node.name!r} ({node.op.kind})")
    return inferred


def check_names(nodes: Sequence[Node], known: Container[str]) -> None:
    """Raise GraphError for a repeated node or value, and for a value that is read but neither made nor ``known``."""
    made: set[str] = set()
    names: set[str] = set()
    for node in nodes:
        if node.name in names:
            raise GraphError(f"two ops are named {node.name!r}; give each op a name of its own")
        names.add(node.name)
        for value in node.outputs:
            if value in made or value in known:
                raise GraphError(f"op {node.name!r} makes the value {value!r}, which something else makes too")
            made.add(value)
    for node in nodes:
        for value in node.inputs:
            if value not in made and value not in known:
                raise GraphError(f"op {node.name!r} ({node.op.kind}) reads {value!r}, which nothing makes")


def sorted_nodes(nodes: Iterable[Node], made: Container[str]) -> tuple[Node, ...]:
    """Nodes in topological order, otherwise in the given order; ``made`` are the values that they produce."""
    ready: set[str] = set()
    ordered: list[Node] = []
    rest = list(nodes)
    while rest:
        waiting: list[Node] = []
        for node in rest:
            if all(value in ready or value not in made for value in node.inputs):
                ordered.append(node)
                ready.update(node.outputs)
            else:
                waiting.append(node)
        if len(waiting) == len(rest):
            raise GraphError(f"the graph has a cycle through op {waiting[0].name!r}")
        rest = waiting
    return tuple(ordered)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def free_name(name: str, taken: Container[str]) -> str:
    """The name, with a number appended if it is taken."""
    count, free = 1, name
    while free in taken:
        count += 1
        free = f"{name}_{count}"
    return free


class Names:
    """Allocator of unused names in a model."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)

    def fresh(self, wanted: str) -> str:
        """``wanted``, or the first free one of ``wanted_2``, ``wanted_3``, ...; in use from now on."""
        name = free_name(wanted, self._taken)
        self._taken.add(name)
        return name
