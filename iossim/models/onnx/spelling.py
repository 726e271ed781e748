"""One op as ONNX nodes of a chosen operator set: the result of ``Op.to_onnx``, split into attributes and inputs.

Over its operator sets ONNX has turned attributes into inputs. The operator's schema at the chosen set says which of
the two a parameter is.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from iossim.base.errors import ModelError
from iossim.ir.graph import Names
from iossim.ir.onnx_node import captured_values, graphs_in, renamed, since_versions
from iossim.ir.onnx_spelling import onnx_code
from iossim.ir.op import Array, Op, normal_axis
from iossim.ir.ops.channels_last import ChannelsLast
from iossim.ir.ops.conv_transpose import ConvBackwardData, ConvBackwardFilter
from iossim.ir.ops.foreign import Foreign
from iossim.ir.ops.functions import Unary
from iossim.ir.ops.grid_sample import GridSample
from iossim.ir.ops.grouped_matmul import GroupedMatMul
from iossim.ir.ops.nary import PRelu
from iossim.ir.ops.normalization import GroupNorm, InstanceNorm
from iossim.ir.ops.quantize import Dequantised, Dequantize
from iossim.ir.ops.recurrent import Recurrent
from iossim.ir.ops.reshape import Flatten, Reshape, Transpose
from iossim.ir.ops.slice import Slice
from iossim.ir.ops.softmax import SoftmaxLike
from iossim.ir.types import TO_FIRST, TO_LAST, DType, TensorType, permuted
from iossim.models.onnx.grouped_products import DOMAIN, call_of

#: The default: the newest that every supported ONNX Runtime reads.
OPSET = 21
#: IR version that every supported runtime reads.
IR_VERSION = 8
#: An activation that has an operator since a later operator set; before, it is written as a sigmoid and a product.
_SILU, _FIRST_OF_SWISH = Unary("swish", (1.0,)), 24


@dataclass(frozen=True)
class Speller:
    """Collects the nodes of ops in ``opset``, and the tensors of those of their parameters that are inputs.

    ``names`` names parameters and intermediate values.
    """

    opset: int
    names: Names
    nodes: list[NodeProto] = field(default_factory=list)
    tensors: list[TensorProto] = field(default_factory=list)

    def spell(
        self, op: Op, name: str, inputs: Sequence[str], outputs: Sequence[str], x: TensorType, *others: TensorType
    ) -> None:
        """Add nodes that compute ``outputs`` from ``inputs`` (value names), the first one of type ``x``.

        The types of ``others`` are needed for a grouped product alone.

        Raises ModelError if the operator of that ``opset`` cannot express the op.
        """
        if isinstance(op, Foreign):
            self.nodes.append(_foreign(op, name, inputs, outputs, self.opset, self.names))
        elif isinstance(op, ChannelsLast):
            self._between_transposes(op, name, inputs, outputs, x)
        elif isinstance(op, SoftmaxLike) and op.flatten and self.opset >= 13:
            self._flattened_softmax(op, name, inputs[0], outputs[0], x)
        elif isinstance(op, PRelu) and op.per_channel:
            self._prelu_per_channel(name, inputs, outputs, x)
        elif isinstance(op, GroupNorm):
            self._group_norm(op, name, inputs, outputs[0], x)
        elif op == _SILU and self.opset < _FIRST_OF_SWISH:
            sigmoid = self.names.fresh(f"{name}.sigmoid")
            self._node("Sigmoid", inputs, [sigmoid], sigmoid)
            self._node("Mul", [*inputs, sigmoid], outputs, name)
        elif isinstance(op, Dequantised):
            self._single(op.product, name, op.plain(inputs, self._dequantised), outputs, TensorType(x.shape))
        elif isinstance(op, ConvBackwardData):
            self._backward_data(op, name, inputs, outputs[0], x)
        elif isinstance(op, ConvBackwardFilter):
            self._backward_filter(op, name, inputs, outputs[0], x)
        elif isinstance(op, GroupedMatMul):
            self._node(call_of(others[0].shape[0]), inputs, outputs, name, domain=DOMAIN)
        else:
            self._single(op, name, inputs, outputs, x)

    def _node(
        self, op_type: str, inputs: Sequence[str], outputs: Sequence[str], name: str = "", **attributes: Any
    ) -> None:
        self.nodes.append(helper.make_node(op_type, inputs, outputs, name, **attributes))

    def _single(self, op: Op, name: str, inputs: Sequence[str], outputs: Sequence[str], x: TensorType) -> None:
        """An op that is one node."""
        opset = self.opset
        if isinstance(op, SoftmaxLike) and not op.flatten and opset < 13:
            after = x.shape[normal_axis(op.axis, len(x.shape)) + 1 :]
            if max(after, default=1) > 1:
                raise ModelError(
                    f"op {name!r}: below operator set 13 a {op.kind} takes all axes after its own; write 13"
                )
        op_type, given = op.to_onnx()
        if op_type == "Sum" and len(inputs) == 2:
            op_type = "Add"  # which accepts integers too
        if isinstance(op, GridSample) and op.mode == "linear" and opset < 20:
            given["mode"] = "bilinear"
        if not onnx.defs.has(op_type, opset):
            self._by_definition(helper.make_node(op_type, inputs, outputs, name, **given), x)
            return
        schema = onnx.defs.get_schema(op_type, opset)
        slots = [slot.name for slot in schema.inputs]
        operands = op.onnx_operands(inputs) if isinstance(op, Recurrent) else list(inputs)
        attributes: dict[str, Any] = {}
        for spellings, value in given.items():
            # A bar separates alternative names; the operator has one of them in each operator set.
            known = (each for each in spellings.split("|") if each in schema.attributes or each in slots)
            parameter = next(known, spellings)
            if parameter in schema.attributes:
                attributes[parameter] = value
            elif parameter in slots:
                slot = slots.index(parameter)
                operands += [""] * (slot + 1 - len(operands))
                operands[slot] = self.names.fresh(f"{name}.{parameter}")
                self.tensors.append(numpy_helper.from_array(_array(value, x), operands[slot]))
            elif not _is_nothing(value):
                raise ModelError(
                    f"op {name!r}: {op_type} of operator set {opset} has no {parameter!r}; write a later operator set"
                )
        self._node(op_type, operands, outputs, name, **attributes)

    def _by_definition(self, node: NodeProto, x: TensorType) -> None:
        """The function of one value that defines an operator which the operator set lacks, in operators that it has.

        Raises ModelError if there is none.
        """
        schema: Any = onnx.defs.get_schema(node.op_type)
        if schema.has_context_dependent_function:
            of_x = helper.make_tensor_type_proto(onnx_code(x.dtype), x.shape)
            body = schema.get_context_dependent_function(node.SerializeToString(), [of_x.SerializeToString()])
            function = onnx.FunctionProto.FromString(body)
        else:
            function = schema.function_body
        is_unary = len(function.input) == len(node.input) == 1
        if not is_unary or not all(onnx.defs.has(each.op_type, self.opset) for each in function.node):
            raise ModelError(f"op {node.name!r}: operator set {self.opset} has no {node.op_type}; write a later one")
        given = {attribute.name: attribute for attribute in node.attribute}
        values = dict(zip((*function.input, *function.output), (*node.input, *node.output), strict=True))
        for each in function.node:
            inner = {value: values.setdefault(value, self.names.fresh(f"{node.name}.{value}")) for value in each.output}
            made = helper.make_node(each.op_type, [values[value] for value in each.input], list(inner.values()))
            for attribute in each.attribute:
                made.attribute.add().CopyFrom(given.get(attribute.ref_attr_name, attribute))
                made.attribute[-1].name = attribute.name
            self.nodes.append(made)

    def _between_transposes(
        self, op: ChannelsLast[Op], name: str, inputs: Sequence[str], outputs: Sequence[str], x: TensorType
    ) -> None:
        """The op on NCHW with its input transposed before and its output transposed after it."""
        read, made = self.names.fresh(f"{name}.nchw"), self.names.fresh(f"{name}.nchw_output")
        self._node("Transpose", [inputs[0]], [read], f"{name}.to_nchw", perm=TO_FIRST)
        self.spell(op.channels_first, name, [read, *inputs[1:]], [made], permuted(x, TO_FIRST))
        self._node("Transpose", [made], outputs, f"{name}.to_nhwc", perm=TO_LAST)

    def _dequantised(self, op: Dequantize, stored: Sequence[str]) -> str:
        """The numbers of a stored operand, which a product reads."""
        value = self.names.fresh(f"{stored[0]}.dequantised")
        self._single(op, "", stored, [value], TensorType(()))
        return value

    def _group_norm(self, op: GroupNorm, name: str, inputs: Sequence[str], target: str, x: TensorType) -> None:
        """An instance norm of the groups, as PyTorch's exporter writes it: runtimes have no kernel for a group norm."""
        groups = TensorType((x.shape[0], op.groups, x.elements // (x.shape[0] * op.groups)), x.dtype)
        wide = Reshape((x.shape[1], *[1] * (len(x.shape) - 2)))
        flat, normal, back, scale, scaled, bias = (
            self.names.fresh(f"{name}.{each}") for each in ("flat", "normal", "back", "scale", "scaled", "bias")
        )
        ones, zeros = (self.names.fresh(f"{name}.{each}") for each in ("ones", "zeros"))
        for value, number in ((ones, 1), (zeros, 0)):
            self.tensors.append(numpy_helper.from_array(np.full(op.groups, number, x.dtype.numpy), value))
        self.spell(Reshape(groups.shape), flat, inputs[:1], [flat], x)
        self.spell(InstanceNorm(op.epsilon), normal, [flat, ones, zeros], [normal], groups)
        self.spell(Reshape(x.shape), back, [normal], [back], groups)
        for made, given in ((scale, inputs[1]), (bias, inputs[2])):
            self.spell(wide, made, [given], [made], TensorType(x.shape[1:2], x.dtype))
        self._node("Mul", [back, scale], [scaled], scaled)
        self._node("Add", [scaled, bias], [target], name)

    def _prelu_per_channel(self, name: str, inputs: Sequence[str], outputs: Sequence[str], x: TensorType) -> None:
        """The slope ``[C]`` as ``[C, 1, ...]``, which broadcasts."""
        aligned = self.names.fresh(f"{name}.slope")
        slope = TensorType(x.shape[1:2], x.dtype)
        shape = Reshape((*slope.shape, *[1] * (len(x.shape) - 2)))
        self.spell(shape, f"{name}.reshape", [inputs[1]], [aligned], slope)
        self._node("PRelu", [inputs[0], aligned], outputs, name)

    def _backward_data(
        self, op: ConvBackwardData, name: str, inputs: Sequence[str], target: str, grad_output: TensorType
    ) -> None:
        """The full extent of the windows, cropped to the input: no padding expresses this for every stride."""
        whole = self.names.fresh(f"{name}.whole")
        op_type, attributes = op.to_onnx()
        self._node(op_type, inputs, [whole], name, **attributes)
        before, axes = op.pads[: len(op.input_size)], tuple(range(2, 2 + len(op.input_size)))
        ends = tuple(first + length for first, length in zip(before, op.input_size, strict=True))
        self.spell(Slice(before, ends, axes, (1,) * len(axes)), f"{name}.cut", [whole], [target], grad_output)

    def _backward_filter(
        self, op: ConvBackwardFilter, name: str, inputs: Sequence[str], target: str, x: TensorType
    ) -> None:
        """A convolution of the input with the gradients: channels become images, strides become dilations."""
        rank, batch = len(op.kernel_size), x.shape[0]
        swapped, axes = (1, 0, *range(2, 2 + rank)), tuple(range(2, 2 + rank))

        def add(step: Op, read: str, made: str = "") -> str:
            made = made or self.names.fresh(f"{name}.{step.kind}")
            self.spell(step, self.names.fresh(f"{name}.step"), [read], [made], x)
            return made

        if op.groups == 1:
            images = add(Transpose(swapped), inputs[0])
        else:
            per_group = x.shape[1] // op.groups
            images = add(Reshape((batch, op.groups, per_group, *x.shape[2:])), inputs[0])
            images = add(Transpose((2, 1, 0, *range(3, 3 + rank))), images)
            images = add(Reshape((per_group, op.groups * batch, *x.shape[2:])), images)
        gradients = add(Transpose(swapped), inputs[1])
        whole = self.names.fresh(f"{name}.whole")
        op_type, attributes = op.to_onnx()
        self._node(op_type, [images, gradients], [whole], name, **attributes)
        # A stride leaves pixels after the last window, which are not part of the kernel.
        kept = add(Slice((0,) * rank, op.kernel_size, axes, (1,) * rank), whole)
        if len(inputs) == 2:
            add(Transpose(swapped), kept, target)
        else:
            self._node("Add", [add(Transpose(swapped), kept), inputs[2]], [target])

    def _flattened_softmax(self, op: SoftmaxLike, name: str, source: str, target: str, x: TensorType) -> None:
        """A flattened softmax: from operator set 13 on it has one axis, so that its axes are merged into one."""
        axis = normal_axis(op.axis, len(x.shape))
        flat, soft = self.names.fresh(f"{name}.flat"), self.names.fresh(f"{name}.soft")
        rows = TensorType((x.elements // int(np.prod(x.shape[axis:])), int(np.prod(x.shape[axis:]))), x.dtype)
        self.spell(Flatten(axis), f"{name}.{Flatten.kind}", [source], [flat], x)
        self.spell(type(op)(1), f"{name}.{op.kind}", [flat], [soft], rows)
        self.spell(Reshape(x.shape), f"{name}.{Reshape.kind}", [soft], [target], rows)


def fitting_opset(ops: Iterable[tuple[Op, TensorType]]) -> int:
    """The operator set to write ops in, each given with its first input: :data:`OPSET`, or a later one that has all.

    If the meaning of foreign ops differs in it, it is theirs.
    """
    wanted = OPSET
    for op, x in ops:
        if not isinstance(op, Foreign):
            wanted = max(wanted, _first_opset(op, x.dtype))
        elif not _domain(op) and not _means_the_same(op, OPSET):
            return op.version
    return wanted


def _array(value: Any, x: TensorType) -> Array:
    """A parameter as a tensor: a float in the op's own element type, of several in fp32, integers as int64."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, list):
        return np.array(value, np.float32 if isinstance(value[0], float) else np.int64)
    return np.array(value, dtype=x.dtype.numpy if isinstance(value, float) else np.int64)


@cache
def _first_opset(op: Op, x: DType) -> int:
    """The first operator set from :data:`OPSET` on that can express an op on an input ``x``; OPSET if there is none."""
    if op == _SILU or isinstance(op, GroupNorm):
        return OPSET
    op_type, given = op.to_onnx()
    type_name = f"tensor({TensorProto.DataType.Name(onnx_code(x)).lower()})"
    for opset in range(max(OPSET, op.least_opset(x)), onnx.defs.onnx_opset_version() + 1):
        if onnx.defs.has(op_type, opset):
            schema = onnx.defs.get_schema(op_type, opset)
            known = {*schema.attributes, *(slot.name for slot in schema.inputs)}
            takes = not schema.inputs or type_name in schema.inputs[0].types
            if takes and all(
                known.intersection(names.split("|")) or _is_nothing(value) for names, value in given.items()
            ):
                return opset
    return OPSET


def _is_nothing(value: Any) -> bool:
    """True if a parameter has the value implied before it existed: zero, or ones."""
    return not np.any(np.asarray(value) != (1 if isinstance(value, list) else 0))


def imported_domains(ops: Iterable[Op]) -> dict[str, int]:
    """The versions of the operator sets of ops, other than ONNX's own, by domain."""
    return {_domain(op): op.version for op in ops if isinstance(op, Foreign) and _domain(op)}


def _foreign(
    op: Foreign, name: str, inputs: Sequence[str], outputs: Sequence[str], opset: int, names: Names
) -> NodeProto:
    """The node that a foreign op was read from, with other names."""
    if not _domain(op) and not _means_the_same(op, opset):
        raise ModelError(
            f"op {name!r}: {op.op_type} of operator set {op.version} is another in {opset}; write {op.version}"
        )
    node = _node(op)
    read, made = iter(inputs), iter(outputs)
    for place, given in enumerate(node.input):
        node.input[place] = next(read) if given else ""
    needed = _needed_outputs(node, op.version)
    for place, given in enumerate(node.output):
        left_out = names.fresh(f"{name}.output{place}") if place in needed else ""
        node.output[place] = next(made) if given else left_out
    node.name = name
    outside = dict(zip(captured_values(node), read, strict=True))
    for graph in graphs_in(node):
        graph.CopyFrom(renamed(graph, outside, lambda value: names.fresh(f"{name}.{value}")))
    return node


def _needed_outputs(node: NodeProto, version: int) -> set[int]:
    """The positions of outputs that may not be omitted, although nothing reads them."""
    if not onnx.defs.has(node.op_type, node.domain):
        return set()
    declared = onnx.defs.get_schema(node.op_type, version, node.domain).outputs
    options = [output.option for output in declared]
    places = ((place, options[min(place, len(options) - 1)]) for place in range(len(node.output)))
    return {place for place, option in places if option != onnx.defs.OpSchema.FormalParameterOption.Optional}


def _domain(op: Foreign) -> str:
    domain: str = _node(op).domain
    return domain


def _node(op: Foreign) -> NodeProto:
    node: NodeProto = NodeProto.FromString(base64.b64decode(op.node))
    return node


def _means_the_same(op: Foreign, opset: int) -> bool:
    """True if an operator of ONNX's own, and those in its subgraphs, are unchanged between its set and another."""
    try:
        return since_versions(_node(op), op.version) == since_versions(_node(op), opset)
    except onnx.defs.SchemaError:
        return op.version == opset
