"""ONNX models of single ops: what tests give to ONNX Runtime and to the importer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import onnxruntime
from onnx import helper, numpy_helper

from iossim.ir.op import Array, Op
from iossim.models.onnx_spelling import IR_VERSION, Names, spell


def onnx_of_op(op: Op, inputs: Sequence[Array], opset: int, constants: Sequence[int] = ()) -> onnx.ModelProto:
    """A model of one op that reads ``x0, x1, ...`` and makes ``y0, y1, ...``; inputs at ``constants`` are weights."""
    types = types_of(inputs)
    names = [f"x{index}" for index in range(len(inputs))]
    outputs = [f"y{index}" for index in range(len(op.infer(types)))]
    nodes, parameters = spell(op, "node", names, outputs, types[0], opset, Names([*names, *outputs]))
    elements = [helper.np_dtype_to_tensor_dtype(array.dtype) for array in inputs]
    graph = helper.make_graph(
        nodes,
        "one_op",
        [
            helper.make_tensor_value_info(name, element, array.shape)
            for index, (name, element, array) in enumerate(zip(names, elements, inputs, strict=True))
            if index not in constants
        ],
        [helper.make_tensor_value_info(name, elements[0], None) for name in outputs],
        [*(numpy_helper.from_array(inputs[index], names[index]) for index in constants), *parameters],
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
