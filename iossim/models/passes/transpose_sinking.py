"""Transposes that split heads, moved next to the attention.

An attention reads and writes strided rows of a head's features, so that a transpose next to it copies nothing
(:mod:`iossim.ir.attention`). With rotary positions between the two, the transpose is a kernel of its own: therefore
``rotated(transpose(x))`` becomes ``transpose(rotated(x))``. So it is if queries, keys and values are one product,
reshaped to ``[batch, tokens, 3, heads, features]``, transposed as a whole, and then taken apart, as vision transformers
do it (timm, Swin). Parts of rows are views: therefore rows are taken apart first, and the parts transposed.
"""

from __future__ import annotations

from dataclasses import replace

from iossim.ir.constants import Constant
from iossim.ir.graph import Graph, Node, free_name
from iossim.ir.op import Op, normal_axis
from iossim.ir.ops.gather import Gather
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.reduce import Reduce
from iossim.ir.ops.reshape import Reshape, Transpose
from iossim.ir.ops.slice import Slice, Split
from iossim.ir.ops.softmax import SoftmaxLike
from iossim.models.passes.graph_pass import local_pass, with_nodes
from iossim.models.passes.simplification import Derived


def transpose_sinking(graph: Graph) -> Graph:
    """Moves a transpose that keeps the last axis after the element-wise ops and lookups of features that read it.

    Only rotary positions look up features (:class:`~iossim.models.passes.spelt_layers.rotation_recognition`). Without a
    lookup the transpose stays: an attention contains what else there is.

    Invariant: the outputs are unchanged to the last bit.
    """
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
        return before if in_order else None

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
        before, made = free_name(f"{end}.before", graph.types), Derived(graph.types, constants, f"{end}.operand")
        renamed = {self.transpose.outputs[0]: self.transpose.inputs[0], end: before}
        for node in self.nodes:
            others = [] if isinstance(node.op, Gather) else [each for each in node.inputs if each not in self.values]
            for value in others:
                shape = self._shape_before(value)
                if value not in renamed and shape not in (None, graph.types[value].shape):
                    renamed[value] = made.add(Reshape(shape), value)
            inputs, outputs = (tuple(renamed.get(each, each) for each in side) for side in (node.inputs, node.outputs))
            made.nodes.append(replace(node, inputs=inputs, outputs=outputs))
        made.nodes.append(replace(self.transpose, inputs=(before,), outputs=(end,)))
        gone = {self.transpose.name, *(node.name for node in self.nodes)}
        return with_nodes(graph, [*(node for node in graph.nodes if node.name not in gone), *made.nodes], constants)


