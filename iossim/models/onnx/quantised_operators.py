"""ONNX Runtime's own operators on quantised tensors, decomposed: dequantised, computed, quantised again.

Its quantisation tool writes them in the format *QOperator*: besides ONNX's QLinearConv and QLinearMatMul there are
those of its domain ``com.microsoft`` (`ContribOperators.md`, microsoft/onnxruntime). After decomposition the passes for
quantise-dequantise networks apply to these, too. QLinearMatMul is decomposed if it has one scale per
column.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from copy import deepcopy
from functools import partial

import onnx
from onnx import NodeProto, helper

DOMAIN = "com.microsoft"
#: The operator set in which Softmax is along one axis (QLinearSoftmax names the one that it follows), and
#: DequantizeLinear has an axis.
WITH_AXES = 13
#: Number of operands of ``QLinear`` and each operator. Operands come with scale and zero point, and so does the result.
_OPERANDS = {"Add": 2, "Mul": 2}
_OPERANDS |= dict.fromkeys(("AveragePool", "GlobalAveragePool", "LeakyRelu", "Sigmoid", "Softmax"), 1)


def written_out(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The model with such operators decomposed as far as they are known; ``opset`` is the model's own."""
    several = {each.name for each in model.graph.initializer if opset >= WITH_AXES and math.prod(each.dims) > 1}
    is_known = partial(_is_known, several=several)
    if any(map(is_known, model.graph.node)):
        taken = {name for node in model.graph.node for name in (*node.input, *node.output)}
        kept: list[NodeProto] = []
        for node in model.graph.node:
            kept += _Written(node, taken).nodes() if is_known(node) else [deepcopy(node)]
        del model.graph.node[:]
        model.graph.node.extend(kept)
    return model


def _is_known(node: NodeProto, several: Collection[str]) -> bool:
    if node.domain != DOMAIN and node.op_type == "QLinearMatMul" and len(node.input) == 8:
        return node.input[4] in several and not {node.input[1], node.input[6]} & set(several)
    if node.domain != DOMAIN or any(each.name == "channels_last" and each.i for each in node.attribute):
        return False
    opset = next((each.i for each in node.attribute if each.name == "opset"), WITH_AXES)
    if opset < WITH_AXES:
        return False
    if node.op_type == "QLinearConcat":
        return len(node.input) > 2 and len(node.input) % 3 == 2
    if node.op_type == "QGemm":
        return len(node.input) >= 6
    count = _OPERANDS.get(node.op_type.removeprefix("QLinear"), 0) if node.op_type.startswith("QLinear") else 0
    return count > 0 and len(node.input) >= 3 * count + 1


class _Written:
    """The nodes that replace one node."""

    def __init__(self, node: NodeProto, taken: set[str]) -> None:
        self.node, self.taken = node, taken
        self.attributes = [each for each in node.attribute if each.name not in ("channels_last", "opset")]
        self.made: list[NodeProto] = []

    def nodes(self) -> list[NodeProto]:
        inputs = list(self.node.input)
        match self.node.op_type:
            case "QLinearConcat":
                operands = [self._dequantised(*inputs[at : at + 3]) for at in range(2, len(inputs), 3)]
                self._quantised("Concat", operands, inputs[:2])
            case "QLinearMatMul":
                a, a_scale, a_zero, b, b_scale, b_zero, *result = inputs
                operands = [self._dequantised(a, a_scale, a_zero), self._dequantised(b, b_scale, b_zero, axis=-1)]
                self._quantised("MatMul", operands, result)
            case "QGemm":
                self._fully_connected([*inputs, *[""] * (9 - len(inputs))])
            case known:
                op_type = known.removeprefix("QLinear")
                count = _OPERANDS[op_type]
                operands = [self._dequantised(*inputs[3 * at : 3 * at + 3]) for at in range(count)]
                self._quantised(op_type, operands, inputs[3 * count :])
        return self.made

    def _fully_connected(self, inputs: Sequence[str]) -> None:
        a, a_scale, a_zero, b, b_scale, b_zero, bias, *result = inputs
        turned = any(attribute.name == "transB" and attribute.i for attribute in self.attributes)
        operands = [self._dequantised(a, a_scale, a_zero), self._dequantised(b, b_scale, b_zero, axis=1 - turned)]
        if bias:
            scale = self._node("Mul", [a_scale, b_scale], "scale")
            operands.append(self._dequantised(bias, scale, "", axis=0))
        if result[0]:
            self._quantised("Gemm", operands, result)
        else:
            self.made.append(helper.make_node("Gemm", operands, self.node.output, name=self.node.name))
            self.made[-1].attribute.extend(self.attributes)

    def _dequantised(self, whole: str, scale: str, zero: str, axis: int | None = None) -> str:
        value = self._node("DequantizeLinear", [whole, scale, *([zero] if zero else [])], "operand")
        if axis is not None:
            self.made[-1].attribute.append(helper.make_attribute("axis", axis))
        return value

    def _quantised(self, op_type: str, operands: Sequence[str], scale_and_zero: Sequence[str]) -> None:
        result = self._node(op_type, operands, "result")
        self.made[-1].attribute.extend(self.attributes)
        inputs = [result, *(name for name in scale_and_zero if name)]
        self.made.append(helper.make_node("QuantizeLinear", inputs, self.node.output, name=self.node.name))

    def _node(self, op_type: str, inputs: Sequence[str], what: str) -> str:
        value = f"{self.node.output[0]}.{what}{len(self.made)}"
        while value in self.taken:
            value += "_"
        self.taken.add(value)
        self.made.append(helper.make_node(op_type, inputs, [value], name=value))
        return value
