"""One op as ONNX nodes of a chosen operator set: the result of ``Op.to_onnx``, split into attributes and inputs.

Over its operator sets ONNX has turned attributes into inputs. The operator's schema at the chosen set says which of
the two a parameter is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from onnx import NodeProto, TensorProto, helper, numpy_helper

from iossim.base.errors import ModelError
from iossim.ir.constants import Constant
from iossim.ir.graph import Names
from iossim.ir.onnx_node import captured_values, graphs_in, renamed, since_versions
from iossim.ir.onnx_spelling import onnx_code
from iossim.ir.op import Array, Op, normal_axis
from iossim.ir.ops.foreign import Foreign
from iossim.ir.ops.grid_sample import GridSample
from iossim.ir.ops.grouped_matmul import GroupedMatMul
from iossim.ir.ops.quantize import Dequantize
from iossim.ir.ops.recurrent import Recurrent
from iossim.ir.ops.softmax import SoftmaxLike
from iossim.ir.types import DType, TensorType
from iossim.models.onnx.grouped_products import DOMAIN, call_of
from iossim.models.onnx.written_ops import Writing, writing_of
from iossim.models.passes.simplification import Derived

#: The default: the newest that every supported ONNX Runtime reads.
OPSET = 21
#: IR version that every supported runtime reads.
IR_VERSION = 8


@dataclass(frozen=True)
class Speller:
    """Collects the nodes of ops in ``opset``, and the tensors of those of their parameters that are inputs.

    ``names`` names parameters and intermediate values.
    """

    opset: int
    names: Names
    nodes: list[NodeProto] = field(default_factory=list)
    tensors: list[TensorProto] = field(default_factory=list)

    def spell(self, op: Op, name: str, inputs: Sequence[str], outputs: Sequence[str], *types: TensorType) -> None:
        """Add nodes that compute ``outputs`` from ``inputs`` (value names) of these ``types``.

        Raises ModelError if the operator of that ``opset`` cannot express the op.
        """
        if isinstance(op, Foreign):
            self.nodes.append(_foreign(op, name, inputs, outputs, self.opset, self.names))
        elif isinstance(op, GroupedMatMul):
            self._node(call_of(types[1].shape[0]), inputs, outputs, name, domain=DOMAIN)
        elif write := writing_of(op, self.opset):
            self._several(write, op, name, inputs, outputs[0], types)
        else:
            self._single(op, name, inputs, outputs, types[0])

    def _several(
        self, write: Writing, op: Op, name: str, inputs: Sequence[str], target: str, types: Sequence[TensorType]
    ) -> None:
        """An op that is written as others."""
        parts = Derived(dict(zip(inputs, types, strict=True)), constants := dict[str, Constant](), name)
        called = {write(parts, op, *inputs): target}
        for value, constant in constants.items():
            called[value] = self.names.fresh(f"{name}.filled")
            self.tensors.append(numpy_helper.from_array(constant.load(), called[value]))
        for node in parts.nodes:
            (made,) = node.outputs
            if not (is_last := made in called):
                called[made] = self.names.fresh(f"{name}.{node.op.kind}")
            # A dequantisation joins the product when the file is read: it is no node of a unit, and has no name.
            own = name if is_last else "" if isinstance(node.op, Dequantize) else called[made]
            read = [called.get(each, each) for each in node.inputs]
            self._single(node.op, own, read, [called[made]], parts.types[node.inputs[0]])

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
        op_type, spelled = op.to_onnx()
        given: dict[str, Any] = spelled
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
        attributes: dict[str, object] = {}
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
        of_x = helper.make_tensor_value_info(node.input[0], onnx_code(x.dtype), x.shape)
        graph = helper.make_graph([node], "call", [of_x], [helper.make_empty_tensor_value_info(node.output[0])])
        model, wanted = helper.make_model(graph), [("", node.op_type)]
        if len(node.input) == 1:
            model = onnx.inliner.inline_selected_functions(model, wanted, inline_schema_functions=True)
        if not all(onnx.defs.has(each.op_type, self.opset) for each in model.graph.node):
            raise ModelError(f"op {node.name!r}: operator set {self.opset} has no {node.op_type}; write a later one")
        values = {value: value for value in (*node.input, *node.output)}
        for each in model.graph.node:
            each.name, each.input[:] = "", [values[value] for value in each.input]
            each.output[:] = [
                values.setdefault(value, self.names.fresh(f"{node.name}.{value}")) for value in each.output
            ]
            self.nodes.append(each)


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


def _array(value: object, x: TensorType) -> Array:
    """A parameter as a tensor: a float in the op's own element type, of several in fp32, integers as int64."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, list):
        return np.array(value, np.float32 if isinstance(value[0], float) else np.int64)
    return np.array(value, dtype=x.dtype.numpy if isinstance(value, float) else np.int64)


@cache
def _first_opset(op: Op, x: DType) -> int:
    """The first operator set from :data:`OPSET` on that can express an op on an input ``x``; OPSET if there is none."""
    if isinstance(op, GroupedMatMul) or writing_of(op, OPSET):
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


def _is_nothing(value: object) -> bool:
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
    node = op.parsed()
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
    return op.parsed().domain


def _means_the_same(op: Foreign, opset: int) -> bool:
    """True if an operator of ONNX's own, and those in its subgraphs, are unchanged between its set and another."""
    try:
        return since_versions(op.parsed(), op.version) == since_versions(op.parsed(), opset)
    except onnx.defs.SchemaError:
        return op.version == opset
