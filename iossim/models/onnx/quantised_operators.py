"""ONNX Runtime's own operators on quantised tensors, decomposed: dequantised, computed, quantised again.

Its quantisation tool writes them in the format *QOperator*: besides ONNX's QLinearConv and QLinearMatMul there are
those of its domain ``com.microsoft`` (`ContribOperators.md`, microsoft/onnxruntime). After decomposition the passes for
quantise-dequantise networks apply to these, too. QLinearMatMul is decomposed if it is of fp8, or has one scale per
column.
"""

from __future__ import annotations

from iossim.ir.constants import FilledConstant
from iossim.ir.onnx_spelling import dtype_of_onnx, onnx_code
from iossim.ir.types import FP8, DType, TensorType
from iossim.models.onnx.bodies import Call, Written

#: The operator set in which Softmax is along one axis; QLinearSoftmax names the one that it follows.
_FIRST_ALONG_AXIS = 13


def _dequantised(name: str, axis: int | None = None) -> str:
    along = "" if axis is None else f"<axis = {axis}>"
    return f"{name}_f = DequantizeLinear {along} ({name}, {name}_scale, {name}_zero)"


def _computed(op_type: str, operands: str, result: str) -> Written:
    """An operator on operands that each come with scale and zero point, as its result does."""

    def body(call: Call) -> str:
        if call.get("channels_last") or call.get("opset", _FIRST_ALONG_AXIS) < _FIRST_ALONG_AXIS:
            return ""
        known = [name for name in call.node.attributes if name not in ("channels_last", "opset")]
        attributes = call.attributes(*known) if known else ""
        read = ", ".join(f"{name}_f" for name in operands)
        computed = f"{result}_f = {op_type} {attributes} ({read})"
        quantised = f"{result} = QuantizeLinear({result}_f, {result}_scale, {result}_zero)"
        return " ".join([*map(_dequantised, operands), computed, quantised])

    values = " ".join(f"{name} {name}_scale {name}_zero" for name in operands)
    return f"{values} {result}_scale {result}_zero -> {result}", body


def _concat(call: Call) -> str:
    values = [*call.operands][2:]
    if not values or len(values) % 3:
        return ""
    text = [f"f{at} = DequantizeLinear({', '.join(values[at : at + 3])})" for at in range(0, len(values), 3)]
    joined = f"joined = Concat {call.attributes('axis')} ({', '.join(f'f{at}' for at in range(0, len(values), 3))})"
    return " ".join([*text, joined, "Y = QuantizeLinear(joined, Y_scale, Y_zero)"])


def _fully_connected(call: Call) -> str:
    """A Gemm with a bias in the scale of its sums; its result may be numbers."""
    text = f"{_dequantised('A')} {_dequantised('B', 1 - call.get('transB'))} "
    if call.has("C"):
        text += "steps = Mul(A_scale, B_scale) C_f = DequantizeLinear <axis = 0> (C, steps) "
    product = f"Gemm {call.attributes('alpha', 'transA', 'transB')} (A_f, B_f{', C_f' if call.has('C') else ''})"
    if not call.has("y_scale"):
        return f"{text} Y = {product}"
    return f"{text} Y_f = {product} Y = QuantizeLinear(Y_f, y_scale, y_zero)"


def _scaled_by_column(call: Call) -> str:
    counts = [call.type(f"{name}_scale").elements for name in "aby"]
    if (counts[1] == 1 and call.type("a").dtype not in FP8) or (counts[0], counts[2]) != (1, 1):
        return ""
    text = f"{_dequantised('a')} {_dequantised('b', -1)} y_f = MatMul(a_f, b_f)"
    return f"{text} y = QuantizeLinear(y_f, y_scale, y_zero)"


def _product(dynamic: bool) -> Written:
    """A product of integers as numbers; a ``dynamic`` one quantises its first operand."""

    def body(call: Call) -> str:
        text = "q, A_scale, A_zero = DynamicQuantizeLinear(A)" if dynamic else "q = Identity(A)"
        text += f" A_f = DequantizeLinear(q, A_scale, A_zero) {_dequantised('B', -1)} "
        return text + ("P = MatMul(A_f, B_f) Y = Add(P, bias)" if call.has("bias") else "Y = MatMul(A_f, B_f)")

    return "A B B_scale B_zero bias -> Y" if dynamic else "A B A_scale B_scale A_zero B_zero bias -> Y", body


def _of_onnx(call: Call) -> str:
    """An operator of ONNX: before operator set 21 that had no other integers than bytes, before 19 no fp8."""
    names = ", ".join(name for name in ("x", "scale", "zero") if call.has(name))
    return f"y = {call.node.op_type.removeprefix('TRT_FP8')} {call.attributes('axis')} ({names})"


def _to_fp8(call: Call) -> str:
    """A quantisation to fp8, which it says by an attribute or by its name, in place of a zero point."""
    usual = DType.UINT8 if call.node.op_type == "QuantizeLinear" else DType.FLOAT8_E4M3FN
    dtype = dtype_of_onnx(call.get("output_dtype") or onnx_code(usual), f"QuantizeLinear {call.node.name!r}")
    if dtype not in FP8 or call.has("zero"):
        return ""
    call.hold("nought", FilledConstant(TensorType((), dtype)))
    return f"y = QuantizeLinear {call.attributes('axis', 'saturate')} (x, scale, nought)"


RUNTIME: dict[str, Written] = {
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), ("x scale zero -> y", _of_onnx)),
    "QLinearConcat": ("Y_scale Y_zero * -> Y", _concat),
    "QGemm": ("A A_scale A_zero B B_scale B_zero C y_scale y_zero -> Y", _fully_connected),
    "MatMulIntegerToFloat": _product(dynamic=False),
    "DynamicQuantizeMatMul": _product(dynamic=True),
    **{f"QLinear{op_type}": _computed(op_type, "AB", "C") for op_type in ("Add", "Mul")},
    **{
        f"QLinear{op_type}": _computed(op_type, "X", "Y")
        for op_type in ("AveragePool", "GlobalAveragePool", "LeakyRelu", "Sigmoid", "Softmax")
    },
}
STANDARD: dict[str, Written] = {
    "QLinearMatMul": ("a a_scale a_zero b b_scale b_zero y_scale y_zero -> y", _scaled_by_column),
    "QuantizeLinear": ("x scale zero -> y", _to_fp8),
}
#: TensorRT's operators of fp8, which its Model Optimizer writes where a file's operator set has none.
TENSORRT: dict[str, Written] = {
    "TRT_FP8QuantizeLinear": ("x scale -> y", _to_fp8),
    "TRT_FP8DequantizeLinear": ("x scale -> y", _of_onnx),
}
