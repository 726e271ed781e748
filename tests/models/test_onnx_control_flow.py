"""Loops and conditions at run time are carried whole, as foreign ops, where each run of the body makes what the last made;
of sequences and optionals tensors are left, which compute what ONNX Runtime does.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper
from onnx_models import nodes_of, write_onnx
from onnx_of_op import import_onnx, run_onnxruntime

from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.base.errors import ModelError
from iossim.ir.graph import Graph
from iossim.models.load import load
from iossim.models.onnx.export import export_graph
from iossim.models.passes.pipeline import canonicalise
from iossim.transforms.replay import network_of_source

node = helper.make_node
WEIGHTS = {"k": np.full(3, 0.5, np.float32), "trips": np.array(4), "zero": np.array(0, np.float32)}


def graph(
    nodes: Sequence[NodeProto], inputs: dict[str, int | None], outputs: Sequence[str], **weights: float
) -> GraphProto:
    """A body: inputs by element type, outputs of unknown type, weights of one number."""
    return helper.make_graph(
        nodes,
        "body",
        [helper.make_tensor_value_info(name, kind or TensorProto.FLOAT, [] if kind else None) for name, kind in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.array(value, np.float32), name) for name, value in weights.items()],
    )  # fmt: skip


COUNTER = {"i": TensorProto.INT64, "more": TensorProto.BOOL}
SUM = graph(
    nodes_of("go = Identity(more); t = Add(s, k); next = Mul(t, w)"),
    {**COUNTER, "s": None},
    ["go", "next", "t"],
    w=0.75,
)
LOOP = node("Loop", ["trips", "", "x"], ["last", "each"], "loop", body=SUM)
SCAN = graph(nodes_of("n = Add(s, row); o = Mul(n, k)"), {"s": None, "row": None}, ["n", "o"])
POSITIVE = nodes_of("[sum] sum = ReduceSum <keepdims=0> (x); [above] c = Greater(sum, zero)")
DOUBLE = graph([node("Mul", ["x", "w"], ["t"])], {}, ["t"], w=2)
ADDED = graph([node("Add", ["x", "k"], ["t"])], {}, ["t"])
INNER = node("If", ["b"], ["t2"], then_branch=DOUBLE, else_branch=ADDED)
NESTED = graph([*nodes_of("m = ReduceMax <keepdims=0> (x); b = Greater(m, zero)"), INNER], {}, ["t2"])


def then_first(if_node: NodeProto) -> NodeProto:
    """The same condition as PyTorch writes it; ``make_node`` sorts attributes, and files need not."""
    attributes = sorted(if_node.attribute, key=lambda each: each.name, reverse=True)
    del if_node.attribute[:]
    if_node.attribute.extend(attributes)
    return if_node


MODELS: dict[str, list[NodeProto]] = {
    "a state": [LOOP, node("Relu", ["last"], ["y"], "relu")],
    "what each run makes": [LOOP, node("ReduceMax", ["each"], ["y"], "max", axes=[0], keepdims=0)],
    "a shape that the body reads from outside": [
        node("Loop", ["trips", "", "x"], ["last", "each"], "loop", body=graph(
            nodes_of("go = Identity(more); next = Add(s, k); t = Reshape(next, flat)"), {**COUNTER, "s": None}, ["go", "next", "t"])),
        node("ReduceMax", ["each"], ["y"], "max", axes=[0], keepdims=0),
    ],
    "two loops of one body": [
        LOOP, node("Loop", ["trips", "", "last"], ["twice", "unread"], "again", body=SUM), node("Relu", ["twice"], ["y"], "relu"),
    ],
    "a scan": [node("Scan", ["k", "x"], ["end", "all"], "scan", body=SCAN, num_scan_inputs=1), node("Add", ["all", "end"], ["y"])],
    "a scan from the end, across": [
        node("Scan", ["two", "x"], ["end", "y"], "scan", body=graph(
            [node("Add", ["s", "row"], ["n"]), node("Neg", ["n"], ["o"])], {"s": None, "row": None}, ["n", "o"]),
            num_scan_inputs=1, scan_input_axes=[1], scan_output_axes=[1], scan_input_directions=[1]),
    ],
    "a condition": [*POSITIVE, node("If", ["c"], ["t"], "if", then_branch=DOUBLE, else_branch=ADDED), node("Relu", ["t"], ["y"])],
    "a condition that is written then first": [
        *POSITIVE, node("Exp", ["x"], ["exp"]), then_first(node(
            "If", ["c"], ["y"], "if", then_branch=graph([node("Neg", ["x"], ["t"])], {}, ["t"]),
            else_branch=graph([node("Neg", ["exp"], ["t"])], {}, ["t"]))),
    ],
    "a condition in one": [*POSITIVE, node("If", ["c"], ["y"], "if", then_branch=NESTED, else_branch=ADDED)],
}  # fmt: skip


def check(found: Graph, path: Path) -> None:
    for sign in (1, -1):
        x = sign * np.arange(1, 7, dtype=np.float32).reshape(2, 3)
        (expected,) = run_onnxruntime(str(path), {"x": x})
        np.testing.assert_allclose(evaluate_graph(found, {"x": x})["y"], expected, rtol=1e-6)
        np.testing.assert_allclose(run_onnxruntime(export_graph(found), {"x": x})[0], expected, rtol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_computes_what_onnxruntime_does(name: str, tmp_path: Path) -> None:
    weights = WEIGHTS | {"two": np.zeros(2, np.float32), "flat": np.array([6])}
    path = write_onnx(tmp_path / "m.onnx", MODELS[name], {"x": [2, 3]}, weights, opset=12)
    found = canonicalise(import_onnx(path))
    assert {each.op.op_type for each in found.nodes if each.op.kind == "foreign"} <= {"Loop", "Scan", "If"}
    assert any(each.op.kind == "foreign" for each in found.nodes)
    check(found, path)
    exported = tmp_path / "exported.onnx"
    exported.write_bytes(export_graph(found).SerializeToString())
    again = canonicalise(import_onnx(exported))
    assert again.hash == found.hash
    check(again, path)


CHOICE = [node("If", ["c"], ["y"], "if", then_branch=DOUBLE, else_branch=ADDED)]


@pytest.mark.parametrize(("chosen", "shape"), [(0, [1]), (1, [1]), (1, [])])
def test_an_input_that_chooses_a_branch_is_bound(chosen: int, shape: list[int], tmp_path: Path) -> None:
    """As in decoders whose first step and next steps are in one file."""
    path = write_onnx(tmp_path / "m.onnx", CHOICE, {"x": ["N", 3], "c": (TensorProto.BOOL, shape)}, WEIGHTS, opset=12)
    assert "Input 'c' chooses a branch of the network: choose it now (--dim c=1)." in load(path).remarks
    network = load(path, strict=True, dimensions={"N": 2, "c": chosen})
    assert network.graph.inputs == ("x",)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (expected,) = run_onnxruntime(str(path), {"x": x, "c": np.full(shape, bool(chosen))})
    np.testing.assert_array_equal(evaluate_graph(network.graph, {"x": x})["y"], expected)
    assert network_of_source(network.source).graph.hash == network.graph.hash


def test_branches_of_other_shapes_are_chosen_by_an_input(tmp_path: Path) -> None:
    twice = graph(nodes_of("t = Concat <axis=0> (x, x)"), {}, ["t"])
    nodes = [node("If", ["c"], ["y"], "if", then_branch=twice, else_branch=ADDED)]
    path = write_onnx(tmp_path / "m.onnx", nodes, {"x": [2, 3], "c": (TensorProto.BOOL, [1])}, WEIGHTS, opset=12)
    with pytest.raises(ModelError, match=r"bind the input that chooses its branch, with `dimensions` c=1"):
        load(path)
    assert load(path, dimensions={"c": 1}).graph.types["y"].shape == (4, 3)


LAYER = graph(
    nodes_of("go = Identity(more); t = MatMul(s, m); run = Cast <to=1> (i); u = Add(t, run); next = Mul(u, w)"),
    {**COUNTER, "s": None}, ["go", "next", "t"], w=0.75,
)  # fmt: skip


@pytest.mark.parametrize("end", ["y = Relu(last)", "y = ReduceMax <axes=[0], keepdims=0> (each)"])
def test_a_loop_of_products_is_written_out(end: str, tmp_path: Path) -> None:
    """Each run is priced, as its products are anywhere else; carried whole it would be priced as traffic alone."""
    loop = node("Loop", ["trips", "", "x"], ["last", "each"], "loop", body=LAYER)
    weights = WEIGHTS | {"m": np.linspace(-1, 1, 9, dtype=np.float32).reshape(3, 3)}
    path = write_onnx(tmp_path / "m.onnx", [loop, *nodes_of(end)], {"x": [2, 3]}, weights, opset=12)
    found = canonicalise(import_onnx(path))
    assert [each.op.kind for each in found.nodes].count("matmul") == 4
    assert not any(each.op.kind == "foreign" for each in found.nodes)
    assert [name for name in found.constants if name.endswith(".w")] == ["loop.1.w"]  # the weight is there once
    check(found, path)


def while_below(trips: str, deciding: str = "go = Less(next, limit)") -> tuple[NodeProto, dict[str, np.ndarray]]:
    """A loop as Keras writes a recurrent layer: it counts its steps in a state, and compares them with their number."""
    nodes = nodes_of(f"next = Add(step, one); row = Gather(x, step); t = Add(row, s); u = MatMul(t, m); {deciding}")
    body = graph(nodes, {**COUNTER, "step": TensorProto.INT64, "s": None}, ["go", "next", "u", "t"])
    known = {"one": 1, "none": 0, "limit": 2, "many": 5_000, "true": True, "s0": np.zeros(3, np.float32)}
    weights = {"m": np.linspace(-1, 1, 9, dtype=np.float32).reshape(3, 3)} | {k: np.array(v) for k, v in known.items()}
    return node("Loop", [trips, "true", "none", "s0"], ["steps", "last", "each"], "loop", body=body), WEIGHTS | weights


@pytest.mark.parametrize(("trips", "runs"), [("trips", 2), ("", 2), ("one", 1)])
def test_a_loop_that_counts_its_runs_is_written_out(trips: str, runs: int, tmp_path: Path) -> None:
    loop, weights = while_below(trips)
    path = write_onnx(tmp_path / "m.onnx", [loop, *nodes_of("y = Add(last, each)")], {"x": [2, 3]}, weights, opset=12)
    found = canonicalise(import_onnx(path))
    assert [each.op.kind for each in found.nodes].count("matmul") == runs
    check(found, path)


@pytest.mark.parametrize(
    "deciding", ["sum = ReduceSum <keepdims=0> (u); go = Less(sum, zero)", "go = Less(next, many)"]
)
def test_a_loop_that_data_ends_or_that_runs_too_often_is_refused(deciding: str, tmp_path: Path) -> None:
    loop, weights = while_below("", deciding)
    path = write_onnx(tmp_path / "m.onnx", [loop, *nodes_of("y = Add(last, each)")], {"x": [2, 3]}, weights, opset=12)
    with pytest.raises(ModelError, match="the shape of its output depends on data"):
        import_onnx(path)


@pytest.mark.parametrize("trips", [None, 5_000])
def test_a_loop_of_products_that_stays_whole_is_told(trips: int | None, tmp_path: Path) -> None:
    """How often it runs is not known, or it is too often."""
    body = GraphProto()
    body.CopyFrom(LAYER)
    del body.output[2:]  # the values of all runs
    counted = nodes_of("n = Shape(x)" if trips else "some = Cast <to=7> (x); runs = ReduceMax <keepdims=0> (some)")
    loop = node("Loop", ["many" if trips else "runs", "", "x"], ["y"], "loop", body=body)
    weights = WEIGHTS | {"m": np.eye(3, dtype=np.float32), "many": np.array(trips or 0)}
    path = write_onnx(tmp_path / "m.onnx", [*counted, loop], {"x": [2, 3]}, weights, opset=12)
    assert load(path).remarks[1:] == (
        "These run matrix products or convolutions, and take far longer than priced: Loop.",
    )


GROWING = graph(nodes_of("go = Identity(more); n = Concat <axis=0> (s, s)"), {**COUNTER, "s": None}, ["go", "n"])
STOPPING = graph(
    nodes_of("sum = ReduceSum <keepdims=0> (s); go = Greater(sum, zero); n = Add(s, k); kept = Identity(s)"),
    {**COUNTER, "s": None}, ["go", "n", "kept"],
)  # fmt: skip
NOISY = graph(nodes_of("go = Identity(more); n = RandomNormalLike(s)"), {**COUNTER, "s": None}, ["go", "n"])
OTHERS = graph([node("Own", ["x"], ["t"], domain="own")], {}, ["t"])


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([node("Loop", ["trips", "", "x"], ["y"], body=GROWING)], "the shape of its output depends on data"),
        ([node("Loop", ["trips", "", "x"], ["n", "y"], body=STOPPING)], "the shape of its output depends on data"),
        ([node("Loop", ["trips", "", "x"], ["y"], body=NOISY)], "it draws random numbers"),
        ([*POSITIVE, node("If", ["c"], ["y"], then_branch=DOUBLE, else_branch=OTHERS)], "operators of 'own'"),
        (
            [*POSITIVE, node("If", ["c"], ["y"], then_branch=graph([], {}, ["none"]), else_branch=ADDED)],
            "reads 'none', which nothing before it makes",
        ),
    ],
)
def test_refused_in_one_line(nodes: list[NodeProto], reason: str, tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "m.onnx", nodes, {"x": [2, 3]}, WEIGHTS, opset=12, domains=["own"])
    with pytest.raises(ModelError) as caught:
        import_onnx(path)
    assert reason in str(caught.value)


def branch(nodes: Sequence[NodeProto] | str, **weights: float) -> GraphProto:
    """A branch that makes ``t``, with weights of one number."""
    return graph(nodes_of(nodes) if isinstance(nodes, str) else nodes, {}, ["t"], **weights)


def scaled(factor: float) -> GraphProto:
    """``x * factor``, through values whose names every branch has."""
    return branch("[m] t = Mul(x, k)", k=factor)


def if_rank_is(rank: int, then_branch: GraphProto, else_branch: GraphProto, output: str = "y") -> list[NodeProto]:
    """A condition on the rank of ``x``, as exporters ask for it."""
    asked = nodes_of(
        f"{output}_shape = Shape(x); {output}_rank = Size({output}_shape); {output}_n = Constant <value_int={rank}> ()"
        f"; {output}_is = Equal({output}_rank, {output}_n)"
    )
    return [*asked, node("If", [f"{output}_is"], [output], then_branch=then_branch, else_branch=else_branch)]


@pytest.mark.parametrize(
    ("nodes", "kinds"),
    [
        pytest.param(if_rank_is(2, scaled(2), scaled(3)), ["mul"], id="then"),
        pytest.param(if_rank_is(3, scaled(2), scaled(3)), ["mul"], id="else"),
        pytest.param(
            [
                *if_rank_is(2, scaled(2), scaled(3), "a"),
                *if_rank_is(2, scaled(4), scaled(5), "b"),
                *nodes_of("[sub] y = Sub(a, b)"),
            ],
            ["mul", "mul", "nary"],
            id="equal names in several branches",
        ),
        pytest.param(
            if_rank_is(2, branch(if_rank_is(5, scaled(2), scaled(3), "t")), scaled(7)), ["mul"], id="within a branch"
        ),
        pytest.param(if_rank_is(2, branch("[add] t = Add(x, w)"), scaled(3)), ["add"], id="a weight outside"),
        pytest.param(
            [*if_rank_is(2, branch("t = Identity(x)"), scaled(3), "z"), *nodes_of("y = Relu(z)")],
            ["relu"],
            id="what is outside",
        ),
    ],
)
def test_the_branch_that_is_taken(nodes: list[NodeProto], kinds: list[str], tmp_path: Path) -> None:
    weights = {"w": np.ones(3, np.float32)} if kinds == ["add"] else {}
    path = write_onnx(tmp_path / "m.onnx", nodes, {"x": [2, 3]}, weights)
    found = canonicalise(import_onnx(path))
    assert [each.op.kind for each in found.nodes] == kinds
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    (expected,) = run_onnxruntime(str(path), {"x": x})
    np.testing.assert_allclose(evaluate_graph(found, {"x": x})["y"], expected, rtol=1e-6)


def test_a_branch_that_is_not_there(tmp_path: Path) -> None:
    nodes = if_rank_is(2, scaled(2), scaled(3))
    del nodes[-1].attribute[1]
    with pytest.raises(ModelError, match="If 'If_4' has no then_branch that makes its outputs"):
        import_onnx(write_onnx(tmp_path / "m.onnx", nodes, {"x": [2, 3]}))


#: Constants that the sequences and optionals below read; import writes these out.
NUMBERS = {"back": -1, "zero": 0, "one": 1, "four": 4, "nine": 9, "sizes": [1, 5]}
HELD = {name: np.array(value) for name, value in NUMBERS.items()}
SPLIT = "s = SplitToSequence <axis=1> (x, four)"
SEQUENCES = {
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
    ("name", "opset"), [(name, opset) for name in SEQUENCES for opset in (12, 18) if opset == 18 or name not in LATER]
)
def test_what_is_left_of_sequences_are_tensors(name: str, opset: int, tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "m.onnx", SEQUENCES[name], {"x": [2, 6]}, HELD, opset=opset)
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
def test_sequences_are_refused_in_one_line(nodes: str, reason: str, tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "m.onnx", nodes, {"x": [2, 6]}, HELD, opset=18)
    with pytest.raises(ModelError) as caught:
        import_onnx(path)
    assert reason in str(caught.value)
