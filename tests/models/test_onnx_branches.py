"""Conditions that are known at import: the branch that is taken stands for the node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper
from onnx_import import import_onnx
from onnx_models import write_onnx
from onnx_of_op import run_onnxruntime

from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.base.errors import ModelError
from iossim.models.passes.pipeline import canonicalise

node = helper.make_node


def graph(nodes: Sequence[NodeProto], output: str, weights: dict[str, np.ndarray] | None = None) -> GraphProto:
    tensors = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    made = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
    return helper.make_graph(nodes, "branch", [], [made], tensors)


def scaled(factor: float) -> GraphProto:
    """``x * factor``, through values whose names every branch has."""
    return graph([node("Mul", ["x", "k"], ["t"], "m")], "t", {"k": np.array(factor, np.float32)})


def rank_is(rank: int, name: str) -> list[NodeProto]:
    """Whether ``x`` has that rank, as exporters ask it."""
    return [
        node("Shape", ["x"], [f"{name}.shape"]),
        node("Size", [f"{name}.shape"], [f"{name}.rank"]),
        node("Constant", [], [f"{name}.wanted"], value_int=rank),
        node("Equal", [f"{name}.rank", f"{name}.wanted"], [name]),
    ]


def check(path: Path, kinds: list[str]) -> None:
    found = canonicalise(import_onnx(path))
    assert [each.op.kind for each in found.nodes] == kinds
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    (expected,) = run_onnxruntime(str(path), {"x": x})
    np.testing.assert_allclose(evaluate_graph(found, {"x": x})["y"], expected, rtol=1e-6)


@pytest.mark.parametrize("rank", [2, 3])
def test_the_branch_that_is_taken(tmp_path: Path, rank: int) -> None:
    nodes = [*rank_is(rank, "c"), node("If", ["c"], ["y"], "choice", then_branch=scaled(2), else_branch=scaled(3))]
    check(write_onnx(tmp_path / "m.onnx", nodes, {"x": [2, 3]}), ["mul"])


def test_equal_names_in_several_branches(tmp_path: Path) -> None:
    nodes = [
        *rank_is(2, "c"),
        node("If", ["c"], ["a"], then_branch=scaled(2), else_branch=scaled(3)),
        node("If", ["c"], ["b"], then_branch=scaled(4), else_branch=scaled(5)),
        node("Sub", ["a", "b"], ["y"], "sub"),
    ]
    check(write_onnx(tmp_path / "m.onnx", nodes, {"x": [2, 3]}), ["mul", "mul", "nary"])


def test_a_branch_within_a_branch_that_reads_what_is_outside(tmp_path: Path) -> None:
    inner = node("If", ["inside"], ["t"], "inner", then_branch=scaled(2), else_branch=scaled(3))
    middle = graph([*rank_is(5, "inside"), inner], "t")
    outer = node("If", ["c"], ["y"], "outer", then_branch=middle, else_branch=scaled(7))
    check(write_onnx(tmp_path / "m.onnx", [*rank_is(2, "c"), outer], {"x": [2, 3]}), ["mul"])


def test_a_weight_that_only_a_branch_reads(tmp_path: Path) -> None:
    branch = graph([node("Add", ["x", "w"], ["t"], "add")], "t")
    nodes = [*rank_is(2, "c"), node("If", ["c"], ["y"], then_branch=branch, else_branch=scaled(3))]
    check(write_onnx(tmp_path / "m.onnx", nodes, {"x": [2, 3]}, {"w": np.ones(3, np.float32)}), ["add"])


def test_a_branch_that_returns_what_is_outside(tmp_path: Path) -> None:
    branch = graph([node("Identity", ["x"], ["t"])], "t")
    nodes = [*rank_is(2, "c"), node("If", ["c"], ["z"], then_branch=branch, else_branch=scaled(3))]
    check(write_onnx(tmp_path / "m.onnx", [*nodes, node("Relu", ["z"], ["y"])], {"x": [2, 3]}), ["relu"])


def test_a_branch_that_is_not_there(tmp_path: Path) -> None:
    nodes = [*rank_is(2, "c"), node("If", ["c"], ["y"], "choice", else_branch=scaled(3))]
    with pytest.raises(ModelError, match="If 'choice' has no then_branch that makes its outputs"):
        import_onnx(write_onnx(tmp_path / "m.onnx", nodes, {"x": [2, 3]}))
