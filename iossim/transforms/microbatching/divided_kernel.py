"""A convolution kernel in micro-batches, as a network and as a plan that any backend runs.

Micro-batches of the forward convolution and of the gradient of the data read ranges of the batch, and write ranges of one result: views, so
that nothing is copied. They are independent, and may run side by side; then their workspaces add up. The gradient of the filter
is a sum over all images: the first micro-batch begins it as the kernel does (at what the caller gives, or at nothing: the
caller's beta), every other adds to it in place (beta 1), one after another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from iossim.execution.backend import Choice, Choices
from iossim.execution.contents import check_contents
from iossim.execution.engine import Engine
from iossim.execution.happens_before import check_happens_before
from iossim.execution.lower import lower_stage
from iossim.execution.memory import plan_memory
from iossim.execution.plan import Plan, Queue
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import ModelSource, Network
from iossim.ir.ops.concat import Concat
from iossim.ir.ops.conv_backward import ConvBackwardFilter
from iossim.ir.ops.split import Split
from iossim.schedule.strategy import Strategy
from iossim.transforms.microbatching.configuration import BenchmarkRow, Configuration
from iossim.transforms.microbatching.conv_kernel import ConvKernel


@dataclass(frozen=True, eq=False)
class DividedPlan:
    """``network`` holds the micro-batches as units, in the order of the configuration; ``plan`` runs them in one arena."""

    network: Network
    plan: Plan

    @property
    def workspace_bytes(self) -> int:
        """The most that all queues together may need at once: what runs in one queue shares."""
        most: dict[Queue, int] = {}
        for launch in self.plan.launches:
            if launch.workspace is not None:
                most[launch.queue] = max(most.get(launch.queue, 0), self.plan.buffers[launch.workspace].bytes)
        return sum(most.values())


def divided_network(kernel: ConvKernel, configuration: Configuration, name: str = "kernel") -> Network:
    """The network that splits what has images, runs each micro-batch, and joins what they make, or adds it up.

    Micro-batch ``i`` is the unit ``NAME.i``; undivided it is ``NAME`` alone. Weights depend on ``name`` only: any two
    divisions have the same.
    """
    sizes = _sizes(configuration)
    is_sum = isinstance(kernel.op, ConvBackwardFilter)
    b = GraphBuilder(name, kernel.precision)
    with b.block(name):
        images: list[Sequence[str]] = []
        for place, of_type in enumerate(kernel.inputs[: kernel.with_images]):
            whole = b.input(f"{name}.input{place}", of_type.shape)
            split = Split(0, sizes)
            images.append([whole] if len(sizes) == 1 else b.add_all(split, whole, name=f"{name}.split{place}"))
        others = [
            b.input(f"{name}.accumulated", of_type.shape)
            if is_sum
            else b.constant(f"{name}.constant{place}", of_type.shape)
            for place, of_type in enumerate(kernel.inputs[kernel.with_images :])
        ]
        made: list[str] = []
        for index in range(len(sizes)):
            given = made[-1:] if is_sum and made else others
            own = name if len(sizes) == 1 else f"{name}.{index}"
            made.append(b.add(kernel.op, *(parts[index] for parts in images), *given, name=own))
        result = made[-1] if is_sum or len(made) == 1 else b.add(Concat(0), *made, name=f"{name}.join")
    return b.network([result], ModelSource(name, kernel.batch))


def divided_plan(
    kernel: ConvKernel,
    configuration: Configuration,
    rows: Iterable[BenchmarkRow],
    engine: str = Engine.GRAPH,
    queues: int = 1,
    name: str = "kernel",
) -> DividedPlan:
    """The plan of a kernel in micro-batches, in turn over so many queues, each as its row says; checked.

    ``rows`` are those that the configuration was made of. The gradient of the filter is a sum, and runs in one queue.
    """
    network = divided_network(kernel, configuration, name)
    micro_batches = [
        index for index, unit in enumerate(network.units) if network.graph.nodes[unit.nodes[0]].op == kernel.op
    ]
    beside = 1 if isinstance(kernel.op, ConvBackwardFilter) else min(queues, len(micro_batches))
    groups = [micro_batches[queue::beside] for queue in range(beside)]
    moved = [index for index in range(len(network.units)) if index not in set(micro_batches)]
    first = [index for index in moved if index < micro_batches[0]]
    groups[0] = [*first, *groups[0], *(index for index in moved if index > micro_batches[0])]
    choices = _choices(network, micro_batches, configuration, rows)
    plan = lower_stage(network, groups, Strategy.CONCURRENT, engine, in_place=True, choices=choices)
    planned = plan_memory(plan)
    check_happens_before(planned)
    check_contents(planned, network)
    return DividedPlan(network, planned)


def _sizes(configuration: Configuration) -> tuple[int, ...]:
    return tuple(part.micro_batch for part in configuration.parts for _ in range(part.count))


def _choices(
    network: Network, micro_batches: Sequence[int], configuration: Configuration, rows: Iterable[BenchmarkRow]
) -> Choices:
    """Of rows of one size and algorithm the fastest that fits the configuration's workspace: the one that it was made of."""
    fitting = sorted(
        (row for row in rows if row.workspace_bytes <= configuration.workspace_bytes), key=lambda row: -row.time_us
    )
    workspace = {(row.batch, row.algorithm): row.workspace_bytes for row in fitting}
    chosen = [
        Choice(part.algorithm, workspace[part.micro_batch, part.algorithm])
        for part in configuration.parts
        for _ in range(part.count)
    ]
    of_unit = dict(zip((network.units[index].name for index in micro_batches), chosen, strict=True))
    return lambda units, strategy, variant="": of_unit[units[0]]
