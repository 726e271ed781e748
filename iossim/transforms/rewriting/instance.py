"""A rule at concrete shapes: both its sides as graphs of the same inputs, with outputs in the same order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from iossim.base.errors import GraphError
from iossim.ir.constants import ArrayConstant, Constant, FilledConstant, IdentityConstant
from iossim.ir.graph import Graph, Node
from iossim.ir.op import Op
from iossim.ir.types import DType, TensorType
from iossim.transforms.rewriting.expression import Binding, Expression, ExpressionError, evaluate, tensors_of
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

    The last operand of a convolution or the like is left out where its tensor is. Any other stands for zeros, unless
    all operands are left out: then so is what the op makes, and the result is None.
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
    """The shape of the zeros that an input which is left out stands for, by the shapes of the source's tensors."""
    reader = next(op for op in rule.source if tensor in map(tensor_of, op.inputs))
    if reader.kind == "layer_norm":
        return shapes[tensor_of(reader.inputs[1])]
    channels = 3 if reader.kind == "conv_nhwc" else 1
    return shapes[reader.outputs[0]][channels : channels + 1]


def filled_constant(filled: Filled, binding: Binding, dtype: DType) -> Constant:
    """A constant that a target brings along; raises NotMadeError where its shape or value is impossible."""
    if not dtype.is_floating and filled.value != int(filled.value):
        raise NotMadeError(f"constant {filled}: {dtype} has no {filled.value}")
    try:
        made = TensorType(tuple(evaluate(filled.shape, binding)), dtype)
        return IdentityConstant(made) if filled.identity else FilledConstant(made, filled.value)
    except (ExpressionError, GraphError, TypeError, ValueError) as error:
        raise NotMadeError(f"constant {filled}: {error}") from None


#: What an input of a rule is in one instance: a shape, None where it is left out, the shapes of a ``*rest``.
InputShape = tuple[int, ...] | None | tuple[tuple[int, ...], ...]
InputType = TensorType | None | tuple[TensorType, ...]


class ConditionFailsError(NotMadeError):
    """Shapes and attributes that a condition of the rule excludes."""


@dataclass(frozen=True)
class Placed:
    """The source of a rule at concrete shapes, where its conditions hold. ``binding`` has the shapes of all tensors."""

    rule: Rule
    attributes: Mapping[str, Any]
    types: Mapping[str, InputType]
    source: Graph
    binding: Binding
    dtype: DType

    def target(self) -> Graph:
        """The other side. Raises ConditionFailsError where a condition on what it makes fails, and NotMadeError,
        which says why, where it cannot take the shapes or would make others than the source.
        """
        side = Side(self.rule, self.types, self.binding, self.dtype)
        for name, filled in self.rule.filled:
            side.add_constant(name, filled_constant(filled, side.binding, DType.FLOAT64).load())
        graph = side.graph(self.rule.target, [name for _, name in self.rule.outputs])
        if not holds(self.rule.conditions, side.binding):
            raise ConditionFailsError("a condition of the rule does not hold")
        for (source, target), made, by in zip(self.rule.outputs, self.source.outputs, graph.outputs, strict=True):
            if self.source.types[made] != graph.types[by]:
                raise NotMadeError(
                    f"{source} is {list(self.source.types[made].shape)}, but {target}, which replaces it, is "
                    f"{list(graph.types[by].shape)}"
                )
        return graph


def place(
    rule: Rule, attributes: Mapping[str, Any], shapes: Mapping[str, InputShape], dtype: DType = DType.FLOAT64
) -> Placed:
    """The source at these shapes. Raises ConditionFailsError where a condition fails, NotMadeError if they do not fit.

    All tensors are taken for constants: whether they are known before the network runs says nothing of their values.
    """
    types = {name: input_type(shapes[name], name in rule.rests, dtype) for name in rule.inputs}
    constants = frozenset((*rule.inputs, *rule.made_by_source))
    side = Side(rule, types, Binding(attributes, {}, constants), dtype)
    graph = side.graph(rule.source, [name for name, _ in rule.outputs])
    conditions = [each for each in rule.conditions if tensors_of(each) <= set(side.shapes)]
    if not holds(conditions, side.binding):
        raise ConditionFailsError("a condition of the rule does not hold")
    return Placed(rule, dict(attributes), types, graph, side.binding, dtype)


