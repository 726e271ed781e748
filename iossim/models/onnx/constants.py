"""Constants as stored in ONNX files, in the model or in an external file, and nodes as the op classes read them.

All constants are lazy: the array is created at each load, and not kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from onnx import AttributeProto, NodeProto, TensorProto, defs, helper, numpy_helper

from iossim.base.errors import GraphError, ModelError
from iossim.ir.constants import AbsentConstant, Constant
from iossim.ir.onnx_spelling import OnnxNode, dtype_of_onnx, onnx_code
from iossim.ir.op import Array
from iossim.ir.types import DType, TensorType


@dataclass(frozen=True, eq=False)
class TensorConstant(Constant):
    """A tensor stored in the model."""

    type: TensorType
    tensor: TensorProto

    def load(self) -> Array:
        return numpy_helper.to_array(self.tensor).astype(self.type.dtype.numpy, copy=False)


@dataclass(frozen=True)
class ExternalConstant(Constant):
    """A tensor in an external file: little-endian elements from byte ``offset`` on."""

    type: TensorType
    path: Path
    offset: int

    def load(self) -> Array:
        narrow = self.type.dtype.bits < 8
        dtype, size = (np.dtype(np.uint8), self.type.bytes) if narrow else (self.type.dtype.numpy, self.type.elements)
        try:
            array = np.fromfile(self.path, dtype.newbyteorder("<"), size, offset=self.offset)
        except OSError as error:
            raise ModelError(
                f"cannot read weights {self.path}: {error.strerror}; put the file back into the model's folder"
            ) from None
        if array.size != size:
            raise ModelError(f"weights {self.path} have become shorter since the model was read; load it again")
        if narrow:
            code, shape = onnx_code(self.type.dtype), self.type.shape
            return numpy_helper.to_array(TensorProto(data_type=code, dims=shape, raw_data=array.tobytes()))
        return array.astype(dtype, copy=False).reshape(self.type.shape)


@dataclass(frozen=True, eq=False)
class UnpackedConstant(Constant):
    """Numbers ``[rows, columns]`` of ``bits`` (a part of a byte), lowest first in each byte of rows, maybe padded.

    Signed ones are stored around the middle of their range.
    """

    type: TensorType
    packed: Constant
    bits: int

    @property
    def is_absent(self) -> bool:
        return self.packed.is_absent

    def load(self) -> Array:
        rows, columns = self.type.shape
        shifts = np.arange(0, 8, self.bits, dtype=np.uint8)
        digits = self.packed.load().reshape(rows, -1, 1) >> shifts & np.uint8(2**self.bits - 1)
        numbers = digits.reshape(rows, -1)[:, :columns]
        if self.type.dtype in (DType.INT4, DType.INT8):
            numbers = numbers.astype(np.int16) - 2 ** (self.bits - 1)
        return np.asarray(numbers.astype(self.type.dtype.numpy))


#: The first operator set in which sizes of a split, and axes of a squeeze, are an input.
WITH_LISTS = 13
#: Largest number of elements of a constant that may be a shape, axes, a count or scales.
LARGEST_PARAMETER = 1 << 16


@dataclass(frozen=True)
class Known:
    """The values of a model known so far, by name: the types of all, and the constants among them."""

    types: Mapping[str, TensorType]
    constants: Mapping[str, Constant]
    #: Adds a constant, by name.
    add: Callable[[str, Constant], None] | None = None

    def types_of(self, names: Iterable[str]) -> list[TensorType]:
        return [self.types[name] for name in names]

    def has_values(self, name: str) -> bool:
        """True if it is a constant with available values."""
        return name in self.constants and not self.constants[name].is_absent

    def parameter(self, name: str) -> Array:
        """The array of a constant that determines an operator's shape; raises GraphError if it is too large for one."""
        constant = self.constants[name]
        if constant.type.elements > LARGEST_PARAMETER:
            raise GraphError(
                f"{name!r} should say a shape, axes or counts, and is {constant.type}; the file is damaged"
            )
        return constant.load()


