"""Plans run with NumPy as a device might run them, and watched: queues in any order, memory without a live value NaN."""

import random
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.base.errors import ScheduleError
from iossim.execution.made_inputs import check_graph, check_inputs, launch_graph
from iossim.execution.memory import arena_of
from iossim.execution.plan import Copy, Launch, Plan, Queue, Record, Region, Synchronize, Wait, accesses
from iossim.ir.graph import Graph
from iossim.ir.network import Network
from iossim.ir.op import Array

#: Byte of memory without a live value: floating-point numbers made of it are NaN.
_POISON = 0xFF


def execute(plan: Plan, network: Network, inputs: Mapping[str, Array], seed: int | None = None) -> dict[str, Array]:
    """The arrays of the plan's outputs by name, from arrays for its inputs.

    ``seed`` draws an interleaving of the queues; None uses the order of issue. A plan whose memory is planned runs in
    one arena of exactly its size, in which all memory without a live value is NaN. Raises GraphError if ``inputs`` are
    not the plan's, ScheduleError for a plan of another graph, and if a launch reads a value that does not exist yet (a
    plan with a race).
    """
    check_graph(plan, network)
    check_inputs(inputs, {name: network.graph.types[name] for name in plan.inputs})
    memory = _Memory(plan)
    for name in plan.inputs:
        memory.write(name, inputs[name])
    in_order = (command for command in plan.commands if isinstance(command, Launch | Copy))
    for work in in_order if seed is None else _interleaving(plan, random.Random(seed)):
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


def _interleaving(plan: Plan, generator: random.Random) -> Iterator[Launch | Copy]:
    """A valid order of the plan: each step runs the head of a queue drawn from those that wait for nothing."""
    pending: defaultdict[Queue, deque[Launch | Copy | Record | Wait]] = defaultdict(deque)
    fired: set[int] = set()
    for command in (*plan.commands, Synchronize()):
        if not isinstance(command, Synchronize):
            pending[command.queue].append(command)
            continue
        while any(pending.values()):
            ready = [
                queue
                for queue in sorted(pending)
                if (head := pending[queue][0] if pending[queue] else None)
                and (not isinstance(head, Wait) or head.event in fired)
            ]
            if not ready:
                raise ScheduleError("the plan waits for events that are never recorded; lower the schedule again")
            head = pending[generator.choice(ready)].popleft()
            if isinstance(head, Record):
                fired.add(head.event)
            elif isinstance(head, Launch | Copy):
                yield head
