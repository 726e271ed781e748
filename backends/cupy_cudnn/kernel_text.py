"""Text that kernels of ours are made of: a C++ type for each element type, places without a division, and accesses of
up to 16 bytes.

Floats of 16 and 8 bits are structures that turn into ``float`` where they are read; those of 16 are rounded to the
nearest (ties to even) where they are written. So a kernel's text is the same whatever its operands hold, and sums are
of fp32. Whole numbers of up to 16 bits are floats without loss; wider numbers stay what they are. CUDA's own headers
for such types are not used, since the run-time compiler's package does not bring them.

A thread works on neighbours in memory, as many as one access moves. :func:`access_width` says how many that are: so
many that base, strides and size prove each access aligned, which is decided when the text is made. Threads count
places; a place is taken apart into indices by multiplication (Granlund and Montgomery 1994) with factors that are
arguments, so that one text serves all sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from string import Template

import numpy as np

from iossim.backends.cupy_cudnn.views import Argument, KernelCall, View, coalesced, spread
from iossim.execution.backend import BackendError
from iossim.ir.types import FP8, DType

#: The name of each element type in kernels.
NAMES = {
    DType.FLOAT64: "double", DType.FLOAT32: "float", DType.FLOAT16: "half_t", DType.BFLOAT16: "bfloat_t",
    DType.INT64: "long long", DType.INT32: "int", DType.INT16: "short", DType.INT8: "signed char", DType.BOOL: "bool",
    DType.UINT64: "unsigned long long", DType.UINT32: "unsigned int", DType.UINT16: "unsigned short",
    DType.UINT8: "unsigned char", DType.FLOAT8_E4M3FN: "fp8_t<3, 7>", DType.FLOAT8_E5M2: "fp8_t<2, 15>",
}  # fmt: skip
#: Types that stay what they are while a kernel computes; all others are floats.
_WIDE = (DType.INT32, DType.UINT32, DType.INT64, DType.UINT64, DType.FLOAT64)

_HALF = """#ifndef HALF_TO_FLOAT
#define HALF_TO_FLOAT(value, bits) asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits))
#define FLOAT_TO_HALF(bits, value) asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value))
#endif
struct half_t {
    unsigned short bits;
    __device__ operator float() const { float value; HALF_TO_FLOAT(value, bits); return value; }
    __device__ half_t& operator=(float value) { FLOAT_TO_HALF(bits, value); return *this; }
};
"""
#: The upper half of a float: 0x7fff more than half a step is carried upwards, and the lowest bit of it makes ties even.
#: GPUs since Ampere have an instruction for it.
_BFLOAT = """struct bfloat_t {
    unsigned short bits;
    __device__ operator float() const { return __int_as_float((int)((unsigned int)bits << 16)); }
    __device__ bfloat_t& operator=(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
        const unsigned int all = (unsigned int)__float_as_int(value);
        bits = (unsigned short)(value != value ? 0x7fffu : (all + 0x7fffu + ((all >> 16) & 1u)) >> 16);
#endif
        return *this;
    }
};
"""
#: With M bits after the point. Times a power of two, the bits of a float begin with those of an fp8, be it small or
#: not; what is written has been rounded to fp8 before (``element_kernels``).
_FP8 = """template <int M, int BIAS> struct fp8_t {
    unsigned char bits;
    __device__ operator float() const {
        const int size = bits & 0x7f;
        const float value = __int_as_float(size << (23 - M)) * __int_as_float((254 - BIAS) << 23);
        const float most = __int_as_float(M == 2 && size == 0x7c ? 0x7f800000 : 0x7fffffff);
        return (size < (M == 3 ? 0x7f : 0x7c) ? value : most) * (bits & 0x80 ? -1.0f : 1.0f);
    }
    __device__ fp8_t& operator=(float value) {
        const int size = __float_as_int(fabsf(value) * __int_as_float(BIAS << 23)) >> (23 - M);
        bits = (unsigned char)((value != value ? 0x7f : size) | (__float_as_int(value) < 0 ? 0x80 : 0));
        return *this;
    }
};
"""
_DEFINED = {DType.FLOAT16: _HALF, DType.BFLOAT16: _BFLOAT, **dict.fromkeys(FP8, _FP8)}

#: Kernels count elements in 32 bits.
MOST_ELEMENTS = 2**31 - 1
#: The most that a thread reads or writes at once.
ACCESS_BYTES = 16
#: Threads that keep a large GPU's memory busy (an H100 holds 270,336): where there would be more, each does more.
ENOUGH_THREADS = 2**16

#: The number of a thread in a launch.
THREAD = "blockIdx.x * blockDim.x + threadIdx.x"
#: The larger and the smaller of two numbers are NaN where one is, as in NumPy and PyTorch, and not in C.
_ACCESSES = """#define ELEMENTS _Pragma("unroll") for (int e = 0; e < W; ++e)
template <class T, int P> struct alignas(sizeof(T) * P) pack { T at[P]; };
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
static __device__ inline float larger(float a, float b) { return a > b || a != a ? a : b; }
static __device__ inline float smaller(float a, float b) { return a < b || a != a ? a : b; }
static __device__ inline unsigned int quotient(unsigned int number, unsigned int factor, unsigned int shift) {
    return ((unsigned int)((unsigned long long)number * factor >> 32) + number) >> shift;
}
"""
#: First instruction of every kernel: it waits until all that is ahead of it in its stream has ended and is in memory. A
#: second one lets the next kernel come to its own wait (PTX manual, ``griddepcontrol``). A usual launch ignores both.
WAIT = "griddepcontrol.wait;"
_IN_TURN = f"""#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
asm volatile("{WAIT}" ::: "memory");
asm volatile("griddepcontrol.launch_dependents;");
#endif
"""
#: Position of an index: negative ones count from the end, and all are clamped to the axis.
ENTRY = """static __device__ inline long long entry_at(long long given, int size) {
    const long long entry = given < 0 ? given + size : given;
    return entry < 0 ? 0 : entry < size ? entry : size - 1;
}
"""


def element_name(dtype: DType) -> str:
    """C++ name of an element type; those that kernels only move are bytes."""
    return NAMES.get(dtype, "unsigned char")


def value_name(dtype: DType) -> str:
    """C++ type in which kernels compute with elements of a type."""
    return NAMES[dtype] if dtype in _WIDE else "float"


def access_width(view: View, strides: Sequence[int]) -> int:
    """Number of neighbours along the last of ``strides`` that an aligned access moves; 1 where they are none.

    The other strides lead from ``view``'s first element to where accesses begin.
    """
    width = ACCESS_BYTES // view.dtype.bytes if strides[-1] == 1 else 1
    while any(number % width for number in (view.offset, *strides[:-1])):
        width //= 2
    return width


def widths_of(views: Sequence[View], strides: Sequence[Sequence[int]], width: int) -> list[int]:
    """Number of ``width`` neighbours that one access moves of each view: 0 where all are one, -1 where they lie apart.

    The last of each view's ``strides`` leads from a neighbour to the next, the others to where accesses begin.
    """
    return [
        1 if width == 1 else min(width, access_width(view, own)) if own[-1] == 1 else 0 if own[-1] == 0 else -1
        for view, own in zip(views, strides, strict=True)
    ]


def read(to: str, at: str, width: int, step: str, count: str = "") -> str:
    """The statement by which ``to`` gets the neighbours at a place, as :func:`widths_of` says; the first ``count``."""
    if width < 1 or count:
        return f"pick({to}, {at}, {step if width else 0}{count and f', {count}'});\n"
    return f"take<{width}>({to}, {at});\n"


def walked(
    views: Sequence[View], axes: Sequence[int], name: str = "r"
) -> tuple[dict[str, int], dict[str, tuple[int, ...]]]:
    """Sizes and steps of as few indices ``name`` and a number as lead over some axes of views of one shape."""
    shape = [views[0].shape[axis] for axis in axes]
    sizes, strides = coalesced(shape, [[view.strides[axis] for axis in axes] for view in views])
    names = [f"{name}{place}" for place in range(len(sizes))]
    return dict(zip(names, sizes, strict=True)), dict(zip(names, zip(*strides, strict=True), strict=True))


def filled(body: str, **words: str) -> str:
    """A body of :func:`kernel` with a text for each ``$WORD``, which may have places of its own."""
    return Template(body).safe_substitute(words)


def kernel(
    name: str,
    body: str,
    views: Mapping[str, View],
    strides: Mapping[str, Sequence[int]],
    places: Mapping[str, int],
    *,
    inside: Mapping[str, int] | None = None,
    constants: Mapping[str, int] | None = None,
    functions: str = "",
    more: Mapping[str, Argument | int] | None = None,
    grid: tuple[str, int, int] | None = None,
) -> KernelCall:
    """A kernel with a thread for each place, which it declares; or by a ``grid``: the text of a place's number, which
    the body declares, and the blocks and the threads of a block.

    ``body`` knows views by name, their element types as ``NAME_t``, and their ``strides`` along an axis (one of each
    view) as ``NAME_AXIS``. ``places`` are the sizes of indices, outermost first: ``$places`` declares those of
    ``$place``, a number below ``count``, and ``$NAME`` is where it lies in a view. Likewise ``$inside`` declares the
    indices ``inside`` of a number ``step``, and ``$in_NAME`` is by how much they lead on. ``more`` are further
    parameters: numbers by name, others by declaration; ``constants`` are none. Raises BackendError for more elements
    than are counted.
    """
    elements = max(view.extent - view.offset for view in views.values())
    if elements > MOST_ELEMENTS:
        raise BackendError(
            f"a tensor of {elements} elements is larger than the {MOST_ELEMENTS} that kernels count; take a smaller "
            "batch"
        )
    count = math.prod(places.values())
    parameters: dict[str, Argument] = {"unsigned int count": np.uint32(count)}
    place, blocks, threads = grid or (THREAD, *spread(count))
    texts = {"place": place}
    for whole, number, sizes in ("places", place, places), ("inside", "step", inside or {}):
        first, *others = sizes or [""]
        lines = f"unsigned int rest = {number};\n"
        for index in reversed(others):
            size, shift = sizes[index], (sizes[index] - 1).bit_length()
            parts = {"n": size, "factor": ((2**shift - size) << 32) // size + 1, "shift": shift}
            parameters |= {f"unsigned int {part}_{index}": np.uint32(value) for part, value in parts.items()}
            lines += f"const unsigned int over_{index} = quotient(rest, factor_{index}, shift_{index});\n"
            lines += f"const int {index} = (int)(rest - over_{index} * n_{index}); rest = over_{index};\n"
        texts[whole] = f"{lines}const int {first} = (int)rest;"
    parameters |= {f"{known}_t* {known}": view for known, view in views.items()}
    own = {f"{view}_{axis}": step for axis, steps in strides.items() for view, step in zip(views, steps, strict=True)}
    for named, given in (own | dict(more or {})).items():
        parameters |= {f"int {named}": np.int32(given)} if isinstance(given, int) else {named: given}
    for view in views:
        for known, prefix, sizes in (view, "", places), ("0", "in_", inside or {}):
            walked = (f"(long long){axis} * {view}_{axis}" for axis in strides if axis in sizes)
            texts[prefix + view] = " + ".join([known, *walked])
    types = "".join(f"typedef {element_name(view.dtype)} {named}_t;\n" for named, view in views.items())
    values = "".join(f"constexpr int {constant} = {value};\n" for constant, value in (constants or {}).items())
    used = {view.dtype for view in views.values()}
    defined = "".join(dict.fromkeys(text for dtype, text in _DEFINED.items() if dtype in used))
    head = f'extern "C" __global__ void {name}({", ".join(parameters)}) {{\n{_IN_TURN}'
    begin = "if ($place >= count) return;\n$places\n" if grid is None else ""
    source = f"{defined}{_ACCESSES}{types}{values}{functions}{head}{Template(begin + body).substitute(texts)}}}\n"
    return KernelCall(source, name, blocks, threads, tuple(parameters.values()))
