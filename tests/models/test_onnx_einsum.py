"""Einsum is written out at import: what is left computes what NumPy and ONNX Runtime do, in few steps."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from onnx_models import write_onnx
from onnx_of_op import import_onnx, run_onnxruntime

from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.ir.graph import Graph
from iossim.models.load import load

SIZES = dict(zip("abcdefgh", (2, 3, 4, 1, 2, 5, 1, 3), strict=True))


def einsum(folder: Path, equation: str, *shapes: list[int], opset: int = 13) -> Graph:
    names = [f"x{place}" for place in range(len(shapes))]
    node = helper.make_node("Einsum", names, ["y"], "e", equation=equation)
    return import_onnx(write_onnx(folder / "m.onnx", [node], dict(zip(names, shapes, strict=True)), opset=opset))


@st.composite
def equations(draw: st.DrawFn) -> tuple[str, list[list[int]]]:
    """An equation of one to three operands, and their shapes; the axes of an ellipsis are the letters x and y."""
    dots, hidden = draw(st.booleans()), draw(st.sampled_from(["", "y", "xy"]))
    terms, shapes = [], []
    for _ in range(draw(st.integers(1, 3))):
        letters = draw(st.permutations("abcdefgh").map(lambda each: each[: len(each) // 2]))
        letters = "".join(letters[: draw(st.integers(0, 4))])
        at = draw(st.integers(0, len(letters)))
        sizes = SIZES | {"x": draw(st.sampled_from([1, 2])), "y": 3}
        terms.append(letters[:at] + ("..." if dots else "") + letters[at:])
        shapes.append([sizes[label] for label in letters[:at] + hidden * dots + letters[at:]])
    output = draw(st.permutations(sorted(set("".join(terms)) - {"."})))
    output = "".join(output[: draw(st.integers(0, len(output)))])
    at = draw(st.integers(0, len(output)))
    arrow = f" -> {output[:at]}{'...' * dots}{output[at:]}" if draw(st.booleans()) else ""
    return ", ".join(terms) + arrow, shapes


@settings(max_examples=60)
@given(asked=equations(), opset=st.sampled_from([12, 13, 20]))
def test_any_equation(asked: tuple[str, list[list[int]]], opset: int) -> None:
    equation, shapes = asked
    random = np.random.default_rng(0)
    feeds = {f"x{place}": random.standard_normal(shape).astype(np.float32) for place, shape in enumerate(shapes)}
    with TemporaryDirectory() as folder:
        graph = einsum(Path(folder), equation, *shapes, opset=opset)
        (expected,) = run_onnxruntime(f"{folder}/m.onnx", feeds)
    assert all(each.op.kind != "foreign" for each in graph.nodes)
    (made,) = evaluate_graph(graph, feeds).values()
    np.testing.assert_allclose(made, np.einsum(equation.replace(" ", ""), *feeds.values()), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("equation", "shapes", "kinds"),
    [
        ("bij,bjk->bik", [[2, 3, 4], [2, 4, 5]], "matmul"),
        ("bid,de->bie", [[2, 3, 4], [4, 5]], "matmul"),
        ("ij,bjk->bik", [[3, 4], [2, 4, 5]], "matmul"),
        ("...ij,...jk->...ik", [[6, 2, 3, 4], [2, 4, 5]], "matmul"),
        ("...ij,...jk", [[1, 3, 4], [2, 4, 5]], "reshape matmul"),
        ("ij,j", [[3, 4], [4]], "matmul"),
        ("bhid,bhjd->bhij", [[2, 3, 4, 5], [2, 3, 6, 5]], "transpose matmul"),
        ("bchw,cd->bdhw", [[2, 3, 4, 5], [3, 6]], "transpose reshape matmul reshape"),
        ("nhwpqc->nchpwq", [[1, 2, 3, 4, 5, 6]], "transpose"),
        ("i,j->ij", [[3], [4]], "reshape mul"),
        ("bi,bi->b", [[3, 4], [3, 4]], "mul reduce"),
        ("ij", [[3, 4]], "identity"),
        ("ab,bc,cd->ad", [[2, 3], [3, 4], [4, 5]], "matmul matmul"),
        ("aab,bc->ac", [[2, 2, 3], [3, 4]], "foreign"),
        ("i...->i", [[2, 3]], "foreign"),
    ],
)
def test_few_steps(equation: str, shapes: list[list[int]], kinds: str, tmp_path: Path) -> None:
    assert [each.op.kind for each in einsum(tmp_path, equation, *shapes).nodes] == kinds.split()


def test_an_attention_of_two_einsums_is_one_unit(tmp_path: Path) -> None:
    nodes = """s = Einsum <equation="B G H I D, B G H J D -> B G H I J"> (q, k); t = Mul(s, scale); b = Add(t, bias)
        ; p = Softmax <axis=-1> (b); y = Einsum <equation="B G H I J, B G H J D -> B G H I D"> (p, v)"""
    weights = {"scale": np.float32(0.5), "bias": np.ones((1, 1, 2, 6, 6), np.float32)}
    path = write_onnx(tmp_path / "m.onnx", nodes, dict.fromkeys("qkv", (2, 3, 2, 6, 4)), weights)
    assert [unit.kind for unit in load(path, strict=True).units] == ["Attention"]
