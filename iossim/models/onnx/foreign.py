"""ONNX nodes without an op kind, as foreign ops: output types by ONNX's shape inference or as declared in the file.

Inference sees the types of the inputs, and the values of known ones. If the output's shape is still open,
the file may declare it; evaluation checks the declaration.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import onnx
from onnx import NodeProto, TypeProto

from iossim.base.errors import ModelError, first_line
from iossim.ir.onnx_node import canonical, nodes_within, operands
from iossim.ir.onnx_spelling import NotCoveredError, dtype_of_onnx
from iossim.ir.ops.foreign import Foreign, recorded_type
from iossim.ir.types import TensorType
from iossim.models.onnx.constants import Known
from iossim.models.onnx.file import is_standard
from iossim.models.onnx.folding import RANDOM
from iossim.models.onnx.inlining import runs_graphs
from iossim.models.onnx.loops import repeated_types
from iossim.models.onnx.shapes import inferred_outputs, static_shape

_TERM = rb"[A-Za-z ]*(\.\.\.)?[A-Za-z ]*"
_EQUATION = re.compile(_TERM + rb"(," + _TERM + rb")*(->" + _TERM + rb")?")


@dataclass(frozen=True)
class ForeignReader:
    """Reads the foreign nodes of one model; ``versions`` are those of its operator sets by domain.

    ``declared`` are the values whose complete type is in the file, for the bound inputs.
    """

    versions: Mapping[str, int]
    ir_version: int
    declared: Mapping[str, TensorType] = field(default_factory=dict)

    def read(self, node: NodeProto, known: Known) -> Foreign:
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
        _check_equation(node)
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


def _check_equation(node: NodeProto) -> None:
    """Refuse an Einsum on which ONNX's shape inference would loop forever, waiting for letters."""
    for attribute in node.attribute:
        if node.op_type == "Einsum" and attribute.name == "equation" and not _EQUATION.fullmatch(attribute.s):
            raise ModelError("its equation is none; write one like ij,jk->ik")


def declared_types(graph: onnx.GraphProto, sizes: Mapping[str, int]) -> dict[str, TensorType]:
    """The values with complete types in a file, after binding the dimensions named in ``sizes``."""
    found: dict[str, TensorType] = {}
    for value in (*graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        shape = static_shape(tensor, sizes) if value.type.HasField("tensor_type") else None
        if shape is not None:
            try:
                found[value.name] = TensorType(shape, dtype_of_onnx(tensor.elem_type, value.name))
            except ModelError:
                continue  # a value of an unknown type is refused at its producer
    return found


def listed(unknown: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    """Uncovered operators, by type with the names of their nodes and the reasons, in one line."""
    entries = []
    for op_type, nodes in sorted(unknown.items()):
        more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
        reasons = ", ".join(dict.fromkeys(reason for _, reason in nodes))
        entries.append(f"{op_type} ({nodes[0][0]!r}{more}): {reasons}")
    return "; ".join(entries)
