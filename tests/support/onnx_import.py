"""The graph of an ONNX file, by the first three steps of loading one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from iossim.ir.graph import Graph
from iossim.models.onnx.file import read_model
from iossim.models.onnx.inputs import bind
from iossim.models.onnx.translate import translate
from iossim.models.options import LoadOptions


def import_onnx(path: Path, **binding: Any) -> Graph:
    """``binding`` are options of :class:`~iossim.models.options.LoadOptions`."""
    options = LoadOptions(**binding)
    return translate(bind(read_model(path), options), static_part=options.static_part)
