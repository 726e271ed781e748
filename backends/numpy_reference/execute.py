"""Graphs and plans computed with NumPy: the definition of a graph's result, and the check of a schedule's.

A graph is evaluated op by op, in order, and a plan in the order of issue. A merged launch really runs the one stacked
convolution, and its consumers read slices of it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from iossim.base.errors import ScheduleError
from iossim.execution.made_inputs import check_graph, check_inputs, launch_graph
from iossim.execution.memory import arena_of
from iossim.execution.plan import Copy, Launch, Plan, Region, accesses
from iossim.ir.graph import Graph
from iossim.ir.network import Network
from iossim.ir.op import Array


def evaluate_graph(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays of the graph's outputs by name, from arrays for its inputs.

    Weights are loaded when they are read and not kept; other values are dropped after their last consumer. Raises
    GraphError if ``inputs`` are not the graph's.
    """
    check_inputs(inputs, {name: graph.types[name] for name in graph.inputs})
    known: dict[str, Array] = {name: inputs[name] for name in graph.inputs}
    readers_left = Counter(name for node in graph.nodes for name in set(node.inputs))
    readers_left.update(graph.outputs)
    for node in graph.nodes:
        arrays = [known[name] if name in known else graph.constants[name].load() for name in node.inputs]
        known.update(zip(node.outputs, node.op.evaluate(arrays), strict=True))
        readers_left.subtract(set(node.inputs))
        for name in (*node.inputs, *node.outputs):
            if not readers_left[name]:
                known.pop(name, None)
    return {name: known[name] if name in known else graph.constants[name].load() for name in graph.outputs}


def numpy_outputs(network: Network, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    """A network's outputs, as a :data:`~iossim.execution.measured_run.Reference`."""
    return evaluate_graph(network.graph, inputs)


#: Byte of memory without a live value: floating-point numbers made of it are NaN.
_POISON = 0xFF


def execute(plan: Plan, network: Network, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays of the plan's outputs by name, from arrays for its inputs.

    A plan whose memory is planned runs in one arena of exactly its size, in which all memory without a live value is
    NaN. Raises GraphError if ``inputs`` are not the plan's, ScheduleError for a plan of another graph, and if a launch
    reads a value that does not exist yet (a plan with a race).
    """
    check_graph(plan, network)
    check_inputs(inputs, {name: network.graph.types[name] for name in plan.inputs})
    memory = _Memory(plan)
    for name in plan.inputs:
        memory.write(name, inputs[name])
    for work in (command for command in plan.commands if isinstance(command, Launch | Copy)):
        read, written = accesses(work)
        arrays = [memory.read(name, work) for name in read]
        results = arrays if isinstance(work, Copy) else _results(launch_graph(network, work), arrays)
        if isinstance(work, Launch) and work.workspace is not None:
            memory.poison(work.workspace)
        # The workspace, if any, is the last of the written buffers, and has no result.
        for name, array in zip(written, results, strict=False):
            memory.write(name, array)
        memory.release(read)
    return {name: memory.read(name, None).copy() for name in plan.outputs}


class _Memory:
    """The storages of a plan: in one arena if planned, else allocated at their first write.

    A storage is dropped, or poisoned in the arena, after its last read.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._arena = None if plan.offsets is None else np.full(plan.arena_bytes, _POISON, dtype=np.uint8)
        self._arrays: dict[str, Array] = {}
        self._written: defaultdict[str, list[Region]] = defaultdict(list)
        reads = [name for command in plan.commands for name in accesses(command)[0]]
        self._reads_left = Counter(plan.region(name).storage for name in (*reads, *plan.outputs))

    def write(self, name: str, array: Array) -> None:
        region = self._plan.region(name)
        if self._reads_left[region.storage]:
            self._array(name)[...] = array
            self._written[region.storage].append(region)

    def read(self, name: str, reader: Launch | Copy | None) -> Array:
        region = self._plan.region(name)
        if not region.covered_by(self._written[region.storage]):
            raise ScheduleError(
                f"{reader or 'the host'} reads {name!r}, which is not written yet; the plan lacks an event"
            )
        return self._array(name)

    def poison(self, storage: str) -> None:
        if self._arena is not None:
            self._arena[arena_of(self._plan, self._plan.buffers[storage])] = _POISON

    def release(self, names: Sequence[str]) -> None:
        inputs = {self._plan.region(name).storage for name in self._plan.inputs}
        for name in names:
            storage = self._plan.region(name).storage
            self._reads_left[storage] -= 1
            if not self._reads_left[storage] and storage not in inputs:
                self.poison(storage)
                self._arrays.pop(storage, None)
                self._written.pop(storage, None)

    def _array(self, name: str) -> Array:
        region = self._plan.region(name)
        storage = self._plan.buffers[region.storage]
        if storage.name not in self._arrays:
            dtype, shape = storage.type.dtype.numpy, storage.type.shape
            if self._arena is None:
                self._arrays[storage.name] = np.empty(shape, dtype)
            else:
                self._arrays[storage.name] = self._arena[arena_of(self._plan, storage)].view(dtype).reshape(shape)
        return self._arrays[storage.name][region.box.selection]


def _results(graph: Graph, arrays: Sequence[Array]) -> list[Array]:
    """The outputs of what a launch computes, in order; a merged one really runs the stacked convolution."""
    made = evaluate_graph(graph, dict(zip(graph.inputs, arrays, strict=True)))
    return [made[name] for name in graph.outputs]
