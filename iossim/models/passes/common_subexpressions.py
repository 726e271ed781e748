"""Common subexpression elimination: what is computed twice from the same values is computed once.

Exporters write what each layer of a transformer needs anew for every layer: the same mask, expanded the same way.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from iossim.ir.graph import Graph, Node
from iossim.ir.types import TensorType
from iossim.models.passes.graph_pass import GraphPass, with_nodes

#: Constants of up to so many elements are the same if they hold the same; larger ones, and computed ones, only if they are one.
_SMALL = 65_536


@dataclass(frozen=True)
class CommonSubexpressionElimination(GraphPass):
    """Drops every op that another one of the same kind, attributes and inputs stands for.

    An op that makes an output of the graph stays. Products are the same only if their weights are one: in a model whose weights
    were replaced by fills, to make it small, those of different layers hold the same. A constant is loaded only to tell apart ops that are equal otherwise. (No op
    draws random numbers: import refuses those that do.)

    Constants in ``kept`` are the same only if they are one, whatever they hold.

    Invariant: the outputs are unchanged to the last bit.
    """

    kept: frozenset[str] = frozenset()

    def apply(self, graph: Graph) -> Graph:
        contents = _Contents(graph, self.kept)
        stands_for: dict[str, str] = {}
        alike: dict[tuple[str | TensorType, ...], list[Node]] = {}
        kept: list[Node] = []
        outputs = set(graph.outputs)
        for node in graph.nodes:
            inputs = tuple(stands_for.get(name, name) for name in node.inputs)
            multiplies = node.op.multiply_adds(graph.input_types(node), graph.output_types(node)) > 0
            read = inputs if multiplies else tuple(contents.type_of(name) or name for name in inputs)
            key = (node.op.signature, *read)
            earlier = alike.setdefault(key, [])
            first = next((other for other in earlier if contents.equal(other.inputs, inputs)), None)
            if first is None or not outputs.isdisjoint(node.outputs):
                kept.append(replace(node, inputs=inputs))
                if first is None:
                    earlier.append(kept[-1])
            else:
                stands_for.update(zip(node.outputs, first.outputs, strict=True))
        return graph if len(kept) == len(graph.nodes) else with_nodes(graph, kept, graph.constants)


class _Contents:
    """What constants hold, loaded when it matters, and once."""

    def __init__(self, graph: Graph, kept: frozenset[str]) -> None:
        self._constants = {name: each for name, each in graph.constants.items() if name not in kept}
        self._digests: dict[str, str] = {}

    def type_of(self, name: str) -> TensorType | None:
        """The type of a constant, None for any other value."""
        return self._constants[name].type if name in self._constants else None

    def equal(self, some: tuple[str, ...], others: tuple[str, ...]) -> bool:
        """Whether values that are the same but for constants of the same types are the same altogether."""
        pairs = zip(some, others, strict=True)
        return all(one == other or self._digest(one) == self._digest(other) for one, other in pairs)

    def _digest(self, name: str) -> str:
        if name not in self._digests:
            constant = self._constants[name]
            small = constant.type.elements <= _SMALL and constant.is_at_hand
            self._digests[name] = hashlib.sha256(constant.load().tobytes()).hexdigest() if small else name
        return self._digests[name]
