"""Recognition of softmaxes that exporters write as parts, of known masks, and removal of checks for NaN.

PyTorch's exporter adds ``where(isnan(y), 0, y)`` after the softmax of every attention with a boolean mask,
since a fully masked row is NaN. If the mask is known, so is whether there is such a row. GPT-2's code selects
``where(mask, scores, -1e4)``, which is the sum with a mask of numbers that attentions take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np

from iossim.ir.attention import is_nan_check
from iossim.ir.constants import ArrayConstant, Constant
from iossim.ir.graph import Graph, Node, free_name
from iossim.ir.op import Array, Op
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.functions import Nary, Unary
from iossim.ir.ops.matmul import Gemm, MatMul
from iossim.ir.ops.nary import Add, Mul, Where
from iossim.ir.ops.normalization import LayerNorm
from iossim.ir.ops.reduce import Reduce
from iossim.ir.ops.reshape import Expand, Reshape, Transpose
from iossim.ir.ops.slice import Slice
from iossim.ir.ops.softmax import Softmax
from iossim.ir.ops.unary import Cast, Clip, Identity, Relu, Sigmoid
from iossim.models.passes.graph_pass import GraphPass, LocalPass, with_nodes
from iossim.models.passes.simplification import folded

_IS_NAN = Unary("is_nan")
#: Largest number of elements of a mask that is inspected.
_LARGEST_MASK = 1 << 24
#: Values from this size on may be infinite in a 16-bit type.
_LARGE = 3e4
#: A score of at most this has no part in a softmax beside any that is not masked.
_MASKED = -1e4
#: In types with the range of fp32, the sum of a score and at most this is this.
_ABSORBING = -1e30


class MaskRecognition(LocalPass):
    """Turns the selection of scores or one very low number before a softmax into the sum with a mask.

    A mask that is known must hide no row whole. One that is computed, or that others are added to, may: then the number
    must be so low that a sum with scores is that number.

    Invariant: the outputs are unchanged up to rounding.
    """

    kinds = ("softmax",)

    def replaced(self, graph: Graph, softmax: Node, constants: dict[str, Constant]) -> dict[str, list[Node]]:
        """A sum in place of the selection that a softmax over the last axis reads, maybe by casts and sums."""
        assert isinstance(softmax.op, Softmax)
        rank = len(graph.types[softmax.inputs[0]].shape)
        path = _to_selection(graph, softmax.inputs[0])
        if not path or softmax.op.flatten or softmax.op.axis % rank != rank - 1:
            return {}
        node, (condition, *values) = path[-1], path[-1].inputs
        place = int(values[0] in constants)  # of the scores
        seen, low = _small_array(graph, condition), _small_array(graph, values[1 - place])
        keeps_shape = graph.types[values[place]].shape == graph.types[node.outputs[0]].shape
        if low is None or low.size != 1 or low.item() > _MASKED or not keeps_shape:
            return {}
        if seen is not None and place:
            seen = ~seen
        hides_none = seen is not None and np.atleast_1d(seen).any(-1).all()
        if low.item() > _ABSORBING and (not hides_none or any(isinstance(each.op, Add) for each in path)):
            return {}
        name, zero = (free_name(f"{node.name}.{each}", graph.types) for each in ("mask", "zero"))
        made = list[Node]()
        if seen is not None:
            constants[name] = ArrayConstant(np.where(seen, low.dtype.type(0), low.reshape(())))
        elif condition in constants:
            return {}
        else:
            constants[zero] = ArrayConstant(np.zeros((), low.dtype))
            made = [
                Node(name, Where(), tuple(zero if each == values[place] else each for each in node.inputs), (name,))
            ]
        return {node.name: [*made, replace(node, op=Add(), inputs=(values[place], name))]}


def _to_selection(graph: Graph, value: str, most: int = 8) -> list[Node]:
    """The casts and sums, the last one first, by which a selection makes a value, and the selection; none if none
    does.
    """
    node = graph.private_producer(value) if most else None
    if node is not None and isinstance(node.op, Where):
        return [node]
    for each in node.inputs if node is not None and isinstance(node.op, Add | Cast) else ():
        is_whole = graph.types[each].shape == graph.types[value].shape
        if node and is_whole and (path := _to_selection(graph, each, most - 1)):
            return [node, *path]
    return []


class ScoreScaleHoisting(LocalPass):
    """Scales the queries in place of the scores of an attention by known numbers, one for each head.

    The cosine attention of Swin Transformer V2 has such scales (Liu et al., 2022, arXiv:2111.09883); an attention takes
    one number for all heads.

    Invariant: the outputs are unchanged up to rounding.
    """

    kinds = ("softmax",)

    def replaced(self, graph: Graph, softmax: Node, constants: dict[str, Constant]) -> dict[str, list[Node]]:
        """A product with queries before that of queries and keys, which makes the scaled scores."""
        path = _masked(graph, softmax.inputs[0])
        node = None if path is None else graph.private_producer(path[-1].inputs[0] if path else softmax.inputs[0])
        if node is None or not isinstance(node.op, Mul) or len(node.inputs) != 2:
            return {}
        for value, scale in (node.inputs, node.inputs[::-1]):
            product, sizes = graph.private_producer(value), graph.types[scale].shape
            if scale not in constants or product is None or not isinstance(product.op, MatMul):
                continue
            queries, scores = graph.types[product.inputs[0]].shape, graph.types[value].shape
            if sizes[-2:] == (1, 1) and graph.types[scale].elements > 1 and queries[:-2] == scores[:-2]:
                name = free_name(f"{node.name}.queries", graph.types)
                scaled = Node(name, Mul(), (product.inputs[0], scale), (name,))
                whole = replace(product, inputs=(name, product.inputs[1]), outputs=node.outputs)
                return {product.name: [scaled, whole], node.name: []}
        return {}


class MaskJoining(LocalPass):
    """Turns the sum of scores and one mask after the other into one with the sum of the masks, which attentions take.

    MPNet adds positions and a mask; Swin adds positions, and a mask for each window to reshaped scores.

    Invariant: the outputs are unchanged up to rounding.
    """

    kinds = ("softmax",)

    def replaced(self, graph: Graph, softmax: Node, constants: dict[str, Constant]) -> dict[str, list[Node]]:
        return _joined(graph, _masked(graph, softmax.inputs[0]) or [], constants)


def _masked(graph: Graph, value: str, most: int = 8) -> list[Node] | None:
    """The sums with masks and the reshapes by which a value is made of scores, the last one first, each with the scores
    as its first operand; None for a value that is not made of scores, or of more than so many ops.
    """
    node = graph.private_producer(value) if most else None
    if node is None or not isinstance(node.op, MatMul | Mul | Nary | Add | Reshape) or len(node.inputs) > 2:
        return None
    if isinstance(node.op, MatMul):
        return []
    for scores in node.inputs:
        others = [each for each in node.inputs if each != scores]
        is_whole = graph.types[scores].elements == graph.types[value].elements
        found = _masked(graph, scores, most - 1) if is_whole else None
        if found is not None and isinstance(node.op, Add | Reshape):
            return [replace(node, inputs=(scores, *others)), *found]
        if found == [] and graph.constants.keys() >= set(others):
            return []
    return None


def _joined(graph: Graph, path: Sequence[Node], constants: dict[str, Constant]) -> dict[str, list[Node]]:
    """The ops in place of those of a path, by name; none for one mask, and for some of reshaped scores."""
    masks = [node.inputs[1] for node in path if isinstance(node.op, Add)]
    scores = path[-1].inputs[0] if len(masks) > 1 else ""
    is_reshaped = len(masks) < len(path)
    if not scores:
        return {}
    if is_reshaped and not constants.keys() >= set(masks):
        return _regrouped(graph, path)
    if graph.types[scores] != graph.types[path[0].outputs[0]]:
        return {}
    if is_reshaped and graph.types[scores].elements > _LARGEST_MASK:
        return {}
    types, made = dict(graph.types), list[Node]()

    def computed(op: Op, *values: str) -> str:
        name = free_name(f"{path[0].name}.mask", types)
        (types[name],) = op.infer([types[value] for value in values])
        if constants.keys() >= set(values):
            constants[name] = folded(op, *(constants[value] for value in values))
        else:
            made.append(Node(name, op, values, (name,)))
        return name

    mask = ""
    for node in reversed(path):
        if isinstance(node.op, Add):
            whole = computed(Expand(types[node.outputs[0]].shape), node.inputs[1]) if is_reshaped else node.inputs[1]
            mask = computed(Add(), mask, whole) if mask else whole
        elif mask:
            mask = computed(node.op, mask)
    mask = computed(Reshape(types[scores].shape), mask) if is_reshaped else mask
    return {node.name: [] for node in path} | {path[0].name: [*made, replace(path[0], op=Add(), inputs=(scores, mask))]}


def _regrouped(graph: Graph, path: Sequence[Node]) -> dict[str, list[Node]]:
    """The sums of a path as one, before a softmax of ``[batch, heads, queries, keys]`` whose product has both in one
    axis; none for other reshapes.

    BLOOM adds positions to the product, ``[batch * heads, 1, keys]``, and a mask to reshaped scores.
    """
    if [type(node.op) for node in path] != [Add, Reshape, Add]:
        return {}
    last, view, first = path
    *own, rows, _ = inner = graph.types[first.inputs[1]].shape
    *leading, queries, keys = graph.types[view.outputs[0]].shape
    if graph.types[first.outputs[0]].shape != (*own, queries, keys) or rows not in (1, queries):
        return {}
    name, both = (free_name(f"{first.name}.{each}", graph.types) for each in ("positions", "mask"))
    made = [
        Node(name, Reshape((*leading, *inner[-2:])), first.inputs[1:], (name,)),
        Node(both, Add(), (name, last.inputs[1]), (both,)),
        replace(view, inputs=first.inputs[:1]),
        replace(last, inputs=(view.outputs[0], both)),
    ]
    return {first.name: [], view.name: [], last.name: made}


class SoftmaxRecognition(GraphPass):
    """Turns ``exp(x) / sum(exp(x))`` along one axis into a softmax, and redundant NaN checks into identities.

    The maximum may have been subtracted before the exponential. A check is redundant if no row can be fully masked.
    Unused ops are left to dead op elimination.

    Invariant: for finite values of the network the outputs are unchanged up to rounding.
    """

    def apply(self, graph: Graph) -> Graph:
        makers: dict[str, Node] = {}
        finite = _Finite(graph, makers)
        checks = any(node.op == _IS_NAN for node in graph.of_kind.get("unary", ()))
        nodes: list[Node] = []
        for node in graph.nodes:
            made = _softmax_of_parts(graph, node, makers) or node
            if is_nan_check(made, makers) and _is_needless(made, finite):
                made = replace(made, op=Identity(), inputs=made.inputs[2:])
            nodes.append(made)
            makers.update(dict.fromkeys(made.outputs, made))
            if checks:
                finite.places.update((value, finite.of(value)) for value in made.outputs)
        return graph if tuple(nodes) == graph.nodes else with_nodes(graph, nodes, graph.constants)


def check_remarks(read: Graph, scheduled: Graph) -> tuple[str, ...]:
    """Remarks on the checks of an imported graph's softmaxes for NaN, a sentence each."""
    checks, kept = (
        sum(is_nan_check(node, graph.producer) for node in graph.of_kind.get("where", ()))
        for graph in (read, scheduled)
    )
    found = (
        ("Left out, since the mask hides no row whole", checks - kept),
        ("Kept, since the mask may hide a whole row", kept),
    )
    return tuple(
        f"{what}: {count} check{'s' * (count > 1)} of a softmax for NaN." for what, count in found if count > 0
    )


