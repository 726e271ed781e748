"""Convolutions in micro-batches under limits on workspace: those of a network on a device, or kernels that a table describes.

What is found for a network is a schedule that runs: its units one after another, the convolutions in their micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from iossim.base.errors import OptionError
from iossim.cost.capabilities import DeviceCostModel, VariantCostModel
from iossim.cost.measured.cost_model import MeasuredCostModel
from iossim.cost.model import CostModel
from iossim.execution.lower import lower_schedule
from iossim.ir.network import Network
from iossim.schedule.planned_stage import PlannedStage
from iossim.schedule.problem import ScheduleProblem
from iossim.schedule.schedule import Schedule
from iossim.search.assemble import build_schedule
from iossim.search.scheduler import Progress, ignore, schedule
from iossim.search.unsearched import sequential_stages
from iossim.transforms.microbatching.blocks_in_micro_batches import OPTION, Division, with_micro_batches
from iossim.transforms.microbatching.configuration import BenchmarkRow, micro_batch_sizes
from iossim.transforms.microbatching.conv_kernel import ConvKernel
from iossim.transforms.microbatching.divided_blocks import part_name, parts_text
from iossim.transforms.microbatching.divisible import unit_divisible
from iossim.transforms.microbatching.kernels_under_limits import MicroBatching, micro_batch
from iossim.transforms.microbatching.measured import measured_rows
from iossim.transforms.microbatching.memory import divide_in_memory
from iossim.transforms.microbatching.network_kernels import FORWARD, KernelName, convolution_kernels, kernel_name
from iossim.transforms.microbatching.simulated import simulated_rows
from iossim.transforms.microbatching.table import read_table


def of_network(
    network: Network,
    cost_model: CostModel,
    policy: str = "all",
    workspace_limit_bytes: int | None = None,
    total_workspace_limit_bytes: int | None = None,
    training: bool = False,
    progress: Progress = ignore,
    memory_limit_bytes: int | None = None,
) -> MicroBatching:
    """The convolutions of a network: :func:`benchmarks`, divided.

    ``memory_limit_bytes`` is of the arena of the network run unit by unit: activations, and the workspace of what runs.
    """
    known = benchmarks(network, cost_model, policy, training, progress)
    if memory_limit_bytes is None:
        return known.divided(workspace_limit_bytes, total_workspace_limit_bytes)
    if training or total_workspace_limit_bytes is not None:
        other = "total_workspace" if total_workspace_limit_bytes is not None else "pass training"
        raise OptionError(f"`memory_limit` is of a forward pass and all its workspaces; leave {other} out")
    plan = lower_schedule(schedule(network, cost_model, "sequential"), network, in_place=True)
    units = {
        unit.name: [str(KernelName(network.graph.nodes[node].name, FORWARD)) for node in unit.nodes]
        for unit in network.units
    }
    kernels = {unit: [name for name in names if name in map(str, known.batches)] for unit, names in units.items()}
    return micro_batch(
        known.batches,
        known.rows,
        policy,
        workspace_limit_bytes,
        memory_limit_bytes=memory_limit_bytes,
        in_memory=lambda fronts: divide_in_memory(fronts, plan, kernels, memory_limit_bytes),
    )


def runnable_schedule(found: MicroBatching, network: Network, cost_model: CostModel) -> Schedule:
    """The schedule of a network's units one after another, with the convolutions in the micro-batches that were found for them.

    ``network`` has its gradients where these were divided, too. A micro-batch runs as the fastest variant of its unit that
    needs no more workspace than its kernel was given, where the cost model knows workspaces.
    """
    kernels = {one.name: one.configuration for one in found.kernels}
    sizes: dict[str, tuple[int, ...]] = {}
    room_bytes: dict[str, int] = {}
    whole: list[str] = []
    for unit in network.units:
        own = [kernels[name] for node in network.unit_nodes(unit) if (name := kernel_name(node)) in kernels]
        if not own:
            continue
        names, (parts, *others) = [unit.name], {one.sizes for one in own}
        if others or not unit_divisible(network, unit, parts):
            whole.append(unit.name)
        elif len(parts) > 1:
            sizes[unit.name] = parts
            names = [part_name(unit.name, index, parts_text(parts)) for index in range(len(parts))]
        room_bytes |= dict.fromkeys(names, max(one.workspace_bytes for one in own))
    divided = with_micro_batches(network, Division(units=sizes))
    problems = [ScheduleProblem.of_block(divided, block) for block in divided.blocks]
    stages = [_one_by_one(problem, cost_model, room_bytes) for problem in problems]
    notes = [*divided.notes, f"Convolutions in micro-batches: {', '.join(sizes) or 'none'}."]
    if whole:
        notes.append(
            f"These units hold several convolutions, or combine images, and run undivided: {', '.join(whole)}."
        )
    options = {OPTION: {name: len(own) for name, own in sizes.items()}}
    return build_schedule(divided, problems, stages, cost_model, "sequential", options=options, notes=notes)


def _one_by_one(problem: ScheduleProblem, cost_model: CostModel, room_bytes: Mapping[str, int]) -> list[PlannedStage]:
    """A stage a unit, as its fastest variant in the workspace that it has, if it has one; as what needs least where none fits."""
    stages = sequential_stages(problem)
    if not isinstance(cost_model, VariantCostModel):
        return stages
    for unit, (name, variants) in enumerate(zip(problem.unit_names, cost_model.variants(problem), strict=True)):
        if variants[0].workspace_bytes > room_bytes.get(name, variants[0].workspace_bytes):
            fitting = [each for each in variants if each.workspace_bytes <= room_bytes[name]]
            chosen = min(fitting or variants, key=lambda each: each.alone_us if fitting else each.workspace_bytes)
            stages[unit] = replace(stages[unit], variants=((unit, chosen.name),))
    return stages


@dataclass(frozen=True)
class Benchmarks:
    """Kernels, their batches, and what is known of each at the sizes of a policy."""

    batches: Mapping[KernelName, int]
    rows: Mapping[KernelName, tuple[BenchmarkRow, ...]]
    policy: str

    def divided(self, workspace_limit_bytes: int | None, total_workspace_limit_bytes: int | None) -> MicroBatching:
        """The best under a limit of each kernel and one of all; raises OptionError where one is too small."""
        return micro_batch(self.batches, self.rows, self.policy, workspace_limit_bytes, total_workspace_limit_bytes)


def benchmarks(
    network: Network,
    cost_model: CostModel,
    policy: str = "all",
    training: bool = False,
    progress: Progress = ignore,
) -> Benchmarks:
    """Time the convolutions of a network; raises OptionError where it has none, or where the cost model knows no algorithms.

    ``progress`` is told of the distinct kernels that are benchmarked, and how many there are.
    """
    kernels = convolution_kernels(network, training)
    if not kernels:
        raise OptionError(f"{network.name!r} has no convolution whose batch could be divided; give another model")
    distinct = list(dict.fromkeys(kernels.values()))
    known: dict[ConvKernel, tuple[BenchmarkRow, ...]] = {}
    progress(0, len(distinct))
    for done, kernel in enumerate(distinct):
        known[kernel] = _rows(kernel, micro_batch_sizes(policy, kernel.batch), cost_model)
        progress(done + 1, len(distinct))
    return Benchmarks(
        {name: kernel.batch for name, kernel in kernels.items()},
        {name: known[kernel] for name, kernel in kernels.items()},
        policy,
    )


def _rows(kernel: ConvKernel, sizes: Sequence[int], cost_model: CostModel) -> tuple[BenchmarkRow, ...]:
    if isinstance(cost_model, DeviceCostModel):
        return simulated_rows(kernel, sizes, cost_model)
    if isinstance(cost_model, MeasuredCostModel):
        return measured_rows(kernel, sizes, cost_model)
    raise OptionError(
        f"`cost_model` {cost_model.identity.name!r} does not time the algorithms of a convolution one by one; "
        "use the simulator, or give a table"
    )


def of_table(
    path: Path,
    batch: int | None = None,
    policy: str = "all",
    workspace_limit_bytes: int | None = None,
    total_workspace_limit_bytes: int | None = None,
) -> MicroBatching:
    """The kernels of a table, each of ``batch`` images, or of as many as its largest row."""
    rows = {KernelName(kernel, FORWARD): own for kernel, own in read_table(path).items()}
    batches = {name: batch or max(row.batch for row in own) for name, own in rows.items()}
    return Benchmarks(batches, rows, policy).divided(workspace_limit_bytes, total_workspace_limit_bytes)
