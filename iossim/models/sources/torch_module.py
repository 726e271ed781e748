"""PyTorch modules in memory, traced and exported to an ONNX model by torch itself."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from iossim.base.errors import ModelError, OptionError
from iossim.ir.network import ModelSource, Network
from iossim.models.options import TORCH, LoadOptions
from iossim.models.sources import onnx_file


def load(module: Any, options: LoadOptions) -> Network:
    """The network of a module; raises ModelError for a source, since its module no longer exists."""
    if isinstance(module, str):
        raise ModelError(
            f"network {module!r} was made in memory, of a PyTorch module; give network=iossim.load(module, inputs), "
            "or as `model` an ONNX file of it, which iossim.load(module, inputs, onnx_file=PATH) writes"
        )
    if options.example_inputs is None and not _is_module(module):
        raise ModelError(
            f"model {module!r} is no name: give a model of the zoo, the path of an ONNX file, or a PyTorch module"
        )
    if options.shapes or options.dimensions or options.graphs is not None:
        raise OptionError(
            "a PyTorch module has the shapes of its example inputs; leave shapes, dimensions and graphs out"
        )
    path = options.onnx_file
    if path is not None and path.suffix.lower() != ".onnx":
        raise OptionError(f"onnx_file {str(path)!r} does not end in .onnx; name it so")
    from iossim.models.torch_import import read_module, save_module

    if path is not None:
        save_module(module, options.example_inputs, path)
        return onnx_file.load(path, options)
    model = read_module(module, options.example_inputs)
    return replace(onnx_file.network_of_model(model, options), source=ModelSource(f"{TORCH}{model.name}"))


def _is_module(model: object) -> bool:
    """Whether it is a PyTorch module; without importing torch, since no module exists before."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)
