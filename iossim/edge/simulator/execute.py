"""Execution of a plan with NumPy: bytes in its memories, in its layouts with their halos, chunk by chunk.

Units and lanes run one after another: each stage ends with a barrier, and none of its units or lanes reads what another
writes. Every unit has its own private memory. All memories are poisoned at the start, and private ones again for each
slice, so that the outputs reveal a unit that reads data it did not load, or a feature map that was never written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from operator import sub

import numpy as np
from numpy.typing import NDArray

from iossim.edge.access import AS_IT_LIES, Order
from iossim.edge.linking import Layout, MemoryKind
from iossim.edge.operators import Operator, Reader, run_calls
from iossim.edge.plan import EdgePlan, OperatorStep, OutputSlice, Staged, Work, unit_work
from iossim.execution.made_inputs import check_inputs
from iossim.execution.plan import Box
from iossim.ir.op import Array
from iossim.ir.ops.matmul import Gemm
from iossim.ir.types import TensorType

#: Value of every unwritten byte: floating-point numbers made of it are NaN.
_POISON = 0xFF
_Memory = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Stored:
    """A feature map, or the box ``space`` of it, in a memory from ``address`` on, block after block of its layout."""

    memory: _Memory
    address: int
    layout: Layout
    type: TensorType
    space: Box

    @cached_property
    def blocks(self) -> list[tuple[Box, Array]]:
        """Each block that is stored here, and its bytes as an array of the axes in order."""
        rank = len(self.type.shape)
        axes = self.layout.order.axes or tuple(range(rank))
        back = tuple(axes.index(axis) for axis in range(rank))
        found, address = [], self.address
        for block in self.layout.blocks(self.type.shape):
            own = block.common(self.space) or Box(block.starts, (0,) * rank)
            size = math.prod(own.shape) * self.type.dtype.bytes
            raw = self.memory[address : address + size].view(self.type.dtype.numpy)
            found.append((own, raw.reshape([own.shape[axis] for axis in axes]).transpose(back)))
            address += size
        return found

    def put(self, box: Box, array: Array) -> None:
        """Write a box into every block that has a part of it."""
        for block, lies in self.blocks:
            if (part := block.common(box)) is not None:
                lies[_within(part, block)] = array[_within(part, box)]

    def get(self, box: Box, order: Order = AS_IT_LIES) -> Array:
        """Read a box, each row from the bands that its reader visits."""
        made = np.empty(box.shape, self.type.dtype.numpy)
        for band, part in self.layout.read(box, self.type.shape, order):
            block, lies = self.blocks[band]
            made[_within(part, box)] = lies[_within(part, block)]
        return made


def _within(part: Box, whole: Box) -> tuple[slice, ...]:
    return tuple(map(slice, *(map(sub, ends, whole.starts) for ends in (part.starts, part.ends))))


def run(plan: EdgePlan, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs of the network, from arrays for its inputs."""
    graph = plan.network.graph
    check_inputs(inputs, {name: graph.types[name] for name in graph.inputs})
    memories = _Memories(plan)
    for name in graph.inputs:
        memories.stored(name).put(Box.whole(graph.types[name].shape), inputs[name])
    for step in (plan.steps[index] for stage in plan.stages for lane in stage for index in lane.steps):
        for part in step.slices:
            _run_slice(memories, step, part)
    return {
        name: memories.stored(name).get(Box.whole(graph.types[name].shape))
        if name in plan.buffers
        else graph.constants[name].load()
        for name in graph.outputs
    }


class _Memories:
    """Bytes of a plan's memories, including the parameters."""

    def __init__(self, plan: EdgePlan) -> None:
        self.plan = plan
        end = max((each.end for each in plan.buffers.values()), default=0)
        parameters = max((at + plan.network.graph.types[name].bytes for name, at in plan.parameters.items()), default=0)
        self.external: _Memory = np.full(max(end, parameters), _POISON, np.uint8)
        self.shared: _Memory = np.full(plan.device.shared.bytes.value, _POISON, np.uint8)
        for name in plan.parameters:
            self.parameter(name)[...] = plan.network.graph.constants[name].load()

    def parameter(self, name: str) -> Array:
        kind = self.plan.network.graph.types[name]
        start = self.plan.parameters[name]
        return self.external[start : start + kind.bytes].view(kind.dtype.numpy).reshape(kind.shape)

    def stored(self, value: str, staged: Staged | None = None) -> Stored:
        buffer, kind = self.plan.buffers[value], self.plan.network.graph.types[value]
        if staged is not None:
            return Stored(self.shared, staged.address, buffer.layout, kind, staged.box)
        memory = self.shared if buffer.memory is MemoryKind.SHARED else self.external
        return Stored(memory, buffer.address, buffer.layout, kind, Box.whole(kind.shape))


