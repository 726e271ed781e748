"""Files of the published IOS engine: their networks and schedules, merged convolutions split.

Each becomes the convolutions that it replaces, as separate units. A file records neither the channels of each nor its
kernel size. If the whole graph is the zoo's network of that name, they are taken from it. Otherwise channels are
inferred from the slices that are read, or halved, and kernels are as large as the merged one: the outputs are equal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path

from iossim.base.errors import GraphError, IossimError, OptionError, ScheduleError
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.op import Op
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.pool import AveragePool, GlobalAveragePool, GlobalMaxPool, MaxPool
from iossim.ir.ops.unary import Identity, Relu
from iossim.models.catalogue import BuildOptions, zoo_models
from iossim.models.ios_engine.file import (
    ConvNode,
    IdentityNode,
    IosFile,
    Node,
    PoolNode,
    Read,
    ReluNode,
    SequentialNode,
    Shape,
    StageNames,
    network_and_scheduler,
    read_ios_file,
)
from iossim.models.layers import concat_of_sums
from iossim.models.options import LoadOptions
from iossim.models.sources.zoo import partition_network
from iossim.schedule.batch import Strategy
from iossim.schedule.fit import fit
from iossim.schedule.schedule import BlockSchedule, ModelReference, Schedule, Stage


@dataclass(frozen=True)
class _Part:
    """One of the convolutions in a merged one: its unit's name, its channels there, and its window."""

    name: str
    begin: int
    end: int
    kernel: tuple[int, int]
    padding: tuple[int, int]


#: Merged convolutions by name: their parts, in order of channels.
_Parts = dict[str, list[_Part]]


def load(model: str | Path, options: LoadOptions) -> Network:
    """The network of a file, without its schedule."""
    if options.shapes or options.dimensions or options.graphs is not None:
        raise OptionError(f"an IOS file holds all of its shapes: give {str(model)!r} none, and no graphs")
    file = read_ios_file(Path(model))
    name, _ = network_and_scheduler(file.name)
    original = None
    for zoo in zoo_models():
        if zoo.name == name and zoo.input_shape == file.input.output_shape:
            shape = (options.batch or 1, *zoo.input_shape)
            original = zoo.build(BuildOptions(shape, options.precision, seed=options.seed))
    return partition_network(network_of_file(file, Path(model), options, original), str(model), options)


def network_of_file(file: IosFile, path: Path, options: LoadOptions, original: Network | None = None) -> Network:
    """The network of a file, one unit per node, merged convolutions split; ``path`` names it in errors.

    ``original`` is a network of that name: if it equals the file's, it determines the parts. Raises ScheduleError
    naming the invalid node.
    """
    try:
        if original is not None and (parts := _parts_as_in(file, original)) is not None:
            with suppress(GraphError):
                network = _Builder(file, options, parts).network()
                if network.graph.hash == original.graph.hash:
                    return network
        parts, notes = _parts_by_slices(file)
        return replace(_Builder(file, options, parts).network(), reading=tuple(notes))
    except IossimError as error:
        raise ScheduleError(f"IOS schedule {path}: {error}; give a file that the IOS engine saved") from None


def _parts_as_in(file: IosFile, original: Network) -> _Parts | None:
    """The parts of merged convolutions as in ``original``; None if the two networks differ.

    Units correspond by name, or in the order of the engine's numbers.
    """
    names = [name for node in file.nodes() for name in (_merged_names(node) or [node.name])]
    if len(names) != len(original.units):
        return None
    if all(name in original.unit_index for name in names):
        units = {unit.name: unit for unit in original.units}
    elif all(name.isascii() and name.isdecimal() for name in names):
        units = dict(zip(sorted(names, key=int), original.units, strict=True))
    else:
        return None
    parts: _Parts = {}
    for node in file.nodes():
        begin = 0
        for name in _merged_names(node):
            first = original.unit_nodes(units[name])[0]
            if not isinstance(first.op, Conv) or len(first.op.strides) != 2:
                return None
            channels, _, height, width = original.graph.types[first.inputs[1]].shape
            part = _Part(name, begin, begin + channels, (height, width), (first.op.pads[0], first.op.pads[1]))
            parts.setdefault(node.name, []).append(part)
            begin = part.end
    return parts


def schedule_of_file(file: IosFile, path: Path, network: Network) -> Schedule:
    """The stages of a file as an unpriced schedule of its network; raises ScheduleError naming the invalid stage."""
    merged = {node.name: names for node in file.nodes() if (names := _merged_names(node))}
    source = network.source
    try:
        schedule = Schedule(
            network=network.name,
            source=ModelReference(model=source.model, batch=source.batch, options=dict(source.options)),
            graph_hash=network.graph.hash,
            device="",
            precision=str(network.precision),
            engine="paper",
            cost_model={},
            scheduler=network_and_scheduler(file.name)[1],
            latency_us=0.0,
            blocks=[
                BlockSchedule(
                    name=f"block{number}",
                    stages=[
                        _stage(names, merged, f"block 'block{number}', stage {at}")
                        for at, names in enumerate(block.stages)
                    ],
                )
                for number, block in enumerate(file.blocks)
            ],
        )
        fit(schedule, network)
    except ScheduleError as error:
        raise ScheduleError(f"IOS schedule {path}: {error}") from None
    return schedule


