"""Networks of int8 as they are written: what runs in whole numbers, and that outputs are those of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from onnx_models import nodes_of, write_onnx
from onnx_of_op import run_onnxruntime
from quantised_networks import whole

from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.base.errors import ModelError
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.quantize import Dequantize, Quantize
from iossim.ir.types import DType, Precision
from iossim.models.load import load
from iossim.models.onnx.export import write_onnx as write_network
from iossim.models.partition import retype
from iossim.models.passes.integer_products import integer_products
from iossim.models.passes.pipeline import canonicalise

IMAGE = (2, 6, 8, 7)
#: Scales and zero points: of images by uint8 and by int8, of filters one, one each, and around another number.
GIVEN: dict[str, Array] = {
    "u": np.float32(0.02), "u0": np.uint8(117), "s": np.float32(0.03), "s0": np.int8(0), "m0": np.int8(-128),
    "y": np.float32(0.3), "y0": np.uint8(0), "y9": np.uint8(9), "six": np.float32(6 / 255), "low": np.float32(0),
    "high": np.float32(6), "w": whole(1, (4, 6, 3, 3), np.int8), "t": np.float32(0.02),
    "each": np.linspace(0.01, 0.03, 4, dtype=np.float32), "nought": np.zeros(4, np.int8), "b": np.arange(4, dtype=np.float32),
    "bw": np.arange(-400, 400, 200, dtype=np.int32), "bs": np.float32(0.02 * 0.02), "nothing": np.int32(0),
    "six_scales": np.linspace(0.01, 0.06, 6, dtype=np.float32),
    "pads": np.array([0, 0, 1, 2, 0, 0, 0, 1]), "halves": np.array([4, 4]), "flat": np.array([2, 8, 42]),
    "few": np.linspace(0, 9, 2 * 3 * 8 * 7, dtype=np.float32).reshape(2, 3, 8, 7),
    "shape": np.array([4, 7]), "p": whole(2, (7, 4), np.int8), "pt": whole(3, (4, 7), np.int8), "far": np.int8(3), "f": np.ones((4, 6, 3, 3), np.float32),
}  # fmt: skip


def quantised(x: str, scale: str, zero: str, output: str) -> str:
    """``x`` through whole numbers."""
    return (
        f"[{output}_q] {output}_q = QuantizeLinear({x}, {scale}, {zero})"
        f"; [{output}] {output} = DequantizeLinear({output}_q, {scale}, {zero})"
    )


X = quantised("x", "u", "u0", "xd")
SYMMETRIC = quantised("x", "s", "s0", "xd")
W = "[wd] wd = DequantizeLinear(w, t, s0)"
W_EACH = "[wd] wd = DequantizeLinear <axis=0> (w, each, nought)"
CONV = "[c] c = Conv <pads=[1, 1, 1, 1]> (xd, wd)"
LAST_CONV = "[o] o = Conv <pads=[1, 1, 1, 1]> (xd, wd)"
BIASED = "Conv <pads=[1, 1, 1, 1]> (xd, wd, b)"
RELU = "[r] r = Relu(c)"
CLIP = "[r] r = Clip(c, low, high)"
POOL = "[p] p = MaxPool <kernel_shape=[2, 2]> (xd)"


def loaded(
    folder: Path, nodes: str, outputs: tuple[str, ...] = ("o",), shape: tuple[int, ...] = IMAGE, step: float = 0
) -> Network:
    """The network of a file, whose outputs are those of ONNX Runtime, a ``step`` apart at most in 1% of places."""
    made = nodes_of(nodes)
    read = {name for each in made for name in each.input} - {name for each in made for name in each.output}
    used = {name: array for name, array in GIVEN.items() if name in read}
    path = write_onnx(folder / "net.onnx", made, {"x": shape}, used, output=" ".join(outputs))
    network = load(path)
    assert canonicalise(network.graph) is network.graph
    arrays = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    found = evaluate_graph(network.graph, arrays)
    for name, expected in zip(outputs, run_onnxruntime(str(path), arrays), strict=True):
        off = np.abs(found[name].astype(np.float64) - expected.astype(np.float64))
        near = off <= 1e-5 * np.abs(expected).max()
        assert near.mean() >= 0.99, name
        assert (off[~near] <= step * 1.001).all(), name
        assert len(np.unique(expected)) > 4
    return network


def kinds(network: Network) -> list[str]:
    return [each.op.kind for each in network.graph.nodes]


@pytest.mark.parametrize(
    ("nodes", "step", "found"),
    [
        ([X, W, CONV, quantised("c", "y", "y9", "o")], 0.3, "quantize quantized_conv dequantize"),
        ([X, W_EACH, CONV, quantised("c", "y", "y9", "o")], 0.3, "quantize quantized_conv dequantize"),
        ([X, W, CONV, RELU, quantised("r", "y", "y0", "o")], 0.3, "quantize quantized_conv dequantize"),
        ([X, W, CONV, RELU, quantised("r", "s", "m0", "o")], 0.03, "quantize quantized_conv dequantize"),
        ([SYMMETRIC, W, CONV, RELU, quantised("r", "s", "s0", "o")], 0.03, "quantize quantized_conv relu dequantize"),
        ([X, W, CONV, CLIP, quantised("r", "six", "y0", "o")], 6 / 255, "quantize quantized_conv dequantize"),
        (
            [X, W, CONV, CLIP, quantised("r", "y", "y0", "o")], 0.3,
            "quantize integer_conv dequantize clip quantize dequantize",
        ),
        (
            [X, W, CONV, RELU, quantised("r", "y", "y9", "o")], 0.3,
            "quantize integer_conv dequantize relu quantize dequantize",
        ),
        ([X, W, f"[o] o = {BIASED}"], 0, "quantize integer_conv dequantize add"),
        ([X, W_EACH, LAST_CONV], 0, "quantize integer_conv dequantize"),
        ([SYMMETRIC, W_EACH, LAST_CONV], 0, "quantize integer_conv dequantize"),
        (
            [X, W, "bd = DequantizeLinear(bw, bs, nothing)", "[c] c = Conv <pads=[1, 1, 1, 1]> (xd, wd, bd)", quantised("c", "y", "y9", "o")], 0.3,
            "quantize quantized_conv dequantize",
        ),
        (
            [X, quantised("f", "t", "s0", "wd"), f"[c] c = {BIASED}", quantised("c", "y", "y9", "o")], 0.3,
            "quantize quantized_conv dequantize",
        ),
        ([X, POOL, quantised("p", "u", "u0", "o")], 0, "quantize max_pool dequantize"),
        ([X, POOL, quantised("p", "s", "s0", "o")], 0.03, "quantize max_pool dequantize quantize dequantize"),
    ],
)  # fmt: skip
def test_what_runs_in_whole_numbers(nodes: list[str], step: float, found: str, tmp_path: Path) -> None:
    network = loaded(tmp_path, "; ".join(nodes), step=step)
    assert kinds(network) == found.split()
    said = [each for each in network.reading if "int8" in each]
    assert said == (["1 product runs in int8: the operands are quantised."] if "conv" in found else [])


#: Two convolutions joined.
JOINED = f"{X}; {W}; {CONV}; [e] e = Conv <pads=[2, 2, 2, 2], dilations=[2, 2]> (xd, wd, b); [k] k = Concat <axis=1> "
#: The queries of an attention: heads are moved to the front, and scaled.
QUERIES = f"{X}; [h] h = Transpose <perm=[0, 2, 1, 3]> (xd); [f] f = Reshape(h, flat); [m] m = Mul(f, t)"


@pytest.mark.parametrize(
    ("nodes", "step", "found"),
    [
        (f"{X}; [p] p = Pad(xd, pads); {quantised('p', 'u', 'u0', 'o')}", 0, "quantize pad dequantize"),
        (f"{X}; [p] p = Pad(xd, pads, t); {quantised('p', 'u', 'u0', 'o')}", 0, "quantize dequantize pad quantize dequantize"),
        (f"{X}; [p] p, o = Split <axis=2> (xd, halves); {quantised('p', 'u', 'u0', 'v')}", 0, "quantize split dequantize dequantize"),
        (f"{X}; [k] k = Concat <axis=1> (xd, xd); {quantised('k', 'u', 'u0', 'o')}", 0, "quantize concat dequantize"),
        (
            f"{JOINED} (c, e); {quantised('k', 'y', 'y9', 'o')}", 0.3,
            "quantize integer_conv dequantize integer_conv dequantize add quantize quantize concat dequantize",
        ),
        (
            f"{X}; {W}; {CONV}; {quantised('c', 'y', 'y9', 'd')}; [e] e = Conv <pads=[2, 2, 2, 2], dilations=[2, 2]> (xd, wd, b)"
            f"; [k] k = Concat <axis=1> (d, e); {quantised('k', 'y', 'y9', 'o')}", 0.3,
            "quantize quantized_conv integer_conv dequantize add quantize concat dequantize",
        ),
        (
            f"{JOINED} (c, few); {quantised('k', 'y', 'y9', 'o')}", 0.3,
            "quantize integer_conv dequantize quantize concat dequantize",
        ),
        (
            f"{JOINED} (c, e); {quantised('k', 'y', 'y9', 'o')}; [v] v = Relu(c)", 0.3,
            "quantize integer_conv dequantize integer_conv dequantize add concat quantize dequantize relu",
        ),
        (
            f"{QUERIES}; {quantised('m', 's', 's0', 'o')}", 0.03,
            "quantize dequantize mul quantize transpose reshape dequantize",
        ),
        (f"{QUERIES}; [o] o = Relu(m)", 0, "quantize transpose reshape dequantize mul relu"),
        # Quantised by several scales, it stays behind a transpose.
        (
            f"{X}; [t] t = Transpose <perm=[0, 2, 3, 1]> (xd); [q] q = QuantizeLinear <axis=3> (t, six_scales)"
            "; [o] o = DequantizeLinear <axis=3> (q, six_scales)", 0,
            "quantize transpose dequantize quantize dequantize",
        ),
    ],
)  # fmt: skip
def test_integers_move_in_place_of_numbers(nodes: str, step: float, found: str, tmp_path: Path) -> None:
    network = loaded(tmp_path, nodes, ("o", "v") if "[v]" in nodes or "v_q" in nodes else ("o",), step=step)
    assert kinds(network) == found.split()


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_integers_of_16_bits(domain: str, tmp_path: Path) -> None:
    """Written in ONNX Runtime's domain before operator set 21; ONNX has no maximum of them."""
    nodes = nodes_of(
        f"{quantised('x', 's', 'short', 'a')}; p = MaxPool <kernel_shape=[2, 2]> (a); {quantised('p', 's', 'short', 'y')}"
    )
    for node in nodes:
        node.domain = domain if "Linear" in node.op_type else ""
    weights = {"s": np.float32(0.001), "short": np.int16(7)}
    path = write_onnx(
        tmp_path / "net.onnx", nodes, {"x": IMAGE}, weights, opset=17 if domain else 21, domains=["com.microsoft"]
    )
    network = load(path, strict=True)
    assert kinds(network) == ["quantize", "dequantize", "max_pool", "quantize", "dequantize"]
    x = {"x": np.random.default_rng(0).standard_normal(IMAGE).astype(np.float32)}
    (expected,) = run_onnxruntime(str(path), x)
    assert np.array_equal(evaluate_graph(network.graph, x)["y"], expected)


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_sums_that_are_scaled_at_run_time_are_one_unit(dtype: str, tmp_path: Path) -> None:
    """ORT's dynamic quantisation; sums of integers are larger than any number of fp16."""
    nodes = "[q] q, qs, qz = DynamicQuantizeLinear(x); [i] i = MatMulInteger(q, p, qz, nought); [f] f = Cast <to=1> (i)"
    nodes += "; [g] g = Mul(qs, t); [o] o = Mul(f, g)"
    network = loaded(tmp_path, nodes, shape=(3, 7))
    assert [unit.kind for unit in network.units] == ["Dynamic-Quantize", "Integer-Matmul-Dequantize-Mul"]
    x = {"x": np.full((3, 7), 9, DType(dtype).numpy)}
    made = evaluate_graph(retype(network.graph, DType(dtype)), x)["o"]
    np.testing.assert_allclose(made, 9 * 0.02 * np.tile(GIVEN["p"].sum(0), (3, 1)), rtol=0.01)


