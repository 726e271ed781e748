"""ONNX as ops read it: a node, the codes of element types, and the error for a node that an op kind does not cover."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iossim.base.errors import ModelError
from iossim.ir.types import DType, TensorType

#: An array of any element type: NumPy's types do not know those of ml_dtypes.
Array = NDArray[Any]


#: The types of parameters that are one value, by the first word of their annotation.
_KINDS = {each.__name__: each for each in (int, float, bool, str)}


class NotCoveredError(ModelError):
    """An ONNX node that an op kind does not cover, although it may be valid: it becomes a foreign op."""


@dataclass(frozen=True)
class OnnxNode:
    """An ONNX node as seen by an op's ``from_onnx``.

    ``inputs`` are value names, ``""`` for an omitted optional one; ``constants`` are the values that are known
    at import (initializers, and values that fold to constants), whose arrays ``load`` returns.
    """

    op_type: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, object]
    types: Mapping[str, TensorType]
    constants: Container[str]
    load: Callable[[str], Array]
    opset: int
    #: ONNX's names of the inputs in that operator set.
    slots: tuple[str, ...] = ()

    def attribute(self, name: str, default: object = None) -> Any:
        return self.attributes.get(name, default)

    def parameter(self, names: str, kind: str) -> Any:
        """A parameter as a value of the annotated ``kind``: an attribute, or where the operator set makes it an input,
        that constant; None without one. ``names`` are separated by bars.

        Raises NotCoveredError if it is computed at run time.
        """
        for name in names.split("|"):
            value = self.attribute(name)
            if value is None and name in self.slots and self.has_input(index := self.slots.index(name)):
                value = self.constant(index, name)
            if value is not None and kind.startswith("tuple"):
                return tuple(np.asarray(value).reshape(-1).tolist())
            if value is not None:
                return _KINDS[kind.partition(" ")[0]](value.item() if isinstance(value, np.ndarray) else value)
        return None

    def refuse(self, when: object, reason: str) -> None:
        """Raise NotCoveredError for something that the op kind does not cover; ``reason`` follows the node's name."""
        if when:
            raise NotCoveredError(f"{self.op_type} {self.name!r} {reason}")

    def given(self, index: int) -> str:
        """The name of an input, empty if omitted."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def has_input(self, index: int) -> bool:
        return self.given(index) != ""

    def input_type(self, index: int) -> TensorType:
        return self.types[self.inputs[index]]

    def constant(self, index: int, what: str) -> Array:
        """The array of input ``index``; raises NotCoveredError if it is computed at run time."""
        name = self.inputs[index]
        if name not in self.constants:
            raise NotCoveredError(
                f"{self.op_type} {self.name!r}: its {what} ({name!r}) is computed at run time; "
                "export the model with constant shapes"
            )
        return self.load(name)

    def data_inputs(self, count: int) -> tuple[str, ...]:
        """The first ``count`` inputs that are present."""
        return tuple(name for name in self.inputs[:count] if name)

    def window(self) -> tuple[int, ...]:
        """Spatial size of a convolution's weight; raises ModelError if the node states another."""
        weight = self.input_type([slot.lower() for slot in self.slots].index("w"))
        said = self.attribute("kernel_shape")
        if said is not None and tuple(said) != weight.shape[2:]:
            raise ModelError(
                f"{self.op_type} {self.name!r}: its kernel_shape is {list(said)}, but its weight {weight}; "
                "export the model again"
            )
        return weight.shape[2:]

    def windows(self, kernel: Sequence[int]) -> dict[str, Any]:
        """Strides, pads and dilations of a convolution or pooling; raises ModelError if their ranks differ."""
        strides, dilations = (self.parameter(name, "tuple") or (1,) * len(kernel) for name in ("strides", "dilations"))
        return {"strides": strides, "pads": self._pads(kernel, strides, dilations), "dilations": dilations}

    def _pads(self, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> tuple[int, ...]:
        """The padding before each axis, then after each, ``auto_pad`` resolved."""
        auto = self.attribute("auto_pad", "NOTSET")
        size, rank = self.input_type(0).shape[2:], len(kernel)
        if not len(size) == len(strides) == len(dilations) == rank or min((*strides, *dilations), default=1) < 1:
            raise ModelError(
                f"{self.op_type} {self.name!r}: kernel {list(kernel)}, strides {list(strides)} and dilations "
                f"{list(dilations)} do not fit an image of size {list(size)}; export the model again"
            )
        if auto in ("NOTSET", ""):
            return tuple(self.attribute("pads", [0] * 2 * rank))
        if auto == "VALID":
            return (0,) * (2 * rank)
        if auto not in ("SAME_UPPER", "SAME_LOWER"):
            raise ModelError(f"{self.op_type} {self.name!r}: unknown auto_pad {auto!r}; use NOTSET with explicit pads")
        before, after = [], []
        for length, k, s, d in zip(size, kernel, strides, dilations, strict=True):
            total = max(0, (-(-length // s) - 1) * s + d * (k - 1) + 1 - length)
            small, large = total // 2, total - total // 2
            before.append(small if auto == "SAME_UPPER" else large)
            after.append(large if auto == "SAME_UPPER" else small)
        return (*before, *after)


#: ONNX's codes of element types (``TensorProto.DataType`` of onnx.proto).
_STRING = 8
#: In the order of their numbers, since the oldest supported onnx does not have the last ones; a dash is for none.
_NAMES = (
    "- fp32 uint8 int8 uint16 int16 int32 int64 - bool fp16 fp64 uint32 uint64 - - bf16 fp8_e4m3fn fp8_e4m3fnuz "
    "fp8_e5m2 fp8_e5m2fnuz uint4 int4 fp4_e2m1 fp8_e8m0 uint2 int2"
)
_DTYPES = {code: DType(name) for code, name in enumerate(_NAMES.split()) if name != "-"}
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
