"""Reference outputs of networks, kept in a folder so that the sections of a report compute each once."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from iossim._version import __version__
from iossim.base.user_files import write_atomically
from iossim.execution.measured_run import Reference
from iossim.ir.constants import SeededConstant
from iossim.ir.network import Network
from iossim.ir.op import Array


def kept_outputs(reference: Reference, folder: Path) -> Reference:
    """``reference`` with a cache in ``folder`` for equal structure, weights and inputs.

    Unreadable entries are recomputed. Raises OSError if the folder cannot be made or written.
    """

    def outputs(network: Network, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        path = folder / f"{_key(network, inputs)}.npz"
        wanted = network.graph.outputs
        try:
            with np.load(path) as kept:
                # NumPy's files do not support bfloat16: they contain its bytes.
                return {
                    output: kept[f"arr_{number}"].view(network.graph.types[output].dtype.numpy)
                    for number, output in enumerate(wanted)
                }
        except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile):
            found = reference(network, inputs)
        folder.mkdir(parents=True, exist_ok=True)
        stream = io.BytesIO()
        np.savez(stream, *(found[output] for output in wanted))
        write_atomically(path, stream.getvalue())
        return found

    return outputs


def _key(network: Network, inputs: Mapping[str, Array]) -> str:
    """Hash of all that the outputs depend on: names too, since weights are drawn from theirs."""
    graph = network.graph
    digest = hashlib.sha256(repr((__version__, network.precision, graph.outputs)).encode())
    for node in graph.nodes:
        digest.update(repr((node.op.signature, node.inputs, node.outputs)).encode())
    for given in graph.inputs:
        digest.update(repr((given, graph.types[given])).encode() + np.ascontiguousarray(inputs[given]).tobytes())
    for given, constant in graph.constants.items():
        digest.update(repr((given, constant.type)).encode())
        # A seed identifies its noise; making 300 MB of it takes seconds.
        of_it = repr(constant).encode() if isinstance(constant, SeededConstant) else constant.load().tobytes()
        digest.update(of_it)
    return digest.hexdigest()[:32]
