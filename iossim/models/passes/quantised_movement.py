"""Elements moved as integers: dequantisation is delayed past their movement, and quantisation advanced before it.

Both commute with ops that move elements. A quantised network then moves one byte an element in place of four, and what
quantises it joins the epilogue of the product before, what dequantises it the ops after; TensorRT does the same
(`Working with Quantized Types`, TensorRT's guide: "Explicit Quantization").
"""

from __future__ import annotations

from dataclasses import replace

from iossim.ir.constants import Constant
from iossim.ir.graph import Graph, Names, Node, free_name
from iossim.ir.op import Op
from iossim.ir.ops.normalization import BatchNorm
from iossim.ir.ops.pool import MaxPool
from iossim.ir.ops.quantize import Dequantize, Quantize
from iossim.ir.ops.reshape import Flatten, Pad, Reshape, Transpose
from iossim.ir.ops.slice import Concat, Slice, Split
from iossim.ir.ops.unary import Identity
from iossim.ir.types import FP8, DType
from iossim.models.passes.graph_pass import local_pass, with_nodes
from iossim.models.passes.simplification import dead_op_elimination, folded, identity_elimination

#: Ops past which one dequantisation is delayed: they move elements of one scale, or select the largest ones.
_MOVERS = (MaxPool, Reshape, Flatten, Transpose, Slice, Split, Concat)
#: Ops that keep every element once: arithmetic on each may as well come before them; and those that take fp8, too.
_REARRANGING, _OF_FP8 = (Reshape, Flatten, Transpose), (Reshape, Transpose)
#: Limit on scales: multiples of larger ones may be infinite, as those of a calibration that saw masks of -3e38.
_LARGEST = 1e28


def delayed_dequantisation(graph: Graph) -> Graph:
    """Moves integers in place of the numbers that they stand for, and dequantises them after that.

    Quantisation by the scale of the dequantisation before it gives the integers back. Ops that nothing reads go.

    Invariant: the outputs are unchanged to the last bit.
    """
    names, nodes = Names({*graph.types, *(node.name for node in graph.nodes)}), list[Node]()
    whole: dict[str, tuple[str, Node]] = {}  # the integers of a value, and a dequantisation by their parameters
    for node in graph.nodes:
        sources = [whole[value] for value in node.inputs if value in whole]
        parameters = {_parameters(graph, before) for _, before in sources}
        if isinstance(node.op, Dequantize) and _parameters(graph, node):
            whole[node.outputs[0]] = node.inputs[0], node
        if isinstance(node.op, Quantize) and parameters == {_parameters(graph, node)}:
            nodes.append(replace(node, op=Identity(), inputs=(sources[0][0],)))
            continue
        is_of_one = len(sources) == len(node.inputs) and len(parameters) == 1
        op = _of_integers(node.op, parameters.pop()) if is_of_one else None
        if op is None:
            nodes.append(node)
            continue
        moved, (_, before) = tuple(names.fresh(f"{value}.whole") for value in node.outputs), sources[0]
        nodes.append(replace(node, op=op, inputs=tuple(value for value, _ in sources), outputs=moved))
        for source, value in zip(moved, node.outputs, strict=True):
            name = names.fresh(f"{value}.dequantised")
            nodes.append(Node(name, before.op, (source, *before.inputs[1:]), (value,)))
            whole[value] = source, before
    if tuple(nodes) == graph.nodes:
        return graph
    return dead_op_elimination(identity_elimination(with_nodes(graph, nodes, graph.constants)))


#: Scale, zero point and type of integers.
_Parameters = tuple[float, float, DType]


def _parameters(graph: Graph, node: Node) -> _Parameters | None:
    """The parameters of a conversion; None unless they are known, and the integers' multiples of the scale finite."""
    if getattr(node.op, "block", 0):
        return None
    scale, zero = (graph.number(value) for value in (node.inputs[1], (*node.inputs, "")[2]))
    zero = 0.0 if len(node.inputs) == 2 else zero
    whole = graph.types[node.inputs[0] if isinstance(node.op, Dequantize) else node.outputs[0]].dtype
    return (scale, zero, whole) if scale is not None and zero is not None and 0 < scale < _LARGEST else None


