"""Softmaxes as exporters write them, and joins of branches: whose units those are, and that outputs stay the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx_models import nodes_of, write_onnx
from onnx_of_op import run_onnxruntime

from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.op import Array, Role
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.unary import Relu, Sigmoid
from iossim.models.layers import conv_relu
from iossim.models.load import load
from iossim.models.partition import network_of
from iossim.models.passes.blocks import cut_blocks
from iossim.models.passes.joins import joins_of, with_joins
from iossim.models.passes.unit_fusion import with_units
from iossim.models.random_graphs import seeded_network

SHAPE = (2, 3, 4)
#: The first row hides its last two elements, the second none.
OPEN = np.array([[True, True, False, False], [True] * 4, [False, False, False, True]])
CLOSED = np.array([[True] * 4, [False] * 4, [True] * 4])


def loaded(
    folder: Path, nodes: str, weights: Mapping[str, Array] | None = None, inputs: str = "x", opset: int = 18
) -> Network:
    """The network of a file, whose outputs are those of ONNX Runtime: NaN included."""
    given = {"w": np.eye(4, dtype=np.float32), "zero": np.float32(0), "hidden": np.float32(-np.inf), **(weights or {})}
    read = {name for each in nodes_of(nodes) for name in each.input}
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


#: The check of a softmax that PyTorch's exporter writes, and the attention of it: scores, a mask added, a softmax.
CHECK = "is_nan = IsNaN(s); y = Where(is_nan, zero, s)"
SOFTMAX_AND_CHECK = f"s = Softmax <axis=-1> (masked); {CHECK}"
MASKED = f"scores = MatMul(x, w); masked = Add(scores, mask); {SOFTMAX_AND_CHECK}"
ADDED = np.where(OPEN, 0, -np.inf).astype(np.float32)
KNOWN_MASKS: dict[str, tuple[str, dict[str, Array]]] = {
    "a constant": (MASKED, {"mask": ADDED}),
    "of one row": (MASKED, {"mask": ADDED[:1]}),
    "one number": (MASKED.replace("mask)", "zero)"), {}),
    "expanded": (f"mask = Expand(row, shape); {MASKED}", {"row": ADDED[:1], "shape": np.array([3, 4])}),
    "chosen": (f"mask = Where(open, zero, hidden); {MASKED}", {"open": OPEN}),
    "chosen of the scores": (
        f"scores = MatMul(x, w); masked = Where(open, scores, hidden); {SOFTMAX_AND_CHECK}",
        {"open": OPEN},
    ),
    "of the lengths of the input": (
        f"n = Cast <to=6> (x); same = Equal(n, n); mask = Where(same, zero, low); {MASKED}",
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


KEPT_MASKS: dict[str, tuple[str, dict[str, Array], str]] = {
    "a row is hidden": (MASKED, {"mask": np.where(CLOSED, 0, -np.inf).astype(np.float32)}, "x"),
    "given at run time": (MASKED, {}, "x mask"),
    "chosen at run time": (f"open = Greater(other, zero); mask = Where(open, zero, hidden); {MASKED}", {}, "x other"),
    "very low": (MASKED, {"mask": np.where(CLOSED, 0, -3e38).astype(np.float32)}, "x"),
    "not a number": (MASKED, {"mask": np.where(np.eye(3, 4) > 0, np.nan, 0).astype(np.float32)}, "x"),
    "scores of unknown size": (f"mask = Exp(x); z = MatMul(x, w); {MASKED}", {}, "x"),
    "no softmax": (f"s = Log(x); {CHECK}", {}, "x"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", KEPT_MASKS)
def test_a_check_that_may_find_something_stays(name: str, tmp_path: Path) -> None:
    nodes, weights, inputs = KEPT_MASKS[name]
    network = loaded(tmp_path, nodes, weights, inputs)
    assert [each for each in kinds(network) if "is_nan" in each]
    assert network.remarks == ("Kept, since the mask may hide a whole row: 1 check of a softmax for NaN.",)


def selected(behind: str = "y = Softmax <axis=-1> (masked)", scores: str = "scores, low") -> str:
    """Scores, some of which are replaced by the lowest number, and what is behind them."""
    return f"scores = MatMul(x, w); masked = Where(seen, {scores}); {behind}"


LOW, SUMMED = {"low": np.float32(-1e4)}, "sum = Add(masked, m); y = Softmax <axis=-1> (sum)"


@pytest.mark.parametrize("seen", [OPEN, OPEN[:1], np.array(True), OPEN[None]], ids=["rows", "a row", "all", "batch"])
@pytest.mark.parametrize("low", [-1e4, np.finfo(np.float32).min, -np.inf])
def test_a_known_selection_of_scores_is_a_sum_with_a_mask(seen: Array, low: float, tmp_path: Path) -> None:
    for nodes in selected(), selected("cast = Cast <to=1> (masked); y = Softmax <axis=-1> (cast)"):
        assert "where" not in kinds(loaded(tmp_path, nodes, {"seen": seen, "low": np.float32(low)}))


@pytest.mark.parametrize("scores", ["scores, low", "low, scores"])
@pytest.mark.parametrize("known", [True, False])
def test_a_selection_of_scores_or_the_lowest_number_is_a_sum_with_a_mask(
    known: bool, scores: str, tmp_path: Path
) -> None:
    """Whatever it hides, and what is added: GPT-2 adds a mask to what a known one hides, MPT's is computed."""
    nodes = f"{'' if known else 'seen = Greater(m, zero); '}{selected(SUMMED, scores)}"
    weights = {"low": np.float32(np.finfo(np.float32).min)} | ({"seen": CLOSED} if known else {})
    found = loaded(tmp_path, nodes, weights, inputs="x m")
    assert kinds(found).count("where") == (not known)
    assert all("scores" not in each.inputs for each in found.graph.of_kind.get("where", ()))


