"""ONNX's shape inference for a node, from the types of its inputs and the values of known ones; unrolled loops.

ONNX leaves the types of a Loop's outputs open if each iteration reads the one before, but those of a Scan, whose states
keep their types. The number of a Loop's iterations is its trip count, if its condition is always true. Such a loop is
unrolled if its body has matrix products, so that they are priced and scheduled like any others.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TypeProto, helper, numpy_helper

from iossim.base.errors import ModelError, last_line
from iossim.ir.onnx_node import captured_values, graphs_in, is_product, nodes_within
from iossim.ir.onnx_spelling import dtype_of_onnx, onnx_code
from iossim.ir.types import DType, TensorType
from iossim.models.onnx.constants import Known, attributes_of, constant_node
from iossim.models.onnx.file import is_standard
from iossim.models.onnx.inlining import runs_graphs, unrolled
from iossim.models.onnx.inputs import dimension_size

#: Versions of operator sets, by domain.
Versions = Mapping[str, int]
#: Largest number of elements of an input whose values are given to inference.
LARGEST_KNOWN = 4096
#: Limits on the nodes of a model's unrolled loops, and on the bytes of one with all its iterations.
_MOST_NODES, _MOST_BYTES = 4096, 1 << 26


def inferred_outputs(node: NodeProto, versions: Versions, known: Known, ir_version: int = 8) -> dict[str, TypeProto]:
    """The types of a node's outputs by name, if known.

    Raises ModelError with ONNX's reason for invalid operands.
    """
    inputs = list(dict.fromkeys(name for name in (*node.input, *captured_values(node)) if name))
    values = {
        name: numpy_helper.from_array(known.constants[name].load(), name)
        for name in inputs
        if known.has_values(name) and known.types[name].elements <= LARGEST_KNOWN
    }
    # An operator has its shape after its data; in a body any value may become a shape.
    is_body = runs_graphs(node)
    types = {
        name: _given_type(known.types[name], is_body or (place > 0 and known.types[name].dtype is DType.INT64))
        for place, name in enumerate(inputs)
    }
    imports = [helper.make_opsetid(name, version) for name, version in versions.items()]
    domain = "" if is_standard(node.domain) else node.domain
    schema = onnx.defs.get_schema(node.op_type, versions[domain], domain)
    whole = _with_constants_inside(node, known)
    whole.output[:] = [name or f"unread {place}" for place, name in enumerate(node.output)]
    try:
        return onnx.shape_inference.infer_node_outputs(schema, whole, types, values, None, imports, max(ir_version, 4))
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError) as error:
        raise ModelError(last_line(error)) from None


def _with_constants_inside(node: NodeProto, known: Known) -> NodeProto:
    """The node with the known values that its subgraphs capture in them, too, since inference does not look outside."""
    kept, held = deepcopy(node), [name for name in captured_values(node) if known.has_values(name)]
    few = [name for name in held if known.types[name].elements <= LARGEST_KNOWN]
    inside = [constant_node(name, known.constants[name].load()) for name in few]
    for graph in graphs_in(kept):
        for made in reversed(inside):
            graph.node.insert(0, made)
    return kept


def _given_type(value: TensorType, is_open: bool) -> TypeProto:
    """The type of an input as given to inference; its size open if it ``is_open`` and a long list that may be a shape.

    ONNX would create a dimension for each of its elements.
    """
    is_long = len(value.shape) == 1 and value.elements > LARGEST_KNOWN
    return helper.make_tensor_type_proto(onnx_code(value.dtype), [None] if is_long and is_open else value.shape)


def static_shape(tensor: TypeProto.Tensor, sizes: Mapping[str, int] | None = None) -> tuple[int, ...] | None:
    """The shape of a tensor type, if every dimension is known; ``sizes`` are those of named ones."""
    if not tensor.HasField("shape"):
        return None
    dimensions = [
        axis.dim_value if axis.HasField("dim_value") else dimension_size(axis.dim_param, sizes or {})
        for axis in tensor.shape.dim
    ]
    known = tuple(size for size in dimensions if size is not None)
    return known if len(known) == len(dimensions) else None


def known_type(given: TypeProto, sizes: Mapping[str, int] | None = None) -> TensorType | None:
    """The type of a value, if it is a tensor and every dimension is known; ``sizes`` are those of named ones."""
    shape = static_shape(given.tensor_type, sizes) if given.HasField("tensor_type") else None
    try:
        return shape if shape is None else TensorType(shape, dtype_of_onnx(given.tensor_type.elem_type, "it"))
    except ModelError:
        return None  # a value of an unknown type is refused at its producer


def written_out(node: NodeProto, known: Known, written: int, name: str, where: str) -> list[NodeProto]:
    """The nodes of all iterations of a ``Loop`` that multiplies matrices, then those that make its outputs; none if the
    iterations are unknown or too many, and for other nodes.

    ``written`` is the number of nodes in unrolled loops so far: nested loops are unrolled too. ``where`` begins a
    ModelError.
    """
    body = next((each.g for each in node.attribute if each.name == "body"), None)
    if node.op_type != "Loop" or not is_standard(node.domain) or body is None:
        return []
    inner = [each.op_type for each in nodes_within(body.node)]
    runs = _runs(node, body, known) if any(map(is_product, inner)) else None
    if not runs or written + runs * len(inner) > _MOST_NODES or runs * body.ByteSize() > _MOST_BYTES:
        return []
    nodes: list[NodeProto] = []

    def constant(value: object, called: str) -> str:
        nodes.append(constant_node(called, np.array(value)))
        return called

    states = list(node.input[2:])
    collected: list[list[str]] = [[] for _ in node.output[len(states) :]]
    condition = constant(True, f"{name}[]")
    for run in range(runs):
        prefix = f"{name}[{run}]."
        own, made = unrolled(body, [constant(run, f"{name}[{run}]"), condition, *states], prefix, where)
        nodes += own
        states, each = list(made[1 : 1 + len(states)]), made[1 + len(states) :]
        for values, value in zip(collected, each, strict=True):
            values.append(value)
    for value, output in zip(states, node.output, strict=False):
        if output:
            nodes.append(helper.make_node("Identity", [value], [output], f"{name}.{output}"))
    for values, output in zip(collected, node.output[len(states) :], strict=True):
        if output:
            every = f"{name}.{output}.runs"
            nodes.append(helper.make_node("SequenceConstruct", values, [every], every))
            nodes.append(
                helper.make_node("ConcatFromSequence", [every], [output], f"{name}.{output}", axis=0, new_axis=1)
            )
    return nodes


def repeated_types(node: NodeProto, versions: Versions, known: Known, ir_version: int) -> dict[str, TensorType]:
    """The known types of a Loop's outputs by name; empty for any other node.

    They are those of a Scan over the numbers of its iterations, which ONNX infers.
    """
    body = attributes_of(node).get("body")
    if node.op_type != "Loop" or not isinstance(body, GraphProto) or len(body.input) != len(node.input):
        return {}
    runs, (number, *states) = _runs(node, body, known), (value.name for value in body.input)
    once = GraphProto(name=body.name, node=body.node, output=body.output)
    for name in (*states, number):
        once.input.add(name=name)
    numbers, going = f"{node.name}.numbers", f"{node.name}.going"
    types = {going: TensorType((), DType.BOOL), numbers: TensorType((1 if runs is None else runs,), DType.INT64)}
    made = ["", *node.output]
    scan = helper.make_node("Scan", [going, *node.input[2:], numbers], made, body=once, num_scan_inputs=1)
    of_scan = {**versions, "": max(versions[""], 9)}  # before that one reads whole batches
    try:
        found = inferred_outputs(scan, of_scan, Known({**known.types, **types}, known.constants), ir_version)
    except ModelError:
        return {}  # inference of the Loop itself reports errors in the body
    fixed = made[1 : None if runs is not None else len(states)]
    after = ((name, known_type(found.get(name, TypeProto()))) for name in fixed if name)
    return {name: value for name, value in after if value is not None}


def _runs(node: NodeProto, body: GraphProto, known: Known) -> int | None:
    """Number of iterations of a Loop, if known."""
    trips, condition = node.input[0], node.input[1]
    is_true = not condition or (condition in known.constants and bool(known.parameter(condition).all()))
    is_known = trips in known.constants and is_true and stays_true(body)
    return max(0, int(known.parameter(trips).item())) if is_known else None


def stays_true(body: GraphProto) -> bool:
    """True if a Loop's body returns the condition that it is given, or a constant true one."""
    made = {name: node for node in body.node for name in node.output}
    name = body.output[0].name
    for _ in body.node:  # at most one step per node: a damaged body may be cyclic
        if name in made and made[name].op_type == "Identity":
            name = made[name].input[0]
    if name in made and made[name].op_type == "Constant":
        return any(bool(each.t.raw_data.strip(b"\0") or any(each.t.int32_data)) for each in made[name].attribute)
    return len(body.input) > 1 and name == body.input[1].name
