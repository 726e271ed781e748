"""ONNX Runtime on this machine: its version, its providers, and its optimisation of a graph.

Streams are lists of the names of nodes after optimisation, so that the deployed model is the optimised one, written
once by the runtime itself. Its nodes reveal what they compute: most make values of the graph. Those with blocked
channels make others, and are named after the corresponding value, or after the op.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from iossim.backends.onnxruntime_cpu.program import opened
from iossim.base.solvers import silent
from iossim.execution.backend import BackendError
from iossim.execution.made_inputs import merged_graph
from iossim.hardware.profile import DeviceProfile
from iossim.ir.constants import Constant
from iossim.ir.graph import Graph, Names, Node
from iossim.ir.merging import merged_convolution
from iossim.ir.network import Block, Network, make_unit
from iossim.ir.ops.slice import Split
from iossim.models.onnx.export import write_onnx
from iossim.models.onnx.open_shapes import Dimension, OpenShapes
from iossim.models.passes.blocks import cut_blocks
from iossim.models.passes.unit_kinds import unit_kind
from iossim.schedule.schedule import StreamSchedule

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, SessionOptions

#: Axis of channels in a tensor of images.
_CHANNELS = 1


@dataclass(frozen=True, eq=False)
class DeployedGraph:
    """A graph of standard ops, and the stream of the launch that makes each of its values."""

    graph: Graph
    stream_of: Mapping[str, int]


def deployed_graph(network: Network, streams: StreamSchedule) -> DeployedGraph:
    """The graph of ``network`` in which units merged by ``streams``, which fit it, are one convolution each.

    Outputs keep their names. Raises ScheduleError for units that do not merge.
    """
    gone: set[str] = set()
    made: list[Node] = []
    constants: dict[str, Constant] = dict(network.graph.constants)
    stream_of: dict[str, int] = {}
    for stream, own in enumerate(streams.streams):
        for launch in own:
            units = [network.unit(name) for name in launch.units]
            replaced = [node for unit in units for node in network.unit_nodes(unit)]
            stream_of |= {value: stream for node in replaced for value in node.outputs}
            if len(units) == 1:
                continue
            indices = [network.unit_index[name] for name in launch.units]
            merged = merged_graph(network, indices)
            (whole,) = merged.outputs
            begins = merged_convolution(network, indices).channel_begin
            sizes = tuple(end - begin for begin, end in pairwise(begins))
            nodes = [replace(node, name=f"{whole}.{place}") for place, node in enumerate(merged.nodes)]
            split = Split(_CHANNELS, sizes)
            nodes.append(Node(f"{whole}.split", split, (whole,), tuple(unit.outputs[0] for unit in units)))
            stream_of |= {value: stream for node in nodes for value in node.outputs}
            gone.update(node.name for node in replaced)
            made += nodes
            constants |= merged.constants
    if not made:
        return DeployedGraph(network.graph, stream_of)
    graph = network.graph
    nodes = [*(node for node in graph.nodes if node.name not in gone), *made]
    inputs = {name: graph.types[name] for name in graph.inputs}
    return DeployedGraph(Graph.create(inputs, graph.outputs, nodes, constants), stream_of)


#: Oldest version whose sessions take a file of streams.
OLDEST = (1, 14)
MODEL_FILE, WEIGHTS_FILE = "model.onnx", "model.onnx.weights"
#: Suffix that its optimiser appends to a value whose channels it blocks.
_BLOCKED = "_nchwc"
#: Smaller weights stay in the model's file.
_LEAST_OUTSIDE_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Provider:
    """A device's provider: its name in ONNX Runtime, and the type of its device in files."""

    name: str
    device_type: str


_PROVIDERS = {"cpu": Provider("CPUExecutionProvider", "0"), "gpu": Provider("CUDAExecutionProvider", "1")}