def test_a_scale_that_is_not_finite_is_remarked(tmp_path: Path) -> None:
    weights = {"s": np.float32(np.inf), "z": np.int8(0)}
    path = write_onnx(tmp_path / "net.onnx", quantised("x", "s", "z", "y"), {"x": (2, 3)}, weights)
    assert any(each.startswith("1 quantisations have no finite scale") for each in load(path).reading)


B = "[bd] bd = DequantizeLinear(p, t, s0)"
B_TURNED = "[bt] bt = DequantizeLinear <axis=0> (pt, each, nought)"
PRODUCT = "[o] o = MatMul(xd, bd)"
B_EACH = "[bd] bd = DequantizeLinear <axis=1> (p, each, nought)"


@pytest.mark.parametrize(
    ("nodes", "shape", "found"),
    [
        ([X, B, "[m] m = MatMul(xd, bd)", quantised("m", "y", "y9", "o")], (2, 3, 7), "quantize quantized_matmul dequantize"),
        ([X, B_EACH, PRODUCT], (2, 3, 7), "quantize integer_matmul dequantize"),
        ([X, B_EACH, "[m] m = MatMul(xd, bd); [o] o = Add(m, b)"], (2, 3, 7), "quantize integer_matmul dequantize add"),
        ([X, B_TURNED, "[bd] bd = Transpose <perm=[1, 0]> (bt)", PRODUCT], (2, 3, 7), "quantize integer_matmul dequantize"),
        (
            [X, quantised("x", "s", "s0", "zd"), "[z] z = Transpose <perm=[0, 2, 1]> (zd); [o] o = MatMul(xd, z)"], (2, 3, 7),
            "quantize quantize transpose integer_matmul dequantize",
        ),
        # Two computed matrices are multiplied, one of them around a zero point.
        ([X, quantised("x", "s", "far", "zd"), "[o] o = MatMul(xd, zd)"], (2, 5, 5), "quantize quantize integer_matmul dequantize"),
        *(
            ([X, of_matrix, f"[o] o = Gemm <transB={turned}> ({operands}{bias})"], (3, 7), f"quantize integer_matmul dequantize{added}")
            for of_matrix, operands, turned in ((B_TURNED, "xd, bt", 1), (B_EACH, "xd, bd", 0))
            for bias, added in (("", ""), (", b", " add"))
        ),
        # Transposed twice: two ops had one name, which was a GraphError.
        (
            [X, "bt = DequantizeLinear(pt, t, s0); bd = Transpose <perm=[1, 0]> (bt); o = Gemm <transB=1> (xd, bd)"], (3, 4),
            "quantize integer_matmul dequantize",
        ),
        (
            ["q = QuantizeLinear(x, u, u0); m = QLinearMatMul(q, u, u0, p, each, nought, y, y9); o = DequantizeLinear(m, y, y9)"],
            (3, 7), "quantize integer_matmul dequantize quantize dequantize",
        ),
    ],
)  # fmt: skip
def test_products_of_matrices(nodes: list[str], shape: tuple[int, ...], found: str, tmp_path: Path) -> None:
    network = loaded(tmp_path, "; ".join(nodes), shape=shape, step=0.3 if "y9" in " ".join(nodes) else 0)
    assert kinds(network) == found.split()