@pytest.mark.parametrize(
    ("nodes", "weights"),
    [
        pytest.param(selected(), {"seen": CLOSED, **LOW}, id="a row is hidden"),
        pytest.param(selected(), {"seen": OPEN, "low": np.float32(-100)}, id="not low"),
        pytest.param(selected(scores="low, scores"), {"seen": OPEN, **LOW}, id="the other way hides a row"),
        pytest.param(selected(SUMMED), {"seen": OPEN, **LOW}, id="a sum, and not low enough"),
        pytest.param(selected("y = Softmax <axis=1> (masked)"), {"seen": OPEN, **LOW}, id="columns"),
        pytest.param(selected("soft = Softmax <axis=-1> (masked); y = Add(masked, soft)"), {"seen": OPEN, **LOW}, id="read elsewhere"),
    ],
)  # fmt: skip
def test_another_selection_stays(nodes: str, weights: dict[str, Array], tmp_path: Path) -> None:
    assert "where" in kinds(loaded(tmp_path, nodes, weights, inputs="x m" if SUMMED in nodes else "x"))


PARTS = {
    "as it is": "e = Exp(x); sum = ReduceSum(e, last); y = Div(e, sum)",
    "without the maximum": "most = ReduceMax(x, last); shifted = Sub(x, most); e = Exp(shifted); sum = ReduceSum(e, last); y = Div(e, sum)",
    "of rows": "e = Exp(x); sum = ReduceSum(e, middle); y = Div(e, sum)",
}
AXES = {"last": np.array([-1]), "middle": np.array([1])}


@pytest.mark.parametrize("name", PARTS)
def test_a_softmax_in_parts_is_one(name: str, tmp_path: Path) -> None:
    network = loaded(tmp_path, PARTS[name], AXES)
    assert [each.op.signature for each in network.graph.nodes] == [
        f"softmax(axis={1 if name == 'of rows' else 2},flatten=False)"
    ]
    assert network.remarks == ("The file spells these as several ops; read as one op each: softmax (1).",)


def test_what_is_no_softmax_stays_in_parts(tmp_path: Path) -> None:
    others = [
        "e = Exp(x); sum = ReduceSum(e, both); y = Div(e, sum)",
        "e = Exp(x); sum = ReduceMax(e, last); y = Div(e, sum)",
        "e = Exp(x); sum = ReduceSum(e, last); y = Div(sum, e)",
        "e = Exp(x); sum = ReduceSum(e, last); z = Div(e, sum); y = Add(z, e)",
    ]
    for nodes in others:
        network = loaded(tmp_path, nodes, {**AXES, "both": np.array([1, 2])})
        assert "softmax" not in kinds(network)
        assert network.remarks == ()


def test_a_check_of_a_softmax_in_parts_is_left_out(tmp_path: Path) -> None:
    parts = "scores = MatMul(x, w); e = Exp(scores); sum = ReduceSum(e, last); s = Div(e, sum)"
    network = loaded(tmp_path, f"{parts}; {CHECK}", AXES)
    assert kinds(network) == ["matmul", "softmax"]
    assert len(network.remarks) == 2


def partition(network: Network) -> set[tuple[int, ...]]:
    return {unit.nodes for unit in network.units}


