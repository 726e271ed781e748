"""Binding the dimensions of a model file's inputs: by batch, by name, by arithmetic on names, or by a whole shape.

A model exported for one batch can be read for another if processing each image as in the exported model gives every
value as before, except for a scaled leading dimension. This is checked for every op. A reshape to a fixed shape
whose input has the leading batch dimension acts on each image alone, even if it merges part of the image into the
leading dimension, so that its shape may be scaled too.
"""

from __future__ import annotations

import ast
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from iossim.base.errors import ModelError, OptionError, did_you_mean
from iossim.ir.graph import Graph, Node
from iossim.ir.onnx_spelling import dtype_of_onnx
from iossim.ir.op import Op
from iossim.ir.types import DType, TensorType
from iossim.models.onnx.file import OnnxModel
from iossim.models.options import LoadOptions

#: Longest text that is parsed as a dimension's arithmetic.
_LONGEST = 200
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def dimension_names(dimension: str) -> set[str]:
    """The names in a dimension's arithmetic: the dimension itself if it is not arithmetic on names and integers."""
    tree = _arithmetic(dimension)
    return {dimension} if tree is None else {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)}


def dimension_size(dimension: str, sizes: Mapping[str, int]) -> int | None:
    """The size of a dimension, given directly or computed from given names; None if one is not given."""
    if dimension in sizes:
        return sizes[dimension]
    tree = _arithmetic(dimension)
    try:
        return None if tree is None else _value(tree, sizes)
    except (KeyError, ArithmeticError):
        return None


def _arithmetic(dimension: str) -> ast.expr | None:
    """A dimension as arithmetic on names and integers; None for any other text."""
    if len(dimension) > _LONGEST:
        return None
    try:
        tree = ast.parse(dimension, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    taken = (ast.Name, ast.expr_context, ast.BinOp, *_OPERATORS)
    fits = (isinstance(each, taken) or type(getattr(each, "value", None)) is int for each in ast.walk(tree))
    return tree if all(fits) else None


def _value(tree: ast.expr, sizes: Mapping[str, int]) -> int:
    match tree:
        case ast.Name(id=name):
            return sizes[name]
        case ast.Constant(value=int(value)):
            return value
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, sizes), _value(right, sizes))
        case _:
            raise KeyError(ast.unparse(tree))