@pytest.mark.parametrize(
    "nodes",
    [
        f"{X}; o = Conv <pads=[1, 1, 1, 1]> (xd, f)",  # filters that were not quantised
        f"{W}; o = Conv <pads=[1, 1, 1, 1]> (x, wd)",  # images that were not
        f"{X}; o = AveragePool <kernel_shape=[2, 2]> (xd)",
    ],
)
def test_what_is_left_as_it_is(nodes: str, tmp_path: Path) -> None:
    network = loaded(tmp_path, nodes)
    assert not any("quantized" in kind or "integer" in kind for kind in kinds(network))


def test_a_constant_that_is_turned_on_the_left(tmp_path: Path) -> None:
    """Of a name that the pass would give, too."""
    left = "[wt] wt = DequantizeLinear(pt, t, s0); [w2] w2 = Transpose <perm=[1, 0]> (wt)"
    nodes = f"{X}; {left}; [o] o = MatMul(w2, xd); [v] v = Reshape(w2, shape)"
    assert "integer_matmul" in kinds(loaded(tmp_path, nodes, outputs=("o", "v"), shape=(4, 5)))


@pytest.mark.parametrize(("precision", "is_whole"), [(Precision.FP32, True), (Precision.FP16, False)])
def test_scales_of_16_bits_stay_apart(precision: Precision, is_whole: bool) -> None:
    """Their products may be too small."""
    b = GraphBuilder("scaled", precision)
    scale = b.numbers("s", np.asarray(0.001, precision.storage.numpy))
    zero, w = b.numbers("z", np.int8(0)), b.numbers("w", whole(1, (4, 6, 1, 1), np.int8))
    x = b.add(Dequantize(), b.add(Quantize(), b.input("x", IMAGE), scale, zero), scale, zero)
    graph = b.network([b.add(Conv(), x, b.add(Dequantize(), w, scale, zero))]).graph
    made = integer_products(graph)
    assert ("integer_conv" in made.of_kind) == is_whole
    assert (made is graph) == (not is_whole)