def _stage(names: StageNames, merged: dict[str, list[str]], where: str) -> Stage:
    for name in chain.from_iterable(names):
        if name in merged:
            if names != [[name]]:
                raise ScheduleError(
                    f"{where}: the merged convolution {name!r} shares it with others; give it a stage of its own"
                )
            return Stage(strategy=Strategy.MERGE, groups=[merged[name]], latency_us=0.0)
    return Stage(strategy=Strategy.CONCURRENT, groups=[list(group) for group in names], latency_us=0.0)


def _merged_names(node: Node) -> list[str]:
    """The convolutions merged in a node; empty if it is not merged."""
    names = node.hint_name.split() if isinstance(node, ConvNode) else []
    return names if len(names) > 1 else []


def _parts_by_slices(file: IosFile) -> tuple[_Parts, list[str]]:
    """The parts of merged convolutions, from the slices that are read, and a note for each ambiguous one."""
    merged = {node.name: node for node in file.nodes() if isinstance(node, ConvNode) and _merged_names(node)}
    slices: defaultdict[str, set[tuple[int, int]]] = defaultdict(set)
    #: Slices that are read as one value: a term of a sum, or a node's only input.
    single: defaultdict[str, set[tuple[int, int]]] = defaultdict(set)
    for node in file.nodes():
        for term in node.inputs:
            for name, begin, end in term:
                slices[name].add((begin, end))
                if len(term) > 1 or (len(node.inputs) == 1 and not isinstance(node, IdentityNode)):
                    single[name].add((begin, end))
    parts: _Parts = {}
    notes: list[str] = []
    for name, node in merged.items():
        names, cuts = _merged_names(node), {0, node.out_channels}.union(*slices[name])
        ends = _halved(sorted(cuts), len(names), single[name])
        if len(ends) != len(names) + 1 or ends[-1] != node.out_channels:
            raise ScheduleError(
                f"node {name!r}: it merges {len(names)} convolutions ({node.hint_name}), but its "
                f"{node.out_channels} channels are read in parts that end at {', '.join(map(str, ends[1:]))}"
            )
        if len(cuts) < len(ends):
            notes.append(f"the file does not say which channels of {name!r} are whose; those read as one are halved")
        if node.kernel != (1, 1):
            notes.append(f"the file does not say how large the kernels of {node.hint_name} were; taken as {name!r} has")
        parts[name] = [
            _Part(part, begin, end, node.kernel, node.padding)
            for part, (begin, end) in zip(names, pairwise(ends), strict=True)
        ]
    return parts, notes


