"""Layouts are chosen by the search: what it transposes, when it pays, and that the result computes the same everywhere."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import iossim
from iossim import api
from iossim.backends.numpy_reference.execute import evaluate_graph, execute
from iossim.execution.engine import Engine
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import plan_memory
from iossim.hardware.lowering.kernel import Libraries
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.matmul import Gemm
from iossim.ir.ops.nary import Add
from iossim.ir.ops.pool import GlobalAveragePool, MaxPool
from iossim.ir.ops.reshape import Flatten
from iossim.ir.ops.slice import Concat
from iossim.ir.ops.unary import Relu
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.models.onnx.export import write_onnx
from iossim.models.passes.unit_fusion import with_units
from iossim.transforms.rewriting.application import apply
from iossim.transforms.rewriting.matching import find_matches
from iossim.transforms.rewriting.rule_sets import rule_set
from iossim.transforms.rewriting.scheduled import Rewriting

A100 = "a100-sxm-40gb"


def branches() -> Network:
    """A stem, two branches that are joined, a residual, and a classifier: every place that a transpose goes through."""
    b = GraphBuilder("branches", precision=Precision.TF32)
    x = b.add(Relu(), convolution(b, b.input("x", (1, 64, 28, 28)), "stem", (256, 64, 1, 1)))
    x = b.add(MaxPool((3, 3), (2, 2), (1, 1, 1, 1)), x)
    wide = b.add(Relu(), convolution(b, x, "wide", (256, 256, 3, 3)))
    narrow = b.add(Relu(), convolution(b, x, "narrow", (256, 256, 1, 1)))
    joined = b.add(Concat(1), wide, narrow)
    x = b.add(Add(), joined, convolution(b, joined, "residual", (512, 512, 1, 1)))
    x = b.add(Flatten(1), b.add(GlobalAveragePool(), x))
    network = b.network([b.add(Gemm(), x, b.constant("weights", (512, 10)), b.constant("bias", (10,)))])
    return with_units(network, "conv-relu")


def convolution(b: GraphBuilder, x: str, name: str, weight: tuple[int, ...]) -> str:
    pads = tuple(size // 2 for size in weight[2:]) * 2
    return b.add(Conv(pads=pads), x, b.constant(f"{name}.w", weight), b.constant(f"{name}.b", weight[:1]), name=name)


def rewritten(network: Network, engine: str = "graph", device: str = A100, budget: str = "200") -> Rewriting:
    (made,) = api.task(network, device, rewrite="layouts", engine=engine, rewrite_budget=budget).change().outcomes
    assert isinstance(made, Rewriting)
    return made


def kinds(network: Network) -> Counter[str]:
    return Counter(node.op.kind for node in network.graph.nodes)


def check_outputs(before: Network, after: Network, folder: Path) -> None:
    """By NumPy, by NumPy as scheduled, and by ONNX Runtime."""
    onnxruntime = pytest.importorskip("onnxruntime")
    random = np.random.default_rng(0)
    given = {name: random.standard_normal(before.graph.types[name].shape, np.float32) for name in before.graph.inputs}
    expected = evaluate_graph(before.graph, given)
    plan = plan_memory(lower_schedule(iossim.optimize(after, A100, engine="graph"), after, in_place=True))
    write_onnx(after.graph, folder / "model.onnx")
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    ran = dict(zip(after.graph.outputs, session.run(list(after.graph.outputs), given), strict=True))
    for found in (evaluate_graph(after.graph, given), execute(plan, after, given, seed=1), ran):
        for name, value in expected.items():
            assert np.abs(found[name] - value).max() <= 1e-4 * np.abs(value).max()


def test_each_tensor_has_its_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images are transposed where channels are many enough, and back before a 1x1 convolution of NCHW at most.

    So it is where a library is called for tensors as they lie; a compiler lays them out by itself.
    """
    network = branches()
    compiled = rewritten(network, budget="30")
    assert kinds(compiled.network)["conv_nhwc"] == 0
    monkeypatch.setattr(Engine, "libraries_on", lambda self, architecture: Libraries.CURRENT)
    found = rewritten(network, "paper", budget="30")  # in a graph, terms of a concat in NHWC are copied to their place
    assert found.after_us < 0.95 * found.before_us
    made = kinds(found.network)
    assert made["conv_nhwc"] >= 3
    assert made["conv_nhwc"] + made["conv"] == 4
    assert made["max_pool_nhwc"] == 1 - made["conv"]
    assert made["transpose"] <= 2
    assert "ConvNhwc-Relu" in {unit.kind for unit in found.network.units}
    check_outputs(network, found.network, tmp_path)


@pytest.mark.parametrize(
    ("precision", "device", "engine"),
    [(Precision.TF32, A100, "paper"), (Precision.FP16, A100, "graph"), (Precision.FP32, "v100-sxm2", "graph")],
)
def test_nchw_stays_where_nothing_is_transformed_less(precision: Precision, device: str, engine: str) -> None:
    """By the library of the published engine, in half precision, and on lanes."""
    b = GraphBuilder("one", precision=precision)
    x = b.add(Relu(), convolution(b, b.input("x", (1, 256, 14, 14)), "conv", (256, 256, 3, 3)))
    found = rewritten(b.network([x]), engine, device)
    assert found.matched
    assert found.network.graph.of_kind.get("conv_nhwc", ()) == ()


def test_weights_are_transposed_before_the_network_runs() -> None:
    """By columns nothing runs but the product, and computes the same."""
    b = GraphBuilder("product")
    network = b.network([b.add(Gemm(), b.input("x", (4, 6)), b.constant("w", (6, 3)))])
    (rule,) = (rule for rule in rule_set("layouts") if rule.name == "weights-by-columns")
    (match,) = find_matches(network.graph, rule)
    applied = apply(network.graph, match)
    assert applied is not None
    (node,) = applied.graph.nodes
    assert node.op == Gemm(trans_b=True)
    given = {"x": np.random.default_rng(0).standard_normal((4, 6), np.float32)}
    before, after = (evaluate_graph(graph, given) for graph in (network.graph, applied.graph))
    for name, value in before.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-5)


@pytest.mark.slow
def test_a_network_of_the_zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a library that is called for tensors as they lie."""
    monkeypatch.setattr(Engine, "libraries_on", lambda self, architecture: Libraries.CURRENT)
    network = load("resnet50", dtype="tf32")
    found = rewritten(network)
    assert found.before_us > 1.05 * found.after_us
    assert kinds(found.network)["conv_nhwc"] > 10
    check_outputs(network, found.network, tmp_path)