def test_what_others_read_stays(tmp_path: Path) -> None:
    """A convolution whose sums are read besides their quantisation, and a dequantised image that is an output."""
    nodes = "; ".join((X, W, CONV, quantised("c", "y", "y9", "o"), RELU))
    network = loaded(tmp_path, nodes, outputs=("o", "r", "xd"), step=0.3)
    found = "dequantize dequantize dequantize integer_conv quantize quantize relu"
    assert sorted(kinds(network)) == found.split()


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.BF16])
def test_sums_do_not_overflow_in_16_bits(precision: Precision, tmp_path: Path) -> None:
    network = loaded(tmp_path, f"{X}; {W}; {CONV}; [o] o = Relu(c)")
    arrays = {"x": np.random.default_rng(0).standard_normal(IMAGE).astype(np.float32)}
    expected = evaluate_graph(network.graph, arrays)["o"]
    short = retype(network.graph, precision.storage)
    given = {"x": arrays["x"].astype(precision.storage.numpy)}
    found = evaluate_graph(short, given)["o"].astype(np.float32)
    assert np.abs(found - expected).max() <= 0.02 * np.abs(expected).max()


@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
@pytest.mark.parametrize("model", ["ios_sample", "resnet18"])
def test_a_network_that_onnxruntime_quantised(form: str, model: str, tmp_path: Path) -> None:
    """Of branches, residuals and poolings, quantised by its own tool, a scale for each filter."""
    quantization = pytest.importorskip("onnxruntime.quantization")
    original = tmp_path / "original.onnx"
    write_network(load(model).graph, original)
    network = load(str(original))
    (name,) = network.graph.inputs
    shape = network.graph.types[name].shape
    images: list[Mapping[str, Array]] = [
        {name: np.random.default_rng(seed).standard_normal(shape).astype(np.float32)} for seed in range(2)
    ]

    class Images(quantization.CalibrationDataReader):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.left = iter(images)

        def get_next(self) -> Mapping[str, Array] | None:
            return next(self.left, None)

    made = tmp_path / "made.onnx"
    quantization.quantize_static(
        original, made, Images(), quant_format=quantization.QuantFormat[form], per_channel=True
    )
    quantised_network = load(str(made))
    convolutions = len(network.graph.of_kind["conv"])
    assert "conv" not in quantised_network.graph.of_kind
    assert len(quantised_network.graph.of_kind["quantized_conv"]) == convolutions
    assert not quantised_network.foreign
    (expected,) = run_onnxruntime(str(made), images[0])
    (found,) = evaluate_graph(quantised_network.graph, images[0]).values()
    assert np.abs(found - expected).max() <= 0.05 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("operator", "scale", "inside"),
    [
        ("QLinearSoftmax <axis=-1, opset=13> (q, u, u0, scale, zero)", 1 / 256, ["dequantize", "softmax"]),
        ("QLinearConcat <axis=1> (scale, zero, q, u, u0, q, u, u0)", 1 / 32, ["concat", "dequantize"]),
    ],
)
def test_operators_of_onnxruntime_on_integers(operator: str, scale: float, inside: list[str], tmp_path: Path) -> None:
    nodes = f"q = QuantizeLinear(x, u, u0); y = DequantizeLinear(s, scale, zero); s = com.microsoft.{operator}"
    weights = {"scale": np.float32(scale), "zero": np.uint8(0), "u": GIVEN["u"], "u0": GIVEN["u0"]}
    path = write_onnx(tmp_path / "net.onnx", nodes, {"x": (3, 7)}, weights, domains=["com.microsoft"])
    arrays = {"x": np.random.default_rng(0).standard_normal((3, 7)).astype(np.float32)}
    (expected,) = run_onnxruntime(str(path), arrays)
    network = load(str(path))
    assert kinds(network) == ["quantize", *inside, "quantize", "dequantize"]
    assert np.abs(evaluate_graph(network.graph, arrays)["y"] - expected).max() <= 1.01 * scale


