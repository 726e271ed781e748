"""ONNX's shape inference for a node, from the types of its inputs and the values of known ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from onnx import NodeProto, TypeProto, helper, numpy_helper

from iossim.base.errors import ModelError, last_line
from iossim.ir.onnx_node import captured_values
from iossim.ir.onnx_spelling import onnx_code
from iossim.ir.types import DType, TensorType
from iossim.models.onnx.constants import Known
from iossim.models.onnx.inlining import runs_graphs
from iossim.models.onnx.inputs import dimension_size

#: Largest number of elements of an input whose values are given to inference.
LARGEST_KNOWN = 4096


def inferred_outputs(
    node: NodeProto, versions: Mapping[str, int], known: Known, ir_version: int = 8
) -> dict[str, TypeProto]:
    """The types of a node's outputs by name, if known; ``versions`` are those of operator sets by domain.

    Raises ModelError with ONNX's reason for invalid operands.
    """
    inputs = list(dict.fromkeys(name for name in (*node.input, *captured_values(node)) if name))
    outputs = [name for name in node.output if name]
    return inferred_types([node], inputs, outputs, versions, known, ir_version)


def inferred_types(
    nodes: Sequence[NodeProto],
    inputs: Sequence[str],
    outputs: Sequence[str],
    versions: Mapping[str, int],
    known: Known,
    ir_version: int = 8,
) -> dict[str, TypeProto]:
    """The types of the outputs of several nodes that read ``inputs``; otherwise as :func:`inferred_outputs`."""
    values = [
        numpy_helper.from_array(known.constants[name].load(), name)
        for name in inputs
        if known.has_values(name) and known.types[name].elements <= LARGEST_KNOWN
    ]
    # A single operator has its shape after its data; in a body any value may become a shape.
    is_single = len(nodes) == 1 and not runs_graphs(nodes[0])
    told = {
        name: _given_shape(known.types[name], not is_single or (place > 0 and known.types[name].dtype is DType.INT64))
        for place, name in enumerate(inputs)
    }
    # ONNX propagates values element by element, even for lists of unknown values.
    follows = is_single and all(
        len(known.types[name].shape) != 1 or known.types[name].elements <= LARGEST_KNOWN for name in inputs
    )
    graph = helper.make_graph(
        nodes,
        "nodes",
        [helper.make_tensor_value_info(name, onnx_code(known.types[name].dtype), told[name]) for name in inputs],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        values,
    )
    imports = [helper.make_opsetid(name, version) for name, version in versions.items()]
    model = helper.make_model(graph, opset_imports=imports, ir_version=max(ir_version, 4))
    try:
        found = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=follows)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError) as error:
        # The last line of ONNX's message has the reason.
        raise ModelError(last_line(error).split(") ", 1)[-1].strip()) from None
    return {value.name: value.type for value in found.graph.output}


def _given_shape(value: TensorType, is_open: bool) -> list[int | None]:
    """The shape of an input as given to inference; open if it ``is_open`` and a long list that may be a shape.

    ONNX would create a dimension for each of its elements.
    """
    is_long = len(value.shape) == 1 and value.elements > LARGEST_KNOWN
    return [None] if is_long and is_open else list(value.shape)


def static_shape(tensor: TypeProto.Tensor, sizes: Mapping[str, int] | None = None) -> tuple[int, ...] | None:
    """The shape of a tensor type, if every dimension is known; ``sizes`` are those of named ones."""
    if not tensor.HasField("shape"):
        return None
    dimensions = [
        axis.dim_value if axis.HasField("dim_value") else dimension_size(axis.dim_param, sizes or {})
        for axis in tensor.shape.dim
    ]
    known = tuple(size for size in dimensions if size is not None)
    return known if len(known) == len(dimensions) else None
