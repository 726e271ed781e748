"""ONNX nodes that no op kind reads: folded at import if they are constant, else foreign ops.

Exporters spell static shapes as Shape, Gather, Concat, Reshape. A node that reads only small known arrays is computed
once, by ONNX's own reference implementation, so that operators unknown to iossim fold as well. Nodes that cannot
be computed are kept.

The output types of a foreign op are those of ONNX's shape inference, which sees the types of the inputs, and the values
of known ones; if a shape is still open, the file may declare it, and evaluation checks the declaration.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TensorProto, TypeProto, helper

from iossim.base.errors import GraphError, ModelError, first_line
from iossim.ir.constants import ArrayConstant, Constant, FilledConstant
from iossim.ir.onnx_node import NONSENSE, canonical, compute, nodes_within, onnx_class, operands
from iossim.ir.onnx_spelling import NotCoveredError, dtype_of_onnx
from iossim.ir.op import Array
from iossim.ir.ops.foreign import Foreign, recorded_type
from iossim.ir.ops.quantize import OF_FEW_BITS
from iossim.ir.types import TensorType
from iossim.models.onnx.constants import Known, constant_node, node_view, tensor_constant
from iossim.models.onnx.file import is_standard
from iossim.models.onnx.inlining import runs_graphs
from iossim.models.onnx.shapes import Versions, inferred_outputs, known_type, repeated_types, static_shape, stays_true

#: Largest number of input elements of a node that is folded at import; weights are left to the folding pass.
LARGEST_FOLDED = 4096

#: Largest number of output elements of a folded node whose output may have any size.
LARGEST_MADE = 1 << 20

#: Operators whose outputs are no larger than their inputs' total size, squared, and for data to say.
_STAY_SMALL = {"Compress", "NonZero", "Unique"}

#: Attributes that hold the value of a constant.
_SPELLINGS = {
    "value": AttributeProto.TENSOR,
    "value_float": AttributeProto.FLOAT,
    "value_floats": AttributeProto.FLOATS,
    "value_int": AttributeProto.INT,
    "value_ints": AttributeProto.INTS,
}

#: Operators whose outputs differ for equal inputs.
RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}


@dataclass(frozen=True)
class OperatorSet:
    """Reads the nodes of one model that are in one version of ONNX's operators: folded, or as foreign ops.

    Its ``path`` begins every message; ``versions`` are those of its operator sets by domain. Readers of ``kept`` values
    are not folded. ``declared`` are the values whose complete type is in the file, for the bound inputs.
    """

    path: Path
    versions: Versions
    ir_version: int
    kept: frozenset[str] = frozenset()
    declared: Mapping[str, TensorType] = field(default_factory=dict)

    @property
    def opset(self) -> int:
        return self.versions[""]

    def check(self, node: NodeProto, where: str) -> None:
        """Raise ModelError for a node that ONNX's checker refuses; ``where`` begins its message."""
        if runs_graphs(node):
            return  # the checker would not find the values that they capture
        try:
            onnx.checker.check_node(node, self._checker)
        except onnx.checker.ValidationError as error:
            if onnx.defs.has(node.op_type, node.domain):
                raise ModelError(f"{where} is not valid: {first_line(error)}") from None

    @cached_property
    def _checker(self) -> onnx.checker.C.CheckerContext:
        checker = onnx.checker.C.CheckerContext()
        checker.ir_version, checker.opset_imports = self.ir_version, dict(self.versions)
        return checker

    def known_outputs(self, node: NodeProto, where: str, known: Known) -> list[Constant] | None:
        """The outputs of a node that do not depend on the network's inputs; None for any other node."""
        if not can_fold(node):
            return None
        if node.op_type == "Constant":
            return [_constant(node, self.path.parent, where)]
        inputs = [name for name in node.input if name]
        if node.op_type in ("Shape", "Size"):
            return [ArrayConstant(_shape(node, known.types[inputs[0]]))]
        if node.op_type == "CastLike":
            inputs = inputs[:1]  # the other one matters only by its type
        is_weight = node.op_type == "DequantizeLinear" and known.types[inputs[0]].dtype in OF_FEW_BITS
        if is_weight and known.types[inputs[0]].shape:
            return None  # a product with it may be computed in integers, or dequantise it
        small = sum(known.types[name].elements for name in inputs) <= LARGEST_FOLDED
        constant = all(known.has_values(name) and name not in self.kept for name in inputs)
        if not inputs or not small or not constant:
            return None
        arrays = [known.constants[name].load() for name in inputs]
        if node.op_type == "ConstantOfShape":
            return [_filled(node, arrays[0], where)]
        if node.op_type == "CastLike":
            return self._computed_by_op(node, known)
        if node.op_type not in _STAY_SMALL and not self._stays_small(node, where, known):
            return None
        try:
            made = compute(canonical(node), self.opset, arrays)
        except GraphError:
            # The reference lacks operators, and has defects: GatherElements fails on more than 32 rows.
            return self._computed_by_op(node, known)
        return [ArrayConstant(array) for array in made]

    def counted(self, node: NodeProto, name: str, where: str, known: Known) -> list[NodeProto]:
        """A ``Loop`` with a number of runs in place of one with a condition that known states decide, such as Keras'
        number of the time step; nothing for other nodes.
        """
        kept = deepcopy(node)
        body = next((each.g for each in kept.attribute if each.name == "body"), None)
        if node.op_type != "Loop" or body is None or len(body.input) != len(node.input) or stays_true(body):
            return []
        (trips, condition, *given), (run, going, *states) = node.input, (value.name for value in body.input)
        if any(value and not known.has_values(value) for value in (trips, condition)):
            return []
        most = int(known.parameter(trips).item()) if trips else LARGEST_FOLDED
        runs, goes_on = 0, not condition or bool(known.parameter(condition).all())
        values = {state: known.constants.get(value) for state, value in zip(states, given, strict=True)}
        while goes_on and runs < most:
            inside = {run: ArrayConstant(np.array(runs)), going: ArrayConstant(np.array(True))} | values
            for each in body.node:
                constants = {value: inside.get(value, known.constants.get(value)) for value in operands(each)}
                read = {value: constant for value, constant in constants.items() if constant is not None}
                types = {value: constant.type for value, constant in read.items()}
                outputs = self.known_outputs(each, where, Known(types, read)) if len(read) == len(constants) else None
                inside.update(zip(each.output, outputs or (), strict=False))
            decision = inside.get(body.output[0].name)
            if decision is None or runs * len(body.node) > LARGEST_FOLDED:
                return []
            goes_on, runs = bool(decision.load().all()), runs + 1
            values = {state: inside.get(made.name) for state, made in zip(states, body.output[1:], strict=False)}
        count = constant_node(f"{name}.runs", np.array(runs))
        kept.input[0], kept.input[1] = count.name, ""
        body.node.append(helper.make_node("Identity", [going], [f"{name}.going"]))
        body.output[0].name = f"{name}.going"
        return [count, kept]

    def _computed_by_op(self, node: NodeProto, known: Known) -> list[Constant] | None:
        """The outputs by the op's own evaluation; None if that fails too: then the node is kept."""
        op_class = onnx_class(node.op_type)
        if op_class is None:
            return None
        try:
            op, data = op_class.from_onnx(node_view(node, node.name, known, self.opset))
            made = op.evaluate([known.constants[name].load() for name in data])
        except (ModelError, GraphError, *NONSENSE):
            return None
        return [ArrayConstant(array) for array in made]

    def _stays_small(self, node: NodeProto, where: str, known: Known) -> bool:
        """True if the outputs are known to be no larger than :data:`LARGEST_MADE`.

        A few numbers can request terabytes, or years of work, such as the size of a kernel that slides over padding.
        """
        for each in node.attribute:
            if math.prod(max(1, abs(size)) for size in (each.i, *each.ints)) > LARGEST_MADE:
                return False
        if node.op_type == "Range":  # runtimes accept lists of one number as its operands, inference does not
            start, limit, delta = (float(known.constants[name].load().reshape(-1)[0]) for name in node.input)
            if delta == 0 or not math.isfinite(start + limit + delta):
                raise ModelError(f"{where} is not valid: from {start:g} to {limit:g} in steps of {delta:g} has no end")
            return abs(limit - start) <= LARGEST_MADE * abs(delta)
        try:
            outputs = inferred_outputs(node, {"": self.opset}, known)
        except ModelError:
            return False  # as an ordinary node it gets an error message
        shapes = [static_shape(made.tensor_type) for made in outputs.values()]
        return all(shape is not None and math.prod(shape) <= LARGEST_MADE for shape in shapes)

    def foreign(self, node: NodeProto, known: Known) -> Foreign:
        """The node as a foreign op.

        Raises NotCoveredError with the reason, to follow the node's name, if it cannot be one; ModelError for invalid
        operands.
        """
        domain = "" if is_standard(node.domain) else node.domain
        if domain not in self.versions:
            raise NotCoveredError(f"the file imports no operators of {domain!r}")
        if runs_graphs(node) and domain:
            raise NotCoveredError("it runs graphs of its own, which iossim carries for ONNX's own operators alone")
        for each in nodes_within([node]):
            if each.op_type in RANDOM or (each.op_type == "Dropout" and len(each.input) > 2 and each.input[2]):
                raise NotCoveredError("it draws random numbers")
            if each is not node and not is_standard(each.domain):
                raise NotCoveredError(f"it runs graphs with operators of {each.domain!r}")
        if node.op_type == "Gradient":
            raise NotCoveredError("it is of training, and iossim schedules inference")
        exists = onnx.defs.has(node.op_type, domain)
        if not exists and domain in ("", "ai.onnx.ml"):
            raise NotCoveredError("ONNX has no such operator")
        inferred = inferred_outputs(node, self.versions, known, self.ir_version) if exists else {}
        repeated = repeated_types(node, self.versions, known, self.ir_version)
        outputs = [repeated.get(name) or self._output(name, inferred.get(name)) for name in node.output if name]
        bare = deepcopy(node)
        bare.domain = domain
        try:
            stored = base64.b64encode(canonical(bare)).decode()
        except (ValueError, TypeError) as error:
            raise NotCoveredError(first_line(error)) from None
        return Foreign(
            node.op_type if not domain else f"{domain}.{node.op_type}",
            self.versions[domain],
            stored,
            tuple(recorded_type(known.types[name]) for name in operands(node)),
            tuple(map(recorded_type, outputs)),
        )

    def _output(self, name: str, inferred: TypeProto | None) -> TensorType:
        """The type of an output, inferred or declared."""
        if inferred is not None and inferred.WhichOneof("value") not in (None, "tensor_type"):
            kind = str(inferred.WhichOneof("value")).removesuffix("_type")
            raise NotCoveredError(f"it makes a {kind}, and iossim knows tensors only")
        if inferred is not None and inferred.tensor_type.elem_type:
            dtype = dtype_of_onnx(inferred.tensor_type.elem_type, "its output")
            shape = static_shape(inferred.tensor_type)
            if shape is not None:
                return TensorType(shape, dtype)
            if name in self.declared and self.declared[name].dtype is dtype:
                return self.declared[name]
            raise NotCoveredError("the shape of its output depends on data")
        if name not in self.declared:
            raise NotCoveredError("neither ONNX nor the file determines the shape of its output")
        return self.declared[name]


