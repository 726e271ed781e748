"""A deployment: a folder of the optimised model, the streams of its nodes, a program that runs it, and a page; and its
check beside ONNX Runtime's defaults: whether the outputs are equal, and which way is fastest.

Streams are in a file of ONNX Runtime's own format (``DeviceBasedPartitioner``), which ignores unknown fields: an
additional one records the model that the streams are for. ONNX Runtime also ignores names of no node, and repeated
ones, and then runs something else than was meant; the deployed program therefore checks all of this.

Sizes that a model's file leaves open stay open in the deployed model if its graph allows it. A network is bound to
sizes. It is read again at other sizes; if the deployed graph is the same there, apart from its shapes, the deployed
model takes any size.

All sessions of a check exist at once, and rounds are interleaved, so that a slowdown of the machine affects all of
them.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from iossim.backends.onnxruntime_cpu.measuring import time_programs
from iossim.backends.onnxruntime_cpu.program import session_program
from iossim.base.errors import IossimError, ModelError, Progress, ignore
from iossim.base.threads import usable_cores
from iossim.deploy.runtime import (
    MODEL_FILE,
    OLDEST,
    WEIGHTS_FILE,
    Provider,
    deployed_graph,
    input_shapes,
    open_session,
    optimised_nodes,
    session_options,
    streams_of_nodes,
    write_optimised,
)
from iossim.execution.backend import Timing
from iossim.execution.made_inputs import made_arrays
from iossim.execution.measured_run import MeasuredRow, largest_difference, measured_rows, ratio_of, tolerance
from iossim.ir.graph import Graph
from iossim.ir.network import ModelSource, Network
from iossim.ir.op import Array
from iossim.models.load import source_of
from iossim.models.onnx.export import write_onnx
from iossim.models.onnx.file import read_model
from iossim.models.onnx.inputs import declared_inputs, dimension_names, dimension_size
from iossim.models.onnx.open_shapes import Dimension, OpenShapes, open_shapes
from iossim.models.options import DECLARED
from iossim.schedule.schedule import StreamSchedule
from iossim.transforms.replay import network_of_source

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, SessionOptions


#: Name of a leading dimension that the file leaves nameless.
_BATCH = "batch"


#: Dimensions of each input, by its name.
Shapes = Mapping[str, Sequence[Dimension]]


def shapes_of(graph: Graph) -> Shapes:
    """Bound shapes of a graph's inputs."""
    return {name: graph.types[name].shape for name in graph.inputs}


def spelled(shapes: Shapes) -> str:
    """Shapes in words: ``x Nx3x224x224``, with a question mark for an open dimension without a name."""
    return ", ".join(f"{name} {'x'.join(str(size or '?') for size in shape)}" for name, shape in shapes.items())


@dataclass(frozen=True, eq=False)
class OpenModel:
    """The open shapes that a deployed graph takes, and the network's graph at the other sizes that verify them.

    ``shapes`` is None if it takes only its bound sizes; ``reason`` then says why, if the model's file leaves others
    open.
    """

    shapes: OpenShapes | None = None
    others: tuple[Graph, ...] = ()
    reason: str = ""


@dataclass(frozen=True, eq=False)
class OpenDimensions:
    """Dimensions of a graph's inputs as declared by its source file: sizes, and names of open ones."""

    graph: Graph
    source: ModelSource
    declared: Mapping[str, tuple[Dimension, ...]]
    _read: dict[tuple[tuple[str, ...], int], Graph] = field(default_factory=dict)

    @staticmethod
    def of(network: Network) -> OpenDimensions:
        """Declared dimensions of a network; empty unless it is from an ONNX file."""
        if source_of(network.source.model) != "onnx_file":
            return OpenDimensions(network.graph, network.source, {})
        path, types = Path(network.source.model), network.graph.types
        declared: dict[str, tuple[Dimension, ...]] = {}
        for value in declared_inputs(read_model(path).proto.graph, path):
            if value.name in types:
                shape = types[value.name].shape if value.dimensions is None else value.dimensions
                declared[value.name] = tuple(
                    size if size != "?" else None if axis else _BATCH for axis, size in enumerate(shape)
                )
        return OpenDimensions(network.graph, network.source, declared)

    def opened(self, network: Network, graph_of: Callable[[Network], Graph]) -> OpenModel:
        """The model that ``graph_of`` makes of a network, open in all open dimensions, or else in the batch alone."""
        if all(isinstance(size, int) for shape in self.declared.values() for size in shape):
            return OpenModel()
        leading = tuple(name for name in self._sizes if name in {shape[0] for shape in self.declared.values() if shape})
        # Windows need two other sizes: they pad even and odd sizes differently, at any depth.
        ways = [(tuple(self._sizes), (1, 2))] * (len(leading) < len(self._sizes)) + [(leading, (1,))] * bool(leading)
        reason = "no open dimension has a distinct size"
        for varied, steps in ways:
            try:
                others = tuple(self._at(varied, step) for step in steps)
                graphs = [graph_of(replace(network, graph=graph)) for graph in (self.graph, *others)]
                return OpenModel(open_shapes(graphs, self.declared), others)
            except IossimError as error:
                reason = str(error)
        return OpenModel(reason=reason)

    @cached_property
    def _sizes(self) -> dict[str, int]:
        """Bound size of each open name."""
        return {
            name: size
            for value, shape in self.declared.items()
            for name, size in zip(shape, self.graph.types[value].shape, strict=True)
            if isinstance(name, str) and dimension_names(name) == {name}
        }

    def _at(self, varied: tuple[str, ...], step: int) -> Graph:
        """The graph at other sizes of some names, each increased by a different odd number; read once."""
        if (varied, step) in self._read:
            return self._read[varied, step]
        first = (step - 1) * len(self._sizes)
        sizes = {
            name: size + (name in varied) * (2 * (first + number) + 1)
            for number, (name, size) in enumerate(self._sizes.items())
        }
        texts = {**dict(self.source.options), "batch": DECLARED}
        known = {option: dimension_size(option.partition("dimension.")[2], sizes) for option in texts}
        texts |= {option: str(size) for option, size in known.items() if size is not None}
        for value, shape in self.declared.items():
            own = self.graph.types[value].shape
            bound = (
                each if not isinstance(name, str) or (size := dimension_size(name, sizes)) is None else size
                for name, each in zip(shape, own, strict=True)
            )
            texts[f"shape.{value}"] = "x".join(map(str, bound))
        other = network_of_source(replace(self.source, options=tuple(texts.items()))).graph
        made, expected = ([(node.name, node.outputs) for node in graph.nodes] for graph in (other, self.graph))
        if made != expected:
            raise ModelError("the graph has other nodes at another size")
        self._read[varied, step] = other
        return other


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


