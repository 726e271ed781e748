"""Patterns made real: ops, what they read and the constants they bring, once attributes and shapes are known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from iossim.base.errors import GraphError
from iossim.ir.constants import Constant, FilledConstant, IdentityConstant
from iossim.ir.op import Array, Op
from iossim.ir.types import DType, TensorType
from iossim.transforms.rewriting.expression import Binding, Expression, ExpressionError, evaluate
from iossim.transforms.rewriting.rule import Filled, PatternOp, Rule, tensor_of

#: Ops whose last operand may be left out, and then stands for zeros.
_LAST_MAY_LACK = frozenset({"conv", "conv_nhwc", "conv_transpose", "gemm", "layer_norm"})


class NotMadeError(GraphError):
    """A pattern whose attributes have no value, or no valid one, for these shapes."""


def make_op(pattern: PatternOp, binding: Binding) -> Op:
    """The op of a pattern; raises NotMadeError where an attribute has no value or the op refuses it."""
    try:
        attributes = {name: evaluate(value, binding) for name, value in pattern.attributes}
        return Op.from_attributes(pattern.kind, attributes)
    except (ExpressionError, GraphError) as error:
        raise NotMadeError(f"{pattern}: {error}") from None


def holds(conditions: Iterable[Expression], binding: Binding) -> bool:
    """Whether all conditions are true; one that has no value (an axis that a shape has not) is not."""
    try:
        return all(evaluate(condition, binding) for condition in conditions)
    except ExpressionError:
        return False


@dataclass(frozen=True, slots=True)
class Zeros:
    """What an operand that was left out stands for where the op needs it; its shape is :func:`left_out_shape`."""

    tensor: str


def operands(op: PatternOp, values: Mapping[str, str | tuple[str, ...] | None]) -> tuple[str | Zeros, ...] | None:
    """The names of the values that an op of a pattern reads, by those that its tensors stand for (None: left out).

    The last operand of a convolution or the like is left out where its tensor is. Any other stands for zeros, unless all
    operands are left out: then so is what the op makes, and the result is None.
    """
    found: list[str | Zeros] = []
    for operand in op.inputs:
        value = values[tensor_of(operand)]
        if isinstance(value, tuple):
            found.extend(value)
        else:
            found.append(Zeros(tensor_of(operand)) if value is None else value)
    if all(isinstance(each, Zeros) for each in found):
        return None
    if op.kind in _LAST_MAY_LACK and isinstance(found[-1], Zeros):
        del found[-1]
    return tuple(found)


def left_out_shape(rule: Rule, tensor: str, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """The shape of the zeros that an input stands for where it is left out, by the shapes of what the source makes and reads."""
    reader = next(op for op in rule.source if tensor in map(tensor_of, op.inputs))
    if reader.kind == "layer_norm":
        return shapes[tensor_of(reader.inputs[1])]
    channels = 3 if reader.kind == "conv_nhwc" else 1
    return shapes[reader.outputs[0]][channels : channels + 1]


def filled_constant(filled: Filled, binding: Binding, dtype: DType) -> Constant:
    """A constant that a target brings along; raises NotMadeError where its shape has no value, or the type not its value."""
    if not dtype.is_floating and filled.value != int(filled.value):
        raise NotMadeError(f"constant {filled}: {dtype} has no {filled.value}")
    try:
        made = TensorType(tuple(evaluate(filled.shape, binding)), dtype)
        return IdentityConstant(made) if filled.identity else FilledConstant(made, filled.value)
    except (ExpressionError, GraphError, TypeError, ValueError) as error:
        raise NotMadeError(f"constant {filled}: {error}") from None


def filled_array(filled: Filled, binding: Binding) -> Array:
    """The same as an array of float64."""
    return filled_constant(filled, binding, DType.FLOAT64).load()