def _halved(ends: list[int], parts: int, whole: Container[tuple[int, int]]) -> list[int]:
    """The ends of so many parts: the widest of those given that are not ``whole`` is halved until there are as many."""
    while len(ends) <= parts:
        free = [(end - begin, -begin) for begin, end in pairwise(ends) if (begin, end) not in whole]
        width, begin = max(free, default=(0, 0))
        if width < 2:
            break
        ends = sorted([*ends, -begin + width // 2])
    return ends


class _Builder:
    """Creates the nodes of a file in order; ``_made`` holds for each node the values of its slices."""

    def __init__(self, file: IosFile, options: LoadOptions, parts: _Parts) -> None:
        self._file, self._parts, self._batch = file, parts, options.batch or 1
        self._b = GraphBuilder(network_and_scheduler(file.name)[0], options.precision, options.seed)
        self._made: dict[str, dict[tuple[int, int], str]] = {}
        self._units: set[str] = set()

    def network(self) -> Network:
        entry = self._file.input
        image = self._b.input(entry.name, (self._batch, *entry.output_shape))
        self._made[entry.name] = {(0, entry.output_shape[0]): image}
        before: object = entry
        for number, block in enumerate(self._file.blocks):
            if block.enter_node != before or block.enter_name != block.enter_node.name:
                raise GraphError(f"block {number} starts from {block.enter_name!r}, which is not the node before it")
            with self._b.block(f"block{number}"):
                for node in block.nodes:
                    self._make(node)
            before = block.exit_node
        return self._b.network([*self._made[block.exit_node.name].values()])

    def _make(self, node: Node) -> None:
        if node.name in self._made:
            raise GraphError(f"two nodes are named {node.name!r}")
        parts = self._parts.get(node.name)
        if parts is None:
            self._made[node.name] = {(0, node.output_shape[0]): self._unit(node.name, node, node.output_shape)}
            return
        assert isinstance(node, ConvNode), "only convolutions are merged"
        if node.groups != 1:
            raise GraphError(f"node {node.name!r} is merged and has {node.groups} groups, which never merge")
        slices: dict[tuple[int, int], str] = {}
        for part in parts:
            own = {"out_channels": part.end - part.begin, "kernel": part.kernel, "padding": part.padding}
            shape = (part.end - part.begin, *node.output_shape[1:])
            slices[part.begin, part.end] = self._unit(part.name, node.model_copy(update=own), shape)
        self._made[node.name] = slices

    def _unit(self, name: str, node: Node, expected: Shape) -> str:
        if name in self._units:
            raise GraphError(f"two convolutions are named {name!r}")
        self._units.add(name)
        with self._b.unit(name, _KINDS[node.type]):
            y = self._joined(node, name)
            if isinstance(node, SequentialNode):
                y = self._chain(node, y)
            elif not isinstance(node, IdentityNode):
                y = self._applied(node, y, f"{name}.{node.type}", f"{name}.relu")
        self._check_shape(node.name, y, expected)
        return y

    def _chain(self, node: SequentialNode, y: str) -> str:
        """The ops of a sequence, named after its nodes, since these have no units to carry the names."""
        expected = node.inputs
        for inner in node.nodes:
            if inner.inputs != expected:
                raise GraphError(f"node {node.name!r}: {inner.name!r} does not read its predecessor")
            y = self._applied(inner, y, inner.name, f"{inner.name}.relu")
            self._check_shape(inner.name, y, inner.output_shape)
            expected = [[(inner.name, 0, inner.output_shape[0])]]
        return y

    def _applied(self, node: ConvNode | PoolNode | ReluNode, x: str, name: str, activation: str) -> str:
        b = self._b
        if isinstance(node, ReluNode):
            return b.add(Relu(), x, name=name)
        if isinstance(node, PoolNode):
            return b.add(_pool(node, b.types[x].shape), x, name=name)
        channels = b.types[x].shape[1]
        if channels % node.groups or node.out_channels % node.groups:
            raise GraphError(
                f"node {node.name!r}: {node.groups} groups do not divide its {channels} input and "
                f"{node.out_channels} output channels"
            )
        weight = b.constant(f"{name}.weight", (node.out_channels, channels // node.groups, *node.kernel))
        bias = b.constant(f"{name}.bias", (node.out_channels,))
        y = b.add(Conv(node.stride, node.padding * 2, (1, 1), node.groups), x, weight, bias, name=name)
        return b.add(Relu(), y, name=activation) if node.act == "relu" else y

    def _joined(self, node: Node, name: str) -> str:
        """A node's inputs as one value: terms summed, then concatenated; an identity that does neither is an op too."""
        b = self._b
        terms: list[list[str]] = []
        for term in node.inputs:
            values = [self._values(node.name, read) for read in term]
            if len(values) == 1:
                terms += [[value] for value in values[0]]
            elif all(len(each) == 1 for each in values):
                terms.append([value for (value,) in values])
            else:
                raise GraphError(f"node {node.name!r} sums several parts of a merged convolution as one")
        joined = concat_of_sums(b, name, terms)
        alone = isinstance(node, IdentityNode) and terms == [[joined]]
        return b.add(Identity(), joined, name=f"{name}.identity") if alone else joined

    def _values(self, reader: str, read: Read) -> list[str]:
        """The values of a slice: one, or several adjacent parts of a merged convolution."""
        name, begin, end = read
        if name not in self._made:
            raise GraphError(f"node {reader!r} reads {name!r}, which no node before it makes")
        slices = self._made[name]
        inside = [(low, high) for low, high in slices if begin <= low and high <= end]
        if not inside or (inside[0][0], inside[-1][1]) != (begin, end):
            known = ", ".join(f"{low} to {high}" for low, high in slices)
            raise GraphError(
                f"node {reader!r} reads channels {begin} to {end} of {name!r}; what can be read of it is {known}"
            )
        return [slices[low, high] for low, high in inside]

    def _check_shape(self, name: str, value: str, expected: Shape) -> None:
        shape = self._b.types[value].shape[1:]
        if shape != expected:
            raise GraphError(f"node {name!r} makes {_text(shape)}, its output_shape is {_text(expected)}")


#: Kinds of units by the type of the node that they are made from.
_KINDS = {"conv": "Conv-Relu", "pool": "Pool", "identity": "Concat", "relu": "Relu", "sequential": "Relu-SepConv"}


def _pool(node: PoolNode, x: Sequence[int]) -> Op:
    if node.pool_type in ("global_avg", "global_max"):
        if (*node.kernel, *node.stride, *node.padding) != (*x[2:], 1, 1, 0, 0):
            raise GraphError(f"node {node.name!r} pools whole images, and its window is another than {_text(x[2:])}")
        return GlobalAveragePool() if node.pool_type == "global_avg" else GlobalMaxPool()
    pads = node.padding * 2
    if node.pool_type == "max":
        return MaxPool(node.kernel, node.stride, pads)
    return AveragePool(node.kernel, node.stride, pads, count_include_pad=any(pads))


def _text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