def _run_slice(memories: _Memories, step: OperatorStep, part: OutputSlice) -> None:
    maps = {name: memories.stored(name) for name in (*step.operator.inputs, *step.operator.outputs)}
    outside = dict(maps)
    for staged in part.staged:
        maps[staged.value] = memories.stored(staged.value, staged)
    for staged in part.inputs:
        maps[staged.value].put(staged.box, outside[staged.value].get(staged.box))
    for unit in range(part.partition.units):
        _run_unit(memories, step.operator, maps, unit_work(memories.plan, step, part, unit))
    if part.output is not None:
        outside[part.output.value].put(part.output.box, maps[part.output.value].get(part.output.box))


def _run_unit(memories: _Memories, operator: Operator, maps: Mapping[str, Stored], works: Sequence[Work]) -> None:
    private: _Memory = np.full(memories.plan.device.private_bytes.value, _POISON, np.uint8)
    sums: Array | None = None
    for work, following in zip_longest(works, works[1:]):
        if not work.ahead or work is works[0]:
            _load(memories, private, work)
        if following is not None and following.ahead:
            _load(memories, private, following)
        parameters = {name: (box, array) for name, box, _, array in _parameters(memories, private, work)}
        read = _reader(operator, maps, parameters)
        chunk, known = work.chunk, dict[tuple[str, Box], Array]()
        run_calls(chunk.demand.calls, read, known)
        if chunk.part is not None:
            (call,) = chunk.demand.calls
            anchor = call.node.outputs[0], call.box
            sums = known[anchor] if chunk.first or sums is None else sums + known[anchor]
            if not chunk.last:
                continue
            if len(call.node.inputs) == 3:
                sums = sums + _bias(operator, call.node.op, parameters[call.node.inputs[2]][1])
            whole = operator.needed(chunk.demand.box)
            after = [each.node for each in whole.calls].index(call.node) + 1
            known[anchor] = sums
            run_calls(whole.calls[after:], read, known)
        for name, box in operator.boxes(chunk.demand.box).items():
            maps[name].put(box, known[name, box])


def _bias(operator: Operator, op: object, array: Array) -> Array:
    if isinstance(op, Gemm):
        scaled: Array = array * array.dtype.type(op.beta)
        return scaled
    return array.reshape(1, -1, *(1,) * (len(operator.output.shape) - 2))


def _load(memories: _Memories, private: _Memory, work: Work) -> None:
    """Bring the parameters of a chunk to a unit's private memory, if it holds them."""
    for _, _, outside, inside in _parameters(memories, private, work):
        if inside is not outside:
            inside[...] = outside


def _parameters(memories: _Memories, private: _Memory, work: Work) -> Iterator[tuple[str, Box, Array, Array]]:
    """Each box of parameters of a chunk: as stored externally, and where the unit reads it."""
    address = work.private_address
    for name, box in work.chunk.demand.parameters.items():
        outside = inside = memories.parameter(name)[box.selection]
        if work.private_bytes:
            end = address + outside.nbytes
            inside, address = private[address:end].view(outside.dtype).reshape(outside.shape), end
        yield name, box, outside, inside


def _reader(operator: Operator, maps: Mapping[str, Stored], parameters: Mapping[str, tuple[Box, Array]]) -> Reader:
    """Reader of loaded parameters, and of boxes of feature maps from their memories."""

    def read(name: str, box: Box, order: Order) -> Array:
        if name in parameters:
            hull, array = parameters[name]
            return array[_within(box, hull)]
        if all(box.shape):
            return maps[name].get(box, order)
        return np.empty(box.shape, maps[operator.outputs[0]].type.dtype.numpy)

    return read
