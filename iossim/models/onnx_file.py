"""Reading an ONNX file: from bytes to a model whose header makes sense."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.inliner
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from iossim.errors import ModelError

#: Before it, broadcasting was an attribute, and dropout and batch norm had a training switch.
OLDEST_OPSET = 7


def read_model(path: Path) -> onnx.ModelProto:
    """The model in a file, its local functions inlined; external data is left where it is.

    Raises ModelError for a file that is missing, is no ONNX model, or has an operator set that iossim cannot read.
    """
    if path.is_dir():
        raise ModelError(f"{path} is a folder; give the .onnx file in it")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist; give an ONNX file or the name of a model") from None
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}; give an ONNX file that you may read") from None
    if not data:
        raise ModelError(f"{path} is empty; give an ONNX file")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
        readable = _has_readable_names(model.graph)
    except (DecodeError, UnicodeDecodeError):
        readable = False
    if not readable:
        raise ModelError(f"{path} is not an ONNX file, or is damaged; export or download it again")
    if not model.HasField("graph"):
        raise ModelError(f"{path} holds no graph, so it is not an ONNX model; export or download it again")
    if not model.graph.node:
        raise ModelError(f"{path} holds a graph without operators; there is nothing to schedule")
    opset = standard_opset(model)
    if opset < OLDEST_OPSET:
        raise ModelError(
            f"{path} uses operator set {opset}; iossim reads {OLDEST_OPSET} and later: "
            "convert it with onnx.version_converter"
        )
    newest = onnx.defs.onnx_opset_version()
    if opset > newest:
        raise ModelError(f"{path} uses operator set {opset}; the installed onnx knows up to {newest}: update onnx")
    return onnx.inliner.inline_local_functions(model) if model.functions else model


def standard_opset(model: onnx.ModelProto) -> int:
    """The version of the standard operators; a file that states none means the first."""
    return max((entry.version for entry in model.opset_import if is_standard(entry.domain)), default=1)


def is_standard(domain: str) -> bool:
    """Whether operators of this domain are ONNX's own."""
    return domain in ("", "ai.onnx")


def _has_readable_names(graph: onnx.GraphProto) -> bool:
    """Whether all names are text on one line: protobuf gives bytes, or raises UnicodeDecodeError, for what is none."""
    texts: list[object] = []
    for node in graph.node:
        texts += [node.name, node.op_type, node.domain, *node.input, *node.output]
        texts += [attribute.name for attribute in node.attribute]
    texts += [tensor.name for tensor in graph.initializer]
    texts += [value.name for value in (*graph.input, *graph.output)]
    texts += [axis.dim_param for value in graph.input for axis in value.type.tensor_type.shape.dim]
    return all(isinstance(text, str) and text.isprintable() for text in texts)
