"""In-place placement of values, so that moving data is no work: terms of a concat inside its result, parts of a split
inside its input, an accumulated sum inside the resulting sum.

A concat of channels, of images or of the features of rows launches nothing if the producer of each term writes it into
its slice of the result; a split or a slice of them (queries, keys and values that are one product) launches nothing at
all, since products and kernels of elements take strided rows. This depends on the graph only: a unit costs the same in
any stage.
With channels last, a slice of the channels has gaps. Libraries convolve faster into a dense tensor, which a kernel then
copies: every such convolution recorded on an H100 ran so.

A term is copied if it is an input of the network, a view by itself, is placed elsewhere already (in another concat, or
earlier in this one; as part of a split), or belongs to a merged convolution that puts it elsewhere. The gradient of a
filter is added in place to its accumulator, if nothing else reads that: so the micro-batches of a batch update one
buffer. Inputs of the network are never overwritten: a plan may run again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from weakref import ref

from iossim.hardware.lowering.unit import unit_steps
from iossim.ir.graph import Graph, Node
from iossim.ir.network import Network, once_a_network
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.slice import Concat, Slice, Split
from iossim.ir.types import TensorType

_ROW_ALIGNMENT_BYTES = 16


def starting(rank: int, axis: int, start: int) -> tuple[int, ...]:
    """The starts of a slot that begins at ``start`` along one axis, and at 0 along the others."""
    return tuple(start if index == axis else 0 for index in range(rank))


@dataclass(frozen=True, slots=True)
class Slot:
    """A box of another value: its start, one entry per axis. Its shape is that of the value placed there."""

    value: str
    starts: tuple[int, ...]

    def at(self, starts: tuple[int, ...]) -> Slot:
        """A box within this one, beginning at ``starts`` of it."""
        return Slot(self.value, tuple(map(sum, zip(self.starts, starts, strict=True))))


@dataclass(frozen=True, eq=False)
class InPlaceBuffers:
    """Placement of a network's values inside others.

    ``slots`` has the values placed directly inside another one, which may be inside a third. ``moves`` has for
    each unit (index) that launches nothing of its own the copies it must make, with their destinations, in order.
    """

    of: ref[Network]  # weak: the network keeps its placement, and would otherwise never be freed
    slots: Mapping[str, Slot]
    moves: Mapping[int, tuple[tuple[str, Slot], ...]]

    @property
    def network(self) -> Network:
        """The network; whoever asks about its values has it."""
        found = self.of()
        assert found is not None, "its network is gone"
        return found

    def slot(self, value: str) -> Slot:
        """The outermost value that contains a value, and its place there: itself, if it is in none."""
        found = Slot(value, (0,) * len(self.network.graph.types[value].shape))
        while found.value in self.slots:
            found = self.slots[found.value].at(found.starts)
        return found

    def signature(self, unit: int) -> str:
        """The placement properties that affect a unit's time, as text: equal units of equal text do equal work.

        They are the terms that it copies, and the operands that are strided because they are inside others.
        """
        found, types = self.network.units[unit], self.network.graph.types
        copied = [found.inputs.index(term) for term, _ in self.moves.get(unit, ())]
        strided = [
            index
            for index, name in enumerate((*found.inputs, *found.outputs))
            if self._has_gaps(types[name].shape, self.slot(name))
        ]
        is_copied = unit in self.moves or self._is_copied_view(unit)
        told = {"copies": copied if is_copied else None, "strided": strided or None}
        return ";".join(f"{what}:{','.join(map(str, those))}" for what, those in told.items() if those is not None)

    def merging(self, unit: int) -> str:
        """The place of a unit's result, as text, if a stacked convolution may write it there with those of others."""
        found = self.network.units[unit]
        made = next(iter(found.outputs), "")  # a gradient that nothing reads is no output
        if made not in self.slots or not any(isinstance(node.op, Conv) for node in self.network.unit_nodes(found)):
            return ""
        before = next(iter(self.network.units[unit - 1].outputs), "") if unit else ""
        follows = before in self.slots and self.together([before, made]) is not None
        return "follows" if follows else f"at:{self.slot(made).starts}"

    def copies(self, units: Sequence[int]) -> tuple[TensorType, ...]:
        """Tensors that kernels copy to their places: terms of a concat, or results of a unit, or of several as one
        stacked convolution, after it.
        """
        network, types = self.network, self.network.graph.types
        if units[0] in self.moves:
            return tuple(types[term] for term, _ in self.moves[units[0]])
        made = [value for unit in units for value in network.units[unit].outputs]
        if len(units) > 1:
            whole = self.together(made)
            if whole is None:
                return tuple(types[value] for value in made if value in self.slots)
            images, _, *positions = types[made[0]].shape
            stacked = (images, sum(types[value].shape[1] for value in made), *positions)
            return (TensorType(stacked, types[made[0]].dtype),) * self._has_gaps(stacked, whole)
        if self._is_copied_view(units[0]):
            return tuple(types[value] for value in made if value in self.slots)
        nodes = network.unit_nodes(network.units[units[0]])
        if not (self.channels_last and any(isinstance(node.op, Conv) for node in nodes)):
            return ()
        return tuple(types[value] for value in made if self._has_gaps(types[value].shape, self.slot(value)))

    def together(self, values: Sequence[str]) -> Slot | None:
        """Slot of values that are adjacent in this order, as parts of a stacked convolution; None if they are not."""
        types, slots = self.network.graph.types, [self.slot(value) for value in values]
        begin = 0
        for value, slot in zip(values, slots, strict=True):
            starts = starting(len(types[value].shape), 1, begin)
            if value not in self.slots or slot.value != slots[0].value or slot != slots[0].at(starts):
                return None
            begin += types[value].shape[1]
        return slots[0]

    @cached_property
    def channels_last(self) -> bool:
        """True if images have their channels innermost."""
        network = self.network
        if network.precision.storage.bytes != 2:
            return False
        from iossim.execution.layouts import suits_channels_last  # loaded for numbers of 16 bits alone

        return suits_channels_last(network.graph)

    def _is_copied_view(self, unit: int) -> bool:
        """True if a unit of views alone, such as a reshape, has its result inside another value."""
        found = self.network.units[unit]
        return any(value in self.slots for value in found.outputs) and not unit_steps(self.network, found)

    def _has_gaps(self, shape: tuple[int, ...], slot: Slot) -> bool:
        """True if a box has gaps: it lacks channels of several images, or of one image with channels last; or features
        of several rows.
        """
        whole = self.network.graph.types[slot.value].shape
        several = shape[:1] > (1,) or (self.channels_last and len(shape) > 2)
        return (several and whole[1:] != shape[1:]) or (shape[1:2] > (1,) and whole[2:] != shape[2:])


