"""A rule at concrete shapes: both its sides as graphs of the same inputs, with outputs in the same order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

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
    """True if all conditions hold; one without a value (of an axis that a shape lacks) does not."""
    try:
        return all(evaluate(condition, binding) for condition in conditions)
    except ExpressionError:
        return False


@dataclass(frozen=True, slots=True)
class Zeros:
    """Operand that was left out, where the op needs it; its shape is :func:`left_out_shape`."""

    tensor: str


#: Tensor of a rule in a graph: a value, None where it is left out, the values of a ``*rest``.
Value = str | None | tuple[str, ...]


def operands(op: PatternOp, values: Mapping[str, Value]) -> tuple[str | Zeros, ...] | None:
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


#: Input of a rule in one instance: a shape, None where it is left out, the shapes of a ``*rest``.
InputShape = tuple[int, ...] | None | tuple[tuple[int, ...], ...]


class ConditionFailsError(NotMadeError):
    """Shapes and attributes that a condition of the rule excludes."""


@dataclass(frozen=True)
class Placed:
    """The source of a rule at concrete ``shapes`` of its inputs, where its conditions hold; ``binding`` has those of
    all tensors.
    """

    rule: Rule
    attributes: Mapping[str, Any]
    shapes: Mapping[str, InputShape]
    source: Graph
    binding: Binding
    dtype: DType

    def target(self) -> Graph:
        """The other side. Raises ConditionFailsError where a condition on what it makes fails, and NotMadeError,
        which says why, if it cannot take the shapes, or would make other shapes than the source.
        """
        side = SideAtShapes(self.rule, self.shapes, self.binding, self.dtype)
        for name, filled in self.rule.filled:
            array = filled_constant(filled, side.binding, DType.FLOAT64).load()
            side.add_constant(name, name, ArrayConstant(array.astype(self.dtype.numpy)))
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
    given = {name: shapes[name] for name in rule.inputs}
    constants = frozenset((*rule.inputs, *rule.made_by_source))
    side = SideAtShapes(rule, given, Binding(attributes, {}, constants), dtype)
    graph = side.graph(rule.source, [name for name, _ in rule.outputs])
    conditions = [each for each in rule.conditions if tensors_of(each) <= set(side.shapes)]
    if not holds(conditions, side.binding):
        raise ConditionFailsError("a condition of the rule does not hold")
    return Placed(rule, dict(attributes), given, graph, side.binding, dtype)


class Side:
    """One side of a rule as it becomes ops, one after another. ``values`` are what its tensors stand for; ``binding``
    has the shapes of the tensors made so far.
    """

    def __init__(self, rule: Rule, known: Binding, dtype: DType) -> None:
        self.rule, self.dtype = rule, dtype
        self.shapes = dict(known.shapes)
        self.binding = Binding(known.attributes, self.shapes, known.constants)
        self.values: dict[str, Value] = {}
        self.types: dict[str, TensorType] = {}
        self.constants: dict[str, Constant] = {}
        self.nodes: list[Node] = []

    def add(self, pattern: PatternOp) -> None:
        """Add an op whose operands are there; raises GraphError where it does not take them."""
        reads = operands(pattern, self.values)
        if reads is None:
            self.values |= dict.fromkeys(pattern.outputs)
            return
        op = make_op(pattern, self.binding)
        inputs = tuple(self.zeros(each.tensor) if isinstance(each, Zeros) else each for each in reads)
        try:
            made = op.infer([self.type(name) for name in inputs])
        except (TypeError, ValueError, IndexError) as error:  # a number where it wants a tuple, or a tuple too short
            raise NotMadeError(f"{pattern}: its attributes are of the wrong kind: {error}") from None
        if len(made) != len(pattern.outputs):
            raise NotMadeError(f"{pattern} makes {len(made)} outputs")
        self.put(pattern, op, inputs, made)

    def add_constant(self, tensor: str, name: str, constant: Constant) -> None:
        self.values[tensor], self.shapes[tensor] = name, constant.type.shape
        self.constants[name], self.types[name] = constant, constant.type

    def type(self, value: str) -> TensorType:
        return self.types[value]

    def zeros(self, tensor: str) -> str:
        """The constant that an input which is left out stands for."""
        raise NotImplementedError

    def put(self, pattern: PatternOp, op: Op, inputs: tuple[str, ...], made: tuple[TensorType, ...]) -> None:
        """Add an op that makes values of these types."""
        raise NotImplementedError


class SideAtShapes(Side):
    """A side as a graph of its own, whose values have the names of its tensors."""

    def __init__(self, rule: Rule, shapes: Mapping[str, InputShape], known: Binding, dtype: DType) -> None:
        super().__init__(rule, known, dtype)
        self._inputs: dict[str, TensorType] = {}
        for name, shape in shapes.items():
            self.add_input(name, shape)

    def add_input(self, name: str, shape: InputShape) -> None:
        added: dict[str, Any] = {}
        if name in self.rule.rests:
            added = {f"{name}.{index}": each for index, each in enumerate(shape or ())}
            self.values[name] = tuple(added)
        elif shape is None:
            self.values[name] = None
        else:
            added[name] = self.shapes[name] = shape  # type: ignore[assignment]
            self.values[name] = name
        types = {value: TensorType(each, self.dtype) for value, each in added.items()}
        self._inputs |= types
        self.types |= types

    def graph(self, ops: Iterable[PatternOp], outputs: Iterable[str]) -> Graph:
        """The ops of a pattern as a graph; raises NotMadeError where one does not take what it reads."""
        try:
            for op in ops:
                self.add(op)
            made = [self.values[name] for name in outputs]
            if not all(isinstance(name, str) for name in made):
                raise NotMadeError("an output is left out")
            return Graph.create(self._inputs, made, self.nodes, self.constants)  # type: ignore[arg-type]
        except NotMadeError:
            raise
        except GraphError as error:
            raise NotMadeError(str(error)) from None

    def put(self, pattern: PatternOp, op: Op, inputs: tuple[str, ...], made: tuple[TensorType, ...]) -> None:
        for name, value in zip(pattern.outputs, made, strict=True):
            if min(value.shape, default=1) < 1:
                raise NotMadeError(f"{pattern} would make an empty tensor")
            self.values[name], self.types[name], self.shapes[name] = name, value, value.shape
        self.nodes.append(Node(pattern.outputs[0], op, inputs, pattern.outputs))
        # Once its reader is made, the shape of what was left out is known to expressions.
        for name in (self.rule.optional - self.shapes.keys()) & self.values.keys():
            with suppress(KeyError):
                self.shapes[name] = left_out_shape(self.rule, name, self.shapes)

    def zeros(self, tensor: str) -> str:
        if tensor not in self.constants:
            if tensor not in self.shapes:
                raise NotMadeError(f"{tensor} is left out, and nothing says the shape of the zeros it stands for")
            self.types[tensor] = TensorType(self.shapes[tensor], self.dtype)
            self.constants[tensor] = FilledConstant(self.types[tensor], 0.0)
        return tensor