@dataclass(frozen=True, eq=False)
class Rebatching:
    """``declared`` is the graph as in the file, for batch ``before``; it is now read for batch ``after``."""

    declared: Graph
    before: int
    after: int

    def adapted(self, output: str) -> Node | None:
        """The producer of ``output`` adapted to batch ``after``, if it fixes its output shape."""
        node, expected = self.declared.producer.get(output), self._expected(output)
        if node is None or expected is None:
            return None
        op = node.op.making(expected.shape)
        return None if op is None else replace(node, op=op)

    def keeps_batch(self, op: Op, output: str, made: TensorType, first_varies: bool) -> bool:
        """True if an op that now makes ``made`` still treats each image as before (see :meth:`Op.mixes_images`)."""
        return not op.mixes_images(first_varies) and made == self._expected(output)

    def refusal(self, where: str) -> ModelError:
        """The error for a node, described by ``where``, that cannot be read for the other batch."""
        return ModelError(
            f"{where} does not keep the batch in front, so that batch {self.before} of the file cannot become "
            f"{self.after}; export the model for the batch that you want, or with an open one"
        )

    def _expected(self, value: str) -> TensorType | None:
        """The type that a value must have now; None if its leading dimension cannot be the batch."""
        old = self.declared.types.get(value)
        if old is None or not old.shape or old.shape[0] % self.before:
            return None
        return replace(old, shape=(old.shape[0] // self.before * self.after, *old.shape[1:]))


@dataclass(frozen=True)
class DeclaredInput:
    """An input as declared in the file: each dimension a size, or a name (``"?"`` if it has none).

    ``dimensions`` is None if the file does not even give their number.
    """

    name: str
    dtype: DType
    dimensions: tuple[int | str, ...] | None

    @property
    def batch(self) -> int | str | None:
        """The leading dimension, if there is known to be one."""
        return self.dimensions[0] if self.dimensions else None

    @property
    def named(self) -> dict[int, str]:
        """The names of its open dimensions, by axis."""
        return {at: each for at, each in enumerate(self.dimensions or ()) if isinstance(each, str) and each != "?"}

    def __str__(self) -> str:
        return f"{self.name} {self.spelled()}"

    def spelled(self) -> str:
        """The shape in the syntax of ``--shape``, with names in place of open sizes."""
        dimensions = self.dimensions if self.dimensions is not None else ("N", "C", "H", "W")
        return "x".join(str(dimension).replace(" ", "") for dimension in dimensions)


@dataclass(frozen=True, eq=False)
class BoundModel:
    """A model with the type of each input, the ``values`` of inputs that are bound to one, and the sizes of the named
    dimensions.

    ``sizes`` is None if the inputs are not as declared in the file. If the batch in the file was replaced by another,
    ``declared`` is the model as in the file, and both have a ``batch``. ``remarks`` list the dimensions that were
    bound by default.
    """

    model: OnnxModel
    types: Mapping[str, TensorType]
    sizes: Mapping[str, int] | None
    batch: int = 1
    declared: BoundModel | None = None
    remarks: tuple[str, ...] = ()
    values: Mapping[str, int] = field(default_factory=dict)


def bind(model: OnnxModel, options: LoadOptions) -> BoundModel:
    """The model with every input dimension bound to a number.

    ``options.batch`` binds the leading dimension of the inputs, even one that the file fixes: then every value must
    have a leading batch dimension, and a reshape to a fixed ``[batch, ...]`` is adapted. ``options.shapes`` binds
    complete inputs by name, ``options.dimensions`` the named dimensions that the file leaves open, and inputs of one
    truth value or whole number. An unbound leading dimension is 1, with a remark. Raises ModelError for any other
    unbound one, OptionError for a binding that matches nothing in the file.
    """
    path, batch, shapes = model.path, options.batch, options.shapes
    inputs = declared_inputs(model.proto.graph, path)
    _check_shapes(inputs, path, options)
    _check_dimensions(inputs, path, options)
    free = [value for value in inputs if value.name not in shapes]
    sizes = _named_sizes(inputs, options)
    unbound = [value for value in free if batch is None and _is_unbound(value.batch, sizes)]
    sizes |= {value.named[0]: 1 for value in unbound if 0 in value.named}
    leading = 1 if unbound else batch
    inner = {name for value in free for axis, name in value.named.items() if axis}
    lacks = set[str]().union(*map(dimension_names, inner)) - sizes.keys()
    types = {
        value.name: TensorType(shapes[value.name], value.dtype)
        if value.name in shapes
        else _bind(value, path, leading, sizes, lacks)
        for value in inputs
    }
    listed = ", ".join(map(str, unbound[:2])) + " ..." * (len(unbound) > 2)
    remarks = (f"The file leaves the batch open ({listed}); it is taken as 1 (`batch`).",) if unbound else ()
    named = {name: types[value.name].shape[axis] for value in inputs for axis, name in value.named.items()}
    values = {value.name: options.dimensions[value.name] for value in inputs if value.name in options.dimensions}
    bound = BoundModel(model, types, named, remarks=remarks, values=values)
    batches = {value.batch for value in free if value.batch is not None}
    fixed = [size for size in batches if isinstance(size, int)]
    if batch is None or not fixed or len(fixed) < len(batches) or batch == free[0].batch:
        return bound
    if len(fixed) > 1:
        listed = ", ".join(map(str, free))
        raise OptionError(f"{path}: its inputs ({listed}) have no common batch to set to {batch}; use `shapes` instead")
    changed = types | {
        value.name: TensorType((batch, *types[value.name].shape[1:]), value.dtype) for value in free if value.batch
    }
    return BoundModel(model, changed, None, batch, replace(bound, batch=fixed[0]), values=values)


def declared_inputs(graph: onnx.GraphProto, path: Path) -> list[DeclaredInput]:
    """The inputs that are not weights: older files also list their initializers as inputs."""
    weights = {tensor.name for tensor in graph.initializer}
    declared = [_declared(value, path) for value in graph.input if value.name not in weights]
    for name, count in Counter(value.name for value in declared).items():
        if count > 1:
            raise ModelError(f"{path}: input {name!r} is there {count} times; the file is damaged")
    return declared


def _is_unbound(dimension: int | str | None, sizes: Mapping[str, int]) -> bool:
    """True if a leading dimension, a plain name or unnamed, is bound by neither the file nor the options."""
    if not isinstance(dimension, str):
        return False
    return dimension == "?" or (dimension_names(dimension) == {dimension} and dimension_size(dimension, sizes) is None)


def _check_shapes(inputs: Sequence[DeclaredInput], path: Path, options: LoadOptions) -> None:
    by_name = {value.name: value for value in inputs}
    for name, shape in options.shapes.items():
        spelled = "x".join(map(str, shape))
        if name not in by_name:
            raise OptionError(
                f"{path} has no input {name!r} to give the shape {spelled}; {did_you_mean(name, by_name)}"
            )
        declared = by_name[name].dimensions
        if any(size < 0 for size in shape) or (declared is not None and len(declared) != len(shape)):
            raise OptionError(f"shape {spelled} does not fit input {name!r} of {path}: {by_name[name].spelled()}")
        fixed = [axis for axis, size in enumerate(declared or ()) if isinstance(size, int) and size != shape[axis]]
        if fixed:
            remedy = "give that with `batch`" if fixed == [0] else "export it with these dimensions open"
            raise OptionError(
                f"shape {spelled} of input {name!r} is not that of {path}, {by_name[name].spelled()}; {remedy}"
            )
        if options.batch is not None and name == inputs[0].name and shape and shape[0] != options.batch:
            raise OptionError(f"batch {options.batch} and shape {spelled} of input {name!r} disagree; give one of them")


def _check_dimensions(inputs: Sequence[DeclaredInput], path: Path, options: LoadOptions) -> None:
    open_dimensions = {name for value in inputs for name in value.named.values()}
    named = open_dimensions.union(*map(dimension_names, open_dimensions))
    # A single truth value or whole number may choose the branch of an `If`, or a size.
    single = (each for each in inputs if each.dimensions is not None and set(each.dimensions) <= {1})
    named |= {each.name for each in single if not each.dtype.is_floating}
    for name, size in options.dimensions.items():
        if name not in named:
            if named:
                raise OptionError(f"{path} has no open dimension {name!r}; {did_you_mean(name, named)}")
            raise OptionError(
                f"{path} has no open dimension, so no {name!r}: its inputs are {', '.join(map(str, inputs))}; "
                "export it with that dimension open, or give another batch with `batch`"
            )
        if size < 0:
            raise OptionError(f"dimension {name!r} is {size}; give a size")


def _named_sizes(inputs: Sequence[DeclaredInput], options: LoadOptions) -> dict[str, int]:
    """The size of each named dimension, from any source; raises OptionError if two sources disagree."""
    sizes = dict(options.dimensions)
    for value in inputs:
        given: Sequence[int | None] = options.shapes.get(value.name, (options.batch,))
        for axis, dimension in value.named.items():
            size = given[axis] if axis < len(given) else None
            if size is not None and sizes.setdefault(dimension, size) != size:
                raise OptionError(
                    f"dimension {dimension!r} of input {value.name!r} is bound to both {sizes[dimension]} and {size}"
                )
    for name, size in sizes.items():
        others = {other: known for other, known in sizes.items() if other != name}
        if (computed := dimension_size(name, others)) not in (None, size):  # by its arithmetic
            raise OptionError(f"dimension {name!r} is bound to {size}, but comes to {computed}; bind its parts only")
    return sizes


def _bind(value: DeclaredInput, path: Path, batch: int | None, sizes: Mapping[str, int], lacks: Set[str]) -> TensorType:
    """The type of an input; a message has all names that the file ``lacks`` a size of."""
    if value.dimensions is None:
        raise ModelError(
            f"{path}: input {value.name!r} has no shape; give one with `shapes` {value.name}={value.spelled()}"
        )
    bound: list[int] = []
    for axis, dimension in enumerate(value.dimensions):
        size = dimension if isinstance(dimension, int) else dimension_size(dimension, sizes)
        if size is None and axis == 0:
            size = batch
        if size is None:
            called = f"dimension {axis}" if dimension == "?" else f"dimension {axis} ({dimension!r})"
            names = [] if dimension == "?" else sorted(dimension_names(str(dimension)) - sizes.keys())
            others = sorted(lacks - {*names}) if names else []
            verb = "is" if len(others) == 1 else "are"
            also = f", and so {verb} {', '.join(others)}; bind them" if others else "; bind it"
            ways = ["`batch`"] * (axis == 0)
            ways += [" ".join(f"`dimensions` {name}=8" for name in names + others)] * bool(names)
            ways.append(f"`shapes` {value.name}={value.spelled()}")
            raise ModelError(f"{path}: {called} of input {value.name!r} is open{also} with {' or '.join(ways)}")
        if size < 0:
            raise OptionError(
                f"{path}: dimension {axis} ({dimension!r}) of input {value.name!r} comes to {size}; bind larger sizes"
            )
        bound.append(size)
    return TensorType(tuple(bound), value.dtype)


def _declared(value: onnx.ValueInfoProto, path: Path) -> DeclaredInput:
    if not value.type.HasField("tensor_type"):
        raise ModelError(f"{path}: input {value.name!r} is no tensor; export the model with tensors as inputs")
    tensor = value.type.tensor_type
    dtype = dtype_of_onnx(tensor.elem_type, f"{path}: input {value.name!r}")
    if not tensor.HasField("shape"):
        return DeclaredInput(value.name, dtype, None)
    dimensions = tuple(axis.dim_value if axis.dim_value > 0 else (axis.dim_param or "?") for axis in tensor.shape.dim)
    return DeclaredInput(value.name, dtype, dimensions)