@dataclass(frozen=True, slots=True)
class OptimisedNode:
    """A node that the runtime made, by name, with its inputs and outputs."""

    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def made(self, graph: Graph) -> tuple[str, ...]:
        """Values of ``graph`` that it makes: under their names, or as its own name reveals."""
        named = [self.name.removesuffix(_BLOCKED)] if self.name.endswith(_BLOCKED) else []
        found = tuple(value for value in (*self.outputs, *named) if value in graph.producer)
        if found or self.name not in graph.position:
            return found
        return graph.nodes[graph.position[self.name]].outputs


def provider_of(profile: DeviceProfile) -> Provider:
    """Provider of a device; raises BackendError if ONNX Runtime lacks it, is too old, or is missing."""
    if find_spec("onnxruntime") is None:
        raise BackendError(
            "`runtime` onnxruntime needs ONNX Runtime, which is not installed; run: pip install 'iossim[cpu]'"
        )
    import onnxruntime

    check_version(onnxruntime.__version__)
    provider = _PROVIDERS[profile.kind]
    available = onnxruntime.get_available_providers()
    if provider.name not in available:
        raise BackendError(
            f"ONNX Runtime {onnxruntime.__version__} here has no {provider.name}, which {profile.name} needs, only "
            f"{', '.join(available)}; deploy where it is installed, or give `device` cpu"
        )
    return provider


def check_version(version: str) -> None:
    """Raise BackendError if the sessions of an ONNX Runtime take no file of streams."""
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if found < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise BackendError(
            f"ONNX Runtime {version} takes no streams, which came with {oldest}; run: pip install -U onnxruntime"
        )


def write_optimised(
    graph: Graph, folder: Path, provider: Provider, name: str, shapes: OpenShapes | None = None
) -> None:
    """Have ONNX Runtime optimise a graph, and write it to ``folder`` as :data:`MODEL_FILE`, its weights beside it.

    Open ``shapes`` stay open. Blocked channels are specific to this machine's processor. Raises BackendError for a
    graph that it refuses.
    """
    given = folder / "given.onnx"
    written = write_onnx(graph, given, name=name)
    if shapes is not None:
        proto = onnx.load(str(given), load_external_data=False)
        shapes.open(proto)
        given.write_bytes(proto.SerializeToString())
    options = session_options()
    options.optimized_model_filepath = str(folder / MODEL_FILE)
    prefix = "session.optimized_model_external_initializers_"
    options.add_session_config_entry(f"{prefix}file_name", WEIGHTS_FILE)
    options.add_session_config_entry(f"{prefix}min_size_in_bytes", str(_LEAST_OUTSIDE_BYTES))
    try:
        open_session(given, options, provider)
        _give_names(folder / MODEL_FILE)
    finally:
        for path in written:
            path.unlink()


def _give_names(model: Path) -> None:
    """Give unnamed nodes of a model file unique names: streams refer to nodes by name."""
    proto = onnx.load(str(model), load_external_data=False)
    names = Names(())
    fresh = [names.fresh(node.name or node.op_type) for node in proto.graph.node]
    if fresh != [node.name for node in proto.graph.node]:
        for node, name in zip(proto.graph.node, fresh, strict=True):
            node.name = name
        model.write_bytes(proto.SerializeToString())


