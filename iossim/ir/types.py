"""Tensor types: a shape and an element type. Images are NCHW unless an op says NHWC."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from iossim.base.errors import OptionError, did_you_mean


class DType(StrEnum):
    """Element type in memory."""

    FLOAT64 = "fp64"
    FLOAT32 = "fp32"
    FLOAT16 = "fp16"
    BFLOAT16 = "bf16"
    INT8 = "int8"
    UINT8 = "uint8"
    INT16 = "int16"
    UINT16 = "uint16"
    INT32 = "int32"
    UINT32 = "uint32"
    INT64 = "int64"
    UINT64 = "uint64"
    BOOL = "bool"
    # Types of quantised tensors; those below a byte are packed in memory, and take a byte per element in arrays.
    FLOAT8_E4M3FN = "fp8_e4m3fn"
    FLOAT8_E4M3FNUZ = "fp8_e4m3fnuz"
    FLOAT8_E5M2 = "fp8_e5m2"
    FLOAT8_E5M2FNUZ = "fp8_e5m2fnuz"
    FLOAT8_E8M0 = "fp8_e8m0"
    FLOAT4_E2M1 = "fp4_e2m1"
    INT4 = "int4"
    UINT4 = "uint4"
    INT2 = "int2"
    UINT2 = "uint2"

    @property
    def bits(self) -> int:
        """Bits of an element as packed in files and in a device's memory."""
        return _BITS[self]

    @property
    def bytes(self) -> int:
        """Bytes of an element in an array."""
        return _BYTES[self]

    @property
    def is_narrow(self) -> bool:
        """True if it has fewer than 16 bits and is neither int8, uint8 nor bool: NumPy cannot compute in it."""
        return self.bytes == 1 and self not in (DType.INT8, DType.UINT8, DType.BOOL)

    @property
    def is_floating(self) -> bool:
        """True if networks compute in it: not in the 8-bit and smaller ones, which need scales."""
        return self in (DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The NumPy element type; those that NumPy lacks come from ``ml_dtypes``, a dependency of onnx."""
        try:
            return np.dtype(self.numpy_name)
        except TypeError:
            import ml_dtypes  # few models need it

            found: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, self.numpy_name))
            return found

    @property
    def numpy_name(self) -> str:
        """Name of the element type in NumPy or ``ml_dtypes``."""
        return _NUMPY.get(self) or self.replace("fp", "float")

    @staticmethod
    def of_numpy(dtype: np.dtype[np.generic]) -> DType | None:
        """The element type of a NumPy type; None for one unknown to iossim."""
        return _BY_NUMPY_NAME.get(dtype.name)


#: Floats of 8 bits that tensor cores multiply, and the largest number of each.
FP8 = {DType.FLOAT8_E4M3FN: 448.0, DType.FLOAT8_E5M2: 57344.0}
#: The first number in the name; booleans take a byte.
_BITS = {dtype: int((re.findall(r"\d+", dtype) or ["8"])[0]) for dtype in DType}
_BYTES = {dtype: max(1, bits // 8) for dtype, bits in _BITS.items()}
#: Names that differ in NumPy, other than by spelling out ``float``.
_NUMPY = {DType.BFLOAT16: "bfloat16", DType.FLOAT8_E8M0: "float8_e8m0fnu", DType.FLOAT4_E2M1: "float4_e2m1fn"}
_BY_NUMPY_NAME = {dtype.numpy_name: dtype for dtype in DType}


class Precision(StrEnum):
    """Arithmetic of a network: the storage type of its tensors, and the arithmetic on them.

    ``tf32`` stores fp32 and multiplies on tensor cores with a 10-bit mantissa; ``fp8`` stores E4M3.
    """

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"
    FP8 = "fp8"

    @staticmethod
    def named(name: str) -> Precision:
        """The precision of that name; raises OptionError suggesting the nearest one."""
        if name not in (known := [*map(str, Precision)]):
            raise OptionError(f"unknown dtype {name!r}; {did_you_mean(name, known)}")
        return Precision(name)

    @property
    def storage(self) -> DType:
        return {Precision.TF32: DType.FLOAT32, Precision.FP8: DType.FLOAT8_E4M3FN}.get(self) or DType(self.value)

    def of_type(self, dtype: DType) -> Precision:
        """The arithmetic on tensors of a type in a network of this precision: that of another floating-point type."""
        is_another = dtype in (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16) and dtype is not self.storage
        return Precision(dtype.value) if is_another else self


#: No machine holds a larger tensor; NumPy's arrays have no more dimensions.
LARGEST_TENSOR_BYTES, MOST_DIMENSIONS = 1 << 40, 64


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and element type of a value."""

    shape: tuple[int, ...]
    dtype: DType = DType.FLOAT32

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes in a file and in a device's memory, where elements below a byte are packed."""
        return -(-self.elements * self.dtype.bits // 8)

    def __str__(self) -> str:
        return f"{self.dtype}[{'x'.join(map(str, self.shape))}]"


#: Permutations of the axes of images: from NCHW to NHWC, and back.
TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def permuted(value: TensorType, permutation: Sequence[int]) -> TensorType:
    """The type of a tensor with permuted axes."""
    return TensorType(tuple(value.shape[axis] for axis in permutation), value.dtype)


def first_types(types: Sequence[TensorType]) -> list[TensorType]:
    """The types with the first one, images in NHWC, converted to NCHW."""
    return [permuted(types[0], TO_FIRST), *types[1:]]