def can_fold(node: NodeProto) -> bool:
    """True if the node is a standard operator whose outputs depend on its inputs only."""
    standard = is_standard(node.domain) and onnx.defs.has(node.op_type)
    return standard and node.op_type not in RANDOM and (node.op_type == "Constant" or not runs_graphs(node))


def _shape(node: NodeProto, value: TensorType) -> Array:
    """ONNX ``Size``, or ``Shape``: all dimensions, or from opset 15 on those from ``start`` to ``end``."""
    if node.op_type == "Size":
        return np.array(value.elements, dtype=np.int64)
    ends = {attribute.name: attribute.i for attribute in node.attribute}
    return np.array(value.shape[ends.get("start") : ends.get("end")], dtype=np.int64)


def _filled(node: NodeProto, shape: Array, where: str) -> Constant:
    """ONNX ``ConstantOfShape``: fp32 zeros by default."""
    tensor = node.attribute[0].t if node.attribute else helper.make_tensor("zero", TensorProto.FLOAT, [1], [0.0])
    fill = tensor_constant(tensor, Path(), where)
    if fill.type.elements != 1:
        raise ModelError(f"{where} fills with {fill.type} instead of one number; the file is damaged")
    sizes = tuple(int(size) for size in shape)
    if min(sizes, default=0) < 0:
        raise ModelError(f"{where} fills the negative shape {list(sizes)}; the file is damaged")
    return FilledConstant(TensorType(sizes, fill.type.dtype), fill.load().item())


