"""Sequences, optionals, attentions and masks are written out at import: what is left computes what ONNX Runtime does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper
from onnx_import import import_onnx
from onnx_models import write_onnx
from onnx_of_op import run_onnxruntime

from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.base.errors import ModelError
from iossim.ir.op import Array
from iossim.models.load import load
from iossim.models.passes.pipeline import canonicalise

node = helper.make_node
NUMBERS = {str(value): np.array(value) for value in (-1, 0, 1, 2, 4, 9)} | {"sizes": np.array([1, 5])}


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
    "an optional": [
        node("Optional", ["x"], ["o"]), node("OptionalHasElement", ["o"], ["has"]), node("OptionalGetElement", ["o"], ["g"]),
        node("Cast", ["has"], ["n"], to=TensorProto.FLOAT), node("Mul", ["g", "n"], ["y"]),
    ],
}  # fmt: skip


#: Models whose operators came, or took sequences, after operator set 12.
LATER = ("joined again", "an optional")


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


DOMAIN = "com.microsoft"
TOKENS, KEYS, WIDTH = 6, 6, 16
X = ("x", TensorProto.FLOAT, [2, TOKENS, WIDTH])
KINDS = {TensorProto.FLOAT: np.float32, TensorProto.INT32: np.int32, TensorProto.INT64: np.int64}


def mask(shape: Sequence[int], kind: int = TensorProto.INT32) -> tuple[str, int, Sequence[int]]:
    return "mask", kind, shape


def checked(
    path: Path, node: onnx.NodeProto, inputs: Sequence[tuple[str, int, Sequence[int]]], opset: int = 17
) -> list[str]:
    """The kinds of units of a model of an attention and a ReLU, whose shape no file says, behind it."""
    random = np.random.default_rng(0)
    shapes = {"w": (WIDTH, 3 * WIDTH), "b": (3 * WIDTH,)}
    weights = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    relu = helper.make_node("Relu", [node.output[0]], ["y"], "relu")
    declared = {name: (kind, shape) for name, kind, shape in inputs}
    write_onnx(path, [node, relu], declared, weights, opset=opset, domains=[DOMAIN])
    network = load(path, strict=True)
    feeds: dict[str, Array] = {}
    for name, kind, shape in inputs:
        whole = random.integers(1, KEYS, shape) if len(shape) == 1 else random.integers(0, 2, shape)
        floats = random.standard_normal(shape)
        feeds[name] = (floats if kind == TensorProto.FLOAT else whole).astype(KINDS[kind])
    (expected,) = run_onnxruntime(str(path), feeds)
    (made,) = evaluate_graph(network.graph, feeds).values()
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-4)
    return [unit.kind for unit in network.units]


@pytest.mark.parametrize("shape", [(2,), (2, KEYS), (2, TOKENS, KEYS)])
@pytest.mark.parametrize("opset", [12, 17])
def test_masks_of_an_attention(shape: Sequence[int], opset: int, tmp_path: Path) -> None:
    node = helper.make_node("Attention", ["x", "w", "b", "mask"], ["a"], "att", domain=DOMAIN, num_heads=4)
    kinds = checked(tmp_path / "m.onnx", node, [X, mask(shape)], opset)
    assert "Attention" in " ".join(kinds)
    assert "Matmul-Bias" in kinds


@pytest.mark.parametrize(
    ("inputs", "attributes"),
    [
        (["x", "w", "b"], {}),
        (["x", "w", ""], {"scale": 0.5}),
        (["x", "w", "b"], {"unidirectional": 1}),
        (["x", "w", "b", "mask"], {"mask_filter_value": -5.0}),
        (["x", "w", "b", "mask", "", "bias"], {"unidirectional": 1}),
    ],
)
def test_an_attention_of_onnxruntime(inputs: list[str], attributes: dict[str, float], tmp_path: Path) -> None:
    node = helper.make_node("Attention", inputs, ["a"], "att", domain=DOMAIN, num_heads=4, **attributes)
    known = {"mask": mask((2, KEYS)), "bias": ("bias", TensorProto.FLOAT, [2, 4, TOKENS, KEYS])}
    checked(tmp_path / "m.onnx", node, [X, *(known[name] for name in inputs if name in known)])


@pytest.mark.parametrize("rest", [[], ["b"], ["", "mask"], ["b", "mask", "bias"]])
def test_an_attention_of_several_heads(rest: list[str], tmp_path: Path) -> None:
    node = helper.make_node("MultiHeadAttention", ["x", "k", "v", *rest], ["a"], "att", domain=DOMAIN, num_heads=4)
    known = {"mask": mask((2, KEYS)), "bias": ("bias", TensorProto.FLOAT, [2, 4, TOKENS, KEYS])}
    others = [("k", TensorProto.FLOAT, [2, KEYS, WIDTH]), ("v", TensorProto.FLOAT, [2, KEYS, WIDTH])]
    checked(tmp_path / "m.onnx", node, [X, *others, *(known[name] for name in rest if name in known)])


@pytest.mark.parametrize("kind", [TensorProto.INT32, TensorProto.INT64])
def test_a_mask_of_whole_numbers_is_added_to_the_scores(kind: int, tmp_path: Path) -> None:
    """As ONNX says of all numbers; what is seen are truth values."""
    heads = [(name, TensorProto.FLOAT, [2, 4, TOKENS, 8]) for name in "qkv"]
    node = helper.make_node("Attention", ["q", "k", "v", "mask"], ["a"], "att")
    kinds = checked(tmp_path / "m.onnx", node, [*heads, mask((TOKENS, TOKENS), kind)], 23)
    assert kinds == ["Cast", "Attention", "Relu"]
