"""Element-wise kernels: chains of element-wise ops, and copies of all kinds, written for each chain.

A chain is an expression in its operands, ``fmaxf(a0 + a1, 0.0f)`` say, computed for every element of one output.
Operands are views of any strides, so that one generator serves sums, activations, batch normalisation, terms of a
concat written to their place, slices, transpositions and broadcasts. Axes are walked in the order in which the output
lies, and those that all operands step through alike are merged, so that what is dense is walked by a single index. The
text depends on expression, element types and number of axes alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from iossim.backends.cupy_cudnn.element_functions import BODIES, OF_TWO, WHOLE, called, functions_of, of_two
from iossim.backends.cupy_cudnn.element_types import NAMES, definitions, element_name, value_name
from iossim.backends.cupy_cudnn.views import KernelCall, View, coalesced, int32s, over_elements
from iossim.execution.backend import BackendError
from iossim.ir.op import Op
from iossim.ir.ops.nary import Add, Mul, Nary, PRelu, Where
from iossim.ir.ops.normalization import BatchNorm
from iossim.ir.ops.unary import Cast, Clip, Relu, Sigmoid, Unary
from iossim.ir.types import DType

NAME = "chain"
#: The only operand of a copy.
COPY = "a0"


class Operands:
    """The operands of a chain so far, each of which has a symbol in its expression."""

    def __init__(self) -> None:
        self.views: list[View] = []

    def symbol(self, view: View) -> str:
        if view not in self.views:
            self.views.append(view)
        return f"a{self.views.index(view)}"


def chain(expression: str, operands: Sequence[View], output: View) -> KernelCall:
    """``expression`` in ``a0``, ``a1``, ... (the broadcast operands) for each element of ``output``."""
    views = [output, *(operand.broadcast(output.shape) for operand in operands)]
    order = sorted(range(len(output.shape)), key=lambda axis: -abs(output.strides[axis]))
    sizes, strides = coalesced([output.shape[a] for a in order], [[view.strides[a] for a in order] for view in views])
    arguments = (
        np.uint32(output.elements),
        *(np.uint32(size) for size in sizes[1:]),
        *(item for view, steps in zip(views, strides, strict=True) for item in (view, *int32s(steps))),
    )
    source = _source(expression, tuple(view.dtype for view in views), len(sizes))
    return over_elements(source, NAME, output.elements, arguments)


def copy(source: View, target: View) -> KernelCall:
    """Each element of ``source`` to the same place of ``target``, which has its shape."""
    return chain(COPY, [source], target)


def op_expression(op: Op, operands: Sequence[str], whole: bool = False) -> str | None:
    """The value of an element-wise op from those of its operands; None for an op of another kind.

    ``whole`` says that operands are of 32 or 64 bits, which no float holds. Batch normalisation takes its multiplier
    and shift as operands, not its four vectors.
    """
    match op:
        case Add():
            return "(" + " + ".join(operands) + ")"
        case Mul():
            return "(" + " * ".join(operands) + ")"
        case BatchNorm():
            value, multiplier, shift = operands
            return f"({value} * {multiplier} + {shift})"
        case Cast() if DType(op.dtype).is_floating:  # rounded where it is written
            return operands[0]
        case Cast():
            return f"({operands[0]} != 0)" if op.dtype == DType.BOOL else f"(({NAMES[DType(op.dtype)]}){operands[0]})"
        case Where():
            return "({} ? {} : {})".format(*operands)
        case PRelu():
            return "({0} < 0.0f ? {1} * {0} : {0})".format(*operands)
        case Nary():
            return of_two(op.function, operands, whole)
        case Relu() | Clip() | Sigmoid() | Unary():
            return activation(op, operands[0])
        case _:
            return None


def is_computed(op: Op, inputs: Sequence[DType], output: DType) -> bool:
    """Whether kernels compute an element-wise op of these types: of floats, and what is exact of whole numbers."""
    match op:
        case Cast():
            return {*inputs, output} <= NAMES.keys()
        case Add() | Mul() | Where():
            exact = True
        case Nary():
            exact = op.function in WHOLE
        case _:
            exact = False
    if isinstance(op, Nary | Unary) and op.function not in (OF_TWO if isinstance(op, Nary) else BODIES):
        return False
    as_floats = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.BOOL)
    whole = (DType.INT32, DType.INT64) if exact else (DType.INT8, DType.UINT8) if isinstance(op, Relu) else ()
    return all(each in (*as_floats, *whole) for each in inputs)


def rounded(value: str, zero: str, dtype: DType) -> str:
    """A value in units of a scale as a whole number of a type: rounded (ties to even), moved by the zero, and clipped.

    As :func:`iossim.ir.ops.quantize.quantised`.
    """
    limits = np.iinfo(dtype.numpy_name)
    return f"fminf(fmaxf(rintf({value}) + {zero}, {literal(limits.min)}), {literal(limits.max)})"


def activation(op: Op, value: str) -> str:
    """The value of an op of one operand; raises BackendError for one that is no activation known here."""
    match op:
        case Relu():
            return f"fmaxf({value}, 0.0f)"
        case Clip():
            if op.minimum is not None:
                value = f"fmaxf({value}, {literal(op.minimum)})"
            return value if op.maximum is None else f"fminf({value}, {literal(op.maximum)})"
        case Sigmoid():
            return f"(1.0f / (1.0f + expf(-{value})))"
        case Unary():
            return called(op.function, value, [literal(parameter) for parameter in op.parameters])
        case _:
            raise BackendError(f"no kernel computes {op.kind}; fold or replace it")


def literal(value: float) -> str:
    """A number as C++ spells an fp32 constant."""
    number = np.float32(value)
    if not np.isfinite(number):
        return f"({'-' if number < 0 else ''}__int_as_float(0x7f800000))"
    text = np.format_float_scientific(number, unique=True, trim="0")
    return f"({text}f)"


@cache
def _source(expression: str, dtypes: tuple[DType, ...], axes: int) -> str:
    """The kernel's text; ``dtypes`` are those of the output, then of the operands.

    Arguments: elements; sizes of all axes but the first; then address and strides of each.
    """
    # An epilogue works in place, so the output may be an operand: nothing is declared __restrict__.
    names = [element_name(dtype) for dtype in dtypes]
    pointers = [f"{'const ' if index else ''}{name}* p{index}" for index, name in enumerate(names)]
    parameters = ["unsigned int elements", *(f"unsigned int n{axis}" for axis in range(1, axes))]
    for index, pointer in enumerate(pointers):
        parameters += [pointer, *(f"int s{index}_{axis}" for axis in range(axes))]
    body = []
    for axis in range(axes - 1, 0, -1):
        body += [f"const long long i{axis} = rest % n{axis};", f"rest /= n{axis};"]
    body.append("const long long i0 = rest;")
    for index in range(1, len(dtypes)):
        steps = " + ".join(f"i{axis} * s{index}_{axis}" for axis in range(axes))
        body.append(f"const {value_name(dtypes[index])} a{index - 1} = p{index}[{steps}];")
    steps = " + ".join(f"i{axis} * s0_{axis}" for axis in range(axes))
    body.append(f"p0[{steps}] = {expression};")
    lines = "\n    ".join(body)
    before = definitions(dtypes) + functions_of(expression)
    return f"""{before}extern "C" __global__ void {NAME}({", ".join(parameters)}) {{
    unsigned int rest = blockIdx.x * blockDim.x + threadIdx.x;
    if (rest >= elements) return;
    {lines}
}}
"""
