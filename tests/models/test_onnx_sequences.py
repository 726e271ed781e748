"""Sequences and optionals are written out at import: what is left computes what ONNX Runtime does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx_import import import_onnx
from onnx_models import write_onnx
from onnx_of_op import run_onnxruntime

from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.base.errors import ModelError
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
        (f"{SPLIT}; [at] y = SequenceAt(s, nine)", "SequenceAt 'at': there is no place 9 in"),
        ("[at] y = SequenceAt(x, zero)", "its input 'x' is no sequence"),
        ("y = SplitToSequence <axis=1> (x, nine)", "output 'y' is no tensor"),
        ("[split] s = SplitToSequence(x, sizes); y = SequenceAt(s, zero)", "do not add up"),
        ("[split] s = SplitToSequence(x, zero); y = SequenceAt(s, zero)", "it splits into parts of 0"),
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
