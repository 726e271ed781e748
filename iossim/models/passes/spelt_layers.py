"""Recognition of layers that exporters write as parts: linear layers of flattened rows, and rotary positions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from typing import NamedTuple

import numpy as np

from iossim.ir.constants import ArrayConstant, Constant, FilledConstant
from iossim.ir.graph import Graph, Node
from iossim.ir.op import Array, Op, normal_axis
from iossim.ir.ops.functions import Unary
from iossim.ir.ops.gather import Gather
from iossim.ir.ops.matmul import Gemm, MatMul
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.reshape import Reshape, Transpose
from iossim.ir.ops.slice import Concat, Slice, Split
from iossim.models.passes.graph_pass import local_pass, with_nodes
from iossim.models.passes.simplification import Derived

_NEGATION = Unary("neg")


@local_pass("gemm")
def flat_product_recognition(graph: Graph, gemm: Node[Gemm], constants: dict[str, Constant]) -> dict[str, list[Node]]:
    """Turns a Gemm between reshapes that flatten rows and restore them into a MatMul and a sum, so that no reshape
    separates these from a residual sum, an activation or a split after them.

    Invariant: the outputs are unchanged up to rounding.
    """
    op, columns = gemm.op, graph.types[gemm.outputs[0]].shape[1]
    before, last = graph.producer.get(gemm.inputs[0]), graph.private_consumer(gemm.outputs[0])
    if not (before and isinstance(before.op, Reshape) and last and isinstance(last.op, Reshape)):
        return {}
    (flat, weight, *bias), (*leading, width) = gemm.inputs, graph.types[last.outputs[0]].shape
    plain = (op.alpha, op.beta, op.trans_a) == (1.0, 1.0, False)
    restores = (
        len(leading) > 1 and width == columns and graph.types[before.inputs[0]].shape[: len(leading)] == (*leading,)
    )
    if not (plain and restores) or any(graph.types[each].shape != (columns,) for each in bias):
        return {}
    made = Derived(graph.types, constants, f"{gemm.name}.rows")
    x = made.add(Reshape((*leading, graph.types[flat].shape[1])), flat)
    weight = made.add(Transpose((1, 0)), weight) if op.trans_b else weight
    if bias:
        rows = replace(last, op=Add(), inputs=(made.add(MatMul(), x, weight), *bias))
    else:
        rows = Node(gemm.name, MatMul(), (x, weight), last.outputs)
    return {gemm.name: [], last.name: [*made.nodes, rows]}


@local_pass("matmul")
def grouped_batch_recognition(graph: Graph, product: Node, constants: dict[str, Constant]) -> dict[str, list[Node]]:
    """Turns a product of matrices whose batch and heads are one axis (``torch.bmm``), before a reshape that splits it,
    into a product of four axes: no reshape is between scores and their mask, or an attention and the transpose that
    joins its heads.

    Invariant: the outputs are unchanged to the last bit.
    """
    last, made_shape = graph.private_consumer(product.outputs[0]), graph.types[product.outputs[0]].shape
    if last is None or not isinstance(last.op, Reshape):
        return {}
    *leading, rows, columns = graph.types[last.outputs[0]].shape
    shapes = [graph.types[value].shape for value in product.inputs]
    batches = {(len(shape), shape[0]) for shape in (made_shape, *shapes)}
    if (rows, columns) != made_shape[1:] or len(leading) < 2 or batches != {(3, made_shape[0])}:
        return {}
    made, split, gone = Derived(graph.types, constants, f"{product.name}.batch"), list[str](), dict[str, list[Node]]()
    for value, shape in zip(product.inputs, shapes, strict=True):
        before, wide, source = graph.producer.get(value), (*leading, *shape[1:]), value
        if before is not None and isinstance(before.op, Reshape):
            gone |= {before.name: []} if graph.private_consumer(value) else {}
            source = before.inputs[0]
        split.append(source if graph.types[source].shape == wide else made.add(Reshape(wide), source))
    return {**gone, product.name: [], last.name: [*made.nodes, replace(last, op=product.op, inputs=(*split,))]}


def concat_nesting(graph: Graph) -> Graph:
    """Lets a concat of channels begin with an earlier one of its first terms, in place of those terms.

    Each layer of a dense block (DenseNet) concatenates all values before it: so a new one is all that is added to them,
    where all are copied otherwise, since a value can be a part of one other in place.

    Invariant: the outputs are unchanged to the last bit.
    """
    nodes, by_first = list[Node](), dict[str, dict[tuple[str, ...], str]]()
    for node in graph.nodes:
        terms = node.inputs
        if isinstance(node.op, Concat) and normal_axis(node.op.axis, len(graph.types[terms[0]].shape)) == 1:
            made = by_first.setdefault(terms[0], {})
            shared = max((one for one in made if len(one) > 1 and terms[: len(one)] == one), key=len, default=())
            if shared:
                terms = made[shared], *terms[len(shared) :]
            made[node.inputs] = node.outputs[0]
        nodes.append(replace(node, inputs=terms))
    return with_nodes(graph, nodes, graph.constants)


def rotation_recognition(graph: Graph) -> Graph:
    """Turns a concat of all parts of one value, in another order, into a lookup.

    ``concat(-x[half:], x[:half])`` becomes a lookup of pairs and a product with their signs: two kernels then do the
    work of five, since the product is fused with those by cosines and sines (Su et al., 2021, arXiv:2104.09864, as in
    Llama's code; GPT-J stacks ``-x[1::2]`` and ``x[::2]``, and reshapes them). A roll along two neighbouring axes
    (shifted windows in Swin) becomes one lookup along both. Unused parts are left to dead op elimination.

    Invariant: the outputs are unchanged to the last bit.
    """
    constants, rolls, nodes = dict(graph.constants), dict[str, _Roll](), list[Node]()
    for node in graph.nodes:
        concat = graph.producer.get(node.inputs[0]) if isinstance(node.op, Reshape) else node
        is_concat = concat is not None and isinstance(concat.op, Concat)
        nodes += _turned(graph, node, constants, rolls) if is_concat else [node]
    return with_nodes(graph, nodes, constants)


@local_pass("concat")
def partial_rotation_recognition(graph: Graph, concat: Node, constants: dict[str, Constant]) -> dict[str, list[Node]]:
    """Turns ``concat(rotated(x[:part]), x[part:])`` along the last axis into the rotation of all of ``x``, by tables
    that keep the rest: one kernel then does the work of five (GPT-NeoX, GPT-J, Phi). Computed tables are lengthened
    once for all layers.

    Invariant: the outputs are unchanged to the last bit, if the rest is finite.
    """
    assert isinstance(concat.op, Concat)
    total, shape = graph.private_producer(concat.inputs[0]), graph.types[concat.outputs[0]].shape
    last, size = len(shape) - 1, graph.types[concat.inputs[0]].shape[-1]
    if len(concat.inputs) != 2 or concat.op.axis % len(shape) != last or total is None or total.op != Add():
        return {}
    for x, cosine, pairs, sine, signs in _rotations(graph, total):
        lookup = graph.private_producer(pairs)
        if lookup is None or lookup.op != Gather(last) or lookup.inputs[0] != x or signs not in constants:
            continue
        parts, in_order = _Parts(graph, shape, last), [*range(1, shape[-1] + 1)]
        entries = [part for value in (x, concat.inputs[1]) if (part := parts.entries(value, 2)) is not None]
        if len(entries) < 2 or np.concatenate(entries).tolist() != in_order or len(parts.wholes) > 1:
            continue
        if any(graph.types[table].shape[-1:] != (size,) for table in (cosine, sine, signs)):
            continue
        made, (whole,) = Derived(graph.types, constants, f"{concat.name}.rotated"), parts.wholes
        places = np.concatenate([constants[lookup.inputs[1]].load().reshape(-1), np.arange(size, shape[-1])])
        turned = made.add(Gather(last), whole, made.constant(ArrayConstant(places)))
        kept = made.add(Mul(), whole, _followed(made, cosine, shape[-1], 1.0))
        turned = made.add(Mul(), turned, _followed(made, made.add(Mul(), sine, signs), shape[-1], 0.0))
        return {concat.name: [*made.nodes, replace(concat, op=Add(), inputs=(kept, turned))]}
    return {}


def _followed(made: Derived, table: str, size: int, rest: float) -> str:
    """The table, as wide as ``size``, with one number after its own."""
    *leading, own = made.types[table].shape
    others = FilledConstant(replace(made.types[table], shape=(*leading, size - own)), rest)
    return made.add(Concat(len(leading)), table, made.constant(others))


def _rotations(graph: Graph, total: Node) -> Iterator[tuple[str, ...]]:
    """The operands of ``x * cosine + (pairs * signs) * sine``, in each order that a sum and its products allow."""
    for first, second in permutations(total.inputs, 2):
        for x, cosine in _factors(graph, first):
            for signed, sine in _factors(graph, second):
                yield from ((x, cosine, pairs, sine, signs) for pairs, signs in _factors(graph, signed))


def _factors(graph: Graph, value: str) -> Iterator[tuple[str, ...]]:
    """The two operands of the product that makes a value which one op reads, in either order."""
    node = graph.private_producer(value)
    return permutations(node.inputs if node is not None and isinstance(node.op, Mul) else (), 2)


class _Roll(NamedTuple):
    """``whole`` in another order along some neighbouring axes, the first of which is ``axis``; its flat ``places``."""

    whole: str
    axis: int
    places: Array


def _turned(graph: Graph, node: Node, constants: dict[str, Constant], rolls: dict[str, _Roll]) -> list[Node]:
    """The ops that replace a concat, or its reshape, of all parts of one value, some of them negated; else the node."""
    shape = graph.types[node.outputs[0]].shape
    axis = node.op.axis % len(shape) if isinstance(node.op, Concat) else len(shape) - 1
    parts = _Parts(graph, shape, axis)
    made = parts.made_by(node, node.outputs[0])
    if made is None or len(parts.wholes) > 1 or sorted(abs(made)) != list(range(1, shape[axis] + 1)):
        return [node]
    (whole,), places, signs = parts.wholes, abs(made) - 1, np.sign(made)
    built = Derived(graph.types, constants, f"{node.name}.pairs")
    if min(signs) < 0:
        signed = signs.astype(graph.types[whole].dtype.numpy).reshape(-1, *[1] * (len(shape) - axis - 1))
        pairs = built.add(Gather(axis), whole, built.constant(ArrayConstant(places)))
        product = Node(node.name, Mul(), (pairs, built.constant(ArrayConstant(signed))), node.outputs)
        return [*built.nodes, product]
    if list(places) == sorted(places):
        return [node]
    before, roll = rolls.get(whole), _Roll(whole, axis, places)
    if before is not None and before.axis == axis - 1:
        both = before.places[:, None] * shape[axis] + places
        roll = _Roll(before.whole, axis - 1, both.reshape(-1))
    rolls[node.outputs[0]] = roll
    flat = built.add(Reshape((*shape[: roll.axis], roll.places.size, *shape[axis + 1 :])), roll.whole)
    return built.reshaped(built.add(Gather(roll.axis), flat, built.constant(ArrayConstant(roll.places))), node)


class _Parts:
    """Parts along one axis of the values of one shape that are the ``wholes``.

    A part is described by the entries of its whole, counted from 1 and negative where it is negated: an array with the
    part's shape in place of that axis.
    """

    def __init__(self, graph: Graph, shape: tuple[int, ...], axis: int) -> None:
        self.graph, self.before, self.size, self.after = graph, shape[:axis], shape[axis], shape[axis + 1 :]
        self.wholes: dict[str, None] = {}
        self._found: dict[str, Array | None] = {}

    def entries(self, value: str, most: int) -> Array | None:
        """The entries of a value; None if it is no part, or if more than so many ops make it of its whole."""
        if self.graph.types[value].shape == (*self.before, self.size, *self.after):
            self.wholes[value] = None
            return np.arange(1, self.size + 1)
        node = self.graph.producer.get(value) if most else None
        if value not in self._found:
            self._found[value] = None if node is None else self.made_by(node, value, most - 1)
        return self._found[value]

    def made_by(self, node: Node, value: str, most: int = 6) -> Array | None:
        """The entries of an output of a node; None if the node does more than moving and negating parts."""
        axis, after, own = len(self.before), len(self.after), self.graph.types[value].shape
        is_move = isinstance(node.op, Concat | Slice | Split | Reshape) or node.op == _NEGATION
        if not is_move or (own[:axis], own[len(own) - after :]) != (self.before, self.after):
            return None
        found = [self.entries(each, most) for each in node.inputs]
        parts, rank = [part for part in found if part is not None], len(self.graph.types[node.inputs[0]].shape)
        if len(parts) < len(found):
            return None
        match node.op:
            case Reshape():
                return parts[0].reshape(own[axis : len(own) - after])
            case Slice(axes=axes):
                along = [each % rank - axis for each in axes]
                op: Op = replace(node.op, axes=tuple(along))
            case Split() | Concat():
                along = [node.op.axis % rank - axis]
                op = replace(node.op, axis=along[0])
            case _:
                return -parts[0]
        is_within = all(0 <= each < parts[0].ndim for each in along)
        return op.evaluate(parts)[node.outputs.index(value)] if is_within else None
