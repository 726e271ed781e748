"""Export of a network and its schedule to a file of the published IOS engine.

That engine knows convolutions with bias and symmetric padding, pooling, ReLU, sums and concats along the channels,
and sequences of these as one unit, in blocks with one input and one output. Anything else is refused by name.
"""

from __future__ import annotations

from typing import Literal

from iossim.base.errors import ScheduleError
from iossim.ir.graph import Node as GraphNode
from iossim.ir.graph import free_name
from iossim.ir.merging import merged_convolution
from iossim.ir.network import Block, Network, Unit
from iossim.ir.op import Op
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.nary import Add
from iossim.ir.ops.pool import AveragePool, GlobalAveragePool, GlobalMaxPool, MaxPool
from iossim.ir.ops.slice import Concat
from iossim.ir.ops.unary import Identity, Relu
from iossim.models.ios_engine.file import (
    ConvNode,
    FileBlock,
    IdentityNode,
    IosFile,
    Node,
    Placeholder,
    PoolNode,
    Read,
    ReluNode,
    SequentialNode,
    Shape,
    StageNames,
    file_name,
)
from iossim.schedule.batch import Strategy
from iossim.schedule.fit import fit
from iossim.schedule.schedule import BlockSchedule, Schedule, Stage


def ios_file(schedule: Schedule, network: Network) -> IosFile:
    """The file of a schedule; raises ScheduleError if it does not fit the network or the format."""
    fit(schedule, network)
    named = next((unit for stage in schedule.stages for unit in stage.variants), None)
    if named is not None:
        raise ScheduleError(
            f"the schedule names the kernel that {named!r} runs as, which the file of an IOS schedule cannot hold; "
            "schedule without `workspace_limit`"
        )
    try:
        return _Writer(network).file(schedule)
    except ScheduleError as error:
        raise ScheduleError(f"{network.name!r} cannot be written as an IOS schedule: {error}") from None


