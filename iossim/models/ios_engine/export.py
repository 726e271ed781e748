"""Export of a network and its schedule to a file of the published IOS engine.

That engine knows convolutions with bias and symmetric padding, pooling, ReLU, sums and concats along the channels,
and sequences of these as one unit, in blocks with one input and one output. Anything else is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from iossim.base.errors import ScheduleError
from iossim.ir.graph import Node as GraphNode
from iossim.ir.graph import free_name
from iossim.ir.merging import merged_convolution
from iossim.ir.network import Block, Network, Unit, boundary
from iossim.ir.op import Op
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.nary import Add
from iossim.ir.ops.pool import AveragePool, GlobalAveragePool, GlobalMaxPool, MaxPool
from iossim.ir.ops.slice import Concat
from iossim.ir.ops.unary import Identity, Relu
from iossim.ir.types import TensorType
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
    """Creates nodes in execution order; ``_reads`` maps a value to the slice of a node's output that holds it."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._graph = network.graph
        self._reads: dict[str, Read] = {}
        #: Node name of each unit: the unit's, without spaces, which separate names in a file.
        self._names: dict[str, str] = {}
        for unit in network.units:
            self._names[unit.name] = free_name(_plain(unit.name), self._names.values())

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
        units = [self._network.units[index] for index in block.units]
        read, made = boundary(self._graph, [node for unit in units for node in self._network.unit_nodes(unit)])
        if read != (entry,):
            others = ", ".join(sorted({*read} - {entry})) or "nothing"
            raise ScheduleError(f"block {block.name!r} reads {others}, not only {entry!r}, the value before it")
        if len(made) != 1:
            raise ScheduleError(f"block {block.name!r} makes {len(made)} values for others, the format has one")
        nodes: list[Node] = []
        stages = [self._stage(stage, nodes) for stage in schedule.stages]
        (last,) = (node for node in nodes if node.name == self._reads[made[0]][0])
        if self._reads[made[0]] != (last.name, 0, last.output_shape[0]):
            raise ScheduleError(f"block {block.name!r} ends in a merged convolution, which the format cannot say")
        inner = [node for node in nodes if node is not last]
        found = FileBlock(enter_name=enter.name, enter_node=enter, inner_nodes=inner, exit_node=last, stages=stages)
        return found, made[0]

    def _stage(self, stage: Stage, nodes: list[Node]) -> StageNames:
        """Add the nodes of a stage; returns the names of its groups."""
        if stage.strategy is Strategy.MERGE:
            nodes.append(self._merged([self._network.unit_index[name] for name in stage.units]))
            return [[nodes[-1].name]]
        groups = [[self._unit(self._network.unit(name)) for name in g] for g in stage.groups]
        nodes += [node for group in groups for node in group]
        return [[node.name for node in group] for group in groups]

    def _merged(self, indices: list[int]) -> ConvNode:
        units = [self._network.units[index] for index in indices]
        merged = merged_convolution(self._network, indices)
        if merged.activation not in ("", Relu().signature):
            raise ScheduleError(f"unit {units[0].name!r} has another activation than ReLU")
        name = self._names[units[0].name]
        for unit, begin, end in zip(units, merged.channel_begin[:-1], merged.channel_begin[1:], strict=True):
            self._reads[unit.outputs[0]] = (name, begin, end)
        return ConvNode(
            name=name,
            hint_name=" ".join(self._names[unit.name] for unit in units),
            inputs=[[self._reads[merged.input]]],
            output_shape=_without_batch(merged.output.shape),
            act="relu" if merged.activation else "identity",
            **_convolution(merged.op, [self._graph.types[merged.input], merged.weight]),
        )

    def _unit(self, unit: Unit) -> Node:
        if len(unit.outputs) != 1:
            raise ScheduleError(f"unit {unit.name!r} makes {len(unit.outputs)} values, a node makes one")
        ops = self._network.unit_nodes(unit)
        heads = {node.outputs[0]: node for node in ops if isinstance(node.op, Add | Concat | Identity)}
        chain = [node for node in ops if node.outputs[0] not in heads]
        value = chain[0].inputs[0] if chain else unit.outputs[0]
        terms = own_terms = self._terms(unit, value, heads)
        nodes: list[ConvNode | PoolNode | ReluNode] = []
        for node in chain:
            if node.inputs[0] != value:
                raise ScheduleError(f"unit {unit.name!r} is no chain of ops: {node.name!r} reads {node.inputs[0]!r}")
            (value,) = node.outputs
            before = nodes[-1] if nodes else None
            if isinstance(node.op, Relu) and isinstance(before, ConvNode) and before.act == "identity":
                nodes[-1] = before.model_copy(update={"act": "relu"})
                continue
            try:
                nodes.append(self._node(node, terms))
            except ScheduleError as error:
                raise ScheduleError(f"unit {unit.name!r}: {error}") from None
            terms = [[(nodes[-1].name, 0, nodes[-1].output_shape[0])]]
        if value != unit.outputs[0]:
            raise ScheduleError(
                f"unit {unit.name!r} does not return what its last op makes; keep joins apart with `units` apart"
            )
        name, shape = self._names[unit.name], self._shape(value)
        self._reads[value] = (name, 0, shape[0])
        if not nodes:
            return IdentityNode(name=name, hint_name=name, inputs=own_terms, output_shape=shape)
        if len(nodes) == 1:
            return nodes[0].model_copy(update={"name": name, "hint_name": name})
        return SequentialNode(name=name, hint_name=name, nodes=nodes, output_shape=shape, inputs=own_terms)

    def _node(self, node: GraphNode, terms: list[list[Read]]) -> ConvNode | PoolNode | ReluNode:
        """One op as a node that reads these terms."""
        graph, op, name = self._graph, node.op, _plain(node.name)
        named: dict[str, Any] = {
            "name": name, "hint_name": name, "inputs": terms, "output_shape": self._shape(node.outputs[0])
        }  # fmt: skip
        if isinstance(op, Relu):
            return ReluNode(**named)
        types = graph.input_types(node)
        if isinstance(op, Conv) and all(value in graph.constants for value in node.inputs[1:]):
            return ConvNode(**named, act="identity", **_convolution(op, types))
        if isinstance(op, GlobalAveragePool | GlobalMaxPool):
            kind = "global_avg" if isinstance(op, GlobalAveragePool) else "global_max"
            return PoolNode(**named, pool_type=kind, kernel=types[0].shape[2:], stride=(1, 1), padding=(0, 0))
        if isinstance(op, AveragePool) and any(op.pads) and not op.count_include_pad:
            raise ScheduleError("an average of the format counts its padding")
        if isinstance(op, MaxPool | AveragePool):
            kind = "avg" if isinstance(op, AveragePool) else "max"
            return PoolNode(**named, pool_type=kind, **_window(op, op.kernel, types))
        raise ScheduleError(f"the format has no node for {op.kind}")

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
        return _without_batch(shape)


