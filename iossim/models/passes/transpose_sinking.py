"""Transposes that split heads, moved after the rotary positions of what they split.

An attention reads and writes strided rows of a head's features, so that a transpose next to it copies nothing
(:mod:`iossim.ir.attention`). With rotary positions between the two, the transpose is a kernel of its own: therefore
``rotated(transpose(x))`` becomes ``transpose(rotated(x))``.
"""

from __future__ import annotations

from dataclasses import replace

from iossim.ir.constants import ArrayConstant
from iossim.ir.graph import Graph, Node, free_name
from iossim.ir.op import normal_axis
from iossim.ir.ops.gather import Gather
from iossim.ir.ops.reshape import Reshape, Transpose
from iossim.models.passes.graph_pass import GraphPass, with_nodes


class TransposeSinking(GraphPass):
    """Moves a transpose that keeps the last axis after the element-wise ops and lookups of features that read it.

    Only rotary positions look up features (:class:`~iossim.models.passes.spelt_layers.RotationRecognition`). Without a
    lookup the transpose stays: an attention contains what else there is.

    Invariant: the outputs are unchanged to the last bit.
    """

    def apply(self, graph: Graph) -> Graph:
        for transpose in graph.of_kind.get("transpose", ()):
            region = _Region(graph, transpose)
            if any(isinstance(node.op, Gather) for node in region.nodes) and (end := region.end):
                graph = region.sunk(end)
        return graph


class _Region:
    """The ops after a transpose that may as well run before it, in topological order."""

    def __init__(self, graph: Graph, transpose: Node) -> None:
        assert isinstance(transpose.op, Transpose)
        self.graph, self.transpose, self.permutation = graph, transpose, transpose.op.permutation
        self.nodes: list[Node] = []
        #: The outputs of the transpose and of these ops.
        self.values = set(transpose.outputs)
        keeps_features = self.permutation[-1] == len(self.permutation) - 1
        readers = set(graph.consumers[transpose.outputs[0]] if keeps_features else ())
        while readers:
            node = min(readers, key=lambda each: graph.position[each.name])
            readers.remove(node)
            if self._commutes(node):
                self.nodes.append(node)
                self.values.update(node.outputs)
                readers.update(graph.consumers[node.outputs[0]])

    def _commutes(self, node: Node) -> bool:
        if isinstance(node.op, Gather):
            x, places = (self.graph.types[value].shape for value in node.inputs)
            is_last = normal_axis(node.op.axis, len(x)) == len(self.permutation) - 1
            return node.inputs[0] in self.values and is_last and len(places) == 1
        return node.op.is_elementwise and all(
            value in self.values or self._shape_before(value) is not None for value in node.inputs
        )

    def _shape_before(self, value: str) -> tuple[int, ...] | None:
        """The shape that another operand has before the transpose, its numbers in the same order; None without one."""
        shape = self.graph.types[value].shape
        padded = (1,) * (len(self.permutation) - len(shape)) + shape
        if len(padded) > len(self.permutation):
            return None
        before = tuple(padded[self.permutation.index(axis)] for axis in range(len(padded)))
        if before == padded:
            return shape
        in_order = [size for size in before if size > 1] == [size for size in padded if size > 1]
        constant = self.graph.constants.get(value)
        return before if in_order and not (constant and constant.is_absent) else None

    @property
    def end(self) -> str:
        """The only value of the region that is read outside; empty if there are several."""
        names = {node.name for node in self.nodes}
        read = [
            value
            for value in self.values
            if value in self.graph.returned or any(node.name not in names for node in self.graph.consumers[value])
        ]
        return read[0] if len(read) == 1 else ""

    def sunk(self, end: str) -> Graph:
        """The graph with the transpose after the region."""
        graph, constants = self.graph, dict(self.graph.constants)
        before = free_name(f"{end}.before", graph.types)
        renamed = {self.transpose.outputs[0]: self.transpose.inputs[0], end: before}
        made = [replace(self.transpose, inputs=(before,), outputs=(end,))]
        for node in self.nodes:
            others = [] if isinstance(node.op, Gather) else [each for each in node.inputs if each not in self.values]
            for value in others:
                shape = self._shape_before(value)
                if value in renamed or shape is None or shape == graph.types[value].shape:
                    continue
                renamed[value] = name = free_name(f"{value}.before", graph.types)
                if value in constants:
                    constants[name] = ArrayConstant(constants[value].load().reshape(shape))
                else:
                    made.append(Node(name, Reshape(shape), (value,), (name,)))
            inputs, outputs = (tuple(renamed.get(each, each) for each in side) for side in (node.inputs, node.outputs))
            made.append(replace(node, inputs=inputs, outputs=outputs))
        gone = {self.transpose.name, *(node.name for node in self.nodes)}
        return with_nodes(graph, [*(node for node in graph.nodes if node.name not in gone), *made], constants)