class _Writer:
    """Creates nodes in execution order; ``_reads`` maps a value to its name in the file."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._graph = network.graph
        self._reads: dict[str, Read] = {}
        self._names = _node_names(network)

    def file(self, schedule: Schedule) -> IosFile:
        if len(self._graph.inputs) != 1:
            raise ScheduleError(f"it has {len(self._graph.inputs)} inputs, the format has one")
        (entry,) = self._graph.inputs
        name = _plain(entry)
        if name in self._names.values():
            name = f"{name}_input"
        placeholder = Placeholder(type="placeholder", name=name, hint_name=name, output_shape=self._shape(entry))
        self._reads[entry] = (name, 0, placeholder.output_shape[0])
        enter: Placeholder | Node = placeholder
        blocks: list[FileBlock] = []
        for block, stages in zip(self._network.blocks, schedule.blocks, strict=True):
            found, entry = self._block(block, stages, enter, entry)
            blocks.append(found)
            enter = found.exit_node
        return IosFile(name=file_name(self._network.name, schedule.scheduler), input=placeholder, blocks=blocks)

    def _block(
        self, block: Block, schedule: BlockSchedule, enter: Placeholder | Node, entry: str
    ) -> tuple[FileBlock, str]:
        """A block, and the name of its output."""
        network = self._network
        members = set(block.units)
        units = [network.units[index] for index in block.units]
        made = {value for unit in units for value in unit.outputs}
        read = {value for unit in units for value in unit.inputs} - made
        if read != {entry}:
            others = ", ".join(sorted(read - {entry})) or "nothing"
            raise ScheduleError(f"block {block.name!r} reads {others}, not only {entry!r}, the value before it")
        outside = {value for at, unit in enumerate(network.units) if at not in members for value in unit.inputs}
        outside |= set(self._graph.outputs)
        results = [value for unit in units for value in unit.outputs if value in outside]
        if len(results) != 1:
            raise ScheduleError(f"block {block.name!r} makes {len(results)} values for others, the format has one")
        nodes: list[Node] = []
        stages: list[StageNames] = []
        for stage in schedule.stages:
            stages.append(self._stage(stage, nodes))
        (result,) = results
        (last,) = [node for node in nodes if node.name == self._reads[result][0]]
        if self._reads[result] != (last.name, 0, last.output_shape[0]):
            raise ScheduleError(f"block {block.name!r} ends in a merged convolution, which the format cannot say")
        inner = [node for node in nodes if node is not last]
        return (
            FileBlock(enter_name=enter.name, enter_node=enter, inner_nodes=inner, exit_node=last, stages=stages),
            result,
        )

    def _stage(self, stage: Stage, nodes: list[Node]) -> StageNames:
        """Add the nodes of a stage; returns the names of its groups."""
        network = self._network
        if stage.strategy is Strategy.MERGE:
            nodes.append(self._merged(stage.units))
            return [[nodes[-1].name]]
        groups: StageNames = []
        for group in stage.groups:
            groups.append([])
            for name in group:
                nodes.append(self._unit(network.units[network.unit_index[name]]))
                groups[-1].append(nodes[-1].name)
        return groups

    def _merged(self, names: list[str]) -> ConvNode:
        network, graph = self._network, self._graph
        units = [network.units[network.unit_index[name]] for name in names]
        merged = merged_convolution(network, [network.unit_index[name] for name in names])
        if merged.activation not in ("", Relu().signature):
            raise ScheduleError(f"unit {names[0]!r} has another activation than ReLU")
        name = self._names[names[0]]
        for unit, begin, end in zip(units, merged.channel_begin[:-1], merged.channel_begin[1:], strict=True):
            self._reads[unit.outputs[0]] = (name, begin, end)
        return self._convolution(
            name,
            " ".join(self._names[unit.name] for unit in units),
            merged.op,
            merged.weight.shape,
            [[self._reads[merged.input]]],
            graph.types[merged.input].shape,
            merged.activation != "",
        )

    def _unit(self, unit: Unit) -> Node:
        if len(unit.outputs) != 1:
            raise ScheduleError(f"unit {unit.name!r} makes {len(unit.outputs)} values, a node makes one")
        name = self._names[unit.name]
        ops = self._network.unit_nodes(unit)
        heads = {node.outputs[0]: node for node in ops if isinstance(node.op, Add | Concat | Identity)}
        body = [node for node in ops if node.outputs[0] not in heads]
        shape = self._shape(unit.outputs[0])
        self._reads[unit.outputs[0]] = (name, 0, shape[0])
        if not body:
            terms = self._terms(unit, unit.outputs[0], heads)
            return IdentityNode(name=name, hint_name=name, inputs=terms, output_shape=shape)
        x = body[0].inputs[0]
        terms = self._terms(unit, x, heads)
        nodes: list[ConvNode | PoolNode | ReluNode] = []
        at = 0
        while at < len(body):
            node = body[at]
            after = body[at + 1] if at + 1 < len(body) else None
            if node.inputs[0] != x:
                raise ScheduleError(f"unit {unit.name!r} is no chain of ops: {node.name!r} reads {node.inputs[0]!r}")
            fused = isinstance(node.op, Conv) and after is not None and isinstance(after.op, Relu)
            fused = fused and after is not None and after.inputs == node.outputs
            own = _plain(node.name)
            nodes.append(self._op(unit, own, node.op, node.inputs, terms, fused))
            at += 2 if fused else 1
            x = body[at - 1].outputs[0]
            terms = [[(own, 0, self._shape(x)[0])]]
        if x != unit.outputs[0]:
            raise ScheduleError(
                f"unit {unit.name!r} does not return what its last op makes; keep joins apart with `units` apart"
            )
        if len(nodes) == 1:
            return nodes[0].model_copy(update={"name": name, "hint_name": name})
        return SequentialNode(name=name, hint_name=name, nodes=nodes, output_shape=shape, inputs=nodes[0].inputs)

    def _op(
        self, unit: Unit, name: str, op: Op, inputs: tuple[str, ...], terms: list[list[Read]], fused: bool
    ) -> ConvNode | PoolNode | ReluNode:
        graph = self._graph
        x = graph.types[inputs[0]]
        try:
            if isinstance(op, Relu):
                return ReluNode(name=name, hint_name=name, inputs=terms, output_shape=self._shape(inputs[0]))
            if isinstance(op, Conv) and all(value in graph.constants for value in inputs[1:]):
                return self._convolution(name, name, op, graph.types[inputs[1]].shape, terms, x.shape, fused)
            if isinstance(op, GlobalAveragePool | GlobalMaxPool):
                kind: Literal["global_avg", "global_max"]
                kind = "global_avg" if isinstance(op, GlobalAveragePool) else "global_max"
                whole = self._shape(inputs[0])
                return PoolNode(
                    name=name, hint_name=name, inputs=terms, pool_type=kind, kernel=whole[1:], stride=(1, 1),
                    padding=(0, 0), output_shape=(whole[0], 1, 1),
                )  # fmt: skip
            if isinstance(op, MaxPool | AveragePool):
                return _window(name, op, x.shape, op.infer([x])[0].shape, terms)
        except ScheduleError as error:
            raise ScheduleError(f"unit {unit.name!r}: {error}") from None
        raise ScheduleError(f"unit {unit.name!r}: the format has no node for {op.kind}")

    def _convolution(
        self,
        name: str,
        hint: str,
        op: Conv,
        weight: tuple[int, ...],
        terms: list[list[Read]],
        x: tuple[int, ...],
        has_relu: bool,
    ) -> ConvNode:
        if len(op.strides) != 2 or set(op.dilations) != {1}:
            raise ScheduleError("a convolution of the format is 2-D and has no dilation")
        kernel, stride, padding = (weight[2], weight[3]), (op.strides[0], op.strides[1]), (op.pads[0], op.pads[1])
        shape = (weight[0], *_symmetric_size(op.pads, x, kernel, stride))
        return ConvNode(
            name=name, hint_name=hint, inputs=terms, out_channels=weight[0], kernel=kernel, stride=stride,
            padding=padding, groups=op.groups, act="relu" if has_relu else "identity", output_shape=shape,
        )  # fmt: skip

    def _terms(self, unit: Unit, value: str, heads: dict[str, GraphNode]) -> list[list[Read]]:
        """A value as a concat of sums of other units' outputs."""
        head = heads.get(value)
        if head is not None and isinstance(head.op, Identity):
            return self._terms(unit, head.inputs[0], heads)
        if head is not None and isinstance(head.op, Concat):
            if head.op.axis not in (1, 1 - len(self._graph.types[value].shape)):
                raise ScheduleError(f"unit {unit.name!r}: a concat of the format is along the channels")
            return _side_by_side([self._term(unit, joined, heads) for joined in head.inputs])
        return [self._term(unit, value, heads)]

    def _term(self, unit: Unit, value: str, heads: dict[str, GraphNode]) -> list[Read]:
        head = heads.get(value)
        if head is None:
            return [self._read(unit, value)]
        if not isinstance(head.op, Add) or len({self._graph.types[name] for name in (value, *head.inputs)}) > 1:
            raise ScheduleError(
                f"unit {unit.name!r}: {head.name!r} is no sum of values of one shape, nor a concat of such"
            )
        return [self._read(unit, summed) for summed in head.inputs]

    def _read(self, unit: Unit, value: str) -> Read:
        if value not in self._reads:
            raise ScheduleError(f"unit {unit.name!r} reads {value!r}, which no unit before it makes")
        return self._reads[value]

    def _shape(self, value: str) -> Shape:
        shape = self._graph.types[value].shape
        if len(shape) != 4:
            raise ScheduleError(f"{value!r} has {len(shape)} dimensions, a value of the format has four")
        return shape[1], shape[2], shape[3]


