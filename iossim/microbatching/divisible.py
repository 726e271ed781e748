"""Ops that can be divided along the batch: those that compute each image by itself, and sums over images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from iossim.base.errors import GraphError
from iossim.ir.graph import Graph, Node
from iossim.ir.network import Block, Network, Unit
from iossim.ir.op import Op
from iossim.ir.ops.reshape import Reshape
from iossim.ir.types import TensorType
from iossim.models.options import common_batch
from iossim.schedule.problem import MAX_UNITS


def divisible(network: Network, block: Block, parts: int) -> bool:
    """True if a block computes each image by itself, and so may be divided into ``parts``, and these fit a problem."""
    batch = common_batch(network.graph)
    if batch is None or parts < 1 or batch % parts or parts * len(block.units) >= MAX_UNITS:
        return False
    return all(unit_divisible(network, network.units[unit], (batch // parts,) * parts) for unit in block.units)


def unit_divisible(network: Network, unit: Unit, sizes: Sequence[int]) -> bool:
    """True if a unit may be divided into micro-batches of these sizes."""
    batch = common_batch(network.graph)
    if batch is None or sum(sizes) != batch:
        return False
    return all(unit_part(network, unit, batch, size) is not None for size in set(sizes))


@dataclass(frozen=True)
class UnitPart:
    """A unit on a range of the batch: an op for each of its own. ``sums``: parts add up to the result."""

    ops: tuple[Op, ...]
    sums: bool


def unit_part(network: Network, unit: Unit, batch: int, size: int) -> UnitPart | None:
    """The unit on ``size`` images of the batch; None if images depend on each other other than by a sum."""
    ops: list[Op] = []
    sums: set[str] = set()
    for node in network.unit_nodes(unit):
        summed = sums.issuperset(node.inputs)
        if summed and isinstance(node.op, Reshape):
            op: Op | None = node.op
        elif sums.isdisjoint(node.inputs):
            op = part_of(network.graph, node, batch, size)
            summed = op is None and adds_up(network.graph, node, batch, size)
            op = node.op if summed else op
        else:
            op = None
        if op is None:
            return None
        if summed:
            sums.update(node.outputs)
        ops.append(op)
    if sums and (len(unit.outputs) > 1 or not sums.issuperset(unit.outputs)):
        return None
    return UnitPart(tuple(ops), bool(sums))


def adds_up(graph: Graph, node: Node, batch: int, size: int) -> bool:
    """True if an op's results on the ranges of a batch add up to its result, as for the gradient of a weight."""
    types = [graph.types[name] for name in node.inputs]
    if not node.op.sums_images or len(types) > 2 or not graph.constants.keys().isdisjoint(node.inputs):
        return False
    if any(of.shape[:1] != (batch,) for of in types):
        return False
    return node.op.infer([_part(of, size) for of in types]) == tuple(graph.types[name] for name in node.outputs)


def part_of(graph: Graph, node: Node, batch: int, size: int) -> Op | None:
    """The op that computes ``size`` images as the node computes the whole batch; None where images interact.

    The first dimension of every value that it reads besides weights, and of every value that it makes, is the batch;
    the others must be the same on a range of it.
    """
    varying = [name for name in node.inputs if name not in graph.constants]
    ranks = {len(graph.types[name].shape) for name in varying}
    values = [graph.types[name] for name in (*varying, *node.outputs)]
    if not varying or 0 in ranks or (len(ranks) > 1) or any(of.shape[:1] != (batch,) for of in values):
        return None
    if node.op.mixes_images(node.inputs[0] not in graph.constants):
        return None
    read = [graph.types[name] if name in graph.constants else _part(graph.types[name], size) for name in node.inputs]
    expected = tuple(_part(graph.types[name], size) for name in node.outputs)
    for op in (node.op, node.op.making(expected[0].shape)):
        try:
            if op is not None and op.infer(read) == expected:
                return op
        except GraphError:
            pass
    return None


def _part(of_type: TensorType, size: int) -> TensorType:
    return replace(of_type, shape=(size, *of_type.shape[1:]))
