"""Group norms that exporters write as instance norms of groups of channels, between two reshapes.

PyTorch's exporters do, with the factor and the term for each channel as ops of their own. Where images lie with their
channels innermost, the reshapes are copies.
"""

from __future__ import annotations

from iossim.ir.constants import Constant, FilledConstant
from iossim.ir.graph import Graph, Node, free_name
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.normalization import GroupNorm, InstanceNorm
from iossim.ir.ops.reshape import Reshape
from iossim.ir.types import TensorType
from iossim.models.passes.graph_pass import local_pass
from iossim.models.passes.simplification import folded


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
