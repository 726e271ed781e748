"""Networks of fp8 as Model Optimizer and others write them: read as products of fp8, priced, run, and written again."""

from __future__ import annotations

from dataclasses import astuple
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_models import write_onnx
from onnx_of_op import run_onnxruntime
from random_networks import sequential_schedule

pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

from iossim.api import cost_model, optimize, predict
from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.backends.onnxruntime_cpu.backend import create
from iossim.base.errors import DeviceError, GraphError, OptionError
from iossim.execution.engine import Engine
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import with_memory
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.quantize import Dequantize, IntegerMatMul, Quantize, QuantizedMatMul, ScaledConv, ScaledMatMul
from iossim.ir.ops.unary import Cast
from iossim.ir.types import DType, Precision, TensorType
from iossim.models.load import load
from iossim.models.onnx.export import check_exportable
from iossim.models.onnx.export import write_onnx as write_network
from iossim.models.partition import network_of
from iossim.models.passes.pipeline import canonicalise

E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2


def stored(dtype: type, *shape: int, seed: int = 0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * 9).astype(dtype)


def nearest(x: float, dtype: type) -> float:
    """By trying all: the nearest of the finite numbers of a type, of two the one that ends in an even digit."""
    numbers = np.arange(128, dtype=np.uint8).view(dtype).astype(np.float64)
    numbers = numbers[np.isfinite(numbers)]
    off = np.abs(numbers - min(abs(x), numbers[-1]))
    places = np.flatnonzero(off == off.min())
    return float(np.copysign(numbers[next((place for place in places if place % 2 == 0), places[0])], x))


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=30), st.sampled_from([E4M3, E5M2]))
@settings(max_examples=60, deadline=None)
def test_numbers_are_rounded_to_the_nearest_and_saturate(numbers: list[float], dtype: type) -> None:
    x = np.array([*numbers, 17.0, 19.0, -1e-3, 2.0**-10, np.inf], np.float32)
    wanted = [nearest(float(each), dtype) for each in x]
    for made in (
        Quantize().evaluate([x, np.float32(1), np.zeros((), dtype)])[0],
        Cast(str(DType.of_numpy(np.dtype(dtype)))).evaluate([x])[0],
    ):
        assert made.dtype == dtype
        np.testing.assert_array_equal(made.astype(np.float64), wanted)
    assert np.isnan(Quantize().evaluate([np.float32([np.nan]), np.float32(1), np.zeros((), dtype)])[0].astype(float))


