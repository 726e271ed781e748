"""Images kept in NHWC where a network transposes them again and again, as ConvNeXt does around each layer norm.

Numbers of 16 bits only: libraries convolve these in NHWC anyway (:mod:`iossim.execution.layouts`), so that the ops of
:mod:`iossim.ir.ops.channels_last` cost the same as those of NCHW, and the transposes cost nothing any more.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import astuple, replace

from iossim.ir.constants import Constant
from iossim.ir.graph import Graph, Node, free_name
from iossim.ir.op import Op
from iossim.ir.ops.channels_last import ChannelsLast
from iossim.ir.ops.reduce import Reduce
from iossim.ir.ops.reshape import Reshape, Transpose
from iossim.ir.ops.unary import Identity
from iossim.ir.types import TO_FIRST, TO_LAST
from iossim.models.passes.graph_pass import local_pass, with_nodes
from iossim.models.passes.simplification import dead_op_elimination, folded, identity_elimination

_LAST_OF = {each.first: each for each in ChannelsLast.__subclasses__()}
_ELEMENTWISE = {"add", "cast", "clip", "mul", "nary", "relu", "sigmoid", "unary", "where"}
#: Share of a region's elements whose transposes must be saved: its convolutions are merged with no others.
_LEAST_SAVED = 0.03


def channels_last_regions(graph: Graph) -> Graph:
    """Converts connected ops on images to NHWC, if that removes more transposes than it adds, by a good part of their
    elements.

    Invariant: the outputs are unchanged up to rounding.
    """
    graph, images = _unflattening(graph), set[str]()
    if any(node.op == Transpose(TO_FIRST) for node in graph.of_kind.get("transpose", ())):
        images.update(*(region for region in _regions(graph) if _saved(graph, region) > _LEAST_SAVED))
    made = _converted(graph, images) if images else graph
    return made if made is graph else identity_elimination(dead_op_elimination(made))


@local_pass("transpose")
def _unflattening(graph: Graph, turn: Node, constants: dict[str, Constant]) -> dict[str, list[Node]]:
    """Transposes images before their pixels become one axis, or after one axis becomes pixels."""
    before, after = graph.private_producer(turn.inputs[0]), graph.private_consumer(turn.outputs[0])
    if turn.op != Transpose((0, 2, 1)):
        return {}
    whole = free_name(f"{turn.name}.whole", graph.types)
    if before is not None and _joins_pixels(graph, before.inputs[0], before):
        flat = replace(turn, op=Reshape(graph.types[turn.outputs[0]].shape), inputs=(whole,))
        return {before.name: [Node(whole, Transpose(TO_LAST), before.inputs, (whole,))], turn.name: [flat]}
    if after is not None and _joins_pixels(graph, after.outputs[0], after):
        images, channels, *pixels = graph.types[after.outputs[0]].shape
        view = Node(whole, Reshape((images, *pixels, channels)), turn.inputs, (whole,))
        return {turn.name: [view], after.name: [replace(after, op=Transpose(TO_FIRST), inputs=(whole,))]}
    return {}


def _joins_pixels(graph: Graph, images: str, node: Node) -> bool:
    """True if a reshape joins or splits the axes of the pixels of ``images``, its input or output."""
    shape = graph.types[images].shape
    shapes = {shape, graph.types[node.inputs[0]].shape, graph.types[node.outputs[0]].shape}
    return isinstance(node.op, Reshape) and len(shape) == 4 and shapes == {shape, (*shape[:2], shape[2] * shape[3])}


def _images(graph: Graph, node: Node) -> list[str]:
    """The images that an op reads and makes, if it has a form for NHWC; none for other ops."""
    values = [value for value in (*node.inputs, *node.outputs) if value not in graph.constants]
    is_over_pixels = isinstance(node.op, Reduce) and node.op.keepdims and {axis % 4 for axis in node.op.axes} == {2, 3}
    if type(node.op) in _LAST_OF:
        values = [node.inputs[0], *node.outputs]
    elif not is_over_pixels and node.op.kind not in _ELEMENTWISE:
        return []
    return values if all(len(graph.types[value].shape) == 4 for value in values) else []


def _regions(graph: Graph) -> list[set[str]]:
    """Images that are connected by ops with a form for NHWC."""
    region_of: dict[str, set[str]] = {}
    for node in graph.nodes:
        values = set(_images(graph, node))
        joined = values.union(*(region_of.get(value, ()) for value in values))
        region_of.update(dict.fromkeys(joined, joined))
    return list({id(region): region for region in region_of.values()}.values())


def _saved(graph: Graph, region: Iterable[str]) -> float:
    """The elements that are transposed less if these images are in NHWC, as a share of the elements of all."""
    saved = 0
    for value in region:
        maker = graph.producer.get(value)
        others = [node.op for node in graph.consumers[value] if value not in _images(graph, node)]
        needless = others.count(Transpose(TO_LAST))
        leaves = len(others) > needless or value in graph.returned
        if maker is not None and value in _images(graph, maker):
            needless -= leaves
        elif maker is not None and maker.op == Transpose(TO_FIRST):
            needless += not leaves
        else:
            needless -= 1
        saved += graph.types[value].elements * needless
    return saved / sum(graph.types[value].elements for value in region)


def _converted(graph: Graph, images: Container[str]) -> Graph:
    """The graph with these images in NHWC, and transposes to and from them, read or not."""
    constants, nodes = dict(graph.constants), list[Node]()
    last = {value: free_name(f"{value}.nhwc", graph.types) for value in graph.types}

    def add(op: Op, source: str, made: str) -> None:
        nodes.append(Node(free_name(f"{made}.moved", graph.types), op, (source,), (made,)))

    def moved(value: str) -> str:
        """A value in NHWC: an image, or a constant that is broadcast to one."""
        if value in graph.constants and graph.types[value].elements > 1:
            shape = graph.types[value].shape
            wide = folded(Reshape((1,) * (4 - len(shape)) + shape), graph.constants[value])
            constants[last[value]] = folded(Transpose(TO_LAST), wide)
        return value if value in graph.constants and graph.types[value].elements == 1 else last[value]

    for value in graph.inputs:
        if value in images:
            add(Transpose(TO_LAST), value, last[value])
    for node in graph.nodes:
        if any(value in images for value in _images(graph, node)):
            op, read = _on_last(node)
            inputs = *map(moved, node.inputs[:read]), *node.inputs[read:]
            nodes.append(replace(node, op=op, inputs=inputs, outputs=tuple(last[value] for value in node.outputs)))
            for value in node.outputs:
                add(Transpose(TO_FIRST), last[value], value)
        elif node.op == Transpose(TO_LAST) and node.inputs[0] in images:
            nodes.append(replace(node, op=Identity(), inputs=(last[node.inputs[0]],)))
        else:
            nodes.append(node)
            for value in node.outputs:
                if value in images and node.op == Transpose(TO_FIRST):
                    add(Identity(), node.inputs[0], last[value])
                elif value in images:
                    add(Transpose(TO_LAST), value, last[value])
    return with_nodes(graph, nodes, constants)


def _on_last(node: Node) -> tuple[Op, int]:
    """A node's op for NHWC, and how many of its first inputs are images there."""
    if isinstance(node.op, Reduce):
        return replace(node.op, axes=(1, 2)), 1
    if type(node.op) in _LAST_OF:
        return _LAST_OF[type(node.op)](*astuple(node.op)), 1
    return node.op, len(node.inputs)
