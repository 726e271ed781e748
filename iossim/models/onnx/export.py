"""Graphs, schedule units and merged convolutions as ONNX models, with their weights.

Inputs and outputs keep their names in the graph, so that the runner of a model can bind them to a plan's buffers.
The default operator set is the newest that every supported ONNX Runtime reads, or that of foreign ops whose
meaning differs in it. A written file contains its weights, or, if they are too large for that, an external file has
them consecutively.

ONNX knows only ops: units and blocks are recorded in the metadata of a model, by the names of its nodes, so that an
exported network is read again unchanged. If a file has none, they are formed anew, and may differ.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from operator import index
from pathlib import Path
from typing import BinaryIO

import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data

from iossim.base.errors import GraphError, ModelError, OptionError, first_line
from iossim.base.user_files import check_file
from iossim.ir.constants import Constant
from iossim.ir.graph import Graph, Names
from iossim.ir.network import BATCH_VIEW, Block, Network, Unit, make_unit
from iossim.ir.onnx_node import nodes_within
from iossim.ir.onnx_spelling import onnx_code
from iossim.ir.types import Precision, TensorType
from iossim.models.onnx.file import OLDEST_OPSET
from iossim.models.onnx.grouped_products import VERSION, functions_for
from iossim.models.onnx.spelling import IR_VERSION, Speller, fitting_opset, imported_domains

#: The metadata key.
KEY = "iossim.units"


def note_units(model: onnx.ModelProto, network: Network, names: Mapping[str, Sequence[str]]) -> None:
    """Record units and blocks in a model; ``names`` are those of the nodes of each op. Micro-batches, whose units have
    more properties, are not recorded.
    """
    if any(unit.kind == BATCH_VIEW for unit in network.units):
        return
    units = [
        (unit.name, unit.kind, [name for node in network.unit_nodes(unit) for name in names[node.name]])
        for unit in network.units
    ]
    noted = {"units": units, "blocks": [(block.name, block.units) for block in network.blocks]}
    model.metadata_props.add(key=KEY, value=json.dumps(noted, separators=(",", ":")))


def has_units(model: onnx.ModelProto) -> bool:
    return any(entry.key == KEY for entry in model.metadata_props)


def given_units(model: onnx.ModelProto, graph: Graph, name: str, precision: Precision) -> Network | None:
    """The network of a graph with the units and blocks recorded in its model; None if there are none that fit."""
    text = next((entry.value for entry in model.metadata_props if entry.key == KEY), "")
    try:
        noted = json.loads(text)
        units = tuple(_unit(graph, *unit) for unit in noted["units"])
        blocks = tuple(Block(_named(block), tuple(map(index, inside))) for block, inside in noted["blocks"])
        network = Network(name, graph, units, blocks, precision)
    except (ValueError, TypeError, KeyError, RecursionError, GraphError):
        return None
    return network if _in_order(network) else None


def _unit(graph: Graph, name: object, kind: object, nodes: Sequence[str]) -> Unit:
    """The recorded unit; raises TypeError or ValueError if it is invalid. Ops that are read as one are its last."""
    found = [graph.position[node] for node in nodes if node in graph.position]
    if not found or kind == BATCH_VIEW:
        raise ValueError(name)
    return make_unit(graph, _named(name), _named(kind), found)


def _named(name: object) -> str:
    if not isinstance(name, str) or not name.isprintable():
        raise ValueError(name)
    return name


def _in_order(network: Network) -> bool:
    """True if units and blocks are in topological order, and no block is empty."""
    block_of = {unit: place for place, block in enumerate(network.blocks) for unit in block.units}
    return all(block.units and list(block.units) == sorted(block.units) for block in network.blocks) and all(
        before < unit and block_of[before] <= block_of[unit]
        for unit, read in enumerate(network.predecessors)
        for before in read
    )


#: Function from a name and a constant to its tensor; None leaves it out.
StoreWeight = Callable[[str, Constant], TensorProto | None]


def export_graph(
    graph: Graph,
    opset: int | None = None,
    name: str = "graph",
    store: StoreWeight | None = None,
    network: Network | None = None,
) -> onnx.ModelProto:
    """The model of a whole graph, checked by ONNX's checker; it records the units and blocks of ``network``.

    ``store`` says where weights go: by default into the model. If they go elsewhere, the caller has to check the
    model once all is written. Raises ModelError for an op that the operator set cannot represent, GraphError for a
    graph without its weights.
    """
    types = graph.types
    if opset is None:
        opset = fitting_opset((node.op, types[node.inputs[0]]) for node in graph.nodes)
    speller = Speller(opset, Names(types))
    weights = filter(None, ((store or _tensor)(value, constant) for value, constant in graph.constants.items()))
    names_of: dict[str, list[str]] = {}
    for node in graph.nodes:
        first = len(speller.nodes)
        speller.spell(node.op, node.name, node.inputs, node.outputs, *graph.input_types(node))
        names_of[node.name] = [each.name for each in speller.nodes[first:] if each.name]
    inputs, outputs = ([_declared(each, types[each]) for each in values] for values in (graph.inputs, graph.outputs))
    functions = functions_for(nodes_within(speller.nodes), opset)
    domains = {"": opset, **imported_domains(node.op for node in graph.nodes)}
    domains |= {each.domain: VERSION for each in functions}
    imports = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    model = helper.make_model(
        helper.make_graph(speller.nodes, name, inputs, outputs, [*weights, *speller.tensors]),
        opset_imports=imports,
        ir_version=IR_VERSION,
        producer_name="iossim",
        functions=functions,
    )
    if network is not None:
        note_units(model, network, names_of)
    if store is not None:
        return model
    try:  # problems known to neither the op nor the schema, such as a deprecated operator
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


#: Largest size of weights stored in the model file itself; protobuf's limit is twice as much.
LARGEST_INSIDE_BYTES = 2**30

#: Alignment at which runtimes may map a weight into memory.
_ALIGNMENT = 4096


def check_exportable(network: Network, path: Path) -> None:
    """Raise OptionError if a network has nothing to write, or the file has no folder."""
    if (own := network.precision) in (Precision.INT8, Precision.FP8):
        raise OptionError(f"{own} is for pricing: there are no scales to write; give `dtype` fp32, fp16 or bf16")
    if any(constant.is_absent for constant in network.graph.constants.values()):
        raise OptionError(
            f"{path} cannot be written: {network.name} was read without its weights; give the model's own file"
        )
    check_file(path, "the model")


def write_onnx(
    graph: Graph,
    path: Path,
    *,
    opset: int | None = None,
    name: str = "graph",
    largest_inside_bytes: int = LARGEST_INSIDE_BYTES,
    network: Network | None = None,
) -> list[Path]:
    """Write a graph, checked by ONNX's checker; returns the files: the model, and its external weights if any.

    The model records the units and blocks of the graph's ``network``, so that they can be read again.

    External weights are in memory one at a time. Files are replaced once all is written and checked. Raises
    OptionError for an operator set that does not exist, or a file that cannot be written, else as
    :func:`~iossim.models.onnx.export.export_graph`.
    """
    newest = onnx.defs.onnx_opset_version()
    if opset is not None and not OLDEST_OPSET <= opset <= newest:
        raise OptionError(f"operator set {opset} is not possible; give {OLDEST_OPSET} to {newest}")
    total = sum(constant.type.bytes for constant in graph.constants.values())
    weights = path.with_name(f"{path.name}.weights")
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.", ignore_cleanup_errors=True) as made:
            folder, written = Path(made), [path] if total <= largest_inside_bytes else [path, weights]
            if len(written) == 1:
                model = export_graph(graph, opset, name, network=network)
            else:
                with (folder / weights.name).open("wb") as stream:
                    store: StoreWeight = lambda value, constant: _beside(value, constant, stream)  # noqa: E731
                    model = export_graph(graph, opset, name, store, network)
            (folder / path.name).write_bytes(model.SerializeToString())
            if len(written) > 1:
                onnx.checker.check_model(str(folder / path.name))
            for each in reversed(written):  # the model last: it never exists without its weights
                os.replace(folder / each.name, each)
    except OSError as error:
        raise OptionError(f"{path} cannot be written: {error.strerror or error}; choose another file") from None
    return written


def _beside(name: str, constant: Constant, stream: BinaryIO) -> TensorProto:
    """The tensor of a constant whose elements are appended to an external file, little-endian."""
    stream.write(b"\0" * (-stream.tell() % _ALIGNMENT))
    tensor = _tensor(name, constant)
    set_external_data(tensor, os.path.basename(stream.name), stream.tell(), stream.write(tensor.raw_data))
    tensor.ClearField("raw_data")
    return tensor