def _constant(node: NodeProto, folder: Path, where: str) -> Constant:
    """ONNX ``Constant``, which has several attributes for its value."""
    if len(node.attribute) != 1:
        raise ModelError(f"{where} holds no value; the file is damaged")
    attribute = node.attribute[0]
    if attribute.type != _SPELLINGS.get(attribute.name, attribute.type):
        raise ModelError(f"{where} has a {attribute.name} of another type; the file is damaged")
    if attribute.name == "value":
        return tensor_constant(attribute.t, folder, where)
    if attribute.name in _SPELLINGS:
        dtype = np.float32 if "float" in attribute.name else np.int64
        return ArrayConstant(np.array(helper.get_attribute_value(attribute), dtype=dtype))
    raise ModelError(f"{where} is given as {attribute.name}, which iossim does not know; store it as a tensor")


def declared_types(graph: onnx.GraphProto, sizes: Mapping[str, int]) -> dict[str, TensorType]:
    """The values with complete types in a file, after binding the dimensions named in ``sizes``."""
    types = ((value.name, known_type(value.type, sizes)) for value in (*graph.value_info, *graph.output))
    return {name: value for name, value in types if value is not None}


def listed(unknown: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    """Uncovered operators, by type with the names of their nodes and the reasons, in one line."""
    entries = []
    for op_type, nodes in sorted(unknown.items()):
        more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
        reasons = ", ".join(dict.fromkeys(reason for _, reason in nodes))
        entries.append(f"{op_type} ({nodes[0][0]!r}{more}): {reasons}")
    return "; ".join(entries)