def tensor_constant(tensor: TensorProto, folder: Path, what: str) -> Constant:
    """The lazy constant of an ONNX tensor; ``folder`` is the model's, a ModelError's message begins with ``what``."""
    tensor_type = TensorType(tuple(tensor.dims), dtype_of_onnx(tensor.data_type, what))
    if min(tensor.dims, default=0) < 0:
        raise ModelError(f"{what} cannot be {tensor_type}, of a negative size; the file is damaged")
    if tensor.data_location == TensorProto.EXTERNAL:
        return _external_constant(tensor, tensor_type, folder, what)
    if tensor_type.elements and not any((tensor.raw_data, *_numbers(tensor))):
        return _absent(tensor, tensor_type, what, "has no data in the file; give a file that has")
    if tensor.HasField("raw_data"):
        complete = len(tensor.raw_data) == tensor_type.bytes
    else:
        packed = -(-tensor_type.elements * min(8, tensor_type.dtype.bits) // 8)
        complete = len(getattr(tensor, helper.tensor_dtype_to_field(tensor.data_type))) == packed
    if not complete or tensor.HasField("raw_data") + sum(map(bool, _numbers(tensor))) > 1:
        raise ModelError(f"{what} does not hold the data of {tensor_type}; the file is damaged")
    return TensorConstant(tensor_type, tensor)


def _absent(tensor: TensorProto, tensor_type: TensorType, what: str, reason: str) -> AbsentConstant:
    return AbsentConstant(tensor_type, f"{f'weight {tensor.name!r}' if tensor.name else what} {reason}")


def _numbers(tensor: TensorProto) -> tuple[object, ...]:
    """The fields one of which holds the data, if it is not raw."""
    return tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.double_data, tensor.uint64_data


def _external_constant(tensor: TensorProto, tensor_type: TensorType, folder: Path, what: str) -> Constant:
    """A tensor in another file, which must be inside the model's folder, symbolic links resolved."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    # Protobuf returns bytes for invalid text.
    if not all(isinstance(text, str) for text in (*entries, *entries.values())):
        raise ModelError(f"{what} is stored in a file whose name is no text; the file is damaged")
    location = entries.get("location", "")
    if not entries:
        return _absent(tensor, tensor_type, what, "is stored in a file that is not named; give a model that has it")
    root = folder.resolve()
    try:
        path = (root / location).resolve()
        is_file = path.is_file()
    except (OSError, ValueError):  # the name is too long or invalid
        raise ModelError(
            f"{what} is stored in {location!r}, which is not a file; put it into the model's folder"
        ) from None
    if not location or not path.is_relative_to(root):
        raise ModelError(
            f"{what} is stored in {location!r}, outside the model's folder; iossim reads weights from that folder only"
        )
    if not is_file:
        reason = f"is stored in {folder / location}, which does not exist; put it into the model's folder"
        return _absent(tensor, tensor_type, what, reason)
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


_MODULES = "pkg.torch.onnx.name_scopes"


def node_view(node: NodeProto, name: str, known: Known, opset: int) -> OnnxNode:
    """The node with the values known so far, in operator set ``opset``."""
    return OnnxNode(
        node.op_type,
        name,
        tuple(node.input),
        tuple(node.output),
        attributes_of(node),
        known.types,
        known.constants,
        known.parameter,
        opset,
        _slots(node.op_type, opset),
    )


@cache
def _slots(op_type: str, opset: int) -> tuple[str, ...]:
    """ONNX's names of an operator's inputs."""
    return tuple(slot.name for slot in defs.get_schema(op_type, opset).inputs) if defs.has(op_type, opset) else ()


def attributes_of(node: NodeProto) -> dict[str, Any]:
    """The values of a node's attributes by name."""
    return {attribute.name: _value(attribute) for attribute in node.attribute}


def constant_node(name: str, array: Array) -> NodeProto:
    """A node that makes the constant ``name``."""
    return helper.make_node("Constant", [], [name], name, value=numpy_helper.from_array(array, name))


def nodes_with_list(
    op_type: str, source: str, outputs: Sequence[str], values: Sequence[int], **attributes: Any
) -> list[NodeProto]:
    """An operator whose second input is a list of integers (from operator set :data:`WITH_LISTS` on)."""
    made = constant_node(f"{outputs[0] or max(outputs)}.list", np.array(values, dtype=np.int64))
    return [made, helper.make_node(op_type, [source, made.name], outputs, **attributes)]


def check_numbers(node: NodeProto, where: str) -> None:
    """Raise ModelError for attributes that are not numbers, which only a constant may have; ``where`` begins it."""
    for attribute in node.attribute:
        if np.isnan([attribute.f, *attribute.floats]).any() and node.op_type != "Constant":
            raise ModelError(f"{where} is not valid: its attribute {attribute.name!r} is no number (NaN)")


def op_name(node: NodeProto, name: str) -> str:
    """Its module, as noted by PyTorch's exporter, and operator (``encoder.layer.0.dense.MatMul``); else ``name``."""
    noted = next((each.value for each in node.metadata_props if each.key == _MODULES), "")
    modules = re.findall(r"'([^']*)'", noted)  # from the model to the op itself, as a Python list
    return f"{modules[-2]}.{node.op_type}" if len(modules) > 1 and modules[-2] else name


def _value(attribute: AttributeProto) -> object:
    value = helper.get_attribute_value(attribute)
    if isinstance(value, float):
        # Stored in fp32: use the shortest decimal that rounds to it, so that 0.01 is 0.01.
        return float(str(np.float32(value)))
    return value.decode(errors="replace") if isinstance(value, bytes) else value
