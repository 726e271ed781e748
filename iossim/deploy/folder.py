"""A deployment as a folder: the optimised model, the streams of its nodes, a program that runs it, and a page.

Streams are in a file of ONNX Runtime's own format (``DeviceBasedPartitioner``), which ignores unknown fields: an
additional one records the model that the streams are for. ONNX Runtime also ignores names of no node, and repeated
ones, and then runs something else than was meant; the deployed program therefore checks all of this.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from pathlib import Path

from iossim.deploy.open_model import OpenDimensions, OpenModel, Shapes, shapes_of
from iossim.deploy.runtime import (
    MODEL_FILE,
    OLDEST,
    WEIGHTS_FILE,
    Provider,
    deployed_graph,
    input_shapes,
    optimised_nodes,
    streams_of_nodes,
    write_optimised,
)
from iossim.ir.network import Network
from iossim.schedule.schedule import StreamSchedule

PARTITION_FILE, PROGRAM_FILE, PAGE_FILE = "partition.json", "run.py", "README.md"
#: All files that may be written, the model last.
_FILES = (WEIGHTS_FILE, PARTITION_FILE, PROGRAM_FILE, PAGE_FILE, MODEL_FILE)
#: Files that the runtime loads; the second exists if the model has large weights.
_RUN_FILES = (MODEL_FILE, WEIGHTS_FILE)
_PARTITIONER = "DeviceBasedPartitioner"


@dataclass(frozen=True)
class Deployment:
    """A deployed folder: the provider of its model, the shapes of its inputs, and the names of nodes by stream.

    ``opened`` describes which dimensions stay open among those open in the model's own file.
    """

    folder: Path
    provider: Provider
    shapes: Shapes
    streams: tuple[tuple[str, ...], ...]
    opened: OpenModel = field(default_factory=OpenModel)

    @property
    def model(self) -> Path:
        return self.folder / MODEL_FILE

    @property
    def partition(self) -> Path:
        return self.folder / PARTITION_FILE


def write_deployment(
    folder: Path, provider: Provider, network: Network, schedule: StreamSchedule, dimensions: OpenDimensions
) -> Deployment:
    """Write the optimised model of a schedule, the streams of its nodes, and the program that runs both.

    Open ``dimensions`` of the network stay open, where the schedule allows it. Raises BackendError if ONNX Runtime
    refuses the model.
    """
    graph = deployed_graph(network, schedule)
    opened = dimensions.opened(network, lambda each: deployed_graph(each, schedule).graph)
    write_optimised(graph.graph, folder, provider, network.name, opened.shapes)
    model = folder / MODEL_FILE
    streams = streams_of_nodes(optimised_nodes(model), graph)
    _write_partition(folder, provider, streams, shapes_of(network.graph))
    return Deployment(folder, provider, input_shapes(model), tuple(map(tuple, streams)), opened)


def _write_partition(folder: Path, provider: Provider, streams: Sequence[Sequence[str]], scheduled: Shapes) -> None:
    names = sorted(name for own in streams for name in own)
    document = {
        "type": _PARTITIONER,
        "devices": [provider.device_type] * len(streams),
        "streams": [list(names) for names in streams],
        "provider": provider.name,
        "files_sha256": {name: _digest(folder / name) for name in _RUN_FILES if (folder / name).exists()},
        # All nodes, whatever their streams, are counted: the program, which has no list of them, checks it.
        "nodes_sha256": hashlib.sha256("\n".join(names).encode()).hexdigest(),
        "shapes": scheduled,
    }
    (folder / PARTITION_FILE).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    program = resources.files("iossim.deploy").joinpath("program.py.txt").read_text(encoding="utf-8")
    oldest = ".".join(map(str, OLDEST))
    (folder / PROGRAM_FILE).write_text(program.replace("OLDEST", oldest), encoding="utf-8")


def deployed_files(folder: Path) -> Mapping[str, Callable[[Path], None]]:
    """Writers that copy each file of a folder elsewhere, the model last."""
    return {name: partial(_copy, folder / name) for name in _FILES if (folder / name).exists()}


def stale_files(folder: Path, written: Collection[str]) -> list[Path]:
    """Files of a deployment already in ``folder`` that the one ``written`` there lacks."""
    if not (folder / PARTITION_FILE).exists():
        return []
    return [folder / name for name in _FILES if name not in written and (folder / name).is_file()]


def _copy(source: Path, target: Path) -> None:
    target.write_bytes(source.read_bytes())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
