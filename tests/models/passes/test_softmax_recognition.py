"""Softmaxes as exporters write them: in parts, with checks that find nothing; outputs are those of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from onnx import NodeProto, helper
from onnx_models import write_onnx
from onnx_of_op import run_onnxruntime

from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.models.load import load

SHAPE = (2, 3, 4)
#: The first row hides its last two elements, the second none.
OPEN = np.array([[True, True, False, False], [True] * 4, [False, False, False, True]])
CLOSED = np.array([[True] * 4, [False] * 4, [True] * 4])


def node(op_type: str, inputs: str, output: str, **attributes: object) -> NodeProto:
    return helper.make_node(op_type, inputs.split(), [output], **attributes)


def loaded(
    folder: Path, nodes: list[NodeProto], weights: Mapping[str, Array] | None = None, inputs: str = "x", opset: int = 18
) -> Network:
    """The network of a file, whose outputs are those of ONNX Runtime: NaN included."""
    given = {"w": np.eye(4, dtype=np.float32), "zero": np.float32(0), "hidden": np.float32(-np.inf), **(weights or {})}
    read = {name for each in nodes for name in each.input}
    used = {name: array for name, array in given.items() if name in read}
    path = write_onnx(folder / "net.onnx", nodes, dict.fromkeys(inputs.split(), SHAPE), used, opset=opset)
    network = load(path)
    random = np.random.default_rng(0)
    arrays = {name: random.standard_normal(SHAPE).astype(np.float32) for name in inputs.split()}
    (expected,) = run_onnxruntime(str(path), arrays)
    np.testing.assert_allclose(evaluate_graph(network.graph, arrays)["y"], expected, rtol=1e-5, atol=1e-6)
    return network


def kinds(network: Network) -> list[str]:
    return [each.op.signature if each.op.kind == "unary" else each.op.kind for each in network.graph.nodes]


def masked(mask: str, *before: NodeProto) -> list[NodeProto]:
    """The attention that PyTorch's exporter writes: scores, a mask added, a softmax, a check of it."""
    return [
        *before,
        node("MatMul", "x w", "scores"),
        node("Add", f"scores {mask}", "masked"),
        node("Softmax", "masked", "s", axis=-1),
        node("IsNaN", "s", "is_nan"),
        node("Where", "is_nan zero s", "y"),
    ]


ADDED = np.where(OPEN, 0, -np.inf).astype(np.float32)
KNOWN_MASKS: dict[str, tuple[list[NodeProto], dict[str, Array]]] = {
    "a constant": (masked("mask"), {"mask": ADDED}),
    "of one row": (masked("mask"), {"mask": ADDED[:1]}),
    "one number": (masked("zero"), {}),
    "expanded": (
        masked("whole", node("Expand", "mask shape", "whole")),
        {"mask": ADDED[:1], "shape": np.array([3, 4])},
    ),
    "chosen": (masked("mask", node("Where", "open zero hidden", "mask")), {"open": OPEN}),
    "chosen of the scores": (
        [node("MatMul", "x w", "scores"), node("Where", "open scores hidden", "masked"), *masked("mask")[2:]],
        {"open": OPEN},
    ),
    "of the lengths of the input": (
        masked(
            "mask",
            node("Cast", "x", "whole", to=6),
            node("Equal", "whole whole", "same"),
            node("Where", "same zero low", "mask"),
        ),
        {"low": np.float32(-1e4)},
    ),
}


@pytest.mark.parametrize("name", KNOWN_MASKS)
def test_a_check_that_finds_nothing_is_left_out(name: str, tmp_path: Path) -> None:
    network = loaded(tmp_path, *KNOWN_MASKS[name])
    assert not [each for each in kinds(network) if "is_nan" in each]
    assert network.graph.of_kind["softmax"][0].outputs == ("y",)
    (remark,) = network.remarks
    assert remark == "Left out, since the mask hides no row whole: 1 check of a softmax for NaN."


KEPT_MASKS: dict[str, tuple[list[NodeProto], dict[str, Array], str]] = {
    "a row is hidden": (masked("mask"), {"mask": np.where(CLOSED, 0, -np.inf).astype(np.float32)}, "x"),
    "given at run time": (masked("mask"), {}, "x mask"),
    "chosen at run time": (
        masked("mask", node("Greater", "other zero", "open"), node("Where", "open zero hidden", "mask")),
        {},
        "x other",
    ),
    "very low": (masked("mask"), {"mask": np.where(CLOSED, 0, -3e38).astype(np.float32)}, "x"),
    "not a number": (masked("mask"), {"mask": np.full((3, 4), np.nan, dtype=np.float32)}, "x"),
    "scores of unknown size": ([node("Exp", "x", "e"), node("MatMul", "x w", "z"), *masked("e")], {}, "x"),
    "no softmax": ([node("Log", "x", "s"), *masked("mask")[3:]], {}, "x"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", KEPT_MASKS)
def test_a_check_that_may_find_something_stays(name: str, tmp_path: Path) -> None:
    nodes, weights, inputs = KEPT_MASKS[name]
    network = loaded(tmp_path, nodes, weights, inputs)
    assert [each for each in kinds(network) if "is_nan" in each]
    assert network.remarks == ("Kept, and priced, since the mask may hide a whole row: 1 check of a softmax for NaN.",)


PARTS: dict[str, list[NodeProto]] = {
    "as it is": [node("Exp", "x", "e"), node("ReduceSum", "e last", "sum"), node("Div", "e sum", "y")],
    "without the maximum": [
        node("ReduceMax", "x last", "most"),
        node("Sub", "x most", "shifted"),
        node("Exp", "shifted", "e"),
        node("ReduceSum", "e last", "sum"),
        node("Div", "e sum", "y"),
    ],
    "of rows": [node("Exp", "x", "e"), node("ReduceSum", "e middle", "sum"), node("Div", "e sum", "y")],
}
AXES = {"last": np.array([-1]), "middle": np.array([1])}


@pytest.mark.parametrize("name", PARTS)
def test_a_softmax_in_parts_is_one(name: str, tmp_path: Path) -> None:
    network = loaded(tmp_path, PARTS[name], AXES)
    assert [each.op.signature for each in network.graph.nodes] == [
        f"softmax(axis={1 if name == 'of rows' else 2},flatten=False)"
    ]
    assert network.remarks == ("The file spells 1 softmax as exponential, sum and quotient; read as Softmax.",)


def test_what_is_no_softmax_stays_in_parts(tmp_path: Path) -> None:
    exponential, total, quotient = PARTS["as it is"]
    others = [
        [exponential, node("ReduceSum", "e both", "sum"), quotient],
        [exponential, node("ReduceMax", "e last", "sum"), quotient],
        [exponential, total, node("Div", "sum e", "y")],
        [exponential, total, node("Div", "e sum", "z"), node("Add", "z e", "y")],
    ]
    for nodes in others:
        network = loaded(tmp_path, nodes, {**AXES, "both": np.array([1, 2])})
        assert "softmax" not in kinds(network)
        assert network.remarks == ()


def test_a_check_of_a_softmax_in_parts_is_left_out(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", "x w", "scores"),
        node("Exp", "scores", "e"),
        node("ReduceSum", "e last", "sum"),
        node("Div", "e sum", "s"),
        *masked("mask")[3:],
    ]
    network = loaded(tmp_path, nodes, AXES)
    assert kinds(network) == ["matmul", "softmax"]
    assert len(network.remarks) == 2
