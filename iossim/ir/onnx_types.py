"""Element types by the codes that ONNX gives them (``TensorProto.DataType`` of onnx.proto)."""

from __future__ import annotations

from iossim.base.errors import ModelError
from iossim.ir.types import DType

_STRING = 8
#: By number, since the oldest supported onnx does not have the last ones.
_DTYPES: dict[int, DType] = {
    1: DType.FLOAT32,
    2: DType.UINT8,
    3: DType.INT8,
    4: DType.UINT16,
    5: DType.INT16,
    6: DType.INT32,
    7: DType.INT64,
    9: DType.BOOL,
    10: DType.FLOAT16,
    11: DType.FLOAT64,
    12: DType.UINT32,
    13: DType.UINT64,
    16: DType.BFLOAT16,
    17: DType.FLOAT8_E4M3FN,
    18: DType.FLOAT8_E4M3FNUZ,
    19: DType.FLOAT8_E5M2,
    20: DType.FLOAT8_E5M2FNUZ,
    21: DType.UINT4,
    22: DType.INT4,
    23: DType.FLOAT4_E2M1,
    24: DType.FLOAT8_E8M0,
    25: DType.UINT2,
    26: DType.INT2,
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}


def dtype_of_onnx(code: int, what: str) -> DType:
    """The element type of an ONNX code; raises ModelError that begins with ``what``."""
    if code == _STRING:
        raise ModelError(f"{what} has element type STRING, and iossim schedules numbers; leave text out of the model")
    if code not in _DTYPES:
        from onnx import TensorProto  # onnx takes long to import

        name = TensorProto.DataType.Name(code) if code in TensorProto.DataType.values() else str(code)
        raise ModelError(f"{what} has element type {name}, which iossim does not know; known: {', '.join(DType)}")
    return _DTYPES[code]


def onnx_code(dtype: DType) -> int:
    """ONNX's code of an element type."""
    return _CODES[dtype]
