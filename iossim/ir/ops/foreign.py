"""Operators without a class in iossim: carried unchanged, priced as memory traffic, computed by ONNX."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iossim.base.errors import GraphError
from iossim.ir.onnx_node import compute, is_product, nodes_within
from iossim.ir.op import Array, Op, require
from iossim.ir.types import DType, TensorType

if TYPE_CHECKING:
    from onnx import NodeProto

_RUN_GRAPHS = ("If", "Loop", "Scan")
#: An element type and a shape, in JSON form.
RecordedType = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Foreign(Op, kind="foreign"):
    """An ONNX node with the types recorded when it was read.

    ``node`` is the node without names, serialised (:func:`iossim.ir.onnx_node.canonical`), in base64; ``version``
    that of the operator set of its domain. Inputs and outputs are those that the node does not omit. Its work is
    unknown: it counts as the bytes of its operands.
    """

    op_type: str
    version: int
    node: str
    inputs: tuple[RecordedType, ...]
    outputs: tuple[RecordedType, ...]

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        """The recorded outputs; if the graph computes in another floating-point type, in that type."""
        recorded = [tensor_type(each) for each in self.inputs]
        require(
            [value.shape for value in inputs] == [value.shape for value in recorded],
            f"{self.op_type} was read with inputs {_listed(recorded)}, not {_listed(inputs)}; load the model again",
        )
        retyped: dict[DType, DType] = {}
        for now, then in zip(inputs, recorded, strict=True):
            same = retyped.setdefault(then.dtype, now.dtype) is now.dtype
            require(
                same and (now.dtype is then.dtype or then.dtype.is_floating),
                f"{self.op_type} was read with inputs {_listed(recorded)}, not {_listed(inputs)}",
            )
        types = [tensor_type(each) for each in self.outputs]
        return tuple(TensorType(each.shape, retyped.get(each.dtype, each.dtype)) for each in types)

    @property
    def unit_kind(self) -> str:
        return self.op_type

    @property
    def is_product(self) -> bool:
        """True if it, or an op of its subgraphs, multiplies matrices: then it takes far longer than its traffic."""
        if self.op_type not in _RUN_GRAPHS:
            return is_product(self.op_type)
        return any(is_product(each.op_type) for each in nodes_within([self.parsed()]))

    def parsed(self) -> NodeProto:
        """The node, with operands named by their position."""
        from onnx import NodeProto

        node: NodeProto = NodeProto.FromString(base64.b64decode(self.node))
        return node

    def mixes_images(self, first_varies: bool) -> bool:
        return True  # conservatively

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        try:
            node = base64.b64decode(self.node, validate=True)
        except binascii.Error:
            raise GraphError(f"{self.op_type} is damaged; save the graph again") from None
        try:
            made = compute(node, self.version, inputs)
        except GraphError as error:
            raise GraphError(f"{self.op_type} {error}; it can be priced, not run") from None
        for array, expected in zip(made, self.outputs, strict=True):
            require(
                array.shape == tuple(expected[1]),
                f"{self.op_type} made an output of shape {list(array.shape)} where the model says "
                f"{list(expected[1])}: its shape depends on data",
            )
        given = tuple(TensorType(array.shape, DType.of_numpy(array.dtype) or DType.FLOAT32) for array in inputs)
        types = self.infer(given)
        return tuple(array.astype(value.dtype.numpy, copy=False) for array, value in zip(made, types, strict=True))

    def to_onnx(self) -> tuple[str, dict[str, object]]:
        """Raises GraphError, since :mod:`iossim.models.onnx.spelling` exports the node itself."""
        raise GraphError(f"{self.op_type} is exported as the node that it was read from")


def recorded_type(value: TensorType) -> RecordedType:
    return str(value.dtype), value.shape


def tensor_type(recorded: RecordedType) -> TensorType:
    """Inverse of :func:`recorded_type`; raises GraphError for an invalid type."""
    try:
        return TensorType(tuple(recorded[1]), DType(recorded[0]))
    except (ValueError, TypeError, IndexError):
        raise GraphError(f"{recorded!r} is no recorded type; save the graph again") from None


def _listed(types: Sequence[TensorType]) -> str:
    return ", ".join(map(str, types)) or "none"
