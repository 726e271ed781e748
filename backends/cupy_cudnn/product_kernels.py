"""Stacks of matrix products in fp32, to the last bit of it, and of whole numbers.

cuDNN multiplies stacks on tensor cores only: an H200 gave TF32's digits where fp32 was asked for, or no plan at all.
A thread computes one element; neighbours read neighbouring columns. That is far from the peak, but whoever asks for
products in plain fp32 asks for their digits.
"""

from __future__ import annotations

import numpy as np

from iossim.backends.cupy_cudnn.element_types import typed
from iossim.backends.cupy_cudnn.views import MOST_ELEMENTS, Argument, KernelCall, View, coalesced, int32s
from iossim.execution.backend import BackendError
from iossim.ir.types import DType

THREADS = 256
STACK_AXES = 2

#: Arguments: elements of ``y``; the second size of the stack, rows, columns and depth; then ``a``, ``b`` and ``y``,
#: each with the strides of the two stack axes and of its own rows and columns.
_SOURCE = """extern "C" __global__ void product(unsigned int total, unsigned int stack1, unsigned int rows,
    unsigned int columns, int depth,
    const in_t* a, int a0, int a1, int ar, int ac, const in_t* b, int b0, int b1, int br, int bc,
    out_t* y, int y0, int y1, int yr, int yc) {
    const unsigned int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= total) return;
    unsigned int rest = index;
    const long long column = rest % columns; rest /= columns;
    const long long row = rest % rows; rest /= rows;
    const long long s1 = rest % stack1;
    const long long s0 = rest / stack1;
    const in_t* left = a + s0 * a0 + s1 * a1 + row * ar;
    const in_t* right = b + s0 * b0 + s1 * b1 + column * bc;
    sum_t sum = 0;
    for (int k = 0; k < depth; ++k) sum += (sum_t)left[(long long)k * ac] * (sum_t)right[(long long)k * br];
    y[s0 * y0 + s1 * y1 + row * yr + column * yc] = sum;
}
"""


def product(a: View, b: View, y: View) -> KernelCall:
    """``y [..., M, N] = a [..., M, K] b [..., K, N]``; stacks are broadcast by NumPy's rules.

    Sums are of int32 where ``y`` is, else of fp32. Raises BackendError for stacks whose strides are more than two, or
    for more elements than a kernel counts.
    """
    stack = y.shape[:-2]
    views = (a.broadcast((*stack, *a.shape[-2:])), b.broadcast((*stack, *b.shape[-2:])), y)
    sizes, strides = coalesced(stack, [view.strides[:-2] for view in views])
    if len(sizes) > STACK_AXES:
        raise BackendError("product takes stacks of two axes whose matrices are equally spaced; copy them first")
    if y.elements > MOST_ELEMENTS:
        raise BackendError(f"product makes at most {MOST_ELEMENTS} elements; take a smaller batch")
    missing = STACK_AXES - len(sizes)
    rows, columns = y.shape[-2:]
    counts = (y.elements, sizes[-1], rows, columns)
    arguments: list[Argument] = [*(np.uint32(count) for count in counts), np.int32(a.shape[-1])]
    for view, own in zip(views, strides, strict=True):
        arguments += [view, *int32s([*[0] * missing, *own, *view.strides[-2:]])]
    blocks = -(-y.elements // THREADS)
    sums = f"typedef {'int' if y.dtype is DType.INT32 else 'float'} sum_t;\n"
    return KernelCall(typed(sums + _SOURCE, a, y), "product", blocks, THREADS, tuple(arguments))
