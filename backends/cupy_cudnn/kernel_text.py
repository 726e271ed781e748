"""Text that kernels of ours are made of: places without a division, and accesses of up to 16 bytes.

A thread works on neighbours in memory, as many as one access moves. :func:`access_width` says how many that are: so
many that base, strides and size prove each access aligned, which is decided when the text is made. Threads count
places; a place is taken apart into indices by multiplication (Granlund and Montgomery 1994) with factors that are
arguments, so that one text serves all sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from iossim.backends.cupy_cudnn.element_types import definitions
from iossim.backends.cupy_cudnn.views import Scalar, View
from iossim.ir.types import DType

#: The most that a thread reads or writes at once.
ACCESS_BYTES = 16
#: Threads that keep a large GPU's memory busy (an H100 holds 270,336): where there would be more, each does more.
ENOUGH_THREADS = 2**16

_ACCESSES = """template <class T, int P> struct alignas(sizeof(T) * P) pack { T at[P]; };
template <int P, int N, class V, class T> static __device__ inline void take(V (&to)[N], const T* from) {
    #pragma unroll
    for (int i = 0; i < N; i += P) {
        const pack<T, P> found = *(const pack<T, P>*)(from + i);
        #pragma unroll
        for (int e = 0; e < P; ++e) to[i + e] = found.at[e];
    }
}
template <int N, class V, class T>
static __device__ inline void pick(V (&to)[N], const T* from, int step, int count = N) {
    #pragma unroll
    for (int e = 0; e < N; ++e) if (e < count) to[e] = from[(long long)e * step];
}
template <int P, int N, class T> static __device__ inline void put(T* to, const T (&from)[N], int count = N) {
    if (count < N) {
        for (int e = 0; e < N; ++e) if (e < count) to[e] = from[e];
        return;
    }
    #pragma unroll
    for (int i = 0; i < N; i += P) {
        pack<T, P> made;
        #pragma unroll
        for (int e = 0; e < P; ++e) made.at[e] = from[i + e];
        *(pack<T, P>*)(to + i) = made;
    }
}
static __device__ inline unsigned int quotient(unsigned int number, unsigned int factor, unsigned int shift) {
    return ((unsigned int)((unsigned long long)number * factor >> 32) + number) >> shift;
}
"""


def kernel_source(name: str, dtypes: Iterable[DType], parameters: Sequence[str], body: str, before: str = "") -> str:
    """A kernel of these parameters, whose operands are of these types; ``before`` it stand functions that it calls."""
    head = f'extern "C" __global__ void {name}({", ".join(parameters)}) {{\n'
    return definitions(dtypes) + _ACCESSES + before + head + body + "}\n"


def access_width(view: View, strides: Sequence[int]) -> int:
    """How many neighbours along the last of ``strides`` an aligned access moves; 1 where they are no neighbours.

    The other strides lead from ``view``'s first element to where accesses begin.
    """
    width = ACCESS_BYTES // view.dtype.bytes if strides[-1] == 1 else 1
    while any(number % width for number in (view.offset, *strides[:-1])):
        width //= 2
    return width


def access_widths(views: Sequence[View], strides: Sequence[Sequence[int]], size: int) -> tuple[int, list[int]]:
    """How many of ``size`` neighbours a thread takes of each view, and how many by one access of each.

    The last of the views is written, and by whole accesses.
    """
    own = [access_width(view, steps) for view, steps in zip(views, strides, strict=True)]
    width = own[-1] if all(steps[-1] == 1 for steps in strides) else 1
    while size % width:
        width //= 2
    return width, [min(width, each) for each in own]


def place_parameters(names: Sequence[str]) -> list[str]:
    """The parameters of :func:`place_lines`: size, factor and shift of each index but the outermost."""
    return [f"unsigned int {kind}_{name}" for name in names[1:] for kind in ("n", "factor", "shift")]


def place_lines(names: Sequence[str], rest: str) -> str:
    """The indices ``names``, outermost first, of place ``rest``."""
    lines = f"unsigned int rest = {rest}, over;\n"
    for name in reversed(names[1:]):
        lines += f"over = quotient(rest, factor_{name}, shift_{name});\n"
        lines += f"const int {name} = (int)(rest - over * n_{name}); rest = over;\n"
    return lines + f"const int {names[0]} = (int)rest;\n"


def place_arguments(sizes: Sequence[int]) -> tuple[Scalar, ...]:
    """The arguments of :func:`place_parameters`, for places below 2**31."""
    found: list[Scalar] = []
    for size in sizes[1:]:
        shift = (size - 1).bit_length()
        found += [np.uint32(size), np.uint32(((2**shift - size) << 32) // size + 1), np.uint32(shift)]
    return tuple(found)


def offset(strides: str, names: Sequence[str]) -> str:
    """How far a place is from the first: the sum of each index times its stride, ``STRIDES_NAME``."""
    return " + ".join(["0", *(f"(long long){name} * {strides}_{name}" for name in names)])
