"""Element-wise kernels: chains of element-wise ops, and copies of all kinds, written for each chain.

A chain is an expression in its operands, ``fmaxf(a0 + a1, 0.0f)`` say, computed for every element of one output.
Operands are views of any strides, so that one generator serves sums, activations, batch normalisation, terms of a
concat written to their place, slices, transpositions and broadcasts. Axes are walked in the order in which the output
lies, and those that all operands step through alike are merged, so that what is dense is walked by a single index. The
text depends on expression, element types and number of axes alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from iossim.backends.cupy_cudnn.element_functions import called, functions_of, of_two
from iossim.backends.cupy_cudnn.element_types import element_name
from iossim.backends.cupy_cudnn.kernel_text import (
    ENOUGH_THREADS,
    access_width,
    kernel_source,
    offset,
    place_arguments,
    place_lines,
    place_parameters,
)
from iossim.backends.cupy_cudnn.views import KernelCall, View, coalesced, int32s, over_elements
from iossim.execution.backend import BackendError
from iossim.ir.op import Op
from iossim.ir.ops.nary import Add, Mul, Nary
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


class Lookup(NamedTuple):
    """An axis of the output whose entry ``i`` is entry ``indices[i]`` of the first operand: dense, and of int32."""

    axis: int
    indices: View


def chain(expression: str, operands: Sequence[View], output: View, lookup: Lookup | None = None) -> KernelCall:
    """``expression`` in ``a0``, ``a1``, ... (the broadcast operands) for each element of ``output``."""
    views = [output, *(operand.broadcast(output.shape) for operand in operands)]
    order = sorted(range(len(output.shape)), key=lambda axis: -abs(output.strides[axis]))
    picked = [int(lookup is not None and axis == lookup.axis) for axis in order]  # keeps that axis apart
    walked = [[view.strides[axis] for axis in order] for view in views]
    sizes, (*strides, picked) = coalesced([output.shape[axis] for axis in order], [*walked, picked])
    looked = () if lookup is None else (operands[0].strides[lookup.axis],)
    most = [access_width(view, own) for view, own in zip(views, strides, strict=True)]
    if looked:
        most[1] = access_width(views[1], [*looked, *strides[1]])
    width = 1 if picked[-1] else most[0]
    while len(sizes) > 1 and sizes[-1] % width:
        width //= 2
    vectors = [*sizes[:-1], -(-sizes[-1] // width)]
    places = math.prod(vectors)
    widths = [
        1 if width == 1 else min(own, width) if steps[-1] == 1 else 0 if steps[-1] == 0 else -1
        for own, steps in zip(most, strides, strict=True)
    ]
    walk = Walk(
        tuple(f"i{axis}" for axis in range(len(sizes))),
        width,
        next((n for n in (4, 2) if n * len(operands) <= 4 and places >= n * ENOUGH_THREADS), 1),
        sizes[-1] % width > 0,
        None if lookup is None else f"look[i{picked.index(1)}]" if any(picked) else "look[0]",
    )
    arguments = (
        np.uint32(places),
        *place_arguments(vectors),
        np.int32(sizes[-1]),
        *(() if lookup is None else (lookup.indices, *int32s(looked))),
        *(item for view, own in zip(views, strides, strict=True) for item in (view, *int32s(own))),
    )
    source = _source(expression, tuple(view.dtype for view in views), tuple(widths), walk)
    return over_elements(source, NAME, output.elements, arguments, -(-places // walk.each))


def copy(source: View, target: View) -> KernelCall:
    """Each element of ``source`` to the same place of ``target``, which has its shape."""
    return chain(COPY, [source], target)


def gather(x: View, y: View, indices: View, axis: int) -> KernelCall:
    """``x`` at the flat ``indices`` along ``axis`` to ``y``, whose same axis has one entry an index."""
    return chain(COPY, [x.part(axis, 0, 1)], y, Lookup(axis, indices))


def op_expression(op: Op, operands: Sequence[str]) -> str | None:
    """The value of an element-wise op from those of its operands; None for an op of another kind.

    Batch normalisation takes its multiplier and shift as operands, not its four vectors.
    """
    match op:
        case Add():
            return "(" + " + ".join(operands) + ")"
        case Mul():
            return "(" + " * ".join(operands) + ")"
        case BatchNorm():
            value, multiplier, shift = operands
            return f"({value} * {multiplier} + {shift})"
        case Cast():  # rounded where it is written
            return operands[0]
        case Nary():
            return of_two(op.function, operands)
        case Relu() | Clip() | Sigmoid() | Unary():
            return activation(op, operands[0])
        case _:
            return None


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


class Walk(NamedTuple):
    """How a chain goes over its output: the names of its indices, elements of an access, accesses of a thread, whether
    the last access of a row is cut short, and the entry that a lookup finds.
    """

    axes: tuple[str, ...]
    width: int
    each: int
    is_cut: bool
    entry: str | None


@cache
def _source(expression: str, dtypes: tuple[DType, ...], widths: tuple[int, ...], walk: Walk) -> str:
    """The kernel's text; ``dtypes`` and ``widths`` are those of the output, then of the operands.

    An operand of width 0 is the same along the last axis, one of width -1 has gaps. Arguments: vectors, and how their
    places are taken apart; elements of the last axis; a lookup's indices, and the stride of what they pick; then
    address and strides of each.
    """
    # An epilogue works in place, so the output may be an operand: nothing is declared __restrict__, and a thread reads
    # everything before it writes.
    names = [element_name(dtype) for dtype in dtypes]
    is_copy = expression == COPY and dtypes[0] == dtypes[1]
    kinds = [name if is_copy else "int" if name == "int" else "float" for name in names]
    axes, width, last = walk.axes, walk.width, walk.axes[-1]
    parameters = ["unsigned int vectors", *place_parameters([*axes[:-1], "vector"]), "int length"]
    parameters += [] if walk.entry is None else ["const int* look", "int s_look"]
    declared, reads, values = "", "", ""
    for index, (name, own) in enumerate(zip(names, widths, strict=True)):
        parameters += [f"{'const ' if index else ''}{name}* p{index}", *(f"int s{index}_{axis}" for axis in axes)]
        if not index:
            continue
        to, at = f"v{index - 1}[u]", f"p{index} + {offset(f's{index}', axes)}"
        if index == 1 and walk.entry is not None:
            at += f" + (long long){walk.entry} * s_look"
        one_by_one = f"pick({to}, {at}, {f's{index}_{last}' if own else 0}{', left[u]' * walk.is_cut});\n"
        whole = f"take<{own}>({to}, {at});\n"
        reads += (
            one_by_one if own < 1 else f"if (left[u] == {width}) {whole}else {one_by_one}" if walk.is_cut else whole
        )
        declared += f"{kinds[index]} v{index - 1}[{walk.each}][{width}];\n"
        values += f"const {kinds[index]} a{index - 1} = v{index - 1}[u][e];\n"
    left = f"left[u] = length - {last} < {width} ? length - {last} : {width};\n" * walk.is_cut
    body = f"""const unsigned int first = blockIdx.x * blockDim.x * {walk.each} + threadIdx.x;
long long to[{walk.each}]; {f"int left[{walk.each}];" * walk.is_cut}
{declared}#pragma unroll
for (int u = 0; u < {walk.each}; ++u) {{
if (first + u * blockDim.x >= vectors) break;
{place_lines([*axes[:-1], "vector"], "first + u * blockDim.x")}const int {last} = vector * {width};
{left}to[u] = {offset("s0", axes)};
{reads}}}
#pragma unroll
for (int u = 0; u < {walk.each}; ++u) {{
if (first + u * blockDim.x >= vectors) break;
{names[0]} made[{width}];
#pragma unroll
for (int e = 0; e < {width}; ++e) {{
{values}made[e] = {expression};
}}
put<{widths[0]}>(p0 + to[u], made{", left[u]" * walk.is_cut});
}}
"""
    return kernel_source(NAME, dtypes, parameters, body, functions_of(expression))
