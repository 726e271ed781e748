"""Recognition of layer norms, RMS norms and group norms that exporters write as parts.

Before operator set 17 PyTorch's exporter decomposes a layer norm into means, a difference, a square root and a
quotient; language models decompose their RMS norms likewise in any set, and Keras multiplies by a factor and adds a
term for each row and column. Inference libraries run any of these as a single kernel. Whatever its parts are, a norm is
recognised by the values that they compute. A group norm is an instance norm of groups of channels between two reshapes,
with the factor and the term for each channel as ops of their own (PyTorch's exporter); where images lie with their
channels innermost, the reshapes are copies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import permutations

import numpy as np

from iossim.ir.constants import Constant, FilledConstant
from iossim.ir.graph import Graph, Node, free_name
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.normalization import GroupNorm, InstanceNorm, LayerNorm, RmsNorm
from iossim.ir.ops.pool import GlobalAveragePool
from iossim.ir.ops.reduce import Reduce
from iossim.ir.ops.reshape import Reshape
from iossim.ir.types import TensorType
from iossim.models.passes.function_recognition import computed_by, parts_before
from iossim.models.passes.graph_pass import local_pass
from iossim.models.passes.simplification import folded

#: Most parts of a norm: Keras writes eleven, and casts may surround each.
_MOST = 16
_LARGEST_EPSILON = 0.1
#: Most elements of a row of which values are computed.
_LARGEST_ROW = 1 << 22
#: How far the values may be off, as a part of the largest.
_TOLERANCE = 1e-4


@local_pass("mul", "add")
def norm_recognition(graph: Graph, last: Node, constants: dict[str, Constant]) -> dict[str, list[Node]]:
    """Turns ops that compute ``(x - mean(x)) / sqrt(var(x) + epsilon) * scale [+ bias]`` into a layer norm, and the
    same without means into an RMS norm; casts in between go.

    Scale and bias are constants of the normalised axes, the last ones. Unused ops are left to dead op elimination.

    Invariant: the outputs are unchanged up to rounding.
    """
    made: dict[str, list[Node]] = {}
    for x, members in parts_before(graph, last, _MOST, partial(_is_part, graph)):
        found = _norm(graph, x, members) if graph.types[x] == graph.types[last.outputs[0]] else None
        if found is None:
            continue
        op, rows = found
        shape, parameters = graph.types[x].shape[op.axis :], list[str]()
        for value in rows:
            is_row = graph.types[value].shape == shape
            parameters.append(value if is_row else free_name(f"{value}.row", {*graph.types, *constants}))
            constants[parameters[-1]] = constants[value] if is_row else folded(Reshape(shape), constants[value])
        made = {last.name: [Node(last.name, op, (x, *parameters), last.outputs)]}
    return made


def _is_part(graph: Graph, node: Node) -> bool:
    is_of_numbers = all(graph.types[value].dtype.is_floating for value in (*node.inputs, *node.outputs))
    return is_of_numbers and (node.op.is_elementwise or _mean_axis(graph, node) is not None)


def _mean_axis(graph: Graph, node: Node) -> int | None:
    """The first of the last axes of which a node takes the mean; None for another op."""
    rank = len(graph.types[node.inputs[0]].shape)
    match node.op:
        case Reduce("mean", axes, True) if sorted(axis % rank for axis in axes) == [*range(rank - len(axes), rank)]:
            return rank - len(axes)
        case GlobalAveragePool():
            return 2
    return None


def _norm(graph: Graph, x: str, members: Sequence[Node]) -> tuple[LayerNorm | RmsNorm, tuple[str, ...]] | None:
    """The norm of ``x`` that ops compute, the last one first, and its scale and bias; None if they compute none."""
    axes = {axis for node in members if (axis := _mean_axis(graph, node)) is not None}
    known = dict.fromkeys(value for node in members for value in node.inputs if value in graph.constants)
    rows = [value for value in known if graph.types[value].elements > 1]
    numbers = {value: number for value in known if (number := graph.number(value)) is not None}
    if len(axes) != 1 or len(rows) not in (1, 2) or len(rows) + len(numbers) < len(known):
        return None
    (axis,), random = axes, np.random.default_rng(0)
    shape, dtype = graph.types[x].shape[axis:], graph.types[x].dtype
    if math.prod(shape) > _LARGEST_ROW:
        return None
    for value in rows:
        given = graph.types[value]
        if given.dtype is not dtype or given.shape != (*(1,) * (len(given.shape) - len(shape)), *shape):
            return None
    given_rows = {value: random.standard_normal(graph.types[value].shape).astype(np.float32) for value in rows}
    sample = random.standard_normal(((2, *[1] * (axis - 1)) if axis else ()) + shape).astype(np.float32) + 1
    for epsilon in (number for number in numbers.values() if 0 < number < _LARGEST_EPSILON):
        scaled = sample * np.float32(np.sqrt(epsilon))  # so that epsilon is as large as the mean square
        arrays = {value: np.float32(number) for value, number in numbers.items()} | given_rows | {x: scaled}
        computed = computed_by(members, arrays)
        attribute = float(str(np.float32(epsilon)))  # as attributes are read, which are of fp32
        for op in (LayerNorm(axis, attribute), RmsNorm(axis, attribute)):
            for order in permutations(rows) if isinstance(op, LayerNorm) or len(rows) == 1 else ():
                expected = op.evaluate([scaled, *(given_rows[value].reshape(shape) for value in order)])[0]
                if np.abs(computed - expected).max() <= _TOLERANCE * np.abs(expected).max():
                    return op, order
    return None


@local_pass("instance_norm")
def group_norm_recognition(graph: Graph, norm: Node, constants: dict[str, Constant]) -> dict[str, list[Node]]:
    """Turns ``reshape(instance_norm(reshape(x))) [* scale] [+ bias]`` into a group norm.

    Unused reshapes and products are left to dead op elimination.

    Invariant: the outputs are unchanged up to rounding.
    """
    assert isinstance(norm.op, InstanceNorm)
    before, after = graph.producer.get(norm.inputs[0]), graph.private_consumer(norm.outputs[0])
    if before is None or after is None or not all(isinstance(node.op, Reshape) for node in (before, after)):
        return {}
    x, (images, groups, *_) = graph.types[before.inputs[0]], graph.types[norm.inputs[0]].shape
    is_grouped = len(x.shape) > 2 and x.shape[0] == images and x.shape[1] % groups == 0
    neutral = [(norm.inputs[1], 1.0), (norm.inputs[2], 0.0)]
    if graph.types[after.outputs[0]] != x or not (is_grouped and all(_is_filled(graph, *each) for each in neutral)):
        return {}
    last, parameters = after, list[str]()
    for kind, name, number in ((Mul, "scale", 1.0), (Add, "bias", 0.0)):
        reader = graph.private_consumer(last.outputs[0])
        given = _per_channel(graph, reader, x) if reader is not None and isinstance(reader.op, kind) else None
        of_channels, named = TensorType((x.shape[1],), x.dtype), free_name(f"{norm.name}.{name}", graph.types)
        constants[named] = FilledConstant(of_channels, number)
        if reader is not None and given is not None:
            constants[named], last = folded(Reshape(of_channels.shape), graph.constants[given]), reader
        parameters.append(named)
    op = GroupNorm(groups, norm.op.epsilon)
    return {last.name: [Node(last.name, op, (before.inputs[0], *parameters), last.outputs)]}


def _is_filled(graph: Graph, value: str, number: float) -> bool:
    held = graph.constants.get(value)
    return held is not None and not held.is_absent and bool((held.load() == number).all())


def _per_channel(graph: Graph, node: Node, x: TensorType) -> str | None:
    """The constant operand with one number for each channel of ``x``."""
    known = [value for value in node.inputs if value in graph.constants]
    shape = graph.types[known[0]].shape if len(known) == 1 and len(node.inputs) == 2 else ()
    wide = (1,) * (len(x.shape) - len(shape)) + shape
    return known[0] if shape and wide == (1, x.shape[1], *[1] * (len(x.shape) - 2)) else None