def _softmax_of_parts(graph: Graph, node: Node, makers: dict[str, Node]) -> Node | None:
    """A quotient of an exponential and its sum converted to a softmax."""
    if node.op != Nary("div"):
        return None
    exponential, total = (makers.get(value) for value in node.inputs)
    if exponential is None or total is None or exponential.op != Unary("exp") or not isinstance(total.op, Reduce):
        return None
    (value,), shape = exponential.outputs, graph.types[node.outputs[0]].shape
    readers = {reader.name for reader in graph.consumers[value]}
    sums = total.op.function == "sum" and total.op.keepdims and len(total.op.axes) == 1 and total.inputs == (value,)
    if not sums or readers != {node.name, total.name} or value in graph.returned:
        return None
    axis, (x,) = total.op.axes[0] % len(shape), exponential.inputs
    shift = makers.get(x)
    if shift is not None and shift.op == Nary("sub") and shift.inputs[1] in makers:
        largest = makers[shift.inputs[1]]
        if isinstance(largest.op, Reduce) and largest.inputs == shift.inputs[:1]:
            same = (largest.op.function, [one % len(shape) for one in largest.op.axes]) == ("max", [axis])
            x = shift.inputs[0] if same and largest.op.keepdims else x
    return replace(node, op=Softmax(axis), inputs=(x,))


