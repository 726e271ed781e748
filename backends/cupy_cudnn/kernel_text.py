"""Text that kernels of ours are made of: places without a division, and accesses of up to 16 bytes.

A thread works on neighbours in memory, as many as one access moves. :func:`access_width` says how many that are: so
many that base, strides and size prove each access aligned, which is decided when the text is made. Threads count
places; a place is taken apart into indices by multiplication (Granlund and Montgomery 1994) with factors that are
arguments, so that one text serves all sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from string import Template

import numpy as np

from iossim.backends.cupy_cudnn.element_types import definitions, element_name
from iossim.backends.cupy_cudnn.views import Argument, View
from iossim.execution.backend import BackendError
from iossim.ir.types import DType

#: Kernels count elements in 32 bits.
MOST_ELEMENTS = 2**31 - 1
#: The most that a thread reads or writes at once.
ACCESS_BYTES = 16
#: Threads that keep a large GPU's memory busy (an H100 holds 270,336): where there would be more, each does more.
ENOUGH_THREADS = 2**16

#: The number of a thread in a launch.
THREAD = "blockIdx.x * blockDim.x + threadIdx.x"
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


def kernel_source(name: str, dtypes: Iterable[DType], parameters: Sequence[str], body: str, before: str = "") -> str:
    """A kernel of these parameters, whose operands are of these types; ``before`` it stand functions that it calls."""
    head = f'extern "C" __global__ void {name}({", ".join(parameters)}) {{\n'
    return definitions(dtypes) + _ACCESSES + before + head + _IN_TURN + body + "}\n"


def kernel(
    name: str,
    body: str,
    views: Mapping[str, View],
    strides: Mapping[str, Sequence[int]],
    places: Mapping[str, int],
    *,
    numbers: Mapping[str, int] | None = None,
    constants: Mapping[str, int] | None = None,
    functions: str = "",
    place: str = THREAD,
    more: Mapping[str, Argument] | None = None,
) -> tuple[str, tuple[Argument, ...]]:
    """A kernel's text and arguments.

    ``body`` knows views by name, their element types as ``NAME_t``, and their ``strides`` along an axis (one of each
    view) as ``NAME_AXIS``. ``places`` are the sizes of indices, outermost first: ``$places`` declares those of
    ``$place``, a number below ``count``, and ``$NAME`` is where it lies in a view. ``numbers`` and ``more`` (by
    declaration) are further parameters, ``constants`` are none. Raises BackendError for more elements than are counted.
    """
    elements = max(view.elements for view in views.values())
    if elements > MOST_ELEMENTS:
        raise BackendError(
            f"a tensor of {elements} elements is larger than the {MOST_ELEMENTS} that kernels count; take a smaller "
            "batch"
        )
    indices = list(places)
    parameters: dict[str, Argument] = {"unsigned int count": np.uint32(math.prod(places.values()))}
    for index in indices[1:]:
        size, shift = places[index], (places[index] - 1).bit_length()
        parts = {"n": size, "factor": ((2**shift - size) << 32) // size + 1, "shift": shift}
        parameters |= {f"unsigned int {part}_{index}": np.uint32(number) for part, number in parts.items()}
    parameters |= {f"{view}_t* {view}": place for view, place in views.items()}
    own = {f"{view}_{axis}": step for axis, steps in strides.items() for view, step in zip(views, steps, strict=True)}
    parameters |= {f"int {named}": np.int32(number) for named, number in (own | dict(numbers or {})).items()}
    parameters |= more or {}
    lines = f"unsigned int rest = {place};\n"
    for index in reversed(indices[1:]):
        lines += f"const unsigned int over_{index} = quotient(rest, factor_{index}, shift_{index});\n"
        lines += f"const int {index} = (int)(rest - over_{index} * n_{index}); rest = over_{index};\n"
    texts = {"place": place, "places": f"{lines}const int {indices[0]} = (int)rest;"}
    for view in views:
        texts[view] = " + ".join([view, *(f"(long long){axis} * {view}_{axis}" for axis in strides if axis in places)])
    types = "".join(f"typedef {element_name(view.dtype)} {named}_t;\n" for named, view in views.items())
    values = "".join(f"constexpr int {constant} = {value};\n" for constant, value in (constants or {}).items())
    dtypes, text = (view.dtype for view in views.values()), Template(body).substitute(texts)
    return kernel_source(name, dtypes, list(parameters), text, types + values + functions), tuple(parameters.values())
