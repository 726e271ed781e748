"""Graphs, schedule units and merged convolutions as ONNX models, with their weights.

Inputs and outputs keep the names they have in the graph, so that what runs a model can bind them to a plan's buffers.
Where no operator set is asked for, it is the newest that every supported ONNX Runtime reads, or that of foreign ops which
mean something else in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from iossim.base.errors import ModelError, first_line
from iossim.ir.constants import ArrayConstant, Constant
from iossim.ir.graph import Graph, Node
from iossim.ir.merging import merged_convolution
from iossim.ir.network import Network, Unit
from iossim.ir.onnx_types import onnx_code
from iossim.ir.types import TensorType
from iossim.models.onnx.spelling import IR_VERSION, Names, fitting_opset, imported_domains, spell

#: The tensor of a constant under a name.
StoreWeight = Callable[[str, Constant], TensorProto]


def export_graph(
    graph: Graph, opset: int | None = None, name: str = "graph", store: StoreWeight | None = None
) -> onnx.ModelProto:
    """The model of a whole graph, checked by ONNX's checker.

    ``store`` says where weights go: by default into the model. Where they go elsewhere, it is for the caller to check the
    model once all is written. Raises ModelError for an op that the operator set cannot spell, GraphError for a graph
    without its weights.
    """
    return _model(name, graph.nodes, graph.inputs, graph.outputs, graph.types, graph.constants, opset, store)


def export_unit(network: Network, unit: Unit, opset: int | None = None) -> onnx.ModelProto:
    """The model of one unit: from ``unit.inputs`` to ``unit.outputs``. Raises as :func:`export_graph`."""
    graph = network.graph
    nodes = network.unit_nodes(unit)
    return _model(unit.name, nodes, unit.inputs, unit.outputs, graph.types, graph.constants, opset)


def export_merged(network: Network, units: Sequence[int], opset: int | None = None) -> onnx.ModelProto:
    """The model of the stacked convolution of several units (indices) and the activation they share.

    It reads their common input and makes one output, in which the parts are channel slices in the order of ``units``.
    Raises ScheduleError where they do not merge, else as :func:`export_graph`.
    """
    graph = network.graph
    merged = merged_convolution(network, units)
    parts = [network.unit_nodes(network.units[unit]) for unit in units]
    arrays = [[graph.constants[value].load() for value in nodes[0].inputs[1:]] for nodes in parts]
    weight, bias = merged.stack([part[0] for part in arrays], [part[1] if len(part) > 1 else None for part in arrays])
    output = "merged:" + "+".join(network.units[unit].name for unit in units)
    names = Names([merged.input, output])
    constants = {names.fresh("weight"): ArrayConstant(weight)}
    if bias is not None:
        constants[names.fresh("bias")] = ArrayConstant(bias)
    activations = [node.op for node in parts[0][1:]]
    values = [names.fresh("stacked"), output] if activations else [output]
    nodes = [Node("stacked", merged.op, (merged.input, *constants), (values[0],))]
    for op, source, target in zip(activations, values[:-1], values[1:], strict=True):
        nodes.append(Node(target, op, (source,), (target,)))
    types = {name: constant.type for name, constant in constants.items()}
    types |= {merged.input: graph.types[merged.input], **dict.fromkeys(values, merged.output)}
    return _model(output, nodes, (merged.input,), (output,), types, constants, opset)


def _model(
    name: str,
    nodes: Iterable[Node],
    inputs: Sequence[str],
    outputs: Sequence[str],
    types: Mapping[str, TensorType],
    constants: Mapping[str, Constant],
    asked_opset: int | None,
    store: StoreWeight | None = None,
) -> onnx.ModelProto:
    nodes = tuple(nodes)
    ops = [node.op for node in nodes]
    opset = asked_opset
    if opset is None:
        opset = fitting_opset((node.op, types[node.inputs[0]]) for node in nodes)
    used = {value for node in nodes for value in node.inputs} | set(outputs)
    names = Names([*types, *(value for node in nodes for value in node.outputs)])
    weights = [(store or _tensor)(value, constant) for value, constant in constants.items() if value in used]
    spelled: list[NodeProto] = []
    for node in nodes:
        made, parameters = spell(node.op, node.name, node.inputs, node.outputs, types[node.inputs[0]], opset, names)
        spelled += made
        weights += parameters
    graph = helper.make_graph(
        spelled,
        name,
        [_declared(value, types[value]) for value in inputs],
        [_declared(value, types[value]) for value in outputs],
        weights,
    )
    imports = [
        helper.make_opsetid(domain, version) for domain, version in {"": opset, **imported_domains(ops)}.items()
    ]
    model = helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION, producer_name="iossim")
    if store is not None:
        return model
    try:  # what neither the op nor the schema tells, as a deprecated operator
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        raise ModelError(
            f"{name!r} cannot be written in operator set {opset}: {first_line(error)}; write another"
        ) from None
    return model


def _declared(name: str, value: TensorType) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx_code(value.dtype), value.shape)


def _tensor(name: str, constant: Constant) -> TensorProto:
    return numpy_helper.from_array(constant.load(), name)
