"""Kernels that order or number the elements of rows: the places of extremes, the largest in order, entries picked
element by element, and running sums.

Numbers are compared as whole numbers of the same order, in which every NaN is larger than all else, as NumPy has it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from iossim.backends.cupy_cudnn.element_types import element_name, typed
from iossim.backends.cupy_cudnn.views import Argument, KernelCall, View, coalesced, int32s, over_threads
from iossim.execution.backend import BackendError
from iossim.ir.ops.reduce import ArgExtreme, CumSum, TopK

_KEY = """static __device__ int key_of(float value) {
    const int bits = __float_as_int(value == 0.0f ? 0.0f : value != value ? __int_as_float(0x7fc00000) : value);
    return bits ^ ((bits >> 31) & 0x7fffffff);
}
"""
#: A thread for each element of each row; ``r0`` to ``r2`` say which row, ``i`` which of its elements.
_PLACE = """    unsigned int rest = blockIdx.x * blockDim.x + threadIdx.x;
    if (rest >= elements) return;
    const int i = rest % length; rest /= length;
    const long long r2 = rest % rows2; rest /= rows2;
    const long long r1 = rest % rows1, r0 = rest / rows1;
"""
_HEAD = "unsigned int elements, unsigned int length, unsigned int rows1, unsigned int rows2"


def _operand(kind: str, name: str) -> str:
    return f"{kind}* {name}, int {name}i, int {name}0, int {name}1, int {name}2"


def _row(name: str) -> str:
    return f"{name} + r0 * {name}0 + r1 * {name}1 + r2 * {name}2"


_X, _Y, _PLACES = _operand("const in_t", "x"), _operand("out_t", "y"), _operand("long long", "p")

#: Each element counts those before it, which is its place in order: the first ``count`` write themselves there.
TOP_K = f"""{_KEY}extern "C" __global__ void top_k({_HEAD}, int count, int flip, {_X}, {_Y}, {_PLACES}) {{
{_PLACE}    const in_t* from = {_row("x")};
    const int own = key_of(from[(long long)i * xi]) ^ flip;
    int place = 0;
    for (int j = 0; j < (int)length && place < count; ++j) {{
        const int other = key_of(from[(long long)j * xi]) ^ flip;
        place += other > own || (other == own && j < i);
    }}
    if (place >= count) return;
    ({_row("y")})[(long long)place * yi] = from[(long long)i * xi];
    ({_row("p")})[(long long)place * pi] = i;
}}
"""
#: A block for each row: threads look at every so manieth element, then halve their number as they compare.
ARG_EXTREME = f"""{_KEY}extern "C" __global__ void arg_extreme({_HEAD}, int flip, int last, {_X}, {_PLACES}) {{
    __shared__ int keys[256];
    __shared__ int places[256];
    unsigned int rest = blockIdx.x;
    const long long r2 = rest % rows2; rest /= rows2;
    const long long r1 = rest % rows1, r0 = rest / rows1;
    const in_t* from = {_row("x")};
    const int thread = threadIdx.x;
    int best = thread < (int)length ? thread : 0;
    int key = key_of(from[(long long)best * xi]) ^ flip;
    for (int j = thread; j < (int)length; j += blockDim.x) {{
        const int other = key_of(from[(long long)j * xi]) ^ flip;
        if (other > key || (other == key && last)) {{ key = other; best = j; }}
    }}
    keys[thread] = key; places[thread] = best;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {{
        if (thread < half) {{
            const int other = keys[thread + half], place = places[thread + half];
            key = keys[thread]; best = places[thread];
            if (other > key || (other == key && (last ? place > best : place < best))) {{
                keys[thread] = other; places[thread] = place;
            }}
        }}
        __syncthreads();
    }}
    if (thread == 0) *({_row("p")}) = places[0];
}}
"""
#: Negative indices count from the end, and none reaches outside.
PICK = f"""extern "C" __global__ void pick({_HEAD}, int size, {_operand("const index_t", "p")}, {_X}, {_Y}) {{
{_PLACE}    const long long given = ({_row("p")})[(long long)i * pi], entry = given < 0 ? given + size : given;
    ({_row("y")})[(long long)i * yi] = ({_row("x")})[(entry < 0 ? 0 : entry < size ? entry : size - 1) * xi];
}}
"""
#: A thread for each row.
CUMSUM = f"""extern "C" __global__ void cumsum({_HEAD}, int size, int step, int exclusive, {_X}, {_Y}) {{
{_PLACE}    const in_t* from = {_row("x")};
    out_t* to = {_row("y")};
    sum_t sum = 0;
    for (long long j = i + (step < 0 ? size - 1 : 0); 0 <= j && j < size; j += step) {{
        const sum_t before = sum;
        sum += from[j * xi];
        to[j * yi] = exclusive ? before : sum;
    }}
}}
"""


def top_k(op: TopK, x: View, y: View, places: View, axis: int) -> KernelCall:
    """The first ``op.count`` elements of ``x`` along an axis in order, and their places."""
    head, (of_x, of_y, of_places) = _by_rows((x, y, places), axis, x.shape[axis])
    arguments = (*head, np.int32(op.count), np.int32(0 if op.largest else -1), *of_x, *of_y, *of_places)
    return over_threads(typed(TOP_K, x, y), "top_k", x.elements, arguments)


def arg_extreme(op: ArgExtreme, x: View, places: View, axis: int) -> KernelCall:
    """The place of the largest or smallest of ``x`` along an axis, which has one element in ``places``."""
    head, (of_x, of_places) = _by_rows((x, places), axis, x.shape[axis])
    rows, threads = places.elements, 32
    while threads < min(256, x.shape[axis]):
        threads *= 2
    arguments = (*head, np.int32(-1 if op.smallest else 0), np.int32(op.last), *of_x, *of_places)
    return KernelCall(typed(ARG_EXTREME, x, places), "arg_extreme", rows, threads, arguments)


def pick(x: View, indices: View, y: View, axis: int) -> KernelCall:
    """``x`` at each of ``indices`` along an axis; on the others ``x`` begins with as many entries as they have."""
    for other, size in enumerate(indices.shape):
        x = x if other == axis else x.part(other, 0, size)
    head, (of_indices, of_x, of_y) = _by_rows((indices, x, y), axis, indices.shape[axis])
    source = f"typedef {element_name(indices.dtype)} index_t;\n{typed(PICK, x, y)}"
    return over_threads(source, "pick", y.elements, (*head, np.int32(x.shape[axis]), *of_indices, *of_x, *of_y))


def cumsum(op: CumSum, x: View, y: View, axis: int) -> KernelCall:
    """Running sums of ``x`` along an axis, in its own type where it has whole numbers."""
    head, (of_x, of_y) = _by_rows((x, y), axis, 1)
    source = f"typedef {'float' if x.dtype.is_floating else 'long long'} sum_t;\n{typed(CUMSUM, x, y)}"
    size = x.shape[axis]
    flags = int32s([size, -1 if op.reverse else 1, op.exclusive])
    return over_threads(source, "cumsum", y.elements // size, (*head, *flags, *of_x, *of_y))


def _by_rows(views: Sequence[View], axis: int, length: int) -> tuple[tuple[Argument, ...], list[tuple[Argument, ...]]]:
    """Arguments that say how many rows of ``length`` there are, and each view with its steps in and between them.

    Raises BackendError where rows are numbered by more than three axes.
    """
    others = [other for other in range(len(views[0].shape)) if other != axis]
    sizes, strides = coalesced(
        [views[0].shape[a] for a in others], [[view.strides[a] for a in others] for view in views]
    )
    if len(sizes) > 3:
        raise BackendError("no kernel orders rows that are numbered by more than three axes; copy them first")
    missing = 3 - len(sizes)
    sizes = [1] * missing + sizes
    head = tuple(np.uint32(size) for size in (length * int(np.prod(sizes)), length, *sizes[1:]))
    placed = zip(views, strides, strict=True)
    return head, [(view, *int32s([view.strides[axis], *[0] * missing, *own])) for view, own in placed]
