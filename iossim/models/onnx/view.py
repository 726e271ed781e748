"""ONNX nodes as the op classes read themselves from: attributes as Python values, arrays of what is known at import."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from onnx import AttributeProto, NodeProto, helper

from iossim.ir.op import Array, OnnxNode
from iossim.models.onnx.constants import Known

_MODULES = "pkg.torch.onnx.name_scopes"
#: What reading a node raises whose inputs or attributes have ranks, counts or values that the operator does not take.
NONSENSE = (TypeError, ValueError, IndexError, KeyError, AttributeError, ArithmeticError)


class _Arrays(Mapping[str, Array]):
    """The arrays of constants that say how an operator works, loaded when asked for."""

    def __init__(self, known: Known) -> None:
        self._known = known

    def __getitem__(self, name: str) -> Array:
        return self._known.parameter(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._known.constants)

    def __len__(self) -> int:
        return len(self._known.constants)


def node_view(node: NodeProto, name: str, known: Known, opset: int) -> OnnxNode:
    """The node with what is known so far, in operator set ``opset``."""
    return OnnxNode(
        node.op_type,
        name,
        tuple(node.input),
        tuple(node.output),
        {attribute.name: _value(attribute) for attribute in node.attribute},
        known.types,
        _Arrays(known),
        opset,
    )


def op_name(node: NodeProto, name: str) -> str:
    """What an op is called: where PyTorch's exporter noted its module, that and the operator, else ``name``, the node's own.

    ``encoder.layer.0.output.dense.MatMul`` says more than ``node_MatMul_95``.
    """
    noted = next((each.value for each in node.metadata_props if each.key == _MODULES), "")
    modules = re.findall(r"'([^']*)'", noted)  # from the model to the op itself, as a list of Python
    return f"{modules[-2]}.{node.op_type}" if len(modules) > 1 and modules[-2] else name


def _value(attribute: AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    if isinstance(value, float):
        # Stored in fp32: the shortest number that it rounds, as written and not as stored, so that 0.01 is 0.01.
        return float(str(np.float32(value)))
    return value.decode(errors="replace") if isinstance(value, bytes) else value
