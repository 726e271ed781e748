"""Reading an ONNX file: from bytes to a model with a valid header, and nodes in topological order.

ONNX requires that order and runtimes do not: they load a graph in any order, and sort it. The fields of a file, and the
memory of its packed numbers, are counted before it is parsed: protobuf creates an object for every message, even for
one of two bytes in a file, so that a file of empty nodes takes a hundred times its size in memory, and one of small
packed integers seventeen times (Protocol Buffers, "Encoding", protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import ModelProto, NodeProto, TensorProto

from iossim.base.errors import ModelError, last_line
from iossim.ir.constants import Constant
from iossim.ir.onnx_node import graphs_in, nodes_within, operands
from iossim.models.onnx.inlining import inlined

#: A smaller file is always within the limits.
_SMALL_FILE_BYTES = 4 << 20

#: The length-delimited fields by number: those of messages, and the bytes of a packed number.
_Fields = dict[int, "_Fields | int"]
_KNOWN: dict[str, _Fields] = {}


@dataclass(frozen=True)
class Contents:
    """The fields of a file, counted with repetitions, and the memory of its packed numbers."""

    pieces: int
    packed_bytes: int


def contents(data: mmap.mmap, most_pieces: int) -> Contents:
    """The contents of a model's file, counted up to ``most_pieces``; a small file is not scanned.

    Invalid protobuf ends the count: the parser will refuse it.
    """
    pieces = packed = place = 0
    size = len(data)
    # The stack of enclosing messages: the end of each, and its fields.
    inside = [(size if size >= _SMALL_FILE_BYTES else 0, _fields(onnx.ModelProto.DESCRIPTOR))]
    while inside and pieces <= most_pieces:
        end, fields = inside[-1]
        if place >= end:
            inside.pop()
            continue
        pieces += 1
        tag, place = _varint(data, place, end)
        kind = tag & 7
        if kind == 0:
            _, place = _varint(data, place, end)
        elif kind in (1, 5):
            place += 8 if kind == 1 else 4
        elif kind == 2:
            length, place = _varint(data, place, end)
            if length > end - place:
                break
            field = fields.get(tag >> 3)
            if isinstance(field, dict):
                inside.append((place + length, field))
                continue
            if field is not None:
                # The last byte of each number is below 128. Lists double as they grow, and do not shrink.
                numbers = int(np.count_nonzero(np.frombuffer(data, np.uint8, length, place) < 128))
                packed += 2 * field * numbers
            place += length
        elif kind not in (3, 4):  # the end of a group has no content
            break
    return Contents(pieces, packed)


def _varint(data: mmap.mmap, place: int, end: int) -> tuple[int, int]:
    """The number at a position, and the position after it; an unterminated number is larger than any file."""
    value = shift = 0
    while place < end and shift < 70:
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7
    return 1 << 70 | 7, end


def _fields(message: Any) -> _Fields:
    """The length-delimited fields of a message; a recursive message is its own field."""
    if message.full_name in _KNOWN:
        return _KNOWN[message.full_name]
    found = _KNOWN[message.full_name] = {}
    for each in message.fields:
        if each.message_type is not None:
            found[each.number] = _fields(each.message_type)
        elif each.type in (each.TYPE_INT64, each.TYPE_UINT64):
            found[each.number] = 8
        elif each.type in (each.TYPE_INT32, each.TYPE_ENUM):
            found[each.number] = 4
    return found


def sort_nodes(model: ModelProto, path: Path) -> None:
    """Sort the nodes of all graphs and functions of a model topologically, in place; sorted ones are unchanged.

    Raises ModelError for cyclic dependencies.
    """
    for holder in (model.graph, *model.functions):
        ordered = _ordered(holder.node, path)
        if ordered is not None:
            del holder.node[:]
            holder.node.extend(ordered)


def _ordered(nodes: Sequence[NodeProto], path: Path) -> list[NodeProto] | None:
    """The nodes in topological order, also inside them; ties keep the given order. None if they are sorted already."""
    for node in nodes:
        for graph in graphs_in(node):
            inside = _ordered(graph.node, path)
            if inside is not None:
                del graph.node[:]
                graph.node.extend(inside)
    maker = {value: place for place, node in reversed(list(enumerate(nodes))) for value in node.output if value}
    before = [{maker[value] for value in operands(node) if value in maker} for node in nodes]
    if all(place > max(made, default=-1) for place, made in enumerate(before)):
        return None
    sorter = TopologicalSorter(dict(enumerate(before)))
    try:
        sorter.prepare()
    except CycleError as error:
        raise ModelError(f"{path}: {_circle(nodes, error.args[1][:-1])}; the file is damaged") from None
    order: list[int] = []
    ready: list[int] = []
    while sorter.is_active():
        for place in sorter.get_ready():
            heappush(ready, place)
        order.append(heappop(ready))
        sorter.done(order[-1])
    return [NodeProto.FromString(nodes[place].SerializeToString()) for place in order]


def _circle(nodes: Sequence[NodeProto], places: Sequence[int]) -> str:
    """A dependency cycle as text, with its first node in the file last."""
    first = places.index(min(places)) + 1
    names = [f"{nodes[each].op_type} {nodes[each].name!r}" for each in (*places[first:], *places[:first])]
    if len(names) == 1:
        return f"{names[0]} reads what it makes"
    return f"{', '.join(names[:3])}{' ...' if len(names) > 3 else ''} depend on one another"


#: In older sets, broadcasting was an attribute, and dropout and batch norm had a training switch.
OLDEST_OPSET = 7
#: Limit on nodes of a model; a node in a subgraph counts again for each enclosing graph, as branches are copied.
MOST_NODES = 1 << 18
#: Limits on fields of a file, each an object of up to a few hundred bytes, and on memory of packed numbers.
MOST_PIECES, MOST_PACKED_BYTES = 1 << 22, 1 << 31
#: Protobuf's limit; larger models have external weights.
LARGEST_FILE_BYTES = 2**31 - 1
#: Metadata key of an initialiser's role in the module, written by PyTorch's exporter, and its value for parameters.
KIND_NOTE, PARAMETER = "pkg.torch.export.graph_signature.InputSpec.kind", "PARAMETER"
_FLOATING = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
#: The oldest set that ONNX's own version converter converts to :data:`OLDEST_OPSET`.
OLDEST_CONVERTED = 6


@dataclass(frozen=True, eq=False)
class OnnxModel:
    """A model in ONNX's form, without functions, and its network's name.

    ``path`` begins every message, and external data is in its folder. ``weights`` are those outside the model
    itself, by name. ``parameters`` are the initialisers that were parameters of a module, None if that is
    unknown.
    """

    proto: onnx.ModelProto
    path: Path
    name: str
    weights: Mapping[str, Constant] = field(default_factory=dict)
    parameters: frozenset[str] | None = None


def read_model(path: Path) -> OnnxModel:
    """The model in a file, local functions inlined, external data not loaded; raises ModelError."""
    model = _parsed(path)
    _check(model, path)
    sort_nodes(model, path)
    opset = standard_opset(model)
    if model.functions:
        model = inlined(model, path)
    if opset < OLDEST_OPSET:
        model = _converted(model, path, opset)
    return OnnxModel(model, path, path.stem)


def trained_weights(model: OnnxModel) -> frozenset[str]:
    """The initialisers that training updates: those that PyTorch's exporter marks as parameters.

    Without marks, all with more than one floating-point number: a single one belongs to a formula.
    """
    if model.parameters is not None:
        return model.parameters
    graph = model.proto.graph
    noted = {
        value.name: note.value for value in graph.value_info for note in value.metadata_props if note.key == KIND_NOTE
    }
    return frozenset(
        tensor.name
        for tensor in graph.initializer
        if tensor.data_type in _FLOATING
        and noted.get(tensor.name, PARAMETER if math.prod(tensor.dims) > 1 else "") == PARAMETER
    )


def _parsed(path: Path) -> onnx.ModelProto:
    """The contents of a file, if it is an ONNX file of a readable size."""
    if path.is_dir():
        raise ModelError(f"{path} is a folder; give the .onnx file in it")
    try:
        size = path.stat().st_size
        if size > LARGEST_FILE_BYTES:
            raise ModelError(
                f"{path} has {size} bytes, more than the 2 GiB that an ONNX file can hold; export the model with its "
                "weights as external data"
            )
        if size == 0:
            raise ModelError(f"{path} is empty; give an ONNX file")
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # the parser copies it
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist; give an ONNX file or the name of a model") from None
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}; give an ONNX file that you may read") from None
    model = onnx.ModelProto()
    try:
        with data, memoryview(data) as view:
            found = contents(data, MOST_PIECES)
            if found.pieces > MOST_PIECES or found.packed_bytes > MOST_PACKED_BYTES:
                raise ModelError(
                    f"{path} has more than {MOST_PIECES:,} fields, or small numbers that take more than "
                    f"{MOST_PACKED_BYTES >> 30} GiB; it is damaged, or its weights should be stored as raw data"
                )
            model.ParseFromString(view)
        are_text = (isinstance(name, str) and name.isprintable() for name in _names(model))
        readable = len(model.graph.node) > MOST_NODES or all(are_text)
    except (DecodeError, UnicodeDecodeError):
        readable = False
    if not readable:
        raise ModelError(f"{path} is not an ONNX file, or is damaged; export or download it again")
    return model


def _check(model: onnx.ModelProto, path: Path) -> None:
    """Refuse a model without a schedulable graph, or of an unreadable operator set."""
    if not model.HasField("graph"):
        raise ModelError(f"{path} holds no graph, so it is not an ONNX model; export or download it again")
    if not model.graph.node:
        raise ModelError(f"{path} holds a graph without operators; there is nothing to schedule")
    count = sum(1 for node in nodes_within(model.graph.node) for _ in nodes_within([node]))
    if count > MOST_NODES:
        raise ModelError(
            f"{path} has {count:,} operators, those in subgraphs counted by depth; iossim takes at most {MOST_NODES:,}"
        )
    if not model.graph.output:
        raise ModelError(f"{path} holds a graph without outputs; export the model again")
    for entry in model.opset_import:
        if not 0 <= entry.version < 2**31:
            raise ModelError(
                f"{path} uses operator set {entry.version} of {entry.domain!r}, which there is not; the file is damaged"
            )
    if not 0 <= model.ir_version < 2**31:
        raise ModelError(f"{path} is of version {model.ir_version} of ONNX's files, which there is not; it is damaged")
    opset = standard_opset(model)
    if opset < OLDEST_CONVERTED:
        raise ModelError(
            f"{path} uses operator set {opset}; iossim reads {OLDEST_CONVERTED} and later: "
            "convert it with onnx.version_converter"
        )
    newest = onnx.defs.onnx_opset_version()
    if opset > newest:
        raise ModelError(f"{path} uses operator set {opset}; the installed onnx knows up to {newest}: update onnx")


def _converted(model: onnx.ModelProto, path: Path, opset: int) -> onnx.ModelProto:
    try:
        return onnx.version_converter.convert_version(model, OLDEST_OPSET)
    except Exception as error:  # the converter passes on any C++ exception
        raise ModelError(
            f"{path} uses operator set {opset}, and ONNX cannot convert it to {OLDEST_OPSET}: {last_line(error)}; "
            f"export the model with operator set {OLDEST_OPSET} or later"
        ) from None


def standard_opset(model: onnx.ModelProto) -> int:
    """The version of the standard operators; a file without one means the first, or uses none of them."""
    stated = [entry.version for entry in model.opset_import if is_standard(entry.domain)]
    if not stated and not any(is_standard(node.domain) for node in model.graph.node):
        return onnx.defs.onnx_opset_version()
    return max(stated, default=1)


def is_standard(domain: str) -> bool:
    """True if operators of this domain are ONNX's own."""
    return domain in ("", "ai.onnx")


def _names(model: onnx.ModelProto) -> Iterator[object]:
    """All names of a model that are read: for invalid text protobuf returns bytes, or raises UnicodeDecodeError."""
    nodes = [*nodes_within(each for holder in (model.graph, *model.functions) for each in holder.node)]
    for graph in (model.graph, *(graph for node in nodes for graph in graphs_in(node))):
        yield from (tensor.name for tensor in graph.initializer)
        yield from (tensor.values.name for tensor in graph.sparse_initializer)
        for value in (*graph.input, *graph.output, *graph.value_info):
            yield value.name
            yield from (axis.dim_param for axis in value.type.tensor_type.shape.dim)
    for node in nodes:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)
    for function in model.functions:
        yield from (function.name, function.domain, *function.input, *function.output, *function.attribute)
    for holder in (model, *model.functions):
        yield from (entry.domain for entry in holder.opset_import)
