"""Products with weights of 4 or 8 bits: a kernel of ours for few rows, or the weight dequantised before a library; and
products of fp8, which a library multiplies dequantised, constants once.

A weight lies column by column, so that a thread loads 16 bytes of one at a time. For few rows a block makes a few
columns of the result: its threads share the columns' lengths, multiply what they load on FP32 lanes, scale each block
of weights once, and combine sums in an order that is always the same. For more rows the weight is dequantised into
scratch in each run. Which way is faster is timed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from iossim.backends.cupy_cudnn.convolution import ConvolutionCall
from iossim.backends.cupy_cudnn.element_kernels import Computed, chain, functions_of
from iossim.backends.cupy_cudnn.kernel_text import ACCESS_BYTES, access_width, filled, kernel, value_name
from iossim.backends.cupy_cudnn.op_calls import OP_CALLS
from iossim.backends.cupy_cudnn.reduction_kernels import WARP
from iossim.backends.cupy_cudnn.unit_chains import UnitChains
from iossim.backends.cupy_cudnn.views import Argument, KernelCall, View
from iossim.execution.backend import BackendError
from iossim.hardware.lowering.gpu.families.matrix_product import columns_together
from iossim.ir.graph import Node
from iossim.ir.op import Array
from iossim.ir.ops.quantize import Dequantised, Dequantize, DequantizedMatMul, ScaledConv, ScaledMatMul
from iossim.ir.types import FP8, DType, TensorType

#: The most threads of a block.
_MOST_THREADS = 128
#: W numbers of BITS that one access moves, less a zero point: 2 ** 23 and a number are the bits of a float.
_UNPACK = """static __device__ inline void unpack(float (&to)[W], const unsigned char* from, float zero) {
    const pack<unsigned char, W * BITS / 8> found = *(const pack<unsigned char, W * BITS / 8>*)from;
    #pragma unroll
    for (int i = 0; i < W; ++i) {
        const int number = found.at[i * BITS / 8] >> (i * BITS % 8) & ((1 << BITS) - 1);
        to[i] = __int_as_float(0x4b000000 | number) - (8388608.0f + zero);
    }
}
"""
_FEW_ROWS = """__shared__ float shared[R * C][T / WARP];
const int first = blockIdx.x * C;
float sums[R][C] = {};
for (int k = threadIdx.x * W; k < K; k += T * W) {
    #pragma unroll
    for (int c = 0; c < C; ++c) {
        if (first + c >= N) break;
        const long long block = (long long)(first + c) * BLOCKS + k / BLOCK;
        float weights[W];
        unpack(weights, w + ((long long)(first + c) * K + k) / (8 / BITS), $ZERO);
        #pragma unroll
        for (int r = 0; r < R; ++r) {
            float part = 0.0f, found[W];
            take<X>(found, a + (long long)r * a_row + k);
            #pragma unroll
            for (int i = 0; i < W; ++i) part += found[i] * weights[i];
            sums[r][c] += part * scale[block];
        }
    }
}
#pragma unroll
for (int e = 0; e < R * C; ++e) {
    float part = sums[e / C][e % C];
    for (int other = WARP / 2; other > 0; other /= 2) part += __shfl_xor_sync(0xffffffffu, part, other);
    shared[e][threadIdx.x / WARP] = part;
}
__syncthreads();
for (int e = threadIdx.x; e < R * C; e += T) {
    const int row = e / C, column = first + e % C;
    if (column >= N) continue;
    float a0 = 0.0f;
    for (int warp = 0; warp < T / WARP; ++warp) a0 += shared[e][warp];
    $NAMED
    *($y) = $RESULT;
}
"""
_DEQUANTISE = """const long long block = (long long)column * BLOCKS + chunk * W / BLOCK;
const float by = scale[block];
float weights[W];
unpack(weights, w + ((long long)column * K + chunk * W) / (8 / BITS), $ZERO);
y_t made[W];
#pragma unroll
for (int i = 0; i < W; ++i) made[i] = weights[i] * by;
put<X>($y, made);
"""


class _Stored:
    """A weight with its scales and zero points on the device, each column by column."""

    def __init__(self, calls: UnitChains, node: Node, op: DequantizedMatMul) -> None:
        _, weight, scale, *zero = node.inputs
        if not all(map(calls.weights.knows, node.inputs[1:])):
            raise BackendError(f"the weight {weight!r} is computed at run time; give a constant")
        of_type = calls.graph.types[weight]
        (self.inner, self.columns), bits = of_type.shape, of_type.dtype.bits
        self.width = math.gcd(ACCESS_BYTES * 8 // bits, self.inner, op.block)
        if self.width * bits % 8:
            raise BackendError(f"no kernel reads odd blocks of {weight!r}; use `backend` onnxruntime_cpu")
        middle = 0 if of_type.dtype in (DType.UINT4, DType.UINT8) else 1 << bits - 1

        def turned(name: str) -> Array:
            array: Array = calls.weights.load(name).T
            return array if name == scale else (array.astype(np.int16) + middle).astype(np.uint8)

        def packed() -> Array:
            numbers = turned(weight)
            return numbers if bits == 8 else numbers[:, ::2] | numbers[:, 1::2] << np.uint8(4)

        def form(name: str, columns: int, dtype: DType, make: Callable[[], Array]) -> View:
            return calls.weights.form(f"by column: {name}", TensorType((self.columns, columns), dtype), make)

        packed_columns = form(weight, self.inner * bits // 8, DType.UINT8, packed)
        self.read: dict[str, Argument | int] = {"const unsigned char* w": packed_columns}
        blocks = -(-self.inner // op.block)
        self.parameters = {"scale": form(scale, blocks, calls.graph.types[scale].dtype, lambda: turned(scale))}
        if zero:
            self.parameters["zero"] = form(zero[0], blocks, DType.UINT8, lambda: turned(zero[0]))
        self.zero = "zero[block]" if zero else f"{middle}.0f"
        self.constants = {"W": self.width, "BITS": bits, "K": self.inner, "BLOCKS": blocks, "BLOCK": op.block}

    def few_rows(self, a: View, y: View, after: Computed, together: int) -> KernelCall:
        """``y [rows, columns] = after(a [rows, inner] weight)``, a block for so many columns ``together``."""
        (rows, columns), behind = y.shape, {f"z{index}": view for index, view in enumerate(after.operands, 1)}
        views = {"y": y, "a": a, **self.parameters, **behind}
        named = " ".join(f"const {value_name(view.dtype)} a{name[1:]} = *(${name});" for name, view in behind.items())
        threads = min(_MOST_THREADS, -(-self.inner // (self.width * WARP)) * WARP)
        return kernel(
            "few_rows",
            filled(_FEW_ROWS, NAMED=named, RESULT=after.expression, ZERO=self.zero),
            views,
            {axis: [view.strides[at] for view in views.values()] for at, axis in enumerate(("row", "column"))},
            {"row": rows, "column": columns},
            constants={**self._constants(a), "R": rows, "C": together, "T": threads, "N": columns, "WARP": WARP},
            functions=_UNPACK + functions_of(after.expression),
            more=self.read,
            grid=("", -(-columns // together), threads),
        )

    def dequantised(self, y: View) -> KernelCall:
        """The weight as ``y [columns, inner]``, which is dense."""
        views = {"y": y, **self.parameters}
        steps = {"column": self.inner, "chunk": self.width}
        return kernel(
            "dequantise",
            filled(_DEQUANTISE, ZERO=self.zero),
            views,
            {axis: [step * (name == "y") for name in views] for axis, step in steps.items()},
            {"column": self.columns, "chunk": self.inner // self.width},
            constants=self._constants(y),
            functions=_UNPACK,
            more=self.read,
        )

    def _constants(self, rows: View) -> dict[str, int]:
        """Sizes, and how many neighbours one access moves of ``rows``."""
        width = access_width(rows, (rows.strides[0], self.width, rows.strides[1]))
        return {**self.constants, "X": math.gcd(width, self.width)}


@OP_CALLS.register(DequantizedMatMul)
def dequantised_product(calls: UnitChains, node: Node, op: DequantizedMatMul) -> None:
    """The product in the ways that its number of rows allows; one with a weight of fp8 has a library's alone.

    Raises BackendError for a weight that is no constant, or whose blocks are odd.
    """
    if calls.graph.types[node.inputs[1]].dtype in FP8 and all(map(calls.weights.knows, node.inputs[1:])):
        return product_of_numbers(calls, node, op)
    stored = _Stored(calls, node, op)
    epilogue, value = calls.after(node)
    y = calls.target(value)
    epilogue = epilogue.moved(lambda view: view.broadcast(y.shape))
    rows = y.elements // stored.columns
    with calls.written_as(y, (rows, stored.columns)) as flat:
        epilogue = epilogue.moved(lambda view: calls.flat(view, flat.shape))
        a = calls.flat(calls.read(node), (rows, stored.inner))
        a = a if a.strides[1] == 1 else calls.dense_copy(a)
        wide = calls.scratch((stored.columns, stored.inner), a.dtype)
        first = stored.dequantised(wide)
        calls.multiply(a, wide.permuted((1, 0)), flat, epilogue)
        product = calls.calls.pop()
        ours = {
            f"few_rows{together}": (stored.few_rows(a, flat, epilogue.computed, together),)
            for together in columns_together(rows)
        }
        if isinstance(product, ConvolutionCall):
            after = {name: (first, *steps) for name, steps in product.ways.items()}
            calls.calls.append(replace(product, ways={**ours, **after}))
        else:
            calls.calls += next(iter(ours.values()), (first, product))


@OP_CALLS.register(ScaledMatMul, ScaledConv)
def product_of_numbers(calls: UnitChains, node: Node, op: Dequantised) -> None:
    """The product of the numbers that the operands stand for."""
    (made,) = calls.graph.output_types(node)

    def number(each: Dequantize, stored: Sequence[str]) -> str:
        name, of_type = f"{each.signature}: {stored}", replace(calls.graph.types[stored[0]], dtype=made.dtype)

        def constant() -> Array:
            return each.evaluate([calls.weights.load(value) for value in stored])[0]

        if all(map(calls.weights.knows, stored)):
            calls.values[name] = calls.weights.form(name, of_type, constant)
        else:
            calls.values[name] = calls.scratch(of_type.shape, of_type.dtype)
            by = calls.view(stored[1]).along(each.axis, len(of_type.shape))
            calls.calls.append(chain("a0 * a1", [calls.view(stored[0]), by], calls.values[name]))
        return name

    x, w, *bias = map(calls.view, op.plain(node.inputs, number))
    bias = [view.along(1, len(made.shape)) for view in bias]
    epilogue, value = calls.after(node, bias)
    y = calls.target(value)
    if isinstance(op, ScaledConv):
        calls.convolve(op.product, x, w, y, epilogue)
    elif len(w.shape) > 2:
        calls.multiply(x, w, y, epilogue)
    else:
        epilogue, rows = epilogue.moved(lambda view: view.broadcast(y.shape)), y.elements // w.shape[1]
        with calls.written_as(y, (rows, w.shape[1])) as flat:
            epilogue = epilogue.moved(lambda view: calls.flat(view, flat.shape))
            calls.multiply(calls.flat(x, (rows, w.shape[0])), w, flat, epilogue)
