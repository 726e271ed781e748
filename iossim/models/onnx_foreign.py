"""ONNX nodes that no op kind covers, as foreign ops: their output types by ONNX's shape inference, or by the file's word.

Inference sees the types of the inputs, and the values of those that are known. Where the output's shape still is open
the file may declare it; evaluation checks that it holds.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx
from onnx import AttributeProto, NodeProto, TypeProto, helper, numpy_helper

from iossim.errors import ModelError
from iossim.ir.constants import Constant
from iossim.ir.onnx_node import canonical
from iossim.ir.op import NotCoveredError
from iossim.ir.ops.foreign import Foreign, recorded_type
from iossim.ir.types import TensorType
from iossim.models.onnx_constants import dtype_of_onnx, onnx_code
from iossim.models.onnx_file import is_standard
from iossim.models.onnx_folding import LARGEST_FOLDED, RANDOM
from iossim.models.onnx_inputs import Shape


@dataclass(frozen=True)
class ForeignReader:
    """Reads the foreign nodes of one model; ``versions`` are those of its operator sets by domain.

    ``declared`` are the values whose whole type the file states, for the inputs as they are bound.
    """

    versions: Mapping[str, int]
    ir_version: int
    declared: Mapping[str, TensorType] = field(default_factory=dict)

    def read(self, node: NodeProto, types: Mapping[str, TensorType], constants: Mapping[str, Constant]) -> Foreign:
        """The node as a foreign op.

        Raises NotCoveredError that says, to be read behind the node's name, why it cannot be one; ModelError for operands that
        the operator does not take.
        """
        domain = "" if is_standard(node.domain) else node.domain
        if domain not in self.versions:
            raise NotCoveredError(f"the file imports no operators of {domain!r}")
        if runs_graphs(node):
            raise NotCoveredError("it runs graphs of its own, which iossim does not schedule")
        if node.op_type in RANDOM or (node.op_type == "Dropout" and len(node.input) > 2 and node.input[2]):
            raise NotCoveredError("it draws random numbers")
        known = onnx.defs.has(node.op_type, domain)
        if not known and domain in ("", "ai.onnx.ml"):
            raise NotCoveredError("ONNX has no such operator")
        inferred = self._inferred(node, domain, types, constants) if known else {}
        outputs = [self._output(name, inferred.get(name)) for name in node.output if name]
        bare = NodeProto()
        bare.CopyFrom(node)
        bare.domain = domain
        try:
            stored = base64.b64encode(canonical(bare)).decode()
        except (ValueError, TypeError) as error:
            raise NotCoveredError(str(error).splitlines()[0]) from None
        return Foreign(
            node.op_type if not domain else f"{domain}.{node.op_type}",
            self.versions[domain],
            stored,
            tuple(recorded_type(types[name]) for name in node.input if name),
            tuple(map(recorded_type, outputs)),
        )

    def _inferred(
        self, node: NodeProto, domain: str, types: Mapping[str, TensorType], constants: Mapping[str, Constant]
    ) -> dict[str, TypeProto]:
        """What ONNX infers of the outputs, by name."""
        inputs = list(dict.fromkeys(name for name in node.input if name))
        values = [
            numpy_helper.from_array(constants[name].load(), name)
            for name in inputs
            if name in constants and types[name].elements <= LARGEST_FOLDED
        ]
        graph = helper.make_graph(
            [node],
            "one_node",
            [_declaration(name, types[name]) for name in inputs],
            [helper.make_empty_tensor_value_info(name) for name in node.output if name],
            values,
        )
        imports = [helper.make_opsetid(name, version) for name, version in self.versions.items()]
        model = helper.make_model(graph, opset_imports=imports, ir_version=max(self.ir_version, 4))
        try:
            found = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
        except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError) as error:
            raise ModelError(_reason(error)) from None
        return {value.name: value.type for value in found.graph.output}

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
            raise NotCoveredError("neither ONNX nor the file tells the shape of its output")
        return self.declared[name]


def runs_graphs(node: NodeProto) -> bool:
    """Whether a node runs graphs of its own: control flow, mostly."""
    return any(attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for attribute in node.attribute)


def declared_types(graph: onnx.GraphProto, sizes: Mapping[str, int]) -> dict[str, TensorType]:
    """The values that a file gives a whole type, with dimensions of the names in ``sizes`` bound."""
    found: dict[str, TensorType] = {}
    for value in (*graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        shape = static_shape(tensor, sizes) if value.type.HasField("tensor_type") else None
        if shape is not None:
            try:
                found[value.name] = TensorType(shape, dtype_of_onnx(tensor.elem_type, value.name))
            except ModelError:
                continue  # a value of a type that iossim does not know is refused where it is made
    return found


def static_shape(tensor: TypeProto.Tensor, sizes: Mapping[str, int] | None = None) -> Shape | None:
    """The shape of a tensor type, if every dimension is known."""
    if not tensor.HasField("shape"):
        return None
    dimensions = [
        axis.dim_value if axis.HasField("dim_value") else (sizes or {}).get(axis.dim_param)
        for axis in tensor.shape.dim
    ]
    known = tuple(size for size in dimensions if size is not None)
    return known if len(known) == len(dimensions) else None


def listed(unknown: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    """Operators that cannot be taken, by type with the names of their nodes and the reasons, in one line."""
    return "; ".join(_entry(op_type, nodes) for op_type, nodes in sorted(unknown.items()))


def _entry(op_type: str, nodes: Sequence[tuple[str, str]]) -> str:
    more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
    return f"{op_type} ({nodes[0][0]!r}{more}): {', '.join(_unique(reason for _, reason in nodes))}"


def _unique(items: Iterator[str]) -> list[str]:
    return list(dict.fromkeys(items))


def _declaration(name: str, value: TensorType) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx_code(value.dtype), value.shape)


def _reason(error: Exception) -> str:
    """The last line of what ONNX says, which is what is wrong."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__).split(") ", 1)[-1].strip()
