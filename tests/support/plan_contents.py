"""What every buffer holds, command by command: proves that a plan free of races computes what its graph does.

The happens-before checker knows memory but not what should be there: a micro-batch that reads its images one too far
reads something that was written. Here each element of a storage is followed back to the element of the graph's value
that it is, through all that only moves values, and each launch is held to what its unit reads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from iossim.base.errors import ScheduleError
from iossim.execution.box import Box
from iossim.execution.happens_before import check_happens_before
from iossim.execution.in_place import mover, starting, starts_of_parts
from iossim.execution.made_inputs import check_graph
from iossim.execution.plan import Copy, Launch, Plan
from iossim.ir.graph import Node
from iossim.ir.merging import merged_convolution
from iossim.ir.network import Network
from iossim.ir.ops.conv_transpose import ConvBackwardFilter
from iossim.ir.ops.slice import Concat
from iossim.schedule.batch import Strategy


def accepted(plan: Plan, network: Network | None = None) -> bool:
    """Whether the checkers accept a plan: that of races, and with its network that of contents."""
    try:
        check_happens_before(plan)
        if network is not None:
            check_contents(plan, network)
    except ScheduleError:
        return False
    return True


class _Piece(NamedTuple):
    """A box that holds elements of ``value``: that of index ``i`` of the box's whole holds element ``i + shift``."""

    box: Box
    value: str
    shift: tuple[int, ...]

    def moved(self, by: tuple[int, ...]) -> _Piece:
        """The same where the whole begins at ``by`` of another."""
        return _Piece(
            self.box.moved(by), self.value, tuple(old - more for old, more in zip(self.shift, by, strict=True))
        )

    def cut(self, box: Box) -> list[_Piece]:
        """What of it lies in a box."""
        common = self.box.common(box)
        return [] if common is None else [self._replace(box=common)]


def check_contents(plan: Plan, network: Network) -> None:
    """Raise ScheduleError, naming launch and value, unless launches and the host read what they should.

    The plan is free of races (:func:`~iossim.execution.happens_before.check_happens_before`).
    """
    check_graph(plan, network)
    contents = _Contents(plan, network)
    for name in plan.inputs:
        contents.write(name, contents.pieces(name))
    for command in plan.commands:
        match command:
            case Launch():
                contents.launch(command)
            case Copy():
                contents.write(command.target, contents.held(command.source))
    for name in plan.outputs:
        contents.read("the host", name, name)


class _Contents:
    """What the storages hold."""

    def __init__(self, plan: Plan, network: Network) -> None:
        self._plan, self._network = plan, network
        self._held: defaultdict[str, list[_Piece]] = defaultdict(list)
        movers = (mover(network, unit.nodes) for unit in network.units)
        self._movers: dict[str, Node] = {value: node for node in movers if node for value in node.outputs}
        self._pieces: dict[str, list[_Piece]] = {}

    def pieces(self, value: str) -> list[_Piece]:
        """What a value is made of: boxes of it that are boxes of values that something computes."""
        if value not in self._pieces:
            self._pieces[value] = self._made_of(value)
        return self._pieces[value]

    def _made_of(self, value: str) -> list[_Piece]:
        graph = self._network.graph
        shape = graph.types[value].shape
        node = self._movers.get(value)
        if node is None:
            return [_Piece(Box.whole(shape), value, (0,) * len(shape))]
        starts = list(starts_of_parts(graph, node))
        if isinstance(node.op, Concat):
            terms = zip(node.inputs, starts, strict=True)
            return [piece.moved(begin) for term, begin in terms for piece in self.pieces(term)]
        begin = starts[node.outputs.index(value)]
        back = tuple(-start for start in begin)
        return [cut.moved(back) for piece in self.pieces(node.inputs[0]) for cut in piece.cut(Box(begin, shape))]

    def held(self, buffer: str) -> list[_Piece]:
        """What a buffer holds, in its own indices."""
        storage, box = self._plan.region(buffer)
        back = tuple(-start for start in box.starts)
        return [cut.moved(back) for piece in self._held[storage] for cut in piece.cut(box)]

    def write(self, buffer: str, pieces: Iterable[_Piece]) -> None:
        storage, box = self._plan.region(buffer)
        own = [piece.moved(box.starts) for piece in pieces]
        left = [piece._replace(box=rest) for piece in self._held[storage] for rest in piece.box.without(box)]
        self._held[storage] = [*left, *own]

    def read(self, who: str, buffer: str, value: str) -> None:
        held = self.held(buffer)
        of_type = self._network.graph.types[value]
        if self._plan.buffers[buffer].type != of_type or not all(
            piece.box.covered_by(one.box for one in held if one[1:] == piece[1:]) for piece in self.pieces(value)
        ):
            raise ScheduleError(
                f"{who} reads {buffer!r} for {value!r}, and that is not what it holds; lower the schedule again"
            )

    def launch(self, launch: Launch) -> None:
        network = self._network
        units = [network.unit_index[name] for name in launch.units]
        if launch.strategy is Strategy.MERGE:
            merged = merged_convolution(network, units)
            reads: tuple[str, ...] = (merged.input,)
            starts = [starting(len(merged.output.shape), 1, begin) for begin in merged.channel_begin[: len(units)]]
            parts = zip((network.units[unit].outputs[0] for unit in units), starts, strict=True)
            writes = [[piece.moved(begin) for value, begin in parts for piece in self.pieces(value)]]
        else:
            (unit,) = (network.units[index] for index in units)
            reads, writes = unit.inputs, [self.pieces(value) for value in unit.outputs]
        if len(launch.reads) != len(reads) or len(launch.writes) != len(writes):
            raise ScheduleError(
                f"{launch} reads {len(launch.reads)} buffers and writes {len(launch.writes)}, not {len(reads)} and "
                f"{len(writes)} as its units do; lower the schedule again"
            )
        if launch.adds_to is not None and launch.adds_to not in self._sums(launch):
            raise ScheduleError(f"{launch} adds to {launch.adds_to!r}, and its unit does not; lower the schedule again")
        for buffer, value in zip(launch.reads, reads, strict=True):
            self.read(str(launch), buffer, value)
        for buffer, pieces in zip(launch.writes, writes, strict=True):
            self.write(buffer, pieces)

    def _sums(self, launch: Launch) -> list[str]:
        """The buffers that a launch may update in place: what the gradient of a filter adds to."""
        unit = self._network.units[self._network.unit_index[launch.units[0]]]
        nodes = self._network.unit_nodes(unit)
        added = {value for node in nodes if isinstance(node.op, ConvBackwardFilter) for value in node.inputs[2:]}
        return [buffer for buffer, value in zip(launch.reads, unit.inputs, strict=False) if value in added]