def _is_needless(check: Node, finite: _Finite) -> bool:
    """True if the checked value is a softmax with a finite element in every row."""
    softmax, types = finite.makers.get(check.inputs[2]), finite.graph.types
    if softmax is None or not isinstance(softmax.op, Softmax) or softmax.op.flatten:
        return False
    if types[check.outputs[0]] != types[check.inputs[2]]:
        return False
    found = finite.of(softmax.inputs[0])
    rank = len(types[check.outputs[0]].shape)
    from_end = rank - softmax.op.axis % rank
    return found is not None and bool(found.any(axis=-from_end).all() if found.ndim >= from_end else found.all())


@dataclass(frozen=True)
class _Finite:
    """Positions of certainly finite values, given that the products are finite; others may be minus infinity."""

    graph: Graph
    makers: dict[str, Node]
    #: Results of :meth:`of` for the outputs of nodes, in the order of the graph.
    places: dict[str, Array | None] = field(default_factory=dict)

    def of(self, value: str) -> Array | None:
        """Booleans that broadcast to the value's shape; None if nothing is known of it."""
        if value in self.places:
            return self.places[value]
        everywhere: Array = np.array(True)
        kind, node = self.graph.types[value], self.makers.get(value)
        if value in self.graph.constants:
            held = _small_array(self.graph, value)
            return None if held is None else _of_array(held)
        if not kind.dtype.is_floating or (node and isinstance(node.op, MatMul | Gemm | Conv | LayerNorm | Softmax)):
            return everywhere
        if node is None:
            return None  # an input of the network may be a mask
        condition = _small_array(self.graph, node.inputs[0]) if isinstance(node.op, Where) else None
        found = [self.of(each) for each in (node.inputs[1:] if isinstance(node.op, Where) else node.inputs)]
        operands = [each for each in found if each is not None]
        if len(operands) < len(found):
            return None
        if condition is not None:
            return np.where(condition, *operands)
        if isinstance(node.op, Add | Where):
            return reduce(np.logical_and, operands)
        if all(each.all() for each in operands):
            return everywhere if _keeps_finite(node, self.graph) else None
        if isinstance(node.op, Expand | Reshape | Slice | Transpose) and kind.elements <= _LARGEST_MASK:
            return node.op.evaluate([np.broadcast_to(operands[0], self.graph.types[node.inputs[0]].shape)])[0]
        return None


def _small_array(graph: Graph, value: str) -> Array | None:
    """The elements of a small constant; None for a large one, one without values, and any other value."""
    constant = graph.constants.get(value)
    is_known = constant is not None and constant.type.elements <= _LARGEST_MASK and not constant.is_absent
    return constant.load() if constant is not None and is_known else None


def _of_array(array: Array) -> Array | None:
    if np.isnan(array).any() or (array >= _LARGE).any():
        return None
    finite: Array = array > -_LARGE
    return finite


def _keeps_finite(node: Node, graph: Graph) -> bool:
    """True if an op makes finite outputs from finite inputs."""
    if node.op == Nary("div"):
        divisor = _small_array(graph, node.inputs[1])
        return divisor is not None and bool(np.all(divisor))
    moves = isinstance(node.op, Expand | Reshape | Slice | Transpose | Identity | Cast)
    return moves or isinstance(node.op, Mul | Relu | Sigmoid | Clip) or node.op == Nary("sub")
