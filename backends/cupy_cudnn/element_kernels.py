"""Element-wise kernels: chains of element-wise ops, and copies of all kinds, written for each chain.

A chain is an expression in its operands, ``larger(a0 + a1, 0.0f)`` say, computed for every element of one output.
Operands are views of any strides, so that one generator serves sums, activations, batch normalisation, terms of a
concat written to their place, slices, transpositions and broadcasts. Axes are walked in the order in which the output
lies, and those that all operands step through alike are merged, so that what is dense is walked by a single index. The
text depends on expression, element types and number of axes alone.

A function of numbers is defined before the kernel that calls it, so that its argument, which may be a long expression,
is computed once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from iossim.backends.cupy_cudnn.kernel_text import (
    ENOUGH_THREADS,
    ENTRY,
    NAMES,
    access_width,
    element_name,
    kernel,
    read,
    value_name,
    widths_of,
)
from iossim.backends.cupy_cudnn.views import Argument, KernelCall, View, coalesced, spread
from iossim.execution.backend import BackendError
from iossim.ir.op import Op
from iossim.ir.ops.functions import Nary, Unary
from iossim.ir.ops.nary import Add, Mul, PRelu, Where
from iossim.ir.ops.normalization import BatchNorm
from iossim.ir.ops.unary import Cast, Clip, Relu, Sigmoid
from iossim.ir.types import FP8, DType

NAME = "chain"
#: The only operand of a copy.
COPY = "a0"
#: Functions that C++ names as iossim does.
_NAMED_ALIKE = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "exp", "floor", "log", "sin", "sinh",
    "sqrt", "tan", "tanh",
)  # fmt: skip
#: Functions of a number ``x`` and parameters ``p0`` and ``p1``, those of :mod:`iossim.ir.ops.unary`, as C++.
BODIES = {
    **{name: f"{name}f(x)" for name in _NAMED_ALIKE},
    "abs": "fabsf(x)",
    "celu": "larger(x, 0.0f) + smaller(p0 * expm1f(x / p0), 0.0f)",
    "elu": "x > 0.0f ? x : p0 * expm1f(x)",
    "erf": "erff(x)",
    "gelu": "0.5f * x * (1.0f + erff(x * 0.70710678f))",
    "gelu_tanh": "0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)))",
    "hard_sigmoid": "smaller(larger(p0 * x + p1, 0.0f), 1.0f)",
    "hard_swish": "x * smaller(larger(x / 6.0f + 0.5f, 0.0f), 1.0f)",
    "is_inf": "(x == __int_as_float(0x7f800000) && p1 != 0.0f) || (x == -__int_as_float(0x7f800000) && p0 != 0.0f)",
    "is_nan": "x != x",
    "leaky_relu": "x < 0.0f ? p0 * x : x",
    "mish": "x * tanhf(fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))))",
    "neg": "-x",
    "not": "x == 0.0f",
    "reciprocal": "1.0f / x",
    "round": "rintf(x)",
    "selu": "p1 * (x > 0.0f ? x : p0 * expm1f(x))",
    "shrink": "x < -p0 ? x + p1 : x > p0 ? x - p1 : 0.0f",
    "sign": "(float)(x > 0.0f) - (float)(x < 0.0f)",
    "softplus": "fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)))",
    "softsign": "x / (1.0f + fabsf(x))",
    "swish": "x / (1.0f + expf(-p0 * x))",
    "thresholded_relu": "x > p0 ? x : 0.0f",
}


def _to_fp8(most: str, least: str, bits: int) -> str:
    """The nearest number (ties to even) with so many ``bits`` after the point: steps of the power of two below it."""
    x = f"fminf(fmaxf(x, -{most}), {most})"
    step = f"__int_as_float((__float_as_int(fmaxf(fabsf({x}), {least})) & 0x7f800000) - ({bits} << 23))"
    return f"x != x ? x : rintf({x} / {step}) * {step}"


#: Those whose parameter is another number, ``x`` and ``p0`` as functions of two; those that are parts of ops; and
#: roundings to fp8.
_MORE = {
    DType.FLOAT8_E4M3FN.value: _to_fp8("448.0f", "0.015625f", 3),
    DType.FLOAT8_E5M2.value: _to_fp8("57344.0f", "0.00006103515625f", 2),
    "square": "x * x",
    "mod": "fmodf(x, p0) + ((x < 0.0f) != (p0 < 0.0f) && fmodf(x, p0) != 0.0f ? p0 : 0.0f)",
}
#: Those of :mod:`iossim.ir.ops.nary`, of two numbers, from left to right where there are more.
OF_TWO = {
    "sub": "({} - {})", "div": "({} / {})", "min": "smaller({}, {})", "max": "larger({}, {})", "pow": "powf({}, {})",
    "mean": "({} + {})", "mod": "of_mod({}, {})", "fmod": "fmodf({}, {})",
    "equal": "({} == {})", "less": "({} < {})", "less_or_equal": "({} <= {})", "greater": "({} > {})",
    "greater_or_equal": "({} >= {})", "and": "({} && {})", "or": "({} || {})", "xor": "(({} != 0) != ({} != 0))",
}  # fmt: skip
#: Those of whole numbers of 32 and 64 bits, which no float holds: as above, or as here.
WHOLE = {
    **{name: OF_TWO[name] for name in ("sub", "equal", "less", "less_or_equal", "greater", "greater_or_equal")},
    **{name: OF_TWO[name] for name in ("and", "or", "xor")},
    "div": "({1} == 0 ? 0 : {0} / {1})",
    "mod": "({1} == 0 ? 0 : ({0} % {1} + {1}) % {1})",
    "min": "({0} < {1} ? {0} : {1})",
    "max": "({0} < {1} ? {1} : {0})",
}


class Operands:
    """The operands of a chain so far, each of which has a symbol in its expression, from that of the ``first`` on."""

    def __init__(self, first: int = 0) -> None:
        self.views: list[View] = []
        self._first = first

    def symbol(self, view: View) -> str:
        if view not in self.views:
            self.views.append(view)
        return f"a{self._first + self.views.index(view)}"


class Computed(NamedTuple):
    """An expression in ``a0``, ``a1``, ..., elements of operands that are broadcast to one shape."""

    expression: str
    operands: tuple[View, ...]


#: The expression of a result ``a0`` without an epilogue.
AS_IT_IS = Computed(COPY, ())


def as_it_is(view: View) -> Computed:
    """Each element of a view."""
    return Computed(COPY, (view,))


class Lookup(NamedTuple):
    """An axis of the output whose entry ``i`` is entry ``indices[i]`` of the ``size`` of the first operand.

    The indices are dense.
    """

    axis: int
    indices: View
    size: int


def chain(expression: str, operands: Sequence[View], output: View, lookup: Lookup | None = None) -> KernelCall:
    """``expression`` in ``a0``, ``a1``, ... (the broadcast operands) for each element of ``output``."""
    views = [output, *(operand.broadcast(output.shape) for operand in operands)]
    order = sorted(range(len(output.shape)), key=lambda axis: -abs(output.strides[axis]))
    picked = [int(lookup is not None and axis == lookup.axis) for axis in order]  # keeps that axis apart
    walked = [[view.strides[axis] for axis in order] for view in views]
    sizes, (*strides, picked) = coalesced([output.shape[axis] for axis in order], [*walked, picked])
    looked = [] if lookup is None else [operands[0].strides[lookup.axis]]
    most = [access_width(view, own) for view, own in zip(views, strides, strict=True)]
    if looked:
        most[1] = access_width(views[1], [*looked, *strides[1]])
    width = 1 if picked[-1] else most[0]
    while len(sizes) > 1 and sizes[-1] % width:
        width //= 2
    vectors = [*sizes[:-1], -(-sizes[-1] // width)]
    places = math.prod(vectors)
    widths = widths_of(views, strides, width)
    if looked:
        widths[1] = min(widths[1], most[1])
    steps = [[*far, width * last] for *far, last in strides]
    looking: dict[str, Argument | int] = {}
    if lookup is not None:
        looking = {f"const {element_name(lookup.indices.dtype)}* look": lookup.indices}
        looking |= {"s_look": looked[0], "n_look": lookup.size}
    entry = "" if lookup is None else f"entry_at(look[{f'i{picked.index(1)}' if any(picked) else 0}], n_look)"
    each = next((n for n in (4, 2) if n * len(operands) <= 4 and places >= n * ENOUGH_THREADS), 1)
    return kernel(
        NAME,
        _body(expression, [view.dtype for view in views], widths, f"i{len(sizes) - 1}", sizes[-1] % width > 0, entry),
        {f"p{index}": view for index, view in enumerate(views)},
        {f"i{axis}": own for axis, own in enumerate(zip(*steps, strict=True))},
        {f"i{axis}": size for axis, size in enumerate(vectors)},
        constants={"W": width, "EACH": each},
        functions=functions_of(expression) + ENTRY * (lookup is not None),
        more={"length": sizes[-1]} | looking,
        grid=("first + u * blockDim.x", *spread(-(-places // each))),
    )


def copy(source: View, target: View) -> KernelCall:
    """Each element of ``source`` to the same place of ``target``, which has its shape."""
    return chain(COPY, [source], target)


def looked_up(x: View, indices: View, axis: int) -> tuple[View, Lookup]:
    """The first operand of a chain, and the lookup, by which it reads ``x`` at dense ``indices`` along ``axis``.

    Negative indices count from the end, and none reaches outside.
    """
    return x.part(axis, 0, 1), Lookup(axis, indices, x.shape[axis])


def op_expression(op: Op, operands: Sequence[str], whole: bool = False) -> str:
    """The value of an element-wise op from those of its operands; raises BackendError for an op of another kind.

    ``whole`` says that operands are of 32 or 64 bits, which no float holds. Batch normalisation takes its multiplier
    and shift as operands, not its four vectors.
    """
    match op:
        case Add() | Mul():
            return f"({(' + ' if isinstance(op, Add) else ' * ').join(operands)})"
        case BatchNorm():
            value, multiplier, shift = operands
            return f"({value} * {multiplier} + {shift})"
        case Cast() if DType(op.dtype).is_floating:  # rounded where it is written
            return operands[0]
        case Cast() if DType(op.dtype) in FP8:
            return called(op.dtype, operands[0])
        case Cast():
            return f"({operands[0]} != 0)" if op.dtype == DType.BOOL else f"(({NAMES[DType(op.dtype)]}){operands[0]})"
        case Where():
            return "({} ? {} : {})".format(*operands)
        case PRelu():
            return "({0} < 0.0f ? {1} * {0} : {0})".format(*operands)
        case Nary():
            return of_two(op.function, operands, whole)
        case Relu():
            return f"larger({operands[0]}, 0.0f)"
        case Clip():
            value = operands[0] if op.minimum is None else f"larger({operands[0]}, {literal(op.minimum)})"
            return value if op.maximum is None else f"smaller({value}, {literal(op.maximum)})"
        case Sigmoid():
            return f"(1.0f / (1.0f + expf(-{operands[0]})))"
        case Unary():
            return called(op.function, operands[0], [literal(parameter) for parameter in op.parameters])
        case _:
            raise BackendError(f"no kernel computes {op.kind}; fold or replace it")


def is_computed(op: Op, inputs: Sequence[DType], output: DType) -> bool:
    """True where kernels compute an element-wise op of these types: floats, and integers where that is exact."""
    if isinstance(op, Cast):
        return {*inputs, output} <= NAMES.keys()
    if isinstance(op, Nary | Unary) and op.function not in (OF_TWO if isinstance(op, Nary) else BODIES):
        return False
    exact = isinstance(op, Add | Mul | Where) or (isinstance(op, Nary) and op.function in WHOLE)
    as_floats = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.BOOL)
    whole = (DType.INT32, DType.INT64) if exact else (DType.INT8, DType.UINT8) if isinstance(op, Relu) else ()
    return all(each in (*as_floats, *whole) for each in inputs)


def rounded(value: str, zero: str, dtype: DType) -> str:
    """A value in units of a scale as a whole number of a type: rounded (ties to even), moved by the zero, and clipped.

    As :func:`iossim.ir.ops.quantize.quantised`; or as a number of fp8.
    """
    if dtype in FP8:
        return called(dtype, value)
    limits = np.iinfo(dtype.numpy_name)
    return f"fminf(fmaxf(rintf({value}) + {zero}, {literal(limits.min)}), {literal(limits.max)})"


def literal(value: float) -> str:
    """A number as C++ spells an fp32 constant."""
    number = np.float32(value)
    if not np.isfinite(number):
        return f"({'-' if number < 0 else ''}__int_as_float(0x7f800000))"
    text = np.format_float_scientific(number, unique=True, trim="0")
    return f"({text}f)"


def _body(expression: str, dtypes: Sequence[DType], widths: Sequence[int], last: str, is_cut: bool, entry: str) -> str:
    """A thread's EACH accesses of W elements: all are read before any is written.

    ``dtypes`` and ``widths`` are those of the output, then of the operands. One of width 0 is the same along the
    ``last`` axis, one of width -1 has gaps. The last access may be cut short, to those that are ``left``; ``entry`` is
    that of the first operand which a lookup finds. An epilogue works in place, so the output may be an operand, and
    nothing is declared __restrict__.
    """
    names = [element_name(dtype) for dtype in dtypes]
    is_copy = expression == COPY and dtypes[0] == dtypes[1]
    declared, reads, values = "", "", ""
    for index, (name, own) in enumerate(zip(names[1:], widths[1:], strict=True)):
        kind = name if is_copy else value_name(dtypes[index + 1])
        declared += f"{kind} v{index}[EACH][W];\n"
        values += f"const {kind} a{index} = v{index}[u][e];\n"
        at = f"$p{index + 1}{f' + (long long){entry} * s_look' * (entry != '' and not index)}"
        given = f"v{index}[u]", at, own, f"p{index + 1}_{last} / W"
        reads += f"if (left[u] == W) {read(*given)}else " * (is_cut and own > 0) + read(*given, "left[u]" * is_cut)
    left = f"left[u] = length - {last} * W < W ? length - {last} * W : W;\n"
    return f"""const unsigned int first = blockIdx.x * blockDim.x * EACH + threadIdx.x;
