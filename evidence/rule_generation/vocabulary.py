"""Vocabulary of generated graphs: templates of ops, and inputs of fixed shapes.

A template is an op kind with attributes that follow from the shapes of its operands. The first operand is called ``x``
in its expressions, the second ``y``. The default vocabulary is that of TASO: Jia et al., "TASO: Optimizing Deep
Learning Computation with Automatic Generation of Graph Substitutions", SOSP 2019.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from iossim.base.errors import GraphError, OptionError, did_you_mean
from iossim.ir.op import Op
from iossim.ir.types import DType, TensorType
from iossim.transforms.rewriting.expression import Binding, Expression, ExpressionError, evaluate, parse_expression

#: Names of a template's operands in its expressions.
OPERANDS = ("x", "y")
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Type:
    """A shape, and where a split along axis 0 or 1 may cut it: between the pieces of the concat that it comes from."""

    shape: Shape
    cuts: tuple[tuple[int, int] | None, tuple[int, int] | None] = (None, None)


@dataclass(frozen=True)
class Template:
    """An op kind with fixed usage.

    ``conditions`` restrict its operands, and become conditions of rules; ``only`` restricts those that are generated.
    ``commutes`` says that the order of operands is irrelevant.
    """

    name: str
    kind: str
    operands: int
    attributes: tuple[tuple[str, Expression], ...] = ()
    conditions: tuple[Expression, ...] = ()
    only: tuple[Expression, ...] = ()
    commutes: bool = False
    #: Axis of a concat or split.
    axis: int | None = None

    @property
    def outputs(self) -> int:
        return 2 if self.kind == "split" else 1

    def generates(self, operands: Sequence[Type]) -> bool:
        """True where graphs with these operands are generated, among those that :meth:`apply` takes."""
        binding = _binding(operands)
        return all(evaluate(condition, binding) for condition in self.only)

    def apply(self, operands: Sequence[Type]) -> tuple[Op, tuple[Type, ...]] | None:
        """Op for operands of these types, and the types of its outputs; None if it does not take them."""
        binding = _binding(operands)
        try:
            if not all(evaluate(condition, binding) for condition in self.conditions):
                return None
            attributes = {name: evaluate(value, binding) for name, value in self.attributes}
            if self.kind == "split":
                assert self.axis is not None
                attributes["sizes"] = cut = operands[0].cuts[self.axis]
                if cut is None:
                    return None
            op = Op.from_attributes(self.kind, attributes)
            made = op.infer([TensorType(each.shape, DType.FLOAT64) for each in operands])
        except (ExpressionError, GraphError):
            return None
        return op, tuple(Type(each.shape, self._cuts(operands)) for each in made)

    def _cuts(self, operands: Sequence[Type]) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
        first, last = operands[0].cuts, operands[-1].cuts
        if self.kind == "matmul":
            return first[0], last[1]
        if self.kind == "conv":
            return first[0], last[0]
        if self.kind == "transpose":
            return first[1], first[0]
        both = _merged(first[0], last[0]), _merged(first[1], last[1])
        if self.axis is None:
            return both
        here = (operands[0].shape[self.axis], operands[1].shape[self.axis]) if self.kind == "concat" else None
        return (here, both[1]) if self.axis == 0 else (both[0], here)


def _binding(operands: Sequence[Type]) -> Binding:
    return Binding({}, dict(zip(OPERANDS, (each.shape for each in operands), strict=False)))


def _merged(first: tuple[int, int] | None, last: tuple[int, int] | None) -> tuple[int, int] | None:
    """Cutting point of a result of two operands: where both may be cut, or one, if the other may nowhere."""
    if first is None or last is None:
        return first or last
    return first if first == last else None


def _template(
    name: str, kind: str, operands: int, conditions: Sequence[str] = (), only: Sequence[str] = (), **attributes: str
) -> Template:
    axis = int(attributes["axis"]) if "axis" in attributes else None
    given = tuple((key, parse_expression(value)) for key, value in attributes.items())
    commutes = name in ("add", "mul")
    needs, makes = (tuple(map(parse_expression, each)) for each in (conditions, only))
    return Template(name, kind, operands, given, needs, makes, commutes, axis)


_MATRICES = ("len(x.shape) == 2", "len(y.shape) == 2")
_KERNEL = "(y.shape[2] // 2, y.shape[3] // 2, y.shape[2] // 2, y.shape[3] // 2)"
_ENLARGED = ("(3 - x.shape[2]) // 2", "(3 - x.shape[3]) // 2")
#: Templates of each name that ``--ops`` takes.
TEMPLATES: dict[str, tuple[Template, ...]] = {
    "matmul": (_template("matmul", "matmul", 2, _MATRICES),),
    # This convolution keeps height and width, as TASO's; if its weight takes fewer channels it has groups. Images no
    # larger than the kernel would create spurious equalities.
    "conv": (
        _template(
            "conv",
            "conv",
            2,
            (),
            ("x.shape[2] > y.shape[2]", "x.shape[3] > y.shape[3]"),
            strides="(1, 1)",
            pads=_KERNEL,
            dilations="(1, 1)",
            groups="x.shape[1] // y.shape[1]",
        ),
    ),
    "add": (_template("add", "add", 2, ("x.shape == y.shape",)),),
    # It multiplies two tensors of one shape, or one with a number: different equations hold for the two.
    "mul": (
        _template("mul", "mul", 2, ("x.shape == y.shape",)),
        _template("scale", "mul", 2, ("len(y.shape) == 0",), ("len(x.shape) > 0",)),
    ),
    "concat": tuple(_template(f"concat{axis}", "concat", 2, axis=str(axis)) for axis in (0, 1)),
    "split": tuple(_template(f"split{axis}", "split", 1, axis=str(axis)) for axis in (0, 1)),
    "relu": (_template("relu", "relu", 1),),
    "sigmoid": (_template("sigmoid", "sigmoid", 1),),
    "tanh": (_template("tanh", "unary", 1, function="'tanh'"),),
    "transpose": (_template("transpose", "transpose", 1, ("len(x.shape) == 2",), permutation="(1, 0)"),),
    # It pads a kernel of 1x3 or 3x1 with zeros to 3x3.
    "enlarge": (
        _template(
            "enlarge",
            "pad",
            1,
            ("len(x.shape) == 4", "x.shape[2] <= 3", "x.shape[3] <= 3"),
            ("x.shape[2] != x.shape[3]",),
            pads=f"(0, 0, {', '.join(_ENLARGED)}, 0, 0, {', '.join(_ENLARGED)})",
        ),
    ),
}


@dataclass(frozen=True)
class Vocabulary:
    """Templates, and the shapes of inputs. Inputs of one shape are interchangeable."""

    templates: tuple[Template, ...]
    inputs: tuple[Shape, ...]

    @cached_property
    def rank_in_shape(self) -> tuple[int, ...]:
        """Number of earlier inputs of the same shape, for each."""
        return tuple(self.inputs[:index].count(shape) for index, shape in enumerate(self.inputs))


#: Inputs of TASO: its kernels of 3x3, 1x3 and 3x1, a depth-wise one, and a scalar.
TASO_INPUTS = "2x4*3,4x4*3,2x4x5x5*3,4x4x3x3*3,4x4x1x3*3,4x4x3x1*3,4x1x3x3,scalar"
TASO_OPS = "matmul,conv,add,mul,concat,split,relu,enlarge,transpose"


def read_vocabulary(ops: str = TASO_OPS, inputs: str = TASO_INPUTS) -> Vocabulary:
    """Vocabulary from two lists of a command line: ``add,conv`` and ``2x4*3,scalar``.

    Raises OptionError for an unknown op or input, and for empty lists.
    """
    names = [name.strip() for name in ops.split(",") if name.strip()]
    for name in names:
        if name not in TEMPLATES:
            raise OptionError(f"rules are not generated over the op {name!r}; {did_you_mean(name, TEMPLATES)}")
    shapes = tuple(_read_inputs(inputs))
    if not names or not shapes:
        raise OptionError(
            "rules are generated over at least one op and one input; give `ops` add,relu and `inputs` 2x4*3"
        )
    return Vocabulary(tuple(template for name in dict.fromkeys(names) for template in TEMPLATES[name]), shapes)


def _read_inputs(text: str) -> Iterator[Shape]:
    for part in (part.strip() for part in text.split(",") if part.strip()):
        found = re.fullmatch(r"(scalar|\d+(?:x\d+)*)(?:\*(\d+))?", part)
        sizes = () if found is None or found[1] == "scalar" else tuple(map(int, found[1].split("x")))
        if found is None or 0 in sizes or not 1 <= int(found[2] or 1) <= _MOST_INPUTS:
            raise OptionError(
                f"input {part!r} is no shape; give sizes and how many there are of it, at most {_MOST_INPUTS}, as in "
                "2x4*3, or scalar"
            )
        yield from [sizes] * int(found[2] or 1)


_MOST_INPUTS = 8


def describe(shapes: Iterable[Shape]) -> str:
    """Shapes in the notation of :func:`read_vocabulary`."""
    counts: dict[Shape, int] = {}
    for shape in shapes:
        counts[shape] = counts.get(shape, 0) + 1
    named = {shape: "x".join(map(str, shape)) or "scalar" for shape in counts}
    return ",".join(named[shape] + (f"*{count}" if count > 1 else "") for shape, count in counts.items())
