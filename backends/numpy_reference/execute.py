"""Runs a plan with NumPy: the proof that a schedule computes what its graph does.

Queues are interleaved as the plan's events and synchronises allow: in issue order, or at random from a seed, since any
order that a device may take must give the same outputs. A merged launch really runs the one stacked convolution, and its
readers see slices of it.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence

from iossim.errors import GraphError, ScheduleError
from iossim.execution.plan import Launch, Plan, Queue, Record, Synchronize, Wait
from iossim.ir.merging import merged_convolution
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.schedule.batch import Strategy


def execute(plan: Plan, network: Network, inputs: Mapping[str, Array], seed: int | None = None) -> dict[str, Array]:
    """The graph's outputs by name, from arrays for its inputs.

    ``seed`` draws an interleaving of the queues; None takes the order of issue. Raises GraphError where ``inputs`` are
    not the graph's, ScheduleError where a launch reads what is not there yet (a plan with a race).
    """
    graph = network.graph
    if plan.graph_hash != graph.hash:
        raise ScheduleError(f"the plan is for another graph than {network.name!r}; lower the schedule again")
    for name in graph.inputs:
        if name not in inputs:
            raise GraphError(f"no array for input {name!r}; give one of {graph.types[name]}")
        if inputs[name].shape != graph.types[name].shape:
            raise GraphError(
                f"input {name!r} has shape {list(inputs[name].shape)}; give an array of {graph.types[name]}"
            )
    memory = _Memory(plan, {name: inputs[name] for name in plan.inputs})
    weights = _Weights(network)
    for launch in plan.launches if seed is None else _interleaving(plan, random.Random(seed)):
        run = _run_merged if launch.strategy is Strategy.MERGE else _run_unit
        results = run(network, launch, [memory.read(name, launch) for name in launch.reads], weights)
        for name, array in zip(launch.writes, results, strict=True):
            memory.write(name, array)
        memory.release(launch.reads)
    return {name: weights.take(name) if name in graph.constants else memory.output(name) for name in graph.outputs}


class _Memory:
    """The buffers that are alive: a storage is dropped when the last of its reads is done."""

    def __init__(self, plan: Plan, inputs: Mapping[str, Array]) -> None:
        self._plan = plan
        self._arrays: dict[str, Array] = dict(inputs)
        reads = [name for launch in plan.launches for name in launch.reads]
        self._reads_left = Counter(plan.region(name).storage for name in (*reads, *plan.outputs))

    def write(self, name: str, array: Array) -> None:
        if self._reads_left[name]:
            self._arrays[name] = array

    def read(self, name: str, reader: Launch) -> Array:
        if self._plan.region(name).storage not in self._arrays:
            raise ScheduleError(f"{reader} reads {name!r}, which is not written yet; the plan lacks an event")
        return self.output(name)

    def output(self, name: str) -> Array:
        region = self._plan.region(name)
        array = self._arrays[region.storage]
        return array if region.storage == name else array[:, region.begin : region.end]

    def release(self, names: Sequence[str]) -> None:
        for name in names:
            storage = self._plan.region(name).storage
            self._reads_left[storage] -= 1
            if not self._reads_left[storage]:
                del self._arrays[storage]


class _Weights:
    """Constants, loaded at their first use and dropped after their last."""

    def __init__(self, network: Network) -> None:
        graph = network.graph
        self._constants = graph.constants
        self._loaded: dict[str, Array] = {}
        self._uses_left = Counter(name for node in graph.nodes for name in node.inputs if name in graph.constants)
        self._uses_left.update(name for name in graph.outputs if name in graph.constants)

    def take(self, name: str) -> Array:
        array = self._loaded.pop(name, None)
        if array is None:
            array = self._constants[name].load()
        self._uses_left[name] -= 1
        if self._uses_left[name]:
            self._loaded[name] = array
        return array


def _run_unit(network: Network, launch: Launch, arrays: Sequence[Array], weights: _Weights) -> list[Array]:
    """The nodes of one unit in order."""
    (name,) = launch.units
    unit = network.units[network.unit_index[name]]
    values = dict(zip(launch.reads, arrays, strict=True))
    for node in network.unit_nodes(unit):
        operands = [values[value] if value in values else weights.take(value) for value in node.inputs]
        values.update(zip(node.outputs, node.op.evaluate(operands), strict=True))
    return [values[value] for value in launch.writes]


def _run_merged(network: Network, launch: Launch, arrays: Sequence[Array], weights: _Weights) -> list[Array]:
    """The stacked convolution of all units, then the activation they share."""
    units = [network.unit_index[name] for name in launch.units]
    merged = merged_convolution(network, units)
    parts = [network.unit_nodes(network.units[unit]) for unit in units]
    constants = [[weights.take(value) for value in nodes[0].inputs[1:]] for nodes in parts]
    weight, bias = merged.stack(
        [part[0] for part in constants], [part[1] if len(part) > 1 else None for part in constants]
    )
    results = merged.op.evaluate([*arrays, weight] if bias is None else [*arrays, weight, bias])
    for activation in parts[0][1:]:
        results = activation.op.evaluate(results)
    return list(results)


def _interleaving(plan: Plan, generator: random.Random) -> Iterator[Launch]:
    """An order that the plan allows: between two synchronises, each step runs the head of a queue drawn from those that wait for nothing."""
    pending: defaultdict[Queue, deque[Launch | Record | Wait]] = defaultdict(deque)
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
            elif isinstance(head, Launch):
                yield head