class Side:
    """One side of a rule as it becomes a graph, op by op. ``binding`` has the shapes of what is there already."""

    def __init__(self, rule: Rule, types: Mapping[str, InputType], known: Binding, dtype: DType) -> None:
        self._rule, self._dtype = rule, dtype
        self.shapes = dict(known.shapes)
        self.binding = Binding(known.attributes, self.shapes, known.constants)
        self._values: dict[str, str | tuple[str, ...] | None] = {}
        self._inputs: dict[str, TensorType] = {}
        self._types: dict[str, TensorType] = {}
        self._constants: dict[str, ArrayConstant] = {}
        self._nodes: list[Node] = []
        for name, value in types.items():
            self.add_input(name, value)

    def add_input(self, name: str, value: InputType) -> None:
        if value is None:
            self._values[name] = None
            return
        if isinstance(value, tuple):
            added = {f"{name}.{index}": each for index, each in enumerate(value)}
            self._values[name] = tuple(added)
        else:
            added = {name: value}
            self._values[name] = name
            self.shapes[name] = value.shape
        self._inputs |= added
        self._types |= added

    def add_constant(self, name: str, array: np.ndarray[Any, np.dtype[np.float64]]) -> None:
        constant = ArrayConstant(array.astype(self._dtype.numpy))
        self._constants[name] = constant
        self._values[name], self._types[name], self.shapes[name] = name, constant.type, constant.type.shape

    def graph(self, ops: Iterable[PatternOp], outputs: Iterable[str]) -> Graph:
        """The ops of a pattern as a graph; raises NotMadeError where one does not take what it reads."""
        try:
            for op in ops:
                self.add(op)
            made = [self._values[name] for name in outputs]
            if not all(isinstance(name, str) for name in made):
                raise NotMadeError("an output is left out")
            return Graph.create(self._inputs, made, self._nodes, self._constants)  # type: ignore[arg-type]
        except NotMadeError:
            raise
        except GraphError as error:
            raise NotMadeError(str(error)) from None

    def add(self, pattern: PatternOp) -> None:
        """Add an op whose operands are there; raises GraphError where it does not take them."""
        reads = operands(pattern, self._values)
        if reads is None:
            self._values |= dict.fromkeys(pattern.outputs)
            return
        op = make_op(pattern, self.binding)
        inputs = tuple(self._zeros(each.tensor) if isinstance(each, Zeros) else each for each in reads)
        try:
            made = op.infer([self._types[name] for name in inputs])
        except (TypeError, ValueError, IndexError) as error:  # a number where it wants a tuple, or a tuple too short
            raise NotMadeError(f"{pattern}: its attributes are of the wrong kind: {error}") from None
        if len(made) != len(pattern.outputs):
            raise NotMadeError(f"{pattern} makes {len(made)} outputs")
        for name, value in zip(pattern.outputs, made, strict=True):
            if min(value.shape, default=1) < 1:
                raise NotMadeError(f"{pattern} would make an empty tensor")
            self._values[name], self._types[name], self.shapes[name] = name, value, value.shape
        self._nodes.append(Node(pattern.outputs[0], op, inputs, pattern.outputs))
        for name in self._rule.optional:
            if name not in self.shapes and name in self._values:
                self._remember_left_out(name)

    def _remember_left_out(self, name: str) -> None:
        """Once its reader is made, the shape of what was left out is known to expressions."""
        try:
            self.shapes[name] = left_out_shape(self._rule, name, self.shapes)
        except KeyError:
            return

    def _zeros(self, tensor: str) -> str:
        if tensor not in self._constants:
            if tensor not in self.shapes:
                raise NotMadeError(f"{tensor} is left out, and nothing says the shape of the zeros it stands for")
            name = tensor
            self._constants[name] = ArrayConstant(np.zeros(self.shapes[tensor], self._dtype.numpy))
            self._types[name] = self._constants[name].type
        return tensor


def input_type(shape: InputShape, is_rest: bool, dtype: DType) -> InputType:
    """The type of an input of a rule that has such a shape, or of the tensors of a rest."""
    if shape is None:
        return None
    if is_rest:
        return tuple(TensorType(each, dtype) for each in shape if isinstance(each, tuple))
    return TensorType(tuple(size for size in shape if isinstance(size, int)), dtype)
