"""Training as one graph: a network, the gradients of its maps (backward data) and those of its weights (backward filter).

Reverse-mode differentiation: op by op from the outputs, whose gradients are inputs ``grad:OUTPUT``. The graph returns what the network
does, and ``grad:WEIGHT`` of every weight. Each block has one behind all of them, ``BLOCK.backward``, in the opposite order. The two
gradients of a layer do not depend on each other, so that a scheduler may run them side by side, and those of weights later than
those of maps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import iossim.models.passes.elementwise_gradients  # noqa: F401  (importing it registers its rules)
from iossim.base.errors import ModelError
from iossim.ir.constants import Constant, FilledConstant
from iossim.ir.graph import Graph, Node
from iossim.ir.network import Block, Network, make_unit
from iossim.ir.op import Op
from iossim.ir.ops.nary import Add
from iossim.ir.types import TensorType
from iossim.models.passes.blocks import split_blocks
from iossim.models.passes.gradients import gradients
from iossim.schedule.problem import MAX_UNITS

#: What the gradient of a value is called.
PREFIX = "grad:"
#: What stands behind the name of an op in the names of the ops of its gradient.
BACKWARD = ".backward."


def training_network(network: Network, max_block: int = MAX_UNITS) -> Network:
    """The network with its gradients; raises ModelError for an op that has none here, and where nothing is to be learnt."""
    graph = network.graph
    tape = _Tape(graph, network.weights_to_learn)
    of_block = {unit: index for index, block in enumerate(network.blocks) for unit in block.units}
    contributions: dict[str, list[str]] = {}
    inputs = {name: graph.types[name] for name in graph.inputs}
    for value in graph.outputs:
        if tape.needed(value):
            name = f"{PREFIX}{value}"
            inputs[name] = tape.types[name] = graph.types[value]
            contributions.setdefault(value, []).append(name)
    unit_of_node = {
        graph.nodes[index].name: place for place, unit in enumerate(network.units) for index in unit.nodes
    }
    for node in reversed(graph.nodes):
        tape.node, tape.block = node, of_block[unit_of_node[node.name]]
        if contributions.keys().isdisjoint(node.outputs) or not any(map(tape.needed, node.inputs)):
            continue
        grads = [
            tape.total(value, contributions[value])
            if value in contributions
            else tape.filled(tape.types[value].shape, 0.0)  # nothing differentiable reads it
            for value in node.outputs
        ]
        for value, grad in zip(node.inputs, gradients(tape, node, grads), strict=True):
            if grad is not None and tape.needed(value):
                contributions.setdefault(value, []).append(grad)
    learnt = [name for name in tape.weights if name in contributions]
    if not learnt:
        raise ModelError(f"network {network.name!r} has no weight that its outputs depend on; leave out `training`")
    renamed = {}
    for name in learnt:
        tape.block = max(tape.blocks[each] for each in contributions[name])
        renamed[tape.total(name, contributions[name])] = f"{PREFIX}{name}"
    return split_blocks(_assembled(network, tape, inputs, renamed), max_block)


@dataclass
class _Tape:
    """The gradients' ops as they are made, each in a unit; ``types`` are those of all values."""

    graph: Graph
    weights: Collection[str]
    types: dict[str, TensorType] = field(init=False)
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Constant] = field(default_factory=dict)
    #: Name, kind, block and nodes of each unit.
    units: list[tuple[str, str, int, list[Node]]] = field(default_factory=list)
    #: The block of what makes a value.
    blocks: dict[str, int] = field(default_factory=dict)
    node: Node = field(init=False)
    block: int = 0
    _open: list[Node] | None = None

    def __post_init__(self) -> None:
        self.types = dict(self.graph.types)
        learnt = set(self.weights)
        for node in self.graph.nodes:
            if learnt.intersection(node.inputs):
                learnt.update(value for value in node.outputs if self.types[value].dtype.is_floating)
        self._needed = learnt

    def type(self, value: str) -> TensorType:
        return self.types[value]

    def needed(self, value: str) -> bool:
        return value in self._needed

    def maker(self, value: str) -> Node | None:
        return self.graph.producer.get(value)

    def filled(self, shape: Sequence[int], value: float) -> str:
        kind = TensorType(tuple(shape), self.types[self.node.outputs[0]].dtype)
        name = f"{self.node.name}.backward.{value:g}.{'x'.join(map(str, shape))}"
        self.constants[name] = FilledConstant(kind, value)
        self.types[name] = kind
        return name

    def add(self, op: Op, *inputs: str) -> str:
        (value,) = self.add_all(op, *inputs)
        return value

    def add_all(self, op: Op, *inputs: str) -> tuple[str, ...]:
        name = f"{self.node.name}{BACKWARD}{op.kind}{len(self.nodes)}"
        types = op.infer([self.types[value] for value in inputs])
        values = (name,) if len(types) == 1 else tuple(f"{name}.{index}" for index in range(len(types)))
        node = Node(name, op, inputs, values)
        self.nodes.append(node)
        self.types.update(zip(values, types, strict=True))
        self.blocks.update(dict.fromkeys(values, self.block))
        if self._open is None:
            self.units.append((name, op.kind.capitalize(), self.block, [node]))
        else:
            self._open.append(node)
        return values

    @contextmanager
    def unit(self, kind: str) -> Iterator[None]:
        if self._open is not None:  # a rule within a rule: part of what is open
            yield
            return
        self._open = []
        yield
        nodes, self._open = self._open, None
        if nodes:
            self.units.append((nodes[-1].name, f"{kind}-backward", self.block, nodes))

    def total(self, value: str, parts: list[str]) -> str:
        """The sum of the gradients that a value has from all that read it; added up once."""
        if len(parts) > 1:
            parts[:] = [self.add(Add(), *parts)]
        return parts[0]


def _assembled(network: Network, tape: _Tape, inputs: dict[str, TensorType], renamed: dict[str, str]) -> Network:
    """One network of both; what makes a weight's gradient makes it under its name."""

    def own(value: str) -> str:
        return renamed.get(value, value)

    made = [
        replace(node, inputs=tuple(map(own, node.inputs)), outputs=tuple(map(own, node.outputs)))
        for node in tape.nodes
    ]
    graph = Graph.create(
        inputs,
        [*network.graph.outputs, *renamed.values()],
        [*network.graph.nodes, *made],
        {**network.graph.constants, **tape.constants},
    )
    units = [
        make_unit(graph, unit.name, unit.kind, [graph.position[node.name] for node in network.unit_nodes(unit)])
        for unit in network.units
    ]
    blocks = list(network.blocks)
    for number in sorted({block for _, _, block, _ in tape.units}, reverse=True):
        members = []
        for name, kind, block, nodes in tape.units:
            if block == number:
                members.append(len(units))
                units.append(make_unit(graph, name, kind, [graph.position[node.name] for node in nodes]))
        blocks.append(Block(f"{network.blocks[number].name}.backward", tuple(members)))
    return replace(network, name=f"{network.name}.training", graph=graph, units=tuple(units), blocks=tuple(blocks))