#: Names of the ways that are timed.
DEFAULT = "model, default"
PARALLEL = "model, ORT_PARALLEL"
THREADS = "deployed, intra-op threads"
SEQUENTIAL = "deployed, one thread"
STREAMS = "deployed, streams"


@dataclass(frozen=True)
class DeploymentCheck:
    """Ways side by side, speed-ups over the first, and the errors of outputs against the model's own.

    ``errors`` are the largest differences over the largest value, by way; for open sizes the last is at other sizes.
    ``cores`` are those available.
    """

    rows: tuple[MeasuredRow, ...]
    cores: int
    errors: Mapping[str, float]
    tolerance: float

    @property
    def equal(self) -> bool:
        return all(error <= self.tolerance for error in self.errors.values())

    @property
    def best(self) -> MeasuredRow:
        return min(self.rows, key=lambda row: row.samples.median_us)

    @property
    def ties(self) -> tuple[str, ...]:
        """Ways that may be as fast as the best: the interval of their ratio contains 1."""
        best = self.best
        others = (row for row in self.rows if row is not best)
        return tuple(row.name for row in others if ratio_of(row.samples, best.samples).low <= 1)


def check_deployment(
    deployed: Deployment,
    network: Network,
    timing: Timing,
    predicted_us: Mapping[str, float],
    progress: Progress = ignore,
) -> DeploymentCheck:
    """Run and time the folder's model and the network that it was made from, on inputs made from the timing's seed.

    Raises BackendError if ONNX Runtime refuses one of them.
    """
    cores, graph = usable_cores(), network.graph
    width = len(deployed.streams)
    inputs = made_arrays(graph.inputs, graph.types, timing.seed)
    with tempfile.TemporaryDirectory(prefix="iossim-") as folder:
        original = Path(folder) / "given.onnx"
        write_onnx(graph, original)
        ways: dict[str, tuple[Path, SessionOptions]] = {
            DEFAULT: (original, session_options(threads=len(cores))),
            PARALLEL: (original, session_options(max(2, width))),
            THREADS: (deployed.model, session_options(threads=len(cores))),
            SEQUENTIAL: (deployed.model, session_options()),
        }
        if width > 1:
            ways[STREAMS] = (deployed.model, session_options(width, partition=deployed.partition))
        sessions = {
            name: open_session(model, options, deployed.provider, optimised=model == deployed.model)
            for name, (model, options) in ways.items()
        }
        outputs = {name: _outputs(session, inputs) for name, session in sessions.items()}
        programs = [session_program(session, inputs) for session in sessions.values()]
        samples = time_programs(programs, [{}] * len(programs), timing, cores, len(cores), progress)
        expected = outputs.pop(DEFAULT)
        errors = {name: largest_difference(found, expected).relative for name, found in outputs.items()}
        if deployed.opened.others:
            way, other = list(sessions)[-1], deployed.opened.others[0]
            errors[f"{way}, {spelled(shapes_of(other))}"] = _error_at(other, sessions[way], deployed, timing.seed)
    return DeploymentCheck(
        measured_rows(dict(zip(sessions, samples, strict=True)), predicted_us, timing.seed),
        len(cores),
        errors,
        tolerance(network),
    )


def _error_at(graph: Graph, session: InferenceSession, deployed: Deployment, seed: int) -> float:
    """Largest error of the deployed model's session against the given model, at other sizes."""
    inputs = made_arrays(graph.inputs, graph.types, seed)
    with tempfile.TemporaryDirectory(prefix="iossim-") as folder:
        path = Path(folder) / "given.onnx"
        write_onnx(graph, path)
        expected = _outputs(open_session(path, session_options(), deployed.provider), inputs)
    return largest_difference(_outputs(session, inputs), expected).relative


def _outputs(session: InferenceSession, inputs: Mapping[str, Array]) -> dict[str, Array]:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))
