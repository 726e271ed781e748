"""Stacks of matrix products in fp32, to the last bit of it, and of whole numbers.

cuDNN multiplies stacks on tensor cores only: an H200 gave TF32's digits where fp32 was asked for, or no plan at all.
A thread computes one element; neighbours read neighbouring columns. That is far from the peak, but whoever asks for
products in plain fp32 asks for their digits.
"""

from __future__ import annotations

from iossim.backends.cupy_cudnn.kernel_text import kernel
from iossim.backends.cupy_cudnn.views import KernelCall, View, coalesced, over_threads
from iossim.ir.types import DType

_BODY = """if ($place >= count) return;
$places
const a_t* left = a + STACK_a + (long long)row * a_row;
const b_t* right = b + STACK_b + (long long)column * b_column;
sum_t sum = 0;
for (int k = 0; k < depth; ++k) sum += (sum_t)left[(long long)k * a_column] * (sum_t)right[(long long)k * b_row];
*($y) = sum;
"""


def product(a: View, b: View, y: View) -> KernelCall:
    """``y [..., M, N] = a [..., M, K] b [..., K, N]``; stacks are broadcast by NumPy's rules.

    Sums are of int32 where ``y`` is, else of fp32. Raises BackendError for more elements than a kernel
    counts.
    """
    stack = y.shape[:-2]
    views = {"a": a.broadcast((*stack, *a.shape[-2:])), "b": b.broadcast((*stack, *b.shape[-2:])), "y": y}
    sizes, strides = coalesced(stack, [view.strides[:-2] for view in views.values()])
    names = [*(f"s{axis}" for axis in range(len(sizes))), "row", "column"]
    steps = zip(*([*own, *view.strides[-2:]] for own, view in zip(strides, views.values(), strict=True)), strict=True)
    body = _BODY
    for name in "ab":
        body = body.replace(f"STACK_{name}", " + ".join(f"(long long){axis} * {name}_{axis}" for axis in names[:-2]))
    text, arguments = kernel(
        "product",
        body,
        views,
        dict(zip(names, steps, strict=True)),
        dict(zip(names, (*sizes, *y.shape[-2:]), strict=True)),
        numbers={"depth": a.shape[-1]},
        functions=f"typedef {'int' if y.dtype is DType.INT32 else 'float'} sum_t;\n",
    )
    return over_threads(text, "product", y.elements, arguments)
