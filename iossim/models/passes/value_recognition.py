"""Recognition of activations and norms that exporters write as parts, by the values that these compute.

Libraries compute an activation in the call of the product before it, and a norm as a single kernel. Exporters
write GELU by the error function; language models decompose their RMS norms; before operator set 17 PyTorch's
exporter decomposes a layer norm into means, a difference, a square root and a quotient; Keras multiplies by a factor
and adds a term for each row and column. A group norm alone is recognised by its ops: an instance norm of groups of
channels between two reshapes, with the factor and the term for each channel as ops of their own (PyTorch's exporter);
where images lie with their channels innermost, the reshapes are copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import permutations

import numpy as np

from iossim.ir.constants import Constant, FilledConstant
from iossim.ir.graph import Graph, Node
from iossim.ir.op import Array
from iossim.ir.ops.functions import UNARY, Nary, Unary
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.normalization import GroupNorm, InstanceNorm, LayerNorm, RmsNorm
from iossim.ir.ops.pool import GlobalAveragePool
from iossim.ir.ops.reduce import Reduce
from iossim.ir.ops.reshape import Reshape
from iossim.ir.ops.unary import Cast
from iossim.ir.types import DType, TensorType
from iossim.models.passes.batch_norms import per_channel
from iossim.models.passes.graph_pass import local_pass, with_nodes
from iossim.models.passes.simplification import Derived, known_array

#: Most parts of a function: the approximation of GELU by the hyperbolic tangent takes eight ops.
_LONGEST = 9
#: Names of the functions, in :data:`iossim.ir.ops.functions.UNARY`.
FUNCTIONS = ("gelu", "gelu_tanh", "swish", "hard_swish", "mish", "softplus", "softsign")
#: The ops of these, and the approximation of GELU by a logistic function (arXiv:1606.08415, section 2), as in CLIP.
_OPS = (
    *(Unary(name, tuple(usual for _, usual in UNARY[name].parameters)) for name in FUNCTIONS),
    Unary("swish", (1.702,)),
)
#: Points at which a function is recognised by its values, and how far these may be off in fp32, and in 16 bits.
_POINTS = np.linspace(-6.0, 6.0, 97, dtype=np.float32)
_TOLERANCE, _OF_16_BITS = 1e-4, 5e-3
#: Most parts of a norm: Keras writes eleven, and casts may surround each.
_MOST = 16
_LARGEST_EPSILON = 0.1
#: Most elements of a row of which values are computed.
_LARGEST_ROW = 1 << 22


def function_recognition(graph: Graph) -> Graph:
    """Turns element-wise ops that compute a known function of one value into one op.

    Invariant: the outputs are unchanged up to rounding.
    """
    made: dict[str, list[Node]] = {}
    for last in reversed(graph.nodes):
        fits = partial(_is_step, graph, last)
        for x, members in _parts_before(graph, last, _LONGEST, fits) if last.name not in made else ():
            names = {node.name for node in members}
            values = [value for node in members[1:] for value in node.outputs]
            is_private = graph.returned.isdisjoint(values) and all(
                reader.name in names for value in values for reader in graph.consumers[value]
            )
            if len(members) > 1 and is_private and (function := _function(graph, members, x)):
                made |= {name: [] for name in names} | {last.name: [replace(last, op=function, inputs=(x,))]}
                break
    nodes = [each for node in graph.nodes for each in made.get(node.name, (node,))]
    return with_nodes(graph, nodes, graph.constants)


def _parts_before(
    graph: Graph, last: Node, most: int, is_part: Callable[[Node], bool]
) -> Iterator[tuple[str, list[Node]]]:
    """Values that alone determine the output of ``last`` by at most so many parts, the nearest first, each with these
    parts, the last one first.
    """
    members, free = list[Node](), set(last.outputs)
    while len(members) < most:
        makers = [graph.producer[value] for value in free if value in graph.producer]
        node = max(makers, key=lambda each: graph.position[each.name], default=None)
        if node is None or not is_part(node):
            return
        members.append(node)
        free = (free - set(node.outputs)) | (set(node.inputs) - graph.constants.keys())
        if len(free) == 1:
            yield next(iter(free)), members


def _computed_by(parts: Sequence[Node], arrays: dict[str, Array]) -> Array:
    """The output of ops, the last one first, of given operands; casts keep the numbers as they are."""
    with np.errstate(all="ignore"):
        for node in reversed(parts):
            read = [arrays[value] for value in node.inputs]
            arrays[node.outputs[0]] = read[0] if isinstance(node.op, Cast) else node.op.evaluate(read)[0]
    return arrays[parts[0].outputs[0]]


def _is_step(graph: Graph, last: Node, node: Node) -> bool:
    """True for an element-wise op of the type that ``last`` makes, whose constants are single numbers at hand."""
    whole = graph.types[last.outputs[0]]
    numbers = (graph.number(value) is not None for value in node.inputs if value in graph.constants)
    is_of_type = graph.types[node.outputs[0]] == whole and whole.dtype.is_floating
    return is_of_type and node.op.is_elementwise and all(numbers)


def _numbers(graph: Graph, members: Sequence[Node]) -> dict[str, Array]:
    """The constants of one element that ops read."""
    read = dict.fromkeys(value for node in members for value in node.inputs)
    return {value: np.asarray(number, np.float32) for value in read if (number := graph.number(value)) is not None}


def _function(graph: Graph, members: Sequence[Node], x: str) -> Unary | None:
    """The function of ``x`` that ops compute, the last one first, by its values at points beside zero."""
    computed, expected = _computed_by(members, {x: _POINTS, **_numbers(graph, members)}), _expected()
    off = np.abs(computed - expected) / (1 + np.abs(expected))
    nearest = int(off.max(axis=1).argmin())
    within = _TOLERANCE if graph.types[x].dtype is DType.FLOAT32 else _OF_16_BITS
    return _OPS[nearest] if off[nearest].max() <= within else None


@cache
def _expected() -> Array:
    """The values of each of the functions at the points, shape ``[functions, points]``."""
    return np.stack([each.evaluate([_POINTS])[0] for each in _OPS])


@local_pass("mul", "add", "nary")
def norm_recognition(graph: Graph, last: Node, constants: dict[str, Constant]) -> dict[str, list[Node]]:
    """Turns ops that compute ``(x - mean(x)) / sqrt(var(x) + epsilon) * scale [+ bias]`` into a layer norm, and the
    same without means into an RMS norm; casts in between go.

    Scale and bias are constants of the normalised axes, the last ones; without any, the scale is one. Unused ops are
    left to dead op elimination.

    Invariant: the outputs are unchanged up to rounding.
    """
    made: dict[str, list[Node]] = {}
    if last.op not in (Mul(), Add(), Nary("div")):
        return made
    for x, members in _parts_before(graph, last, _MOST, partial(_is_part, graph)):
        found = _norm(graph, x, members) if graph.types[x] == graph.types[last.outputs[0]] else None
        if found is None:
            continue
        op, rows = found
        shape, row = graph.types[x].shape[op.axis :], Derived(graph.types, constants, f"{last.name}.row")
        parameters = [each if graph.types[each].shape == shape else row.add(Reshape(shape), each) for each in rows]
        parameters = parameters or [row.constant(FilledConstant(replace(graph.types[x], shape=shape), 1.0))]
        made = {last.name: [replace(last, op=op, inputs=(x, *parameters))]}
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
    numbers = _numbers(graph, members)
    if len(axes) != 1 or len(rows) > 2 or len(rows) + len(numbers) < len(known):
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
    for epsilon in (float(number) for number in numbers.values() if 0 < number < _LARGEST_EPSILON):
        scaled = sample * np.float32(np.sqrt(epsilon))  # so that epsilon is as large as the mean square
        arrays = {**numbers, **given_rows, x: scaled}
        computed = _computed_by(members, arrays)
        attribute = float(str(np.float32(epsilon)))  # as attributes are read, which are of fp32
        for op in (LayerNorm(axis, attribute), RmsNorm(axis, attribute)):
            for order in permutations(rows) if isinstance(op, LayerNorm) or len(rows) < 2 else ():
                parameters = [given_rows[value].reshape(shape) for value in order] or [np.ones(shape, np.float32)]
                expected = op.evaluate([scaled, *parameters])[0]
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
    last, parameters, made = after, list[str](), Derived(graph.types, constants, f"{norm.name}.channels")
    of_channels = TensorType((x.shape[1],), x.dtype)
    for kind, number in ((Mul, 1.0), (Add, 0.0)):
        reader = graph.private_consumer(last.outputs[0])
        if reader is not None and isinstance(reader.op, kind) and (given := _of_channels(graph, reader, x)):
            parameters.append(made.add(Reshape(of_channels.shape), given))
            last = reader
        else:
            parameters.append(made.constant(FilledConstant(of_channels, number)))
    op = GroupNorm(groups, norm.op.epsilon)
    return {last.name: [replace(last, op=op, inputs=(before.inputs[0], *parameters))]}


def _is_filled(graph: Graph, value: str, number: float) -> bool:
    held = known_array(graph, value)
    return held is not None and bool((held == number).all())


def _of_channels(graph: Graph, node: Node, x: TensorType) -> str | None:
    """The constant operand with one number for each channel of ``x``."""
    data, *known = sorted(node.inputs, key=graph.constants.__contains__)
    if len(known) != 1 or known[0] not in graph.constants or graph.types[data] != x or graph.output_types(node) != [x]:
        return None
    factor = graph.types[known[0]]
    return known[0] if factor.elements == x.shape[1] and per_channel(factor.shape, x.shape) else None