def _side_by_side(terms: list[list[Read]]) -> list[list[Read]]:
    """Terms that are adjacent slices of one node merged into one slice, as in the engine's files."""
    found: list[list[Read]] = []
    for term in terms:
        if found and len(term) == len(found[-1]) == 1 and term[0][:2] == (found[-1][0][0], found[-1][0][2]):
            found[-1] = [(term[0][0], found[-1][0][1], term[0][2])]
        else:
            found.append(term)
    return found


def _window(
    name: str, op: MaxPool | AveragePool, x: tuple[int, ...], y: tuple[int, ...], terms: list[list[Read]]
) -> PoolNode:
    if len(op.kernel) != 2 or set(op.dilations) != {1}:
        raise ScheduleError("a pooling of the format is 2-D and has no dilation")
    is_average = isinstance(op, AveragePool)
    if isinstance(op, AveragePool) and any(op.pads) and not op.count_include_pad:
        raise ScheduleError("an average of the format counts its padding")
    kernel, stride, padding = (op.kernel[0], op.kernel[1]), (op.strides[0], op.strides[1]), (op.pads[0], op.pads[1])
    if _symmetric_size(op.pads, x, kernel, stride) != y[2:]:
        raise ScheduleError("windows that hang over the end have no words in the format")
    return PoolNode(
        name=name, hint_name=name, inputs=terms, pool_type="avg" if is_average else "max", kernel=kernel,
        stride=stride, padding=padding, output_shape=(y[1], y[2], y[3]),
    )  # fmt: skip


def _symmetric_size(
    pads: tuple[int, ...], x: tuple[int, ...], kernel: tuple[int, int], stride: tuple[int, int]
) -> tuple[int, int]:
    """Height and width of the result; raises ScheduleError if symmetric padding makes another size."""
    sizes = []
    for axis in (0, 1):
        before, after, size = pads[axis], pads[axis + 2], x[axis + 2]
        own, symmetric = ((size + before + behind - kernel[axis]) // stride[axis] + 1 for behind in (after, before))
        if own != symmetric:
            raise ScheduleError("padding of the format is the same on both sides")
        sizes.append(own)
    return sizes[0], sizes[1]


def _node_names(network: Network) -> dict[str, str]:
    """Node name of each unit: the unit's, without spaces, which separate names in a file."""
    found: dict[str, str] = {}
    for unit in network.units:
        found[unit.name] = free_name(_plain(unit.name), found.values())
    return found


def _plain(name: str) -> str:
    return "_".join(name.split()) or "node"