def session_options(streams: int = 1, threads: int = 1, partition: Path | None = None) -> SessionOptions:
    """Options of a session that runs its nodes on ``streams`` threads, each of them on ``threads``.

    0 threads mean one per core, ONNX Runtime's default. ``partition`` assigns nodes to streams.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    # Threads that wait for the next run of one session would occupy the cores of another.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if streams > 1:
        options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
        # The calling thread is one of them, and spins until all are done: with fewer, two streams would share a thread.
        options.inter_op_num_threads = streams + 1
    if partition is not None:
        options.add_session_config_entry("session.node_partition_config_file", str(partition))
    return options


def open_session(
    model: Path, options: SessionOptions, provider: Provider, *, optimised: bool = False
) -> InferenceSession:
    """A session; an ``optimised`` model is not optimised again. Raises BackendError in one line."""
    import onnxruntime

    if optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    with silent():  # it prints buffer reuse for its developers while it plans streams
        return opened(str(model), options, model.name, provider.name, "; install a newer one, or export the model anew")


def optimised_nodes(model: Path) -> list[OptimisedNode]:
    """Nodes of a model file that :func:`write_optimised` wrote, in order."""
    nodes = onnx.load(str(model), load_external_data=False).graph.node
    return [OptimisedNode(node.name, node.op_type, tuple(node.input), tuple(node.output)) for node in nodes]


def input_shapes(model: Path) -> dict[str, tuple[Dimension, ...]]:
    """Shape that each input of a model file takes."""
    return {
        value.name: tuple(axis.dim_param or axis.dim_value or None for axis in value.type.tensor_type.shape.dim)
        for value in onnx.load(str(model), load_external_data=False).graph.input
    }


def as_optimised(network: Network, provider: Provider, shapes: OpenShapes | None = None) -> Network:
    """The network with the units that ONNX Runtime fuses: the ops that one node of its optimised graph computes."""
    with tempfile.TemporaryDirectory(prefix="iossim-") as folder:
        write_optimised(network.graph, Path(folder), provider, network.name, shapes)
        return with_runtime_units(network, optimised_nodes(Path(folder) / MODEL_FILE))


def with_runtime_units(network: Network, nodes: Sequence[OptimisedNode]) -> Network:
    """The network with one unit for the ops that one node of its optimised graph computes.

    An op whose value is no longer made by a node joins the one op, or unit, that reads it.
    """
    graph = network.graph
    kept = {value for node in nodes for value in node.made(graph)}
    unit_of: dict[str, str] = {}
    for node in reversed(graph.nodes):
        readers = {unit_of[reader.name] for value in node.outputs for reader in graph.consumers[value]}
        is_last = not kept.isdisjoint(node.outputs) or not graph.returned.isdisjoint(node.outputs) or len(readers) != 1
        unit_of[node.name] = node.name if is_last else readers.pop()
    members: dict[str, list[int]] = {}
    for place, node in enumerate(graph.nodes):
        members.setdefault(unit_of[node.name], []).append(place)
    units = [
        make_unit(graph, name, unit_kind(graph, [graph.nodes[node] for node in nodes_of]), nodes_of)
        for name, nodes_of in sorted(members.items(), key=lambda member: member[1][-1])
    ]
    blocks = Block.of_all(units)
    return cut_blocks(replace(network, units=tuple(units), blocks=blocks, interchangeable=()))


def streams_of_nodes(nodes: Sequence[OptimisedNode], deployed: DeployedGraph) -> list[list[str]]:
    """Names of nodes by stream: each is in the stream of the last of the ops that it computes.

    A node that makes no value of the graph, such as one that blocks channels, is in the stream of its first consumer,
    or else of its producer.
    """
    stream: dict[str, int] = {}
    readers: dict[str, list[OptimisedNode]] = {}
    for node in nodes:
        told = [deployed.stream_of[value] for value in node.made(deployed.graph)]
        if told:
            stream[node.name] = told[-1]
        for value in node.inputs:
            readers.setdefault(value, []).append(node)
    for node in reversed(nodes):
        if node.name not in stream:
            following = [
                stream[one.name] for value in node.outputs for one in readers.get(value, ()) if one.name in stream
            ]
            if following:
                stream[node.name] = following[0]
    makers = {value: node.name for node in nodes for value in node.outputs}
    for node in nodes:
        before = [stream[makers[value]] for value in node.inputs if makers.get(value) in stream]
        stream.setdefault(node.name, before[0] if before else 0)
    used = sorted(set(stream.values()))
    return [[node.name for node in nodes if stream[node.name] == one] for one in used]
