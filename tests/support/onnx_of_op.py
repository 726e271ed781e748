"""ONNX models of single ops: what tests give to ONNX Runtime and to the importer."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from iossim.ir.graph import Graph, Names
from iossim.ir.onnx_spelling import onnx_code
from iossim.ir.op import Array, Op
from iossim.models.onnx.file import read_model
from iossim.models.onnx.grouped_products import VERSION, functions_for
from iossim.models.onnx.inputs import bind
from iossim.models.onnx.spelling import IR_VERSION, Speller
from iossim.models.onnx.translate import translate
from iossim.models.options import LoadOptions
from iossim.models.passes.pipeline import canonicalise


def import_onnx(path: Path, **binding: Any) -> Graph:
    """``binding`` are options of :class:`~iossim.models.options.LoadOptions`."""
    options = LoadOptions(**binding)
    return translate(bind(read_model(path), options), static_part=options.static_part)


def onnx_of_op(op: Op, inputs: Sequence[Array], opset: int, constants: Sequence[int] = ()) -> onnx.ModelProto:
    """A model of one op that reads ``x0, x1, ...`` and makes ``y0, y1, ...``; inputs at ``constants`` are weights."""
    types = types_of(inputs)
    names = [f"x{index}" for index in range(len(inputs))]
    outputs = [f"y{index}" for index in range(len(op.infer(types)))]
    speller = Speller(opset, Names([*names, *outputs]))
    speller.spell(op, "node", names, outputs, *types)
    functions = functions_for(speller.nodes, opset)
    domains = {"": opset, **{each.domain: VERSION for each in functions}}
    elements = [helper.np_dtype_to_tensor_dtype(array.dtype) for array in inputs]
    graph = helper.make_graph(
        speller.nodes,
        "one_op",
        [
            helper.make_tensor_value_info(name, element, array.shape)
            for index, (name, element, array) in enumerate(zip(names, elements, inputs, strict=True))
            if index not in constants
        ],
        [
            helper.make_tensor_value_info(name, onnx_code(value.dtype), None)
            for name, value in zip(outputs, op.infer(types), strict=True)
        ],
        [*(numpy_helper.from_array(inputs[index], names[index]) for index in constants), *speller.tensors],
    )
    imports = [helper.make_opsetid(*each) for each in domains.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION, functions=functions)


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


def check_op(
    op: Op, inputs: Sequence[Array], opset: int, constants: Sequence[int] = (), tolerance: float = 2e-5
) -> None:
    """Hold an op to ONNX: its types to shape inference, its outputs to ONNX Runtime, its spelling to the importer.

    Its attributes are read back from JSON.
    """
    assert Op.from_attributes(op.kind, json.loads(json.dumps(op.attributes()))) == op
    model = onnx_of_op(op, inputs, opset, constants)
    made = op.infer(types_of(inputs))
    # Below opset 22 ONNX's shape inference (not its runtimes) counts windows that begin in the padding behind.
    trusted = opset >= 22 or not getattr(op, "ceil_mode", False)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    for output, value in zip(inferred.graph.output, made, strict=True) if trusted else ():
        # Of operators that are functions of others it may leave the shape open.
        tensor = output.type.tensor_type
        known = tensor.HasField("shape") and all(axis.HasField("dim_value") for axis in tensor.shape.dim)
        assert not known or tuple(axis.dim_value for axis in output.type.tensor_type.shape.dim) == value.shape
    outputs = op.evaluate(inputs)
    feeds = {f"x{index}": array for index, array in enumerate(inputs) if index not in constants}
    for array, expected, value in zip(outputs, run_onnxruntime(model, feeds), made, strict=True):
        assert array.dtype == expected.dtype == value.dtype.numpy
        assert array.shape == expected.shape == value.shape
        np.testing.assert_allclose(array, expected, rtol=tolerance, atol=tolerance)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        graph = import_onnx(path)
        (node,) = graph.nodes if len(graph.nodes) == 1 else canonicalise(graph).nodes  # written as several
    assert node.op.signature == op.signature
