"""Sequences, optionals, attentions and masks are written out at import: what is left computes what ONNX Runtime does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_import import import_onnx
from onnx_models import write_onnx
from onnx_of_op import run_onnxruntime

from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.base.errors import ModelError
from iossim.ir.op import Array
from iossim.models.load import load
from iossim.models.passes.pipeline import canonicalise

NUMBERS = {"back": -1, "zero": 0, "one": 1, "four": 4, "nine": 9, "sizes": [1, 5]}
WEIGHTS = {name: np.array(value) for name, value in NUMBERS.items()}


SPLIT = "s = SplitToSequence <axis=1> (x, four)"
MODELS = {
    "parts of four, the last smaller": f"{SPLIT}; a = SequenceAt(s, zero); b = Relu(a); c = SequenceAt(s, back)"
    "; y = Concat <axis=1> (c, b)",
    "rows without their axis": "s = SplitToSequence <axis=0, keepdims=0> (x); y = SequenceAt(s, one)",
    "given sizes": "s = SplitToSequence <axis=-1> (x, sizes); t = SequenceErase(s, zero); y = SequenceAt(t, zero)",
    "stacked again": "s = SequenceConstruct(x, x); n = Neg(x); t = SequenceInsert(s, n, one)"
    "; y = ConcatFromSequence <axis=-1, new_axis=1> (t)",
    "joined again": "e = SequenceEmpty(); s = SequenceInsert(e, x); n = Neg(x); t = SequenceInsert(s, n)"
    "; u = Identity(t); y = ConcatFromSequence <axis=0> (u)",
    "its length": f"{SPLIT}; count = SequenceLength(s); n = Cast <to=1> (count); y = Mul(x, n)",
    "an optional": "o = Optional(x); has = OptionalHasElement(o); g = OptionalGetElement(o); n = Cast <to=1> (has)"
    "; y = Mul(g, n)",
}


#: Models whose operators came, or took sequences, after operator set 12.
LATER = ("joined again", "an optional")


@pytest.mark.parametrize(
    ("name", "opset"), [(name, opset) for name in MODELS for opset in (12, 18) if opset == 18 or name not in LATER]
)
def test_what_is_left_are_tensors(name: str, opset: int, tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "m.onnx", MODELS[name], {"x": [2, 6]}, WEIGHTS, opset=opset)
    graph = canonicalise(import_onnx(path))
    assert all(each.op.kind != "foreign" for each in graph.nodes)
    x = np.random.default_rng(0).standard_normal((2, 6)).astype(np.float32)
    (expected,) = run_onnxruntime(str(path), {"x": x})
    np.testing.assert_allclose(evaluate_graph(graph, {"x": x})["y"], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        (f"{SPLIT}; [at] y = SequenceAt(s, nine)", "SequenceAt 'at' is not valid: there is no place 9 in"),
        ("[at] y = SequenceAt(x, zero)", "its input 'x' is no sequence"),
        ("y = SplitToSequence <axis=1> (x, nine)", "output 'y' is no tensor"),
        ("[split] s = SplitToSequence(x, sizes); y = SequenceAt(s, zero)", "do not add up"),
        (f"{SPLIT}; [r] y = Relu(s)", "it reads a sequence or an optional"),
        ("o = Optional(); [get] y = OptionalGetElement(o)", "its optional holds nothing"),
        ("s = SequenceEmpty(); y = ConcatFromSequence <axis=0> (s)", "its sequence is empty"),
        (f"{SPLIT}; i = ArgMax(x); [at] y = SequenceAt(s, i)", "its position ('i') is computed at run time"),
    ],
)
def test_refused_in_one_line(nodes: str, reason: str, tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "m.onnx", nodes, {"x": [2, 6]}, WEIGHTS, opset=18)
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
    """The kinds of units of a model of an attention and a ReLU of it, whose shape no file says."""
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