@once_a_network
def in_place_buffers(network: Network) -> InPlaceBuffers:
    """The placement of all values of a network."""
    graph = network.graph
    slots: dict[str, Slot] = {}
    movers = {index: node for index, unit in enumerate(network.units) if (node := mover(network, unit.nodes))}
    moves: dict[int, tuple[tuple[str, Slot], ...]] = dict.fromkeys(movers, ())
    for node in movers.values():
        if not isinstance(node.op, Concat):
            for value, starts in zip(node.outputs, starts_of_parts(graph, node), strict=True):
                slots[value] = Slot(node.inputs[0], starts)
    for index, node in movers.items():
        if isinstance(node.op, Concat):
            copied = []
            for term, starts in zip(node.inputs, starts_of_parts(graph, node), strict=True):
                slot = Slot(node.outputs[0], starts)
                if term in graph.inputs or term in slots:
                    copied.append((term, slot))
                else:
                    slots[term] = slot
            moves[index] = tuple(copied)
    slots |= dict(_updated(graph, slots))
    return InPlaceBuffers(ref(network), slots, moves)


def _updated(graph: Graph, slots: Mapping[str, Slot]) -> Iterator[tuple[str, Slot]]:
    """Accumulators that filter gradients are added to, placed at the whole output of the gradient."""
    for node in graph.of_kind.get("conv_backward_filter", ()):
        for value in node.inputs[2:]:
            read_once = graph.consumers[value] == (node,) and node.inputs.count(value) == 1
            if value in graph.producer and value not in graph.returned and value not in slots and read_once:
                yield value, Slot(node.outputs[0], (0,) * len(graph.types[value].shape))


def mover(network: Network, nodes: tuple[int, ...]) -> Node | None:
    """The one op of a unit that only moves whole images, whole channels of all images, or features of all rows of
    a sequence; else None.
    """
    if len(nodes) != 1:
        return None
    graph = network.graph
    node = graph.nodes[nodes[0]]
    rank = len(graph.types[node.inputs[0]].shape)
    if rank < 2 or any(name in graph.constants for name in node.inputs):
        return None
    match node.op:
        case Concat() | Split():
            axes = [node.op.axis % rank]
        case Slice() if node.op.steps == (1,):
            axes = [axis % rank for axis in node.op.axes]
        case _:
            return None
    return node if axes in ([0], [1]) or (rank == 3 and axes == [2] and _rows_align(graph, node)) else None


def _rows_align(graph: Graph, node: Node) -> bool:
    """True if the rows of each part begin at multiples of 16 bytes, which products and vector loads require."""
    whole = (node.outputs if isinstance(node.op, Concat) else node.inputs)[0]
    places = [graph.types[whole].shape[2], *(starts[2] for starts in starts_of_parts(graph, node))]
    return not any(place * graph.types[whole].dtype.bytes % _ROW_ALIGNMENT_BYTES for place in places)


def starts_of_parts(graph: Graph, node: Node) -> Iterator[tuple[int, ...]]:
    """Start of each term of a concat in its result, or of each output of a split or slice in its input."""
    whole = graph.types[node.inputs[0]].shape
    if isinstance(node.op, Slice):
        axis = node.op.axes[0] % len(whole)
        yield starting(len(whole), axis, range(whole[axis])[slice(node.op.starts[0], node.op.ends[0])].start)
        return
    assert isinstance(node.op, Concat | Split), "what mover finds"
    axis = node.op.axis % len(whole)
    begin = 0
    for value in node.inputs if isinstance(node.op, Concat) else node.outputs:
        yield starting(len(whole), axis, begin)
        begin += graph.types[value].shape[axis]
