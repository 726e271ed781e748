"""Tensors without elements, such as the cache of a first token: they are known at import, and become constants.

Nodes that read only empty tensors are folded; concats drop them, and splits do not produce them.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import numpy as np
from onnx import NodeProto, helper, numpy_helper

from iossim.ir.onnx_spelling import onnx_code
from iossim.ir.op import Op
from iossim.ir.types import TensorType
from iossim.models.onnx.constants import Known
from iossim.models.onnx.file import is_standard

#: Ops that may make an empty tensor from a non-empty one; for any other kind, the input is too small.
_MAY_MAKE_EMPTY = ("expand", "foreign", "slice", "tile")


def is_empty(value: TensorType) -> bool:
    return value.elements == 0


def may_make_empty(op: Op, inputs: Sequence[TensorType]) -> bool:
    """Whether an op can validly make an empty tensor."""
    return op.kind in _MAY_MAKE_EMPTY or any(map(is_empty, inputs))


def without_empty(node: NodeProto, name: str, known: Known) -> list[NodeProto]:
    """The nodes that replace a concat with empty terms among others, or a split into empty parts; else none."""
    if not is_standard(node.domain):
        return []
    if node.op_type == "Concat":
        return _concat_without(node, known)
    return _split_without(node, name, known) if node.op_type == "Split" else []


def _concat_without(node: NodeProto, known: Known) -> list[NodeProto]:
    axis = {attribute.name: attribute.i for attribute in node.attribute}.get("axis", 1)
    terms = [known.types[value] for value in node.input]
    kept = [value for value, term in zip(node.input, terms, strict=True) if not is_empty(term)]
    others = {tuple(np.delete(term.shape, axis)) for term in terms if -len(term.shape) <= axis < len(term.shape)}
    if not kept or len(kept) == len(terms) or len(others) > 1:  # if the terms do not fit each other, the op reports it
        return []
    joined = deepcopy(node)
    del joined.input[:]
    joined.input.extend(kept)
    return [joined]


def _split_without(node: NodeProto, name: str, known: Known) -> list[NodeProto]:
    attributes = {attribute.name: attribute for attribute in node.attribute}
    given = node.input[1] if len(node.input) > 1 else ""
    if given in known.constants:
        sizes = [int(size) for size in known.parameter(given).reshape(-1)]
    else:
        sizes = list(attributes["split"].ints) if "split" in attributes else []
    x = known.types[node.input[0]]
    axis = attributes["axis"].i if "axis" in attributes else 0
    is_whole = len(sizes) == len(node.output) and -len(x.shape) <= axis < len(x.shape) and sum(sizes) == x.shape[axis]
    if not is_whole or min(sizes) != 0 or max(sizes) == 0:
        return []
    nodes: list[NodeProto] = []
    for value, size in zip(node.output, sizes, strict=True):
        if size == 0 and value:
            shape = list(x.shape)
            shape[axis] = 0
            tensor = helper.make_tensor(value, onnx_code(x.dtype), shape, b"", raw=True)
            nodes.append(helper.make_node("Constant", [], [value], value=tensor))
    split = deepcopy(node)
    del split.output[:]
    split.output.extend(value for value, size in zip(node.output, sizes, strict=True) if size)
    left = [size for size in sizes if size]
    if given:
        split.input[1] = f"{name}.sizes"
        tensor = numpy_helper.from_array(np.array(left, dtype=np.int64))
        nodes.append(helper.make_node("Constant", [], [split.input[1]], value=tensor))
    else:
        for attribute in split.attribute:
            if attribute.name == "split":
                attribute.ClearField("ints")
                attribute.ints.extend(left)
    return [*nodes, split]