p0_t* to[EACH];
{"int left[EACH];" * is_cut}
{declared}#pragma unroll
for (int u = 0; u < EACH; ++u) {{
if ($place >= count) break;
$places
to[u] = $p0;
{left * is_cut}{reads}}}
#pragma unroll
for (int u = 0; u < EACH; ++u) {{
if ($place >= count) break;
p0_t made[W];
ELEMENTS {{
{values}made[e] = {expression};
}}
put<{widths[0]}>(to[u], made{", left[u]" * is_cut});
}}
"""


def called(name: str, value: str, parameters: Sequence[str] = ()) -> str:
    """A call of a function."""
    return f"of_{name}({', '.join([value, *parameters])})"


def of_two(name: str, values: Sequence[str], whole: bool = False) -> str:
    """A function of two numbers, or of two ``whole`` ones; from left to right."""
    found = values[0]
    for value in values[1:]:
        found = (WHOLE if whole else OF_TWO)[name].format(found, value)
    return f"({found} / {len(values)}.0f)" if name == "mean" else found


def functions_of(expression: str) -> str:
    """The definitions of all functions that an expression calls."""
    text = ""
    for name, body in (*sorted(BODIES.items()), *_MORE.items()):
        if f"of_{name}(" in expression:
            parameters = "".join(f", float {parameter}" for parameter in ("p0", "p1") if parameter in body)
            text += f"static __device__ float of_{name}(float x{parameters}) {{ return {body}; }}\n"
    return text
