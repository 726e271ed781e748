"""Element-wise operators by name, one term of a concat, and operators along the rows of a matrix."""

from __future__ import annotations

from iossim.ir.op import Op
from iossim.ir.ops import unary
from iossim.ir.ops.nary import Add, Mul, Nary
from iossim.ir.ops.normalization import LayerNorm, RmsNorm
from iossim.ir.ops.slice import Concat
from iossim.ir.ops.softmax import LogSoftmax, Softmax
from iossim.ir.ops.unary import Clip, Relu, Sigmoid, Unary
from iossim.ir.types import DType, TensorType
from iossim.measurements.kinds.kind import Made, OperatorKind, Parts, Sizes, columns
from iossim.measurements.operator import Operator

_PLANE = columns("rows", "cols")
#: Other names of functions in tables.
_ALIASES = {"swish": ("silu",), "hard_swish": ("hardswish",), "leaky_relu": ("leakyrelu",)}


def _on_planes(op: Op, operands: int) -> Parts:
    def parts(sizes: Sizes, dtype: DType) -> Made:
        return op, (TensorType((sizes["rows"], sizes["cols"]), dtype),) * operands, ()

    return parts


def _plane_sizes(operator: Operator) -> Sizes:
    rows, cols = operator.inputs[0].shape
    return {"rows": rows, "cols": cols}


def _on_plane(name: str, op: Op, operands: int = 1, *aliases: str) -> OperatorKind:
    return OperatorKind(name, _PLANE, _on_planes(op, operands), _plane_sizes, aliases)


def _layer_norm(sizes: Sizes, dtype: DType) -> Made:
    row = TensorType((sizes["cols"],), dtype)
    return LayerNorm(), (TensorType((sizes["rows"], sizes["cols"]), dtype), row, row), (1, 2)


def _rms_norm(sizes: Sizes, dtype: DType) -> Made:
    row = TensorType((sizes["cols"],), dtype)
    return RmsNorm(), (TensorType((sizes["rows"], sizes["cols"]), dtype), row), (1,)


#: Kinds of numbers of functions; those of booleans and of bits are not layers of a network.
_NUMBERS = ("any", "real")
KINDS = (
    _on_plane("add", Add(), 2),
    _on_plane("mul", Mul(), 2),
    *(_on_plane(name, Nary(name), 2) for name in ("sub", "div", "pow", "min", "max")),
    _on_plane("relu", Relu()),
    _on_plane("clip", Clip(0.0, 6.0), 1, "relu6"),
    _on_plane("sigmoid", Sigmoid()),
    *(
        _on_plane(name, Unary(name, tuple(value for _, value in function.parameters)), 1, *_ALIASES.get(name, ()))
        for name, function in unary.FUNCTIONS.items()
        if function.takes in _NUMBERS and not function.makes_bool
    ),
    _on_plane("concat", Concat()),
    _on_plane("softmax", Softmax(-1)),
    _on_plane("log_softmax", LogSoftmax(-1)),
    OperatorKind("layer_norm", _PLANE, _layer_norm, _plane_sizes, ("ln", "layernorm")),
    OperatorKind("rms_norm", _PLANE, _rms_norm, _plane_sizes, ("rmsnorm",)),
)
