"""Graphs as ONNX files: their weights inside, or, where they are too large for that, in a file beside, one after another."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import BinaryIO

import onnx
from onnx import TensorProto

from iossim.base.errors import OptionError
from iossim.base.user_files import check_file
from iossim.ir.constants import AbsentConstant, Constant
from iossim.ir.graph import Graph
from iossim.ir.network import Network
from iossim.ir.onnx_types import onnx_code
from iossim.ir.types import Precision
from iossim.models.onnx.export import export_graph
from iossim.models.onnx.file import OLDEST_OPSET

#: Bytes of weights up to which they are in the file itself; protobuf writes no more than twice as many.
LARGEST_INSIDE_BYTES = 2**30

#: Where runtimes may map a weight into memory.
_ALIGNMENT = 4096


def check_exportable(network: Network, path: Path) -> None:
    """Raise OptionError now rather than after the work where a network has nothing to write, or the file has no folder."""
    if network.precision is Precision.INT8:
        raise OptionError("int8 is for pricing: there are no scales to write; give `dtype` fp32, fp16 or bf16")
    if any(isinstance(constant, AbsentConstant) for constant in network.graph.constants.values()):
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
) -> list[Path]:
    """Write a graph, checked by ONNX's checker, and return the files: one, or two where the weights are beside the model.

    Of weights beside the model one at a time is in memory. Files are replaced when all is written and checked. Raises
    OptionError for an operator set that there is not, or a file that cannot be written, else as
    :func:`~iossim.models.onnx.export.export_graph`.
    """
    newest = onnx.defs.onnx_opset_version()
    if opset is not None and not OLDEST_OPSET <= opset <= newest:
        raise OptionError(f"operator set {opset} is not possible; give {OLDEST_OPSET} to {newest}")
    total = sum(constant.type.bytes for constant in graph.constants.values())
    weights = path.with_name(f"{path.name}.weights")
    try:
        folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    except OSError as error:
        raise OptionError(f"{path} cannot be written: {error.strerror}; choose another file") from None
    try:
        if total <= largest_inside_bytes:
            model = export_graph(graph, opset, name)
            written = [path]
        else:
            with (folder / weights.name).open("wb") as stream:
                model = export_graph(
                    graph, opset, name, store=lambda value, constant: _beside(value, constant, stream)
                )
            written = [path, weights]
        (folder / path.name).write_bytes(model.SerializeToString())
        if len(written) > 1:
            onnx.checker.check_model(str(folder / path.name))
        for each in reversed(written):  # the model last: it is never there without its weights
            os.replace(folder / each.name, each)
    except OSError as error:
        raise OptionError(f"{path} cannot be written: {error.strerror}; choose another file") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return written


def _beside(name: str, constant: Constant, stream: BinaryIO) -> TensorProto:
    """The tensor of a constant whose elements are appended to a file, little-endian."""
    stream.write(b"\0" * (-stream.tell() % _ALIGNMENT))
    array = constant.load()
    tensor = TensorProto(name=name, dims=array.shape, data_type=onnx_code(constant.type.dtype))
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (
        ("location", os.path.basename(stream.name)),
        ("offset", stream.tell()),
        ("length", array.nbytes),
    ):
        tensor.external_data.add(key=key, value=str(value))
    array.astype(array.dtype.newbyteorder("<"), copy=False).tofile(stream)
    return tensor
