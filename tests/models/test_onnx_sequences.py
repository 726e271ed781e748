"""Sequences and optionals are taken apart at import: what is left computes what ONNX Runtime does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper
from onnx_import import import_onnx
from onnx_models import write_onnx
from onnx_of_op import run_onnxruntime

from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.base.errors import ModelError
from iossim.models.passes.pipeline import canonicalise

node = helper.make_node
NUMBERS = {str(value): np.array(value) for value in (-1, 0, 1, 2, 4, 9)} | {"sizes": np.array([1, 5])}


def body(op_type: str, *inputs: str) -> object:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in (*inputs, "out")]
    return helper.make_graph([node(op_type, inputs, ["out"])], "body", values[:-1], values[-1:])


SPLIT = node("SplitToSequence", ["x", "4"], ["s"], axis=1)
MODELS: dict[str, list[NodeProto]] = {
    "parts of four, the last smaller": [
        SPLIT, node("SequenceAt", ["s", "0"], ["a"]), node("Relu", ["a"], ["b"]), node("SequenceAt", ["s", "-1"], ["c"]),
        node("Concat", ["c", "b"], ["y"], axis=1),
    ],
    "rows without their axis": [
        node("SplitToSequence", ["x"], ["s"], axis=0, keepdims=0), node("SequenceAt", ["s", "1"], ["y"]),
    ],
    "given sizes": [
        node("SplitToSequence", ["x", "sizes"], ["s"], axis=-1), node("SequenceErase", ["s", "0"], ["t"]),
        node("SequenceAt", ["t", "0"], ["y"]),
    ],
    "stacked again": [
        node("SequenceConstruct", ["x", "x"], ["s"]), node("Neg", ["x"], ["n"]), node("SequenceInsert", ["s", "n", "1"], ["t"]),
        node("ConcatFromSequence", ["t"], ["y"], axis=-1, new_axis=1),
    ],
    "joined again": [
        node("SequenceEmpty", [], ["e"]), node("SequenceInsert", ["e", "x"], ["s"]), node("Neg", ["x"], ["n"]),
        node("SequenceInsert", ["s", "n"], ["t"]), node("Identity", ["t"], ["u"]),
        node("ConcatFromSequence", ["u"], ["y"], axis=0),
    ],
    "its length": [
        SPLIT, node("SequenceLength", ["s"], ["count"]), node("Cast", ["count"], ["n"], to=TensorProto.FLOAT),
        node("Mul", ["x", "n"], ["y"]),
    ],
    "each of them": [
        SPLIT, node("SequenceMap", ["s"], ["m"], body=body("Exp", "each")), node("ConcatFromSequence", ["m"], ["y"], axis=1),
    ],
    "an optional": [
        node("Optional", ["x"], ["o"]), node("OptionalHasElement", ["o"], ["has"]), node("OptionalGetElement", ["o"], ["g"]),
        node("Cast", ["has"], ["n"], to=TensorProto.FLOAT), node("Mul", ["g", "n"], ["y"]),
    ],
}  # fmt: skip


#: Models whose operators came, or took sequences, after operator set 12.
LATER = ("joined again", "each of them", "an optional")


@pytest.mark.parametrize(
    ("name", "opset"), [(name, opset) for name in MODELS for opset in (12, 18) if opset == 18 or name not in LATER]
)
def test_what_is_left_are_tensors(name: str, opset: int, tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "m.onnx", MODELS[name], {"x": [2, 6]}, NUMBERS, opset=opset)
    graph = canonicalise(import_onnx(path))
    assert all(each.op.kind != "foreign" for each in graph.nodes)
    x = np.random.default_rng(0).standard_normal((2, 6)).astype(np.float32)
    (expected,) = run_onnxruntime(str(path), {"x": x})
    np.testing.assert_allclose(evaluate_graph(graph, {"x": x})["y"], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([SPLIT, node("SequenceAt", ["s", "9"], ["y"], "at")], "SequenceAt 'at' is not valid: there is no place 9 in"),
        ([node("SequenceAt", ["x", "0"], ["y"], "at")], "its input 'x' is no sequence"),
        ([node("SplitToSequence", ["x", "9"], ["y"], axis=1)], "output 'y' is no tensor"),
        ([node("SplitToSequence", ["x", "sizes"], ["s"], "split"), node("SequenceAt", ["s", "0"], ["y"])], "do not add up"),
        ([SPLIT, node("Relu", ["s"], ["y"], "r")], "it reads a sequence or an optional"),
        ([node("Optional", [], ["o"]), node("OptionalGetElement", ["o"], ["y"], "get")], "its optional holds nothing"),
        ([node("SequenceEmpty", [], ["s"]), node("ConcatFromSequence", ["s"], ["y"], axis=0)], "its sequence is empty"),
        (
            [SPLIT, node("ArgMax", ["x"], ["i"]), node("SequenceAt", ["s", "i"], ["y"], "at")],
            "its position ('i') is computed at run time",
        ),
    ],
)  # fmt: skip
def test_refused_in_one_line(nodes: list[NodeProto], reason: str, tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "m.onnx", nodes, {"x": [2, 6]}, NUMBERS, opset=18)
    with pytest.raises(ModelError) as caught:
        import_onnx(path)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
