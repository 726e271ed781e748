"""Retyping: every floating-point value of a graph in another storage type."""

from __future__ import annotations

from dataclasses import dataclass, replace

from iossim.base.errors import GraphError
from iossim.ir.constants import Constant
from iossim.ir.graph import Graph, Node
from iossim.ir.op import Array
from iossim.ir.ops.unary import Cast
from iossim.ir.types import DType, Precision, TensorType
from iossim.models.passes.graph_pass import GraphPass


@dataclass(frozen=True, eq=False)
class RetypedConstant(Constant):
    """A constant rounded to another element type, at each load."""

    type: TensorType
    source: Constant

    @property
    def is_at_hand(self) -> bool:
        return self.source.is_at_hand

    @property
    def is_absent(self) -> bool:
        return self.source.is_absent

    def load(self) -> Array:
        if not self.type.dtype.is_floating:
            raise GraphError(
                f"weights in {self.type.dtype} need scales that the model does not have: "
                f"a graph retyped to {self.type.dtype} can be scheduled and priced, not executed"
            )
        return self.source.load().astype(self.type.dtype.numpy, copy=False)

    @property
    def origin(self) -> Constant:
        return self.source.origin


@dataclass(frozen=True)
class Retype(GraphPass):
    """Stores floating-point inputs and weights, and with them all computed values, as ``dtype``; integers stay.

    For the 16-bit types the graph computes the same up to rounding. For int8 it defines the bytes that move and the
    arithmetic, sufficient for pricing; its weights do not load, since quantisation scales are not modelled.

    Invariant: ops, edges and names are unchanged, except for the target type of a cast to floating point.
    """

    dtype: DType

    def apply(self, graph: Graph) -> Graph:
        constants: dict[str, Constant] = {}
        for name, constant in graph.constants.items():
            retyped = self._retyped(constant.type)
            constants[name] = constant if retyped == constant.type else RetypedConstant(retyped, constant)
        inputs = {name: self._retyped(graph.types[name]) for name in graph.inputs}
        return Graph.create(inputs, graph.outputs, map(self._recast, graph.nodes), constants)

    def _recast(self, node: Node) -> Node:
        """A cast to a floating-point type becomes one to ``dtype``."""
        if not isinstance(node.op, Cast) or not DType(node.op.dtype).is_floating:
            return node
        return replace(node, op=Cast(str(self.dtype)))

    def _retyped(self, value: TensorType) -> TensorType:
        return TensorType(value.shape, self.dtype) if value.dtype.is_floating else value


def retype(graph: Graph, precision: Precision) -> Graph:
    """The graph stored in a precision; the graph itself if it already is."""
    types = (graph.types[name] for name in (*graph.inputs, *graph.constants))
    if all(value.dtype == precision.storage for value in types if value.dtype.is_floating):
        return graph
    return Retype(precision.storage).apply(graph)