@given(
    st.sampled_from([E4M3, E5M2]),
    st.lists(st.integers(1, 3), max_size=2),
    st.integers(1, 20),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_products_are_those_of_the_numbers(
    dtype: type, leading: list[int], inner: int, each: bool, is_half: bool
) -> None:
    own = np.float16 if is_half else np.float32
    a, b, one = stored(dtype, *leading, 4, inner), stored(E4M3, inner, 5, seed=1), own(0.02)
    scales = np.linspace(0.01, 0.03, 5).astype(own) if each else own(0.03)
    wanted = (a.astype(np.float64) * float(one)) @ (b.astype(np.float64) * scales.astype(np.float64))
    (made,) = ScaledMatMul().evaluate([a, one, b, scales])
    np.testing.assert_allclose(made, wanted, rtol=2e-3, atol=(0.05 if is_half else 1e-4))
    x, filters, op = stored(dtype, 2, 4, 6, 5), stored(E4M3, 4, 2, 3, 3, seed=2), Conv((1, 2), (1, 0, 1, 1), (1, 1), 2)
    one_each, bias = scales[:4] if each else scales, np.arange(4, dtype=own)
    numbers = filters.astype(np.float64) * one_each.astype(np.float64).reshape(-1, 1, 1, 1)
    (wanted,) = op.evaluate([x.astype(np.float64) * float(one), numbers, bias.astype(np.float64)])
    (made,) = ScaledConv(*astuple(op)).evaluate([x, one, filters, one_each, bias])
    np.testing.assert_allclose(made, wanted, rtol=2e-3, atol=(0.05 if is_half else 1e-4))


@pytest.mark.parametrize(
    ("types", "message"),
    [
        (["fp8_e4m3fn[2x4]", "fp32[]", "int8[4x3]", "fp32[]"], "which are not of fp8"),
        (["fp8_e4m3fn[2x4]", "fp32[2]", "fp8_e5m2[4x3]", "fp32[]"], "is not one number"),
        (["fp8_e4m3fn[2x4]", "fp32[]", "fp8_e5m2[4x3]", "fp32[4]"], "is not one for each place of axis -1"),
        (["fp8_e4m3fn[2x4]", "fp32[]", "fp8_e5m2[4x3]"], "takes x, x_scale, w, w_scale and maybe bias, not 3 inputs"),
    ],
)
def test_operands_that_do_not_fit_are_refused(types: list[str], message: str) -> None:
    read = (each[:-1].split("[") for each in types)
    with pytest.raises(GraphError, match=message):
        ScaledMatMul().infer([TensorType(tuple(map(int, filter(None, s.split("x")))), DType(d)) for d, s in read])


WEIGHTS: dict[str, Array] = {
    "s": np.float32(0.03), "z": np.zeros((), E4M3), "t": np.float32(0.01), "each": np.linspace(0.01, 0.03, 6, dtype=np.float32),
    "w": stored(E4M3, 8, 6), "wt": stored(E4M3, 6, 8, seed=4), "f": stored(E4M3, 6, 4, 3, 3), "v": np.eye(8, 6, dtype=np.float32),
    "b": np.arange(6, dtype=np.float32), "nought": np.zeros(6, E4M3), "q8": np.arange(48, dtype=np.int8).reshape(8, 6),
    "rows": np.linspace(0.02, 0.04, 3, dtype=np.float32), "rowz": np.zeros(3, E4M3), "flat": np.array([2, 24]),
}  # fmt: skip
Q = "q = QuantizeLinear(x, s, z); a = DequantizeLinear(q, s, z); "
LAST = "o = QuantizeLinear(c, t, z); y = DequantizeLinear(o, t, z)"
#: Nodes, the kinds that they become, and the shape of ``x``.
SPELT = {
    f"{Q} d = DequantizeLinear <axis=1> (w, each, nought); y = MatMul(a, d)": ("quantize scaled_matmul", (2, 3, 8)),
    f"{Q} d = DequantizeLinear <axis=0> (wt, each, nought); y = Gemm <transB=1> (a, d, b)": ("quantize scaled_matmul add", (3, 8)),
    f"{Q} k = QuantizeLinear(v, t, z); d = DequantizeLinear(k, t, z); c = MatMul(a, d); {LAST}": (
        "quantize scaled_matmul quantize dequantize", (3, 8),
    ),
    f"{Q} d = DequantizeLinear <axis=0> (f, each, nought); c = Conv <pads=[1,1,1,1]> (a, d, b); r = Relu(c); o = QuantizeLinear(r, t, z); y = DequantizeLinear(o, t, z)": (
        "quantize scaled_conv relu quantize dequantize", (2, 4, 5, 7),
    ),
    f"{Q} u = Transpose <perm=[0,2,1]> (a); y = MatMul(a, u)": ("quantize transpose scaled_matmul", (2, 3, 8)),
    "g = Relu(x); h = Transpose <perm=[0,2,1]> (g); q = QuantizeLinear(h, s, z); a = DequantizeLinear(q, s, z); d = DequantizeLinear(wt, t, z); y = MatMul(d, a)": (
        "relu quantize transpose scaled_matmul", (2, 3, 8),
    ),
    "q = QuantizeLinear <output_dtype=17> (x, s); a = DequantizeLinear(q, s); d = DequantizeLinear(w, t); y = MatMul(a, d)": ("quantize scaled_matmul", (3, 8)),
    "q = QuantizeLinear(x, s, z); o = QLinearMatMul(q, s, z, w, t, z, t, z); y = DequantizeLinear(o, t, z)": (
        "quantize scaled_matmul quantize dequantize", (3, 8),
    ),
    f"{Q} h = Cast <to=10> (a); d = DequantizeLinear <axis=1> (w, each, nought); e = Cast <to=10> (d); c = MatMul(h, e); y = Cast <to=1> (c)": (
        "quantize scaled_matmul cast", (3, 8),
    ),
    "q = Cast <to=17> (x); p = Cast <to=1> (q); y = MatMul(p, v)": ("cast cast matmul", (3, 8)),
    "d = DequantizeLinear <axis=1> (w, each, nought); y = MatMul(x, d)": ("dequantized_matmul", (3, 8)),
    f"{Q} y = MatMul(a, v)": ("quantize dequantize matmul", (3, 8)),
    f"{Q} d = DequantizeLinear(q8, t); y = MatMul(a, d)": ("quantize dequantize dequantized_matmul", (3, 8)),
    "q = QuantizeLinear <axis=0> (x, rows, rowz); a = DequantizeLinear <axis=0> (q, rows, rowz); d = DequantizeLinear(w, t); y = MatMul(a, d)": (
        "quantize dequantize dequantized_matmul", (3, 8),
    ),
    f"{Q} p = MaxPool <kernel_shape=[2,2]> (a); o = QuantizeLinear(p, s, z); y = DequantizeLinear(o, s, z)": (
        "quantize dequantize max_pool quantize dequantize", (2, 4, 5, 7),
    ),
    "g = Relu(x); h = Flatten(g); q = QuantizeLinear(h, s, z); y = DequantizeLinear(q, s, z)": ("relu flatten quantize dequantize", (2, 3, 8)),
}  # fmt: skip


def written(folder: Path, nodes: str, shape: tuple[int, ...], **more: object) -> Path:
    used = {name: array for name, array in WEIGHTS.items() if f"{name}," in nodes or f"{name})" in nodes}
    return write_onnx(folder / "m.onnx", nodes, {"x": shape}, used, opset=21, **more)  # type: ignore[arg-type]


def outputs(network: Network, seed: int = 0) -> tuple[dict[str, Array], Array]:
    feeds = {"x": np.random.default_rng(seed).standard_normal(network.graph.types["x"].shape).astype(np.float32)}
    return feeds, next(iter(evaluate_graph(network.graph, feeds).values()))


@pytest.mark.parametrize("nodes", SPELT)
def test_a_file_is_read_computed_and_written_again(nodes: str, tmp_path: Path) -> None:
    kinds, shape = SPELT[nodes]
    path = written(tmp_path, nodes, shape)
    network = load(path, strict=True)
    assert [node.op.kind for node in network.graph.nodes] == kinds.split()
    assert canonicalise(network.graph) is network.graph
    feeds, made = outputs(network)
    again = tmp_path / "again.onnx"
    write_network(network.graph, again, network=network)
    onnx.checker.check_model(str(again), full_check=True)
    read = load(again)
    assert read.graph.hash == network.graph.hash
    assert [unit.kind for unit in read.units] == [unit.kind for unit in network.units]
    for file in (path, again)[
        "QLinear" in nodes :
    ]:  # after a quantisation a step apart where sums end between two numbers
        (wanted,) = run_onnxruntime(str(file), feeds)
        off = np.abs(made - wanted)
        assert (off <= (1e-3 if "to=10" in nodes else 1e-4) * np.abs(wanted).max()).mean() > 0.98
        assert off.max() <= 2.0**-3 * np.abs(wanted).max()


def test_tensorrts_operators_are_those_of_onnx(tmp_path: Path) -> None:
    nodes, shape = next((nodes, shape) for nodes, (_, shape) in SPELT.items() if "output_dtype" in nodes)
    plain = load(written(tmp_path, nodes, shape))
    theirs = nodes.replace("QuantizeLinear <output_dtype=17>", "trt.TRT_FP8QuantizeLinear").replace(
        "= DequantizeLinear", "= trt.TRT_FP8DequantizeLinear"
    )
    network = load(written(tmp_path, theirs, shape, domains=["trt"]), strict=True)
    assert network.graph.hash == plain.graph.hash
    np.testing.assert_array_equal(outputs(network)[1], outputs(plain)[1])


def test_what_does_not_saturate_is_no_op_of_ours(tmp_path: Path) -> None:
    nodes = "q = QuantizeLinear <saturate=0> (x, s, z); y = DequantizeLinear(q, s, z)"
    assert load(written(tmp_path, nodes, (3, 8))).foreign == {"QuantizeLinear": 1}


def test_onnxruntime_runs_them_and_keeps_a_relu_before_a_quantisation(tmp_path: Path) -> None:
    """Its optimiser drops one, as if 0 were the least number of fp8."""
    nodes = next(nodes for nodes in SPELT if "Conv" in nodes)
    network = load(written(tmp_path, nodes, SPELT[nodes][1]))
    feeds, wanted = outputs(network)
    plan = with_memory(lower_schedule(sequential_schedule(network), network, Engine.GRAPH))
    (made,) = create(Precision.FP32, Engine.GRAPH, {}).execute(network, plan, feeds).values()
    assert wanted.min() == 0.0 < wanted.max()
    assert np.abs(made - wanted).max() <= 2.0**-3 * wanted.max()
    assert (made == wanted).mean() > 0.98


SIZE = 2048
KINDS = {"fp16": np.float16, "int8": np.int8, "fp8": E4M3}


@cache
def products(dtype: str) -> Network:
    """Two products of square matrices, the first one quantised again, all else in fp16."""
    b = GraphBuilder(dtype, Precision.FP16)
    x, w = b.input("x", (SIZE, SIZE)), b.numbers("w", np.ones((SIZE, SIZE), KINDS[dtype]))
    s, z = b.numbers("s", np.float16(0.01)), b.numbers("z", np.zeros((), KINDS[dtype]))
    match dtype:
        case "fp16":
            y = b.add(MatMul(), b.add(MatMul(), x, w), w)
        case "int8":
            made = b.add(QuantizedMatMul(), b.add(Quantize(), x, s, z), s, z, w, s, z, s, z)
            y = b.add(Dequantize(), b.add(IntegerMatMul(), made, w), s)
        case _:
            made = b.add(Quantize(), b.add(ScaledMatMul(), b.add(Quantize(), x, s, z), s, w, s), s, z)
            y = b.add(ScaledMatMul(), made, s, w, s)
    graph = b.network([y]).graph
    return network_of(graph, dtype, Precision.FP16)


def sequential_us(device: str, dtype: str) -> float:
    return optimize(products(dtype), device, scheduler="sequential", engine="graph").latency_us


@pytest.mark.parametrize(
    ("device", "has_fp8"), [("h100-sxm", True), ("l4", True), ("a100-sxm-40gb", False), ("t4", False)]
)
def test_prices_are_int8s_where_there_is_fp8_and_those_of_dequantised_products_elsewhere(
    device: str, has_fp8: bool
) -> None:
    plain_us, int8_us, fp8_us = (sequential_us(device, dtype) for dtype in KINDS)
    told = optimize(products("fp8"), device, scheduler="sequential", engine="graph").remarks
    assert (f"{device} has no fp8: products are of fp16, after dequantisation" in told) is not has_fp8
    if has_fp8:
        assert fp8_us == pytest.approx(int8_us, rel=0.02)
        assert fp8_us < 0.7 * plain_us
        found = next(row.prediction for row in predict(products("fp8"), device).rows if "Scaled" in row.kind)
        assert (found.low_us, found.high_us) == pytest.approx((found.gpu_time_us / 2, found.gpu_time_us * 2))
    else:
        assert plain_us < fp8_us < 1.6 * plain_us


def test_a_network_without_scales_is_priced_in_fp8_and_not_written(tmp_path: Path) -> None:
    us = {dtype: optimize(load("ios_sample", dtype=dtype), "h100-sxm").latency_us for dtype in ("fp8", "int8")}
    assert us["fp8"] == pytest.approx(us["int8"], rel=1e-3)
    with pytest.raises(DeviceError, match="has no fp8; it has fp32, tf32, fp16, bf16, int8"):
        cost_model("simulator", "a100-sxm-40gb", "fp8")
    with pytest.raises(OptionError, match="fp8 is for pricing"):
        check_exportable(load("ios_sample", dtype="fp8"), tmp_path / "m.onnx")


@pytest.mark.parametrize("dtype", ["int8", "fp8"])
def test_attentions_are_priced_in_8_bits(dtype: str, tmp_path: Path) -> None:
    """The scale of the scores is a number without scales of its own, and the op of ONNX took floating-point numbers."""
    network = load("bert_s")
    write_network(network.graph, tmp_path / "m.onnx", name="m")
    for model in (str(tmp_path / "m.onnx"), "gpt2"):
        found, half = load(model, dtype=dtype), load(model, dtype="fp16")
        assert len(found.units) == len(half.units)
        ours_us, halfs_us = (optimize(each, "h100-sxm", scheduler="sequential").latency_us for each in (found, half))
        assert 0.5 * halfs_us < ours_us < halfs_us
