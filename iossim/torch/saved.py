"""Compiled modules as files: for each shape its graph as ONNX, its schedule, and the algorithm of each launch.

A file is in PyTorch's format, read without unpickling objects. The module's own weights are not included: they come
from the module that it is loaded for.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from iossim.backends.torch_cuda.tensors import to_array
from iossim.base.errors import ModelError
from iossim.base.user_files import write_atomically
from iossim.execution.backend import Choice
from iossim.ir.constants import ArrayConstant, Constant
from iossim.ir.network import Network
from iossim.models.options import LoadOptions
from iossim.models.sources.onnx_file import network_of_model
from iossim.schedule.fit import fit
from iossim.schedule.schedule import StreamSchedule

if TYPE_CHECKING:
    from iossim.torch.bound import Bound, Chosen

FORMAT = 1


def write(path: Path, name: str, bounds: Sequence[Bound]) -> None:
    """Write the compilation of a module of class ``name``; raises ModelError for a path that cannot be written."""
    shapes = []
    for bound in bounds:
        shared = [each for each, constant in bound.network.graph.constants.items() if constant in bound.shared_weights]
        shapes.append(
            {
                "given": dict(bound.given),
                "model": torch.from_numpy(np.frombuffer(_model(bound.network, shared), np.uint8).copy()),
                "shared": shared,
                "schedule": bound.schedule.model_dump_json(),
                "chosen": {units: astuple(choice) for units, choice in bound.chosen.items()},
            }
        )
    made = io.BytesIO()
    torch.save({"format": FORMAT, "module": name, "shapes": shapes}, made)
    try:
        write_atomically(path, made.getvalue())
    except OSError as error:
        raise ModelError(f"cannot write {str(path)!r}: {error.strerror}; give another path") from None


def read(path: Path, name: str, weights: Mapping[str, torch.Tensor]) -> Iterator[tuple[Any, ...]]:
    """Network, schedule, arguments and algorithms of each saved shape; raises ModelError."""
    try:
        found = torch.load(path, weights_only=True)
        if found["format"] != FORMAT:
            raise ValueError(f"its format is {found['format']!r}")
        if found["module"] != name:
            raise ModelError(f"{str(path)!r} was saved of a {found['module']}, not of a {name}; load it with that")
        for each in found["shapes"]:
            yield _shape(each, name, weights)
    except OSError as error:
        raise ModelError(f"cannot read {str(path)!r}: {error.strerror}; compile the module and save it") from None
    except (pickle.UnpicklingError, RuntimeError, ValueError, KeyError, TypeError, EOFError) as error:
        reason = " ".join(str(error).split())[:80]
        raise ModelError(
            f"{str(path)!r} is no compiled module that fits this {name} ({reason}); compile it and save it again"
        ) from None


def _shape(saved: Mapping[str, Any], name: str, weights: Mapping[str, torch.Tensor]) -> tuple[Any, ...]:
    import onnx

    from iossim.models.onnx.file import OnnxModel

    own: dict[str, Constant] = {each: ArrayConstant(to_array(weights[each])) for each in saved["shared"]}
    model = onnx.ModelProto.FromString(saved["model"].numpy().tobytes())
    network = network_of_model(OnnxModel(model, Path(f"module {name}"), name, own), LoadOptions())
    schedule = StreamSchedule.model_validate_json(saved["schedule"])
    fit(schedule, network)
    chosen: Chosen = {units: Choice(*choice) for units, choice in saved["chosen"].items()}
    return network, schedule, saved["given"], chosen


def _model(network: Network, shared: Sequence[str]) -> bytes:
    """The graph as ONNX, without the module's own weights."""
    import onnx

    from iossim.models.onnx.export import export_graph

    def store(name: str, constant: Constant) -> onnx.TensorProto:
        if name in shared:
            return onnx.TensorProto(name=name)
        return onnx.numpy_helper.from_array(constant.load(), name)

    model = export_graph(network.graph, name=network.name, store=store, network=network)
    kept = [each for each in model.graph.initializer if each.name not in shared]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    return bytes(model.SerializeToString())