def test_operators_of_onnxruntime_that_are_damaged_are_told(tmp_path: Path) -> None:
    nodes = "q = QuantizeLinear(x, u, u0); y = com.microsoft.QLinearAdd(q, u, u0)"
    weights = {name: GIVEN[name] for name in ("u", "u0")}
    path = write_onnx(tmp_path / "net.onnx", nodes, {"x": IMAGE}, weights, domains=["com.microsoft"])
    with pytest.raises(ModelError, match="QLinearAdd"):
        load(path)


def test_a_norm_that_is_quantised_inside_stays_apart(tmp_path: Path) -> None:
    """Integers have no values to compare with a norm's: it was a ValueError."""
    nodes = """s = Mul(x, x); m = ReduceMean <axes=[-1]> (s); e = Add(m, eps); q = QuantizeLinear(e, step, zero)
        d = DequantizeLinear(q, step, zero); r = Sqrt(d); n = Div(x, r); y = Mul(n, w)"""
    weights = {"eps": np.float32(1e-5), "step": np.float32(0.1), "zero": np.uint8(0), "w": np.ones(8, np.float32)}
    path = write_onnx(tmp_path / "m.onnx", nodes, {"x": [2, 8]}, weights)
    assert "rms_norm" not in load(path).graph.of_kind