def _side_by_side(terms: list[list[Read]]) -> list[list[Read]]:
    """Terms that are adjacent slices of one node merged into one slice, as in the engine's files."""
    found: list[list[Read]] = []
    for term in terms:
        if found and len(term) == len(found[-1]) == 1 and term[0][:2] == (found[-1][0][0], found[-1][0][2]):
            found[-1] = [(term[0][0], found[-1][0][1], term[0][2])]
        else:
            found.append(term)
    return found


def _convolution(op: Conv, inputs: Sequence[TensorType]) -> dict[str, int | tuple[int, ...]]:
    """The fields of a convolution of its own; raises as :func:`_window`."""
    weight = inputs[1].shape
    return {"out_channels": weight[0], "groups": op.groups, **_window(op, weight[2:], inputs)}


def _window(
    op: Conv | MaxPool | AveragePool, kernel: tuple[int, ...], inputs: Sequence[TensorType]
) -> dict[str, tuple[int, ...]]:
    """Kernel, stride and padding; raises ScheduleError for a window that the format cannot say."""
    if len(kernel) != 2 or set(op.dilations) != {1}:
        raise ScheduleError("a window of the format is 2-D and has no dilation")
    padding = op.pads[:2]
    symmetric: Op = replace(op, pads=padding * 2)
    if isinstance(op, MaxPool | AveragePool):
        symmetric = replace(op, pads=padding * 2, ceil_mode=False)
    if symmetric.infer(inputs) != op.infer(inputs):
        raise ScheduleError("padding of the format is the same on both sides, and no window hangs over the end")
    return {"kernel": kernel, "stride": op.strides, "padding": padding}


def _without_batch(shape: tuple[int, ...]) -> Shape:
    return shape[1], shape[2], shape[3]


def _plain(name: str) -> str:
    return "_".join(name.split()) or "node"