def in_order(network: Network) -> bool:
    block_of = {unit: place for place, block in enumerate(network.blocks) for unit in block.units}
    pairs = [(before, unit) for unit, reads in enumerate(network.predecessors) for before in reads]
    return all(before < unit and block_of[before] <= block_of[unit] for before, unit in pairs)


def residual(b: GraphBuilder, x: str) -> str:
    """A sum of two branches: a long one, and a convolution that may run beside it."""
    return b.add(Relu(), b.add(Add(), b.conv(conv_relu(b, "long", x, 4), 4, name="deep"), b.conv(x, 4, name="short")))


def identity(b: GraphBuilder, x: str) -> str:
    """The other branch is what the whole block reads: no convolution waits for it."""
    return b.add(Add(), b.conv(conv_relu(b, "long", x, 4), 4, name="deep"), x)


def gate(b: GraphBuilder, x: str) -> str:
    return b.add(Mul(), b.conv(x, 4, name="value"), b.add(Sigmoid(), b.conv(x, 4, name="gate")))


def read_twice(b: GraphBuilder, x: str) -> str:
    """Both products are read twice: one of them can be one with all that reads it, the other cannot."""
    deep, short = b.conv(x, 4, name="deep"), b.conv(x, 4, name="short")
    return b.add(Add(), b.add(Add(), deep, short), b.add(Mul(), deep, short))


@pytest.mark.parametrize(
    ("branches", "fused_units", "apart_units", "counted"),
    [
        (residual, 3, 4, "1 add"),
        (identity, 2, 2, "0 adds"),
        (gate, 2, 3, "1 join of branches"),
        (read_twice, 2, 3, "1 add"),
    ],
)
def test_a_product_need_not_wait_for_another_branch(
    branches: Callable[[GraphBuilder, str], str], fused_units: int, apart_units: int, counted: str
) -> None:
    b = GraphBuilder("g")
    graph = b.graph([branches(b, conv_relu(b, "stem", b.input("x", (1, 3, 8, 8)), 4))])
    fused, apart = (cut_blocks(network_of(graph, "g", units=policy)) for policy in ("fused", "apart"))
    assert (len(fused.units) - 1, len(apart.units) - 1) == (fused_units, apart_units)  # but for the stem
    joins = joins_of(fused)
    assert (joins.counted(len(joins)), joins.products) == (counted, "convolutions")
    made = with_joins(fused, apart=joins.fused)
    assert partition(made) == partition(apart)
    assert made.blocks == apart.blocks
    # Apart, the branches are of one block; fused the add again is where it was.
    again = with_joins(made, fused=joins_of(made).apart)
    assert (partition(again), again.blocks) == (partition(fused), fused.blocks)


@pytest.mark.parametrize(("name", "count"), [("squeezenet", 4), ("resnet18", 8), ("centernet", 8)])
def test_the_zoo_with_its_adds_fused_has_the_units_of_an_engine(name: str, count: int) -> None:
    network = load(name)
    assert (len(joins_of(network).fused), len(joins_of(network).apart)) == (0, count)
    fused = with_joins(network, fused=joins_of(network).apart)
    assert len(network.units) - len(fused.units) == count
    views = {(index,) for index, node in enumerate(network.graph.nodes) if node.op.role is Role.VIEW}
    differ = partition(fused) ^ partition(with_units(network, "fused"))  # by a view and the product behind it
    assert (len(differ), len(differ & views)) in ((0, 0), (3, 1))


@given(st.integers(0, 400), st.sampled_from(["model", "fused"]), st.data())
def test_any_choice_of_joins_is_a_network_in_order(seed: int, units: str, data: st.DataObject) -> None:
    """A join that is fused into the product of another join waits for that: alone it stays as it is."""
    network = with_units(seeded_network(seed, blocks=1), units)
    joins = joins_of(network)
    fused, apart = (
        data.draw(st.sets(st.sampled_from(sorted(names)))) if names else set() for names in (joins.apart, joins.fused)
    )
    for chosen in (fused, joins.apart.keys()):
        made = with_joins(network, chosen, apart)  # Network checks that each op is in one unit
        assert in_order(made)
        waiting = chosen & joins_of(made).apart.keys()
        assert len(made.units) == len(network.units) - len(chosen - waiting) + len(apart)
        assert all(len(unit.outputs) == 1 for unit in made.units)
        assert not waiting or chosen == fused != joins.apart.keys()
    assert with_joins(network, {"no such"}).units == network.units