def _of_integers(op: Op, parameters: _Parameters | None) -> Op | None:
    """The same movement of integers, or fp8; None for an op that is none, or that ONNX has not for their type."""
    if parameters is None or (isinstance(op, MaxPool) and parameters[2].bytes > 1):
        return None
    if parameters[2] in FP8:
        return op if isinstance(op, _OF_FP8) else None
    if isinstance(op, Pad):
        return replace(op, value=parameters[1]) if op.value == 0 else None
    return op if isinstance(op, _MOVERS) else None


@local_pass("quantize")
def advanced_quantisation(graph: Graph, last: Node, constants: dict[str, Constant]) -> dict[str, list[Node]]:
    """Quantises before elements are rearranged or joined, in the epilogue of what makes them.

    With it, arithmetic on each of them by one number or none comes before, too, as the scale of an attention's queries.

    Invariant: the outputs are unchanged to the last bit.
    """
    return _advanced(graph, last, constants)


def _advanced(graph: Graph, last: Node, constants: dict[str, Constant]) -> dict[str, list[Node]]:
    """The nodes in place of a quantisation, and none in place of those before it that it alone reads.

    The nodes of a later quantisation replace these, since it takes the same ones along.
    """
    if any(graph.number(each) is None for each in last.inputs[1:]):
        return {}
    path, value, made = list[Node](), last.inputs[0], dict[str, list[Node]]()
    rearranging = _OF_FP8 if graph.types[last.inputs[-1]].dtype in FP8 else _REARRANGING
    while (node := graph.private_producer(value)) and (isinstance(node.op, rearranging) or _is_of_one(graph, node)):
        path.append(node)
        value = _source(graph, node)
    while path and not isinstance(path[-1].op, (*rearranging, Quantize)):
        value = path.pop().outputs[0]
    movers = [each for each in reversed(path) if isinstance(each.op, rearranging)]
    steps = [*(each for each in reversed(path) if each not in movers), last]
    before, joined = list[Node](), graph.private_producer(value)
    if isinstance((first := steps[0]).op, Quantize) and joined is not None and _joins(graph, joined, first):
        terms = tuple(free_name(f"{first.name}.term{place}", graph.types) for place in range(len(joined.inputs)))
        for term, name in zip(joined.inputs, terms, strict=True):
            own = replace(first, name=name, inputs=(term, *first.inputs[1:]), outputs=(name,))
            if term in constants:
                constants[name] = folded(own.op, *(constants[value] for value in own.inputs))
            else:
                made |= _advanced(graph, own, constants)
                before += made.pop(name, [own])
        made[joined.name] = []
        steps[0], value = replace(joined, inputs=terms), terms[0]
    elif not movers:
        return {}
    for each in (*steps, *movers):
        inputs = tuple(value if name == _source(graph, each) else name for name in each.inputs)
        value = free_name(f"{each.name}.before", graph.types)
        before.append(replace(each, inputs=inputs, outputs=(value,)))
    before[-1] = replace(before[-1], outputs=last.outputs)
    return {**made, **{each.name: [] for each in path}, last.name: before}


def _source(graph: Graph, node: Node) -> str:
    """The first operand that is no constant; the first one if all are."""
    return next((value for value in node.inputs if value not in graph.constants), node.inputs[0])


def _is_of_one(graph: Graph, node: Node) -> bool:
    """True for an element-wise op on one tensor and known single numbers."""
    types, source = graph.types, _source(graph, node)
    others = [value for value in node.inputs if value in graph.constants]
    return (
        node.op.is_elementwise
        and not isinstance(node.op, BatchNorm)
        and len(others) + 1 == len(node.inputs)
        and types[source].shape == types[node.outputs[0]].shape
        and all(graph.number(each) is not None and len(types[each].shape) < 2 for each in others)
    )


def _joins(graph: Graph, node: Node, quantise: Node) -> bool:
    """True for a concat or maximum of what other ops make for it alone: their epilogues quantise it."""
    dtype = graph.types[quantise.inputs[-1]].dtype
    fits = isinstance(node.op, Concat) or (isinstance(node.op, MaxPool) and dtype.bytes == 1)
    return (
        fits
        and dtype not in FP8
        and all(value in graph.constants or graph.private_producer(value) for value in node.inputs)
    )
