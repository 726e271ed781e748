"""Tensor types: a shape and an element type. Layout is NCHW throughout."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from iossim.errors import OptionError, did_you_mean


class DType(StrEnum):
    """Element type in memory."""

    FLOAT64 = "fp64"
    FLOAT32 = "fp32"
    FLOAT16 = "fp16"
    BFLOAT16 = "bf16"
    INT8 = "int8"
    UINT8 = "uint8"
    INT32 = "int32"
    INT64 = "int64"
    BOOL = "bool"

    @property
    def bytes(self) -> int:
        return _BYTES[self]

    @property
    def is_floating(self) -> bool:
        return self in (DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The NumPy element type; bf16 comes from ``ml_dtypes``, which onnx brings."""
        if self is DType.BFLOAT16:
            import ml_dtypes  # only bf16 needs it

            bfloat16: np.dtype[np.generic] = np.dtype(ml_dtypes.bfloat16)
            return bfloat16
        return np.dtype(_NUMPY[self])


_BYTES = {
    DType.FLOAT64: 8,
    DType.FLOAT32: 4,
    DType.FLOAT16: 2,
    DType.BFLOAT16: 2,
    DType.INT8: 1,
    DType.UINT8: 1,
    DType.INT32: 4,
    DType.INT64: 8,
    DType.BOOL: 1,
}
_NUMPY = {
    DType.FLOAT64: "float64",
    DType.FLOAT32: "float32",
    DType.FLOAT16: "float16",
    DType.INT8: "int8",
    DType.UINT8: "uint8",
    DType.INT32: "int32",
    DType.INT64: "int64",
    DType.BOOL: "bool",
}


class Precision(StrEnum):
    """How a network computes: the storage type of its tensors, and the arithmetic done on them.

    ``tf32`` stores fp32 and multiplies on tensor cores with a 10-bit mantissa.
    """

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"

    @staticmethod
    def named(name: str) -> Precision:
        """The precision of that name; raises OptionError suggesting the nearest one."""
        known = [precision.value for precision in Precision]
        if name not in known:
            raise OptionError(f"unknown dtype {name!r}; {did_you_mean(name, known)}")
        return Precision(name)

    @property
    def storage(self) -> DType:
        return DType.FLOAT32 if self is Precision.TF32 else DType(self.value)


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
        return self.elements * self.dtype.bytes

    def __str__(self) -> str:
        return f"{self.dtype}[{'x'.join(map(str, self.shape))}]"