@local_pass("transpose")
def split_hoisting(graph: Graph, transpose: Node[Transpose], constants: dict[str, Constant]) -> dict[str, list[Node]]:
    """Turns ``split(transpose(reshape(rows)))`` into transposes of reshaped parts of ``rows``.

    The transpose keeps the features of a head contiguous, only splits and slices of whole parts read it, and one part
    is the values of an attention. It and its reshape are left to dead op elimination.

    Invariant: the outputs are unchanged to the last bit.
    """
    reshape, permutation = graph.producer.get(transpose.inputs[0]), transpose.op.permutation
    if reshape is None or not isinstance(reshape.op, Reshape) or transpose.outputs[0] in graph.returned:
        return {}
    rows, heads = (graph.types[value].shape for value in (*reshape.inputs, *reshape.outputs))
    if len(rows) != 3 or len(heads) < 5 or heads[:2] != rows[:2] or permutation[-1] != len(heads) - 1:
        return {}
    axis, made, parts = permutation.index(2), dict[str, list[Node]](), list[str]()
    for reader in graph.consumers[transpose.outputs[0]]:
        op = _of_features(reader.op, axis, heads, rows[2] // heads[2])
        if op is None:
            return {}
        features = tuple(free_name(f"{value}.features", graph.types) for value in reader.outputs)
        made[reader.name] = [replace(reader, op=op, inputs=reshape.inputs, outputs=features)]
        for source, value in zip(features, reader.outputs, strict=True):
            part, order, made_value = [*heads[:2], graph.types[value].shape[axis], *heads[3:]], permutation, value
            if (last := _squeeze(graph, value, axis)) is not None:
                del part[2]
                order = tuple(each - (each > 2) for each in permutation if each != 2)
                made[last.name], made_value = [], last.outputs[0]
            parts.append(made_value)
            split = free_name(f"{value}.heads", graph.types)
            moved = Node(free_name(f"{value}.transposed", graph.types), Transpose(order), (split,), (made_value,))
            made[reader.name] += [Node(split, Reshape(tuple(part)), (source,), (split,)), moved]
    return made if any(_is_weighed(graph, part) for part in parts) else {}


def _is_weighed(graph: Graph, value: str) -> bool:
    """True for the values of an attention: a product weighs them by a softmax, maybe checked or cast."""
    for product in graph.consumers[value]:
        weights = graph.producer.get(product.inputs[0])
        while weights is not None and weights.op.kind in ("where", "cast"):
            weights = graph.producer.get(weights.inputs[-1])
        if isinstance(product.op, MatMul) and weights is not None and weights.op.kind == "softmax":
            return True
    return False


def _of_features(op: Op, axis: int, heads: tuple[int, ...], width: int) -> Op | None:
    """A split or slice along one axis of size ``heads[2]``, as one of rows, where each entry is ``width`` features."""
    match op:
        case Split() if op.axis % len(heads) == axis:
            return Split(2, tuple(size * width for size in op.sizes))
        case Slice() if [each % len(heads) for each in op.axes] == [axis] and op.steps == (1,):
            begin, end, _ = slice(op.starts[0], op.ends[0]).indices(heads[2])
            return Slice((begin * width,), (end * width,), (2,), (1,))
        case _:
            return None


def _squeeze(graph: Graph, value: str, axis: int) -> Node | None:
    """The reshape that alone reads a value, and drops that axis, of size one."""
    shape, reader = graph.types[value].shape, graph.private_consumer(value)
    if shape[axis] != 1 or reader is None or not isinstance(reader.op, Reshape):
        return None
    return reader if graph.types[reader.outputs[0]].shape == (*shape[:axis], *shape[axis + 1 :]) else None


@local_pass("softmax", "log_softmax")
def softmax_turning(graph: Graph, softmax: Node[SoftmaxLike], constants: dict[str, Constant]) -> dict[str, list[Node]]:
    """Turns a softmax between two transposes into one after a single transpose, along another axis: before operator set
    13 PyTorch's exporter turns the axis to the end and back, and what is left of both often moves nothing.

    Invariant: the outputs are unchanged up to rounding.
    """
    before, after = graph.producer.get(softmax.inputs[0]), graph.private_consumer(softmax.outputs[0])
    if before is None or after is None or softmax.op.flatten:
        return {}
    if not (isinstance(before.op, Transpose) and isinstance(after.op, Transpose)):
        return {}
    first, second = before.op.permutation, after.op.permutation
    made = Derived(graph.types, constants, f"{softmax.name}.turned")
    turned = made.add(Transpose(tuple(first[axis] for axis in second)), *before.inputs)
    op = replace(softmax.op, axis=second.index(normal_axis(softmax.op.axis, len(first))))
    return {softmax.name: [], after.name: [*made.nodes, replace(after, op=op, inputs=(turned,))]}


@local_pass("reduce")
def reduction_hoisting(graph: Graph, reduction: Node, constants: dict[str, Constant]) -> dict[str, list[Node]]:
    """Reduces axes before a transpose instead of after it, if that leaves the others in order: means of pixels in NHWC.

    Invariant: the outputs are unchanged up to rounding.
    """
    turn, shape = graph.producer.get(reduction.inputs[0]), graph.types[reduction.inputs[0]].shape
    if turn is None or not isinstance(turn.op, Transpose) or not isinstance(reduction.op, Reduce):
        return {}
    axes = {normal_axis(axis, len(shape)) for axis in reduction.op.axes}
    rest = [before for axis, before in enumerate(turn.op.permutation) if axis not in axes and shape[axis] > 1]
    if rest != sorted(rest):
        return {}
    before = tuple(sorted(turn.op.permutation[axis] for axis in axes))
    made = Derived(graph.types, constants, f"{reduction.name}.reduced")
    reduced = made.add(replace(reduction.op, axes=before, keepdims=True), *turn.inputs)
    return {reduction.name: made.reshaped(reduced, reduction)}
