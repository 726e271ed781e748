"""Recognition of softmaxes that exporters write as parts, of masks, and removal of checks for NaN.

PyTorch's exporter adds ``where(isnan(y), 0, y)`` after the softmax of every attention with a boolean mask,
since a fully masked row is NaN. If the mask is known, so is whether there is such a row. GPT-2's code selects
``where(mask, scores, -1e4)``, which is the sum with a mask of numbers that attentions take.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from iossim.ir.attention import checked_softmax, is_nan_check
from iossim.ir.constants import ArrayConstant, Constant
from iossim.ir.graph import Graph, Node
from iossim.ir.op import Array, Op
from iossim.ir.ops.functions import Nary, Unary
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.nary import Add, Mul, Where
from iossim.ir.ops.reduce import Reduce
from iossim.ir.ops.reshape import Expand, Reshape
from iossim.ir.ops.softmax import Softmax
from iossim.ir.ops.unary import Cast
from iossim.models.passes.graph_pass import local_pass
from iossim.models.passes.simplification import LARGEST_INSPECTED, Derived, known_array

#: Values from this size on may be infinite in a 16-bit type.
_LARGE = 3e4
#: A score of at most this has no part in a softmax beside any that is not masked.
_MASKED = -1e4
#: In types with the range of fp32, the sum of a score and at most this is this.
_ABSORBING = -1e30


@local_pass("softmax")
def mask_recognition(graph: Graph, softmax: Node[Softmax], constants: dict[str, Constant]) -> dict[str, list[Node]]:
    """Turns the selection of scores or one very low number before a softmax into the sum with a mask.

    A mask that is known must hide no row whole. One that is computed, or that others are added to, may: then the number
    must be so low that a sum with scores is that number.

    Invariant: the outputs are unchanged up to rounding.
    """
    rank = len(graph.types[softmax.inputs[0]].shape)
    path = _path(graph, softmax.inputs[0], (Add, Cast), lambda node: isinstance(node.op, Where))
    if not path or softmax.op.flatten or softmax.op.axis % rank != rank - 1:
        return {}
    node, (condition, *values) = path[-1], path[-1].inputs
    place = int(values[0] in constants)  # of the scores
    seen, low = known_array(graph, condition), known_array(graph, values[1 - place])
    keeps_shape = graph.types[values[place]].shape == graph.types[node.outputs[0]].shape
    if low is None or low.size != 1 or low.item() > _MASKED or not keeps_shape:
        return {}
    seen = ~seen if seen is not None and place else seen
    hides_none = seen is not None and np.atleast_1d(seen).any(-1).all()
    if low.item() > _ABSORBING and (not hides_none or any(isinstance(each.op, Add) for each in path)):
        return {}
    made = Derived(graph.types, constants, f"{node.name}.mask")
    if seen is not None:
        mask = made.constant(ArrayConstant(np.where(seen, low.dtype.type(0), low.reshape(()))))
    else:
        zero = made.constant(ArrayConstant(np.zeros((), low.dtype)))
        mask = made.add(Where(), *(zero if each == values[place] else each for each in node.inputs))
    return {node.name: [*made.nodes, replace(node, op=Add(), inputs=(values[place], mask))]}


def _path(
    graph: Graph, value: str, through: tuple[type[Op], ...], is_first: Callable[[Node], bool], most: int = 8
) -> list[Node]:
    """The ops, the last one first and at most so many, by which a first one makes a value of as many elements, each
    with the value that it takes from the one before as its first operand; none if there is no such first one.
    """
    node = graph.private_producer(value) if most else None
    if node is None or is_first(node):
        return [node] if node else []
    for each in node.inputs if isinstance(node.op, through) else ():
        is_whole = graph.types[each].elements == graph.types[value].elements
        if is_whole and (found := _path(graph, each, through, is_first, most - 1)):
            others = (other for other in node.inputs if other != each)
            return [replace(node, inputs=(each, *others)), *found]
    return []


def _masked(graph: Graph, value: str, through: tuple[type[Op], ...] = (Add, Reshape)) -> list[Node]:
    """The sums with masks and other ops by which a value is made of scores, as in :func:`_path`, and the product, or
    what scales it, that makes these; none for a value that is not made of scores.
    """

    def makes_scores(node: Node, most: int = 4) -> bool:
        varying = [each for each in node.inputs if each not in graph.constants]
        before = graph.private_producer(varying[0]) if isinstance(node.op, Mul | Nary) and len(varying) == 1 else None
        return isinstance(node.op, MatMul) or (before is not None and most > 0 and makes_scores(before, most - 1))

    return _path(graph, value, through, makes_scores)


@local_pass("softmax")
def score_scale_hoisting(graph: Graph, softmax: Node, constants: dict[str, Constant]) -> dict[str, list[Node]]:
    """Scales the queries in place of the scores of an attention by known numbers, one for each head.

    The cosine attention of Swin Transformer V2 has such scales (Liu et al., 2022, arXiv:2111.09883); an attention takes
    one number for all heads.

    Invariant: the outputs are unchanged up to rounding.
    """
    path = _masked(graph, softmax.inputs[0])
    node = path[-1] if path else softmax
    if not isinstance(node.op, Mul) or len(node.inputs) != 2:
        return {}
    for value, scale in (node.inputs, node.inputs[::-1]):
        product, sizes = graph.private_producer(value), graph.types[scale].shape
        if scale not in constants or product is None or not isinstance(product.op, MatMul):
            continue
        queries, scores = graph.types[product.inputs[0]].shape, graph.types[value].shape
        if sizes[-2:] == (1, 1) and graph.types[scale].elements > 1 and queries[:-2] == scores[:-2]:
            made = Derived(graph.types, constants, f"{node.name}.queries")
            inputs = made.add(Mul(), product.inputs[0], scale), product.inputs[1]
            whole = replace(product, inputs=inputs, outputs=node.outputs)
            return {product.name: [*made.nodes, whole], node.name: []}
    return {}


@local_pass("softmax")
def mask_joining(graph: Graph, softmax: Node, constants: dict[str, Constant]) -> dict[str, list[Node]]:
    """Turns the sum of scores and one mask after the other into one with the sum of the masks, which attentions take.

    MPNet adds positions and a mask; Swin adds positions, and a mask for each window to reshaped scores, as BLOOM does.

    Invariant: the outputs are unchanged up to rounding.
    """
    return _joined(graph, _masked(graph, softmax.inputs[0])[:-1], constants)


def _joined(graph: Graph, path: Sequence[Node], constants: dict[str, Constant]) -> dict[str, list[Node]]:
    """The ops in place of those of a path, by name; none for one mask."""
    masks = [node.inputs[1] for node in path if isinstance(node.op, Add)]
    is_reshaped = len(masks) < len(path)
    if len(masks) < 2 or (is_reshaped and graph.types[path[0].outputs[0]].elements > LARGEST_INSPECTED):
        return {}
    mask, scores, shape = "", path[-1].inputs[0], graph.types[path[0].outputs[0]].shape
    made = Derived(graph.types, constants, f"{path[0].name}.mask")
    for node in reversed(path):
        if isinstance(node.op, Add):
            own, whole = node.inputs[1], graph.types[node.outputs[0]].shape
            if is_reshaped and node is not path[0] and graph.types[own].shape != whole:
                own = made.add(Expand(whole), own)
            mask = made.add(Add(), mask, own) if mask else own
        elif mask:
            mask = made.add(node.op, mask)
    if graph.types[scores].shape != shape:
        scores = made.add(Reshape(shape), scores)
    total = replace(path[0], op=Add(), inputs=(scores, mask))
    return {node.name: [] for node in path} | {path[0].name: [*made.nodes, total]}


@local_pass("nary")
def softmax_recognition(graph: Graph, quotient: Node, constants: dict[str, Constant]) -> dict[str, list[Node]]:
    """Turns ``exp(x) / sum(exp(x))`` along one axis into a softmax.

    The maximum may have been subtracted before the exponential. Unused ops are left to dead op elimination.

    Invariant: the outputs are unchanged up to rounding.
    """
    if quotient.op != Nary("div"):
        return {}
    exponential, total = (graph.producer.get(value) for value in quotient.inputs)
    if exponential is None or total is None or exponential.op != Unary("exp") or not isinstance(total.op, Reduce):
        return {}
    (value,), shape = exponential.outputs, graph.types[quotient.outputs[0]].shape
    readers = {reader.name for reader in graph.consumers[value]}
    sums = total.op.function == "sum" and total.op.keepdims and len(total.op.axes) == 1 and total.inputs == (value,)
    if not sums or readers != {quotient.name, total.name} or value in graph.returned:
        return {}
    axis, (x,) = total.op.axes[0] % len(shape), exponential.inputs
    shift = graph.producer.get(x)
    if shift is not None and shift.op == Nary("sub") and shift.inputs[1] in graph.producer:
        largest = graph.producer[shift.inputs[1]]
        if isinstance(largest.op, Reduce) and largest.inputs == shift.inputs[:1]:
            same = (largest.op.function, [one % len(shape) for one in largest.op.axes]) == ("max", [axis])
            x = shift.inputs[0] if same and largest.op.keepdims else x
    return {quotient.name: [replace(quotient, op=Softmax(axis), inputs=(x,))]}


@local_pass("where")
def check_elimination(graph: Graph, check: Node, constants: dict[str, Constant]) -> dict[str, list[Node]]:
    """Drops the check of a softmax for NaN where the mask of its scores, if there is one, hides no row whole.

    Invariant: for finite values of the network the outputs are unchanged.
    """
    _, condition, softmax = checked_softmax(graph, check) or (None, None, None)
    if condition is None or softmax is None or not isinstance(softmax.op, Softmax) or softmax.op.flatten:
        return {}
    path = _masked(graph, softmax.inputs[0], (Add, Reshape, Cast))
    masks = [node.inputs[1] for node in path if isinstance(node.op, Add)]
    rank = len(graph.types[check.outputs[0]].shape)
    from_end = rank - softmax.op.axis % rank
    seen = _finite(graph, masks[0]) if masks else np.array(True)
    if not path or len(masks) > 1 or seen is None:
        return {}
    if not (seen.any(axis=-from_end) if seen.ndim >= from_end else seen).all():
        return {}
    return {check.name: [], condition.name: [], softmax.name: [replace(softmax, outputs=check.outputs)]}


def _finite(graph: Graph, mask: str) -> Array | None:
    """The places of a mask's numbers that are finite in 16 bits too, others being low; None for other numbers, and for
    a mask that is neither known nor chosen of such numbers.
    """
    node, held = graph.producer.get(mask), known_array(graph, mask)
    if held is not None:
        return None if np.isnan(held).any() or (held >= _LARGE).any() else np.asarray(held > -_LARGE)
    chosen = [_finite(graph, value) for value in node.inputs[1:]] if node and isinstance(node.op, Where) else [None]
    known = [each for each in chosen if each is not None]
    return reduce(np.logical_and, known) if len(known) == len(chosen) else None


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
