"""Products of whole numbers with scales: cuDNN sums products of int8 in int32, and a kernel of ours brings the sums to
the scale of what reads them.

Filters are constant, and lie as int8 around their zero point. Images of uint8 are moved down by 128. Where zero then is
another number than 0 the padding is written out, since cuDNN pads with zeros; and as many times the sum of each filter
is taken off the sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from iossim.backends.cupy_cudnn.element_kernels import Operands, as_it_is, chain, literal, rounded
from iossim.backends.cupy_cudnn.op_calls import OP_CALLS
from iossim.backends.cupy_cudnn.product_kernels import product
from iossim.backends.cupy_cudnn.reduction_kernels import reduction
from iossim.backends.cupy_cudnn.unit_calls import POINTWISE, SCRATCH
from iossim.backends.cupy_cudnn.unit_chains import UnitChains
from iossim.backends.cupy_cudnn.views import View, dense
from iossim.execution.backend import BackendError
from iossim.ir.graph import Node
from iossim.ir.op import Array, Op
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.quantize import DynamicQuantize, IntegerConv, IntegerMatMul, QuantizedConv, QuantizedMatMul, along
from iossim.ir.types import DType, TensorType

#: Names of a product's factor and of its zero point; None for none.
_Factor = tuple[str, str | None]
QUANTISED = (DynamicQuantize, IntegerConv, IntegerMatMul, QuantizedConv, QuantizedMatMul)
#: By how much numbers of each type are moved to be of int8.
_SHIFTS = {DType.INT8: 0, DType.UINT8: 128}


@OP_CALLS.register(*QUANTISED)
def quantised_op(calls: UnitChains, node: Node, op: Op) -> None:
    """A product of whole numbers, or a quantisation by a tensor's own range.

    Raises BackendError for filters that are no constants, or are not of 8 bits around their zero point.
    """
    factors: tuple[_Factor, _Factor]
    scales, bias = list[str](), list[str]()
    match op:
        case QuantizedConv() | QuantizedMatMul():
            x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, *bias = node.inputs
            factors, scales = ((x, x_zero), (w, w_zero)), [x_scale, w_scale, y_scale, y_zero]
        case IntegerMatMul() | IntegerConv():
            x, w, *zeros = node.inputs
            factors = (x, zeros[0] if zeros else None), (w, zeros[1] if len(zeros) > 1 else None)
        case _:
            _quantised_by_range(calls, node)
            return
    of_type = calls.graph.output_types(node)[0]
    rank = len(of_type.shape)
    if isinstance(op, QuantizedConv | IntegerConv):
        sums, operands = _convolved(calls, op.product, of_type.shape, *factors, *bias)
    else:
        sums, operands = _sums(calls, *factors[0], *factors[1])
    if scales:  # sums in units of two scales, brought to units of a third around a zero point
        one, other, out, zero = (operands.symbol(calls.view(name).along(1, rank)) for name in scales)
        sums = rounded(f"(float)({sums}) * ({one} * {other} / {out})", zero, of_type.dtype)
    (computed, _), value = calls.after(node, operands.views[1:], sums)
    calls.calls.append(chain(computed.expression, [operands.views[0], *computed.operands], calls.target(value)))


def _convolved(
    calls: UnitChains, op: Conv, size: tuple[int, ...], x: _Factor, w: _Factor, bias: str | None = None
) -> tuple[str, Operands]:
    """A convolution around the zero points, to images of a size: an expression in int32, and its operands."""
    image, x_zero = calls.view(x[0]), x[1]
    shift = _shift(image)
    _check_constants(calls, x_zero, bias)
    zero = (0 if x_zero is None else int(calls.weights.number(x_zero))) - shift
    if zero and any(op.pads):
        image, op = _as_int8(calls, image, op.pads, zero), replace(op, pads=(0,) * len(op.pads))
    elif shift:
        image = _as_int8(calls, image)
    filters, shape = _around_zero(calls, *w), calls.graph.types[w[0]].shape
    made = calls.scratch(size, DType.INT32, last=True)
    around = calls.weights.form(f"around zero: {w[0]} {w[1]}", TensorType(shape, DType.INT8), filters)
    calls.sum_products(op, image, around, made)
    operands = Operands()
    sums = operands.symbol(made)
    if not zero and bias is None:
        return sums, operands

    def added() -> Array:
        own = 0 if bias is None else calls.weights.load(bias).astype(np.int64)
        found: Array = own - zero * filters().astype(np.int64).reshape(shape[0], -1).sum(axis=1)
        return found

    of_type = TensorType((shape[0],), DType.INT32)
    constant = calls.weights.form(f"added {zero}: {w[0]} {w[1]} {bias}", of_type, added)
    return f"{sums} + {operands.symbol(constant.along(1, len(shape)))}", operands


def _sums(calls: UnitChains, a: str, a_zero: str | None, b: str, b_zero: str | None) -> tuple[str, Operands]:
    """The product of (stacks of) matrices around their zero points: an expression in int32, and what is in it."""
    left, right = calls.view(a), calls.graph.types[b].shape
    if len(left.shape) < 2 or len(right) < 2:
        raise BackendError("no kernel multiplies vectors; give them as matrices of one row or column")
    operands = Operands()
    if len(right) > 2 or not calls.weights.knows(b):
        one, other = _around(calls, a, a_zero), _around(calls, b, b_zero)
        stack = np.broadcast_shapes(left.shape[:-2], right[:-2])
        made = calls.scratch((*stack, left.shape[-2], right[-1]), DType.INT32)
        calls.calls.append(product(one, other, made))
        return operands.symbol(made), operands
    matrix = _around_zero(calls, b, b_zero)
    rows, columns = math.prod(left.shape[:-1]), right[-1]
    x = calls.flat(left, (rows, right[0]))
    x = _as_int8(calls, x) if _shift(x) else x
    filters = TensorType((columns, right[0], 1, 1), DType.INT8)
    w = calls.weights.form(f"around zero, transposed: {b} {b_zero}", filters, lambda: matrix().T.reshape(filters.shape))
    flat = calls.scratch((rows, columns), DType.INT32)
    images = [view.with_ones((*view.shape, 1, 1)) for view in (x, flat)]
    calls.sum_products(POINTWISE, images[0], w, images[1])
    made = dense(SCRATCH, (*left.shape[:-1], columns), flat.offset, DType.INT32)
    sums, shift = operands.symbol(made), _shift(left)
    if a_zero is None and not shift:
        return sums, operands
    column_sums = calls.weights.form(
        f"column sums: {b} {b_zero}", TensorType((columns,), DType.INT32), lambda: matrix().astype(np.int64).sum(axis=0)
    )
    zero = "0" if a_zero is None else f"(int){operands.symbol(calls.view(a_zero).with_ones(()))}"
    return f"{sums} + ({shift} - {zero}) * {operands.symbol(column_sums)}", operands


def _quantised_by_range(calls: UnitChains, node: Node) -> None:
    x = calls.read(node)
    y, scale, zero = (calls.target(name) for name in node.outputs)
    ends = [_extreme(calls, function, x) for function in ("max", "min")]
    exact = calls.scratch((), DType.FLOAT32)
    span = "(fmaxf(a0, 0.0f) - fminf(a1, 0.0f)) / 255.0f"
    calls.calls.append(chain(f"({span} == 0.0f ? 1.0f : {span})", ends, exact))
    calls.calls.append(chain(rounded("-fminf(a0, 0.0f) / a1", "0.0f", DType.UINT8), [ends[1], exact], zero))
    calls.calls.append(chain(rounded("a0 / a1", "a2", DType.UINT8), [x, exact, zero], y))
    calls.copy(exact, scale)


def _extreme(calls: UnitChains, function: str, view: View) -> View:
    """The largest element, or the least: of each row first, where a block of threads works for each, then of all."""
    for axes in ([len(view.shape) - 1], list(range(len(view.shape) - 1))):
        made = calls.scratch([1 if axis in axes else size for axis, size in enumerate(view.shape)], view.dtype)
        calls.calls.append(reduction(function, as_it_is(view), made, axes))
        view = made
    return view.with_ones(())


def _as_int8(calls: UnitChains, x: View, pads: Sequence[int] = (), padding: int = 0) -> View:
    """Images, or rows, as int8 with channels last, and with ``padding`` around them where there are ``pads``."""
    rank = len(x.shape) - 2
    before, after = pads[:rank] or (0,) * rank, pads[rank:] or (0,) * rank
    sizes = [low + size + high for low, size, high in zip(before, x.shape[2:], after, strict=True)]
    whole = inner = calls.scratch((*x.shape[:2], *sizes), DType.INT8, last=True)
    if any(pads):
        calls.calls.append(chain(literal(padding), [], whole))
        for axis in range(rank):
            inner = inner.part(2 + axis, before[axis], x.shape[2 + axis])
    calls.calls.append(chain(f"a0 - {literal(_shift(x))}", [x], inner))
    return whole


def _around(calls: UnitChains, value: str, zero: str | None) -> View:
    """A value less its zero point, in int32."""
    x = calls.view(value)
    made, moved = calls.scratch(x.shape, DType.INT32), [] if zero is None else [calls.view(zero).with_ones(())]
    calls.calls.append(chain(" - ".join(("a0", "a1")[: 1 + len(moved)]), [x, *moved], made))
    return made


def _around_zero(calls: UnitChains, weight: str, zero: str | None) -> Callable[[], Array]:
    """Function that loads a constant less its zero point, which is one number or one for each filter."""
    _check_constants(calls, weight, zero)

    def load() -> Array:
        whole = calls.weights.load(weight).astype(np.int32)
        found: Array = whole if zero is None else whole - along(calls.weights.load(zero), 0, whole.ndim)
        if found.size and not -128 <= found.min() <= found.max() <= 127:
            raise BackendError(
                f"{weight!r} less its zero point is {found.min()} to {found.max()}, which int8 does not hold; "
                "quantise it symmetrically, or use `backend` onnxruntime_cpu"
            )
        return found.astype(np.int8)

    return load


def _check_constants(calls: UnitChains, *names: str | None) -> None:
    for name in names:
        if name is not None and not calls.weights.knows(name):
            raise BackendError(f"{name!r} is computed at run time; give a constant, or use `backend` onnxruntime_cpu")


def _shift(x: View) -> int:
    if x.dtype not in _SHIFTS:
        raise BackendError(f"multiplies {x.dtype}, and only int8 and uint8 can be; use `backend` onnxruntime_cpu")
    return _SHIFTS[x.dtype]
