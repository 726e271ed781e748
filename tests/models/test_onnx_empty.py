"""Tensors without elements are constants: a cache that is still empty, a part of no size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command_line import printed_json
from onnx import NodeProto, helper
from onnx_import import import_onnx
from onnx_models import write_onnx
from onnx_of_op import run_onnxruntime

from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.base.errors import ModelError
from iossim.models.onnx.export import export_graph
from iossim.models.passes.pipeline import canonicalise

node = helper.make_node
INTS = {"zero": [0], "nothing": np.zeros(0), "sizes": [0, 3, 0]}
WEIGHTS = {name: np.array(value, dtype=np.int64) for name, value in INTS.items()}
CACHE = [node("Concat", ["past", "x"], ["all"], "all", axis=1), node("Relu", ["all"], ["y"], "relu")]


def test_a_cache_that_is_still_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_onnx(tmp_path / "m.onnx", CACHE, {"x": [2, 3], "past": [2, "past"]})
    graph = canonicalise(import_onnx(path, dimensions={"past": 0}))
    assert graph.inputs == ("x",)
    assert [each.op.kind for each in graph.nodes] == ["relu"]
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    (expected,) = run_onnxruntime(str(path), {"x": x, "past": np.zeros((2, 0), np.float32)})
    np.testing.assert_array_equal(evaluate_graph(graph, {"x": x})["y"], expected)
    shown = printed_json(capsys, f"models show {path} --dim past=0 --json")
    assert shown["inputs"] == {"x": [2, 3]}
    assert printed_json(capsys, f"models show {path} --shape past=2x4 --json")["outputs"] == {"y": [2, 7]}


@pytest.mark.parametrize("opset", [11, 18])
@pytest.mark.parametrize(
    "nodes",
    [
        [node("Slice", ["x", "zero", "zero"], ["e"]), node("Concat", ["e", "x", "e"], ["y"], axis=0)],
        [node("Slice", ["x", "zero", "zero"], ["e"]), node("ReduceMin", ["x"], ["m"], axes=[0]),
         node("Sum", ["x", "x"], ["y"])],
        [node("Gather", ["x", "nothing"], ["e"], axis=1), node("Concat", ["x", "e"], ["y"], axis=1)],
        [node("Split", ["x", "sizes"], ["a", "b", "c"], axis=1), node("Concat", ["a", "b", "c"], ["y"], axis=1)],
        [node("Slice", ["x", "zero", "zero"], ["e"]), node("MatMul", ["t", "e"], ["z"]), node("Add", ["x", "z"], ["y"])],
    ],
)  # fmt: skip
def test_computes_what_onnxruntime_does(nodes: list[NodeProto], opset: int, tmp_path: Path) -> None:
    spelled = []
    for each in nodes:
        kept = NodeProto()
        kept.CopyFrom(each)
        if opset < 13 and each.op_type == "Split":
            kept = node("Split", ["x"], each.output, axis=1, split=[0, 3, 0])
        if opset >= 18 and each.op_type == "ReduceMin":
            kept = node("ReduceMin", ["x", "zero"], each.output)
        spelled.append(kept)
    weights = WEIGHTS | {"t": np.zeros((2, 0), np.float32)}
    path = write_onnx(tmp_path / "m.onnx", spelled, {"x": [2, 3]}, weights, opset=opset)
    graph = canonicalise(import_onnx(path))
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    (expected,) = run_onnxruntime(str(path), {"x": x})
    np.testing.assert_array_equal(evaluate_graph(graph, {"x": x})["y"], expected)
    np.testing.assert_array_equal(run_onnxruntime(export_graph(graph), {"x": x})[0], expected)


def test_an_input_that_is_too_small_is_no_empty_tensor(tmp_path: Path) -> None:
    pool = [node("MaxPool", ["x"], ["y"], "pool", kernel_shape=[3, 3])]
    path = write_onnx(tmp_path / "m.onnx", pool, {"x": [1, 1, 2, 2]})
    with pytest.raises(ModelError, match=r"MaxPool 'pool' would make an empty tensor fp32\[1x1x0x0\]"):
        import_onnx(path)


def test_terms_that_do_not_join(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "m.onnx", CACHE, {"x": [2, 3], "past": [5, "past"]})
    with pytest.raises(ModelError, match="do not join"):
        import_onnx(path, dimensions={"past": 0})
