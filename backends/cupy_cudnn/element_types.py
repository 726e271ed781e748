"""How kernels of ours hold elements: a C++ type for each element type, which computes as ``float``.

Numbers of 16 bits are structures that turn into ``float`` where they are read and are rounded to the nearest (ties to
even) where they are written, so that a kernel's text is the same whatever its operands hold, and sums are of fp32.
Whole numbers of up to 16 bits are floats without loss; wider numbers stay what they are.
CUDA's own headers for such types are not used, since the run-time compiler's package does not bring them.
"""

from __future__ import annotations

from collections.abc import Iterable

from iossim.ir.types import DType

#: What kernels call each element type.
NAMES = {
    DType.FLOAT32: "float",
    DType.FLOAT16: "half_t",
    DType.BFLOAT16: "bfloat_t",
    DType.INT8: "signed char",
    DType.UINT8: "unsigned char",
    DType.BOOL: "bool",
    DType.INT16: "short",
    DType.UINT16: "unsigned short",
    DType.INT32: "int",
    DType.UINT32: "unsigned int",
    DType.INT64: "long long",
    DType.UINT64: "unsigned long long",
    DType.FLOAT64: "double",
}
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
_DEFINED = {DType.FLOAT16: _HALF, DType.BFLOAT16: _BFLOAT}


def element_name(dtype: DType) -> str:
    """C++ name of an element type; floats of 8 bits, and smaller types, are bytes that kernels only move."""
    return NAMES.get(dtype, "unsigned char")


def value_name(dtype: DType) -> str:
    """C++ type in which kernels compute with elements of a type."""
    return NAMES[dtype] if dtype in _WIDE else "float"


def definitions(dtypes: Iterable[DType]) -> str:
    """What stands before a kernel of operands of these element types."""
    used = set(dtypes)
    return "".join(text for dtype, text in _DEFINED.items() if dtype in used)
