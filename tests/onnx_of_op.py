"""ONNX models of single ops, spelled by ``Op.to_onnx``: what tests give to ONNX Runtime and to the importer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from iossim.ir.op import Array, Op

#: IR version that every supported runtime reads.
IR_VERSION = 8


def onnx_of_op(op: Op, inputs: Sequence[Array], opset: int, constants: Sequence[int] = ()) -> onnx.ModelProto:
    """A model of one node that reads ``x0, x1, ...`` and makes ``y0, y1, ...``; inputs at ``constants`` are weights.

    What ``to_onnx`` gives is an attribute or an input, as the operator's schema at ``opset`` has it. What that schema
    does not know yet is left out, if it says nothing (zero, or ones).
    """
    op_type, given = op.to_onnx()
    schema = onnx.defs.get_schema(op_type, opset)
    names = [f"x{index}" for index in range(len(inputs))]
    weights = [numpy_helper.from_array(inputs[index], names[index]) for index in constants]
    attributes: dict[str, Any] = {}
    parameters = list(names)
    slots = [slot.name for slot in schema.inputs]
    for name, value in given.items():
        if name in schema.attributes:
            attributes[name] = value
        elif name in slots:
            parameters += [""] * (slots.index(name) + 1 - len(parameters))
            parameters[slots.index(name)] = name
            dtype = inputs[0].dtype if isinstance(value, float) else np.int64
            weights.append(numpy_helper.from_array(np.array(value, dtype=dtype), name))
        elif np.any(np.asarray(value) != (1 if isinstance(value, list) else 0)):
            raise ValueError(f"{op_type} of opset {opset} has no {name}")
    types = [helper.np_dtype_to_tensor_dtype(array.dtype) for array in inputs]
    outputs = [f"y{index}" for index in range(len(op.infer(types_of(inputs))))]
    graph = helper.make_graph(
        [helper.make_node(op_type, parameters, outputs, "node", **attributes)],
        "one_op",
        [
            helper.make_tensor_value_info(name, dtype, array.shape)
            for index, (name, dtype, array) in enumerate(zip(names, types, inputs, strict=True))
            if index not in constants
        ],
        [helper.make_tensor_value_info(name, types[0], None) for name in outputs],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION)


def types_of(arrays: Sequence[Array]) -> list[Any]:
    """Tensor types of arrays."""
    from iossim.ir.constants import dtype_of
    from iossim.ir.types import TensorType

    return [TensorType(array.shape, dtype_of(array)) for array in arrays]


def run_onnxruntime(model: onnx.ModelProto | str, feeds: dict[str, Array]) -> list[Array]:
    """The outputs of a model (or model file) by ONNX Runtime on one thread, without its graph rewrites."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    source = model if isinstance(model, str) else model.SerializeToString()
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    results: list[Array] = session.run(None, feeds)
    return results
