"""Constants as ONNX files hold them: tensors in the model, tensors in a file beside it, fills.

All are lazy: the array is made when somebody loads it, and not kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import TensorProto, numpy_helper

from iossim.errors import ModelError
from iossim.ir.constants import Constant
from iossim.ir.op import Array
from iossim.ir.types import DType, TensorType

_DTYPES: dict[int, DType] = {
    TensorProto.DOUBLE: DType.FLOAT64,
    TensorProto.FLOAT: DType.FLOAT32,
    TensorProto.FLOAT16: DType.FLOAT16,
    TensorProto.BFLOAT16: DType.BFLOAT16,
    TensorProto.INT8: DType.INT8,
    TensorProto.UINT8: DType.UINT8,
    TensorProto.INT32: DType.INT32,
    TensorProto.INT64: DType.INT64,
    TensorProto.BOOL: DType.BOOL,
}


@dataclass(frozen=True, eq=False)
class TensorConstant(Constant):
    """A tensor that the model holds."""

    type: TensorType
    tensor: TensorProto

    def load(self) -> Array:
        array: Array = numpy_helper.to_array(self.tensor)
        return array.astype(self.type.dtype.numpy, copy=False)


@dataclass(frozen=True)
class ExternalConstant(Constant):
    """A tensor in a file beside the model: little-endian elements from byte ``offset`` on."""

    type: TensorType
    path: Path
    offset: int

    def load(self) -> Array:
        dtype = self.type.dtype.numpy
        try:
            array = np.fromfile(self.path, dtype.newbyteorder("<"), self.type.elements, offset=self.offset)
        except OSError as error:
            raise ModelError(
                f"cannot read weights {self.path}: {error.strerror}; put the file back beside its model"
            ) from None
        if array.size != self.type.elements:
            raise ModelError(f"weights {self.path} have become shorter since the model was read; load it again")
        return array.astype(dtype, copy=False).reshape(self.type.shape)


@dataclass(frozen=True)
class FilledConstant(Constant):
    """One number everywhere: ONNX ``ConstantOfShape``."""

    type: TensorType
    value: float

    def load(self) -> Array:
        return np.full(self.type.shape, self.value, dtype=self.type.dtype.numpy)


def dtype_of_onnx(code: int, what: str) -> DType:
    """The element type of an ONNX code; raises ModelError that begins with ``what``."""
    if code not in _DTYPES:
        name = TensorProto.DataType.Name(code) if code in TensorProto.DataType.values() else str(code)
        raise ModelError(f"{what} has element type {name}, which iossim does not know; known: {', '.join(DType)}")
    return _DTYPES[code]


def tensor_constant(tensor: TensorProto, folder: Path, what: str) -> Constant:
    """The lazy constant of an ONNX tensor; ``folder`` is the model's, ``what`` begins the message of a ModelError."""
    tensor_type = TensorType(tuple(tensor.dims), dtype_of_onnx(tensor.data_type, what))
    if tensor.data_location == TensorProto.EXTERNAL:
        return _external_constant(tensor, tensor_type, folder, what)
    if tensor.HasField("raw_data"):
        complete = len(tensor.raw_data) == tensor_type.bytes
    else:
        fields = (tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.double_data)
        complete = max(map(len, fields)) == tensor_type.elements
    if not complete:
        raise ModelError(f"{what} does not hold the data of {tensor_type}; the file is damaged")
    return TensorConstant(tensor_type, tensor)


def _external_constant(tensor: TensorProto, tensor_type: TensorType, folder: Path, what: str) -> Constant:
    """A tensor in another file, which must lie in the model's folder or below it, symbolic links resolved."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    root = folder.resolve()
    path = (root / location).resolve()
    if not location or not path.is_relative_to(root):
        raise ModelError(
            f"{what} is stored in {location!r}, outside the model's folder; iossim reads weights beside the model only"
        )
    if not path.is_file():
        raise ModelError(f"{what} is stored in {folder / location}, which does not exist; put it beside the model")
    try:
        offset = int(entries.get("offset", 0))
        length = int(entries.get("length", tensor_type.bytes))
    except ValueError:
        raise ModelError(f"{what} has an offset or length that is no number; the file is damaged") from None
    if offset < 0 or length != tensor_type.bytes or path.stat().st_size < offset + length:
        raise ModelError(
            f"{what} is not whole in {folder / location}: it needs {tensor_type.bytes} bytes from {offset} on"
        )
    return ExternalConstant(tensor_type, path, offset)
