"""Weights of 4 and 8 bits that stay as they are stored: read as one op, priced by their bytes, written and read again."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from cpus import cpu
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_models import write_onnx
from onnx_of_op import check_op, run_onnxruntime

from iossim.api import optimize
from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.base.errors import GraphError, ModelError
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.quantize import DequantizedMatMul
from iossim.ir.types import DType, Precision, TensorType
from iossim.models.load import load
from iossim.models.onnx.export import write_onnx as write_network
from iossim.models.passes.pipeline import canonicalise

INT4, UINT4 = ml_dtypes.int4, ml_dtypes.uint4


def whole(dtype: type, *shape: int, seed: int = 0) -> Array:
    low, high = {INT4: (-8, 8), UINT4: (0, 16), np.int8: (-128, 128), np.uint8: (0, 256)}[dtype]
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def steps(*shape: int) -> Array:
    return np.random.default_rng(9).uniform(0.01, 0.1, shape).astype(np.float32)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([INT4, UINT4, np.int8, np.uint8]),
    st.lists(st.integers(1, 4), max_size=2),
    st.tuples(st.integers(1, 40), st.integers(1, 9), st.integers(1, 48)),
    st.booleans(),
)
def test_it_computes_and_is_written_as_onnx_says(
    dtype: type, leading: list[int], sizes: tuple[int, int, int], has_zero: bool
) -> None:
    """Blocks of any size, the last one of a column maybe shorter."""
    inner, columns, block = sizes
    rows, block = -(-inner // min(block, inner)), min(block, inner)
    a = np.random.default_rng(1).standard_normal((*leading, 2, inner)).astype(np.float32)
    weight, scale, zero = whole(dtype, inner, columns), steps(rows, columns), whole(dtype, rows, columns, seed=2)
    operands = [a, weight, scale, *[zero] * has_zero]
    check_op(DequantizedMatMul(block), operands, 21, range(1, len(operands)), tolerance=1e-3)
    plain = (weight.astype(np.float64) - np.repeat(zero * has_zero, block, 0)[:inner]) * np.repeat(scale, block, 0)[
        :inner
    ]
    np.testing.assert_allclose(DequantizedMatMul(block).evaluate(operands)[0], a @ plain, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("weight", "scale", "block", "message"),
    [
        ("int4[8x4]", (2, 4), 8, "is not one for each block of 8 along axis 0 of int4"), ("fp32[8x4]", (2, 4), 4, "no matrix of 4 or 8"),
        ("int4[8x4]", (2, 4), 0, "in blocks of 1 or more"), ("int4[9x4]", (3, 4), 4, "do not multiply"),
    ],
)  # fmt: skip
def test_operands_that_do_not_fit_are_refused(weight: str, scale: tuple[int, ...], block: int, message: str) -> None:
    dtype, shape = weight[:-1].split("[")
    types = [TensorType((3, 8)), TensorType(tuple(map(int, shape.split("x"))), DType(dtype)), TensorType(scale)]
    with pytest.raises(GraphError, match=message):
        DequantizedMatMul(block).infer(types)


#: By nodes: the stored weight, its scale and zero point, and the block of the op.
SPELT = {
    "w = DequantizeLinear <axis=0, block_size=16> (q, s, z); y = MatMul(x, w)": (UINT4, (64, 6), (4, 6), 16),
    "w = DequantizeLinear <axis=1, block_size=32> (q, s); t = Transpose <perm=[1,0]> (w); y = MatMul(x, t)": (
        INT4, (6, 64), (6, 2), 32,
    ),
    "w = DequantizeLinear <axis=1, block_size=32> (q, s, z); g = Gemm <transB=1> (m, w, b); y = Relu(g)": (
        UINT4, (6, 64), (6, 2), 32,
    ),
    "w = DequantizeLinear <axis=1> (q, s); y = MatMul(x, w)": (np.int8, (64, 6), (6,), 64),
    "w = DequantizeLinear(q, s, z); y = MatMul(x, w)": (np.uint8, (64, 6), (), 64),
    "w = DequantizeLinear <axis=0> (q, s); y = Gemm <transB=1> (m, w)": (INT4, (6, 64), (6,), 64),
    "h = DequantizeLinear <axis=0, block_size=16> (q, s); w = Cast <to=1> (h); y = MatMul(x, w)": (
        INT4, (64, 6), (4, 6), 16,
    ),
}  # fmt: skip


def written(folder: Path, nodes: str, dtype: type, shape: tuple[int, ...], scales: tuple[int, ...]) -> Path:
    weights: dict[str, Array] = {"q": whole(dtype, *shape), "s": steps(*scales), "z": whole(dtype, *scales, seed=3)}
    weights["s"] = weights["s"].astype(np.float16) if "Cast" in nodes else weights["s"]
    weights = {name: array for name, array in weights.items() if f"{name}," in nodes or f"{name})" in nodes}
    weights |= {"b": steps(6)} if ", b)" in nodes else {}
    inputs = {"m": (3, 64)} if "(m, " in nodes else {"x": (2, 3, 64)}
    return write_onnx(folder / "m.onnx", nodes, inputs, weights, opset=21)


def same_as_onnxruntime(network: Network, path: Path) -> None:
    feeds = {name: steps(*network.graph.types[name].shape) - 0.05 for name in network.graph.inputs}
    (made,) = evaluate_graph(network.graph, feeds).values()
    np.testing.assert_allclose(made, run_onnxruntime(str(path), feeds)[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("between", "kind"),
    [
        (" ".join(f"v{i + 1} = Transpose <perm=[1,0]> (v{i});" for i in range(2000)), "dequantized_matmul"),
        (" ".join(f"v{i + 1} = Cast <to={(10, 1)[i % 2]}> (v{i});" for i in range(2000)), "dequantized_matmul"),
        (" ".join(f"v{i + 1} = Add(v{i}, v{i});" for i in range(64)) + "v65 = Transpose <perm=[1,0]> (v64);", "matmul"),
        ("v1 = Cast <to=6> (v0); v2 = Cast <to=1> (v1);", "matmul"),
    ],
    ids=["transposes", "roundings", "sums of equals", "truncation"],
)
def test_what_is_between_a_weight_and_its_product_is_heeded(between: str, kind: str, tmp_path: Path) -> None:
    last = between.rstrip().rsplit(";", 2)[-2].split("=")[0].strip()
    nodes = f"v0 = DequantizeLinear(q, s); {between} y = MatMul(x, {last})"
    path = written(tmp_path, nodes, np.int8, (64, 64), ())
    graph = load(path).graph
    assert [node.op.kind for node in graph.nodes] == [kind]
    if "to=6" in between:
        x = np.eye(64, dtype=np.float32)[None, :3].repeat(2, 0)
        (made,) = evaluate_graph(graph, {"x": x}).values()
        np.testing.assert_allclose(made, run_onnxruntime(str(path), {"x": x})[0], rtol=1e-4)


@pytest.mark.parametrize("nodes", SPELT)
def test_a_dequantised_weight_and_its_product_are_one_op(nodes: str, tmp_path: Path) -> None:
    *stored, block = SPELT[nodes]
    path = written(tmp_path, nodes, *stored)
    network = load(path, strict=True)
    (product,) = network.graph.of_kind["dequantized_matmul"]
    assert product.op == DequantizedMatMul(block)
    assert len(network.units) == 1
    assert canonicalise(network.graph) is network.graph
    same_as_onnxruntime(network, path)
    for inside in (1 << 30, 0):  # in the model, and beside it
        again = tmp_path / f"again{inside}.onnx"
        write_network(network.graph, again, network=network, largest_inside_bytes=inside)
        onnx.checker.check_model(str(again), full_check=True)
        read = load(again)
        assert read.graph.hash == network.graph.hash
        assert not any("units" in remark for remark in read.reading)
        same_as_onnxruntime(read, path)


@pytest.mark.parametrize(
    ("nodes", "stored"),
    [
        ("w = DequantizeLinear <axis=1, block_size=2> (q, s); y = MatMul(x, w)", (INT4, (64, 6), (64, 3))),
        ("w = DequantizeLinear <axis=0> (q, s); y = MatMul(x, w)", (np.int8, (64, 6), (64,))),
        ("w = DequantizeLinear <axis=0, block_size=16> (q, s); v = Relu(w); y = MatMul(x, v)", (INT4, (64, 6), (4, 6))),
    ],
)
def test_other_dequantised_weights_are_folded(
    nodes: str, stored: tuple[type, tuple[int, ...], tuple[int, ...]], tmp_path: Path
) -> None:
    path = written(tmp_path, nodes, *stored)
    network = load(path)
    assert [node.op for node in network.graph.nodes] == [MatMul()]
    same_as_onnxruntime(network, path)


def test_a_block_is_no_longer_than_its_column(tmp_path: Path) -> None:
    nodes = f"w = DequantizeLinear <axis=0, block_size={2**62}> (q, s); y = MatMul(x, w)"
    path = written(tmp_path, nodes, INT4, (64, 6), (1, 6))
    assert load(path).graph.of_kind["dequantized_matmul"][0].op == DequantizedMatMul(64)
    same_as_onnxruntime(load(path), path)


@pytest.mark.parametrize(
    ("attributes", "more"),
    [(f"N=6, K={2**40}", ""), (f"N=6, K={2**40}", ", , g"), ("N=-6, K=-64", ""), ("N=5, K=64", ""), ("N=6, K=65", "")],
)
def test_sizes_that_a_file_says_are_those_of_its_weights(attributes: str, more: str, tmp_path: Path) -> None:
    weights = {"p": whole(np.uint8, 6, 2, 16), "s": steps(6, 2), "g": np.zeros(64, np.int32)}
    nodes = f"y = com.microsoft.MatMulNBits <{attributes}, bits=4, block_size=32> (x, p, s{more})"
    path = write_onnx(tmp_path / "m.onnx", nodes, {"x": (3, 64)}, weights, opset=21, domains=["com.microsoft"])
    with pytest.raises(ModelError, match="MatMulNBits"):
        load(path)


def test_external_weights_of_four_bits_must_be_whole(tmp_path: Path) -> None:
    network = load(written(tmp_path, *next((nodes, *stored[:-1]) for nodes, stored in SPELT.items())))
    model, weights = write_network(network.graph, tmp_path / "again.onnx", network=network, largest_inside_bytes=0)
    assert weights.stat().st_size < 3 * 4096
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ModelError, match="is not whole in"):
        load(model)


SIZE = 4096


@cache
def sequential_us(device: str, dtype: str, rows: int) -> float:
    """The time of a product of so many rows in fp16, on a CPU in fp32, with a weight of that type or of 8 or 4 bits."""
    b = GraphBuilder(dtype, Precision.FP32 if device == "cpu" else Precision.FP16)
    x, weight = b.input("x", (rows, SIZE)), b.constant("w", (SIZE, SIZE), b.dtype if dtype == "own" else DType(dtype))
    scale = [] if dtype == "own" else [b.constant("s", (SIZE // 128, SIZE))]
    y = b.add(DequantizedMatMul(128) if scale else MatMul(), x, weight, *scale)
    on = cpu() if device == "cpu" else device
    return optimize(b.network([y]), on, engine="graph", scheduler="sequential").latency_us


@pytest.mark.parametrize(("device", "gain"), [("cpu", 3.0), ("t4", 3.0), ("a100-sxm-40gb", 1.9), ("h100-sxm", 2.5)])
def test_few_rows_take_as_long_as_their_bytes_and_many_no_less_than_wide_ones(device: str, gain: float) -> None:
    """An A100 has 64 FP32 lanes an SM, which unpacking takes most of."""
    one, sixteen, many = (
        [sequential_us(device, each, rows) for each in ("own", "int8", "int4")] for rows in (1, 16, 2048)
    )
    assert one[0] / one[2] > gain
    assert one[0] > one[1] >= one[2]
    assert sixteen[0] > sixteen[1] > sixteen[2]
    assert many[0] < min(many[1:])


def test_bytes_of_a_weight_are_those_of_its_bits(tmp_path: Path) -> None:
    of_types = [TensorType((3, 3), DType(name)).bytes for name in ("int4", "uint2", "int8", "fp16", "bool")]
    assert of_types == [5, 3, 9, 18, 9]
    network = load(written(tmp_path, *next((nodes, *stored[:-1]) for nodes, stored in SPELT.items())))
    assert sum(constant.type.bytes for constant in network.graph.constants.values()) == 64 * 6 // 2 + 4 * 6 * 4 + 12
    (remark,) = [each for each in network.reading if "bits" in each]
    assert remark == "1 product reads weights of 4 bits: 0.0003 MB with scales, in place of 0.000768 in 16 bits."
