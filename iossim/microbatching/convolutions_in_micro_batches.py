"""Convolutions in micro-batches under limits on workspace: those of a network on a device, or those of a table.

The result for a network is a schedule that runs: its units one after another, the convolutions in their
micro-batches. Kernels are benchmarked algorithm by algorithm at each batch size, as cuDNN's own benchmark does: by a
model of the device, on the device (kept in the store), or by a JSON table of the user's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter, ValidationError

from iossim.base.errors import OptionError, Progress, ignore
from iossim.base.user_files import read_text
from iossim.base.values import first_problem
from iossim.cost.capabilities import DeviceCostModel, VariantCostModel
from iossim.cost.measured.cost_model import MeasuredCostModel
from iossim.cost.measured.record import Kind, MeasurementRecord, Subject
from iossim.cost.model import CostModel, problems_of
from iossim.execution.backend import Samples, TimesAlgorithms, context_of
from iossim.hardware.lowering.target import step_algorithms
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.conv import Conv
from iossim.microbatching.divided_blocks import part_names
from iossim.microbatching.divisible import unit_divisible
from iossim.microbatching.division import BenchmarkRow, micro_batch_sizes
from iossim.microbatching.kernels_under_limits import Benchmarks, MicroBatching
from iossim.microbatching.micro_batches_transform import OPTION, Division, with_micro_batches
from iossim.microbatching.network_kernels import ConvKernel, convolution_kernels, kernel_name
from iossim.prediction.schedule_interval import schedule_errors
from iossim.schedule.planned_stage import PlannedStage
from iossim.schedule.problem import ScheduleProblem
from iossim.schedule.schedule import Schedule
from iossim.search.assemble import build_schedule
from iossim.search.unsearched import sequential_stages


def simulated_rows(kernel: ConvKernel, cost: DeviceCostModel) -> list[BenchmarkRow]:
    """Rows of all algorithms that the device and its libraries have, the fastest first. An algorithm whose kernels
    differ in workspace has a row for each that no other of them beats in both time and workspace.
    """
    algorithms = step_algorithms(kernel.step(), cost.profile)
    candidates = [one for found in algorithms.values() for one in found]
    names = [name for name, found in algorithms.items() for _ in found]
    prices = cost.price_candidates(candidates)
    workspace = np.array([one.workspace_bytes for one in candidates], dtype=np.int64)
    least: dict[str, int] = {}
    rows: list[BenchmarkRow] = []
    for place in np.lexsort((workspace, prices)).tolist():
        name, size = names[place], candidates[place].workspace_bytes
        if np.isfinite(prices[place]) and size < least.get(name, size + 1):
            least[name] = size
            rows.append(BenchmarkRow(kernel.batch, name, float(prices[place]), size))
    return rows


def read_table(path: Path) -> dict[str, tuple[BenchmarkRow, ...]]:
    """The rows of each kernel, in the order of the file, which is ``{"conv2": [{"batch": 8, "algorithm": "fft",
    "time_us": 1.0, "workspace_bytes": 4096}, ...], ...}``; raises OptionError naming kernel, row and field.
    """
    text = read_text(path, "benchmarks", "give a JSON file of rows by kernel", OptionError)
    try:
        found = TypeAdapter(dict[str, list[BenchmarkRow]]).validate_json(text)
    except ValidationError as error:
        raise OptionError(f"benchmarks {path}: {first_problem(error)}") from None
    if not found:
        raise OptionError(f"benchmarks {path}: there is no kernel in it; give one a name and rows")
    for kernel, rows in found.items():
        if not rows:
            raise OptionError(
                f"benchmarks {path}: kernel {kernel!r} has no rows; add one for each batch size and algorithm"
            )
    return {kernel: tuple(rows) for kernel, rows in found.items()}


def measured_rows(kernel: ConvKernel, model: MeasuredCostModel) -> list[BenchmarkRow]:
    """Rows of all algorithms that the backend offers; raises OptionError where it cannot tell them apart."""
    backend = model.backend
    if not isinstance(backend, TimesAlgorithms):
        raise OptionError(
            f"`cost_model` {model.context.backend} does not time the algorithms of a convolution one by one; use the "
            "simulator or cupy_cudnn, or give a table"
        )
    network = _alone(kernel)
    # This is not the signature of a stage, so that look-ups of stages find no algorithms.
    signature = f"algorithms of {network.signatures[0]}"
    context = context_of(backend, network)
    records = [] if model.again else model.store.of_kind(context, Kind.ALGORITHM)
    # Only the latest of the measurements of a kernel counts; its algorithms share a date.
    kept = [record for record in records if record.signature == signature]
    kept = [record for record in kept if record.date == kept[-1].date]
    if not kept:
        found = backend.algorithms(network, "kernel")
        alike = partial(MeasurementRecord, context, Kind.ALGORITHM, signature, 1, 0)
        words = f"{kernel.op.kind}, batch {kernel.batch}"
        subjects: list[Subject] = [{"words": words, "workspace_bytes": one.workspace_bytes} for one in found]
        pairs = zip(found, subjects, strict=True)
        kept = [alike(Samples((one.alone_us,)), one.name, subject=subject) for one, subject in pairs]
        kept = [replace(record, date=kept[0].date) for record in kept]
        model.store.add(kept)
    return [
        BenchmarkRow(kernel.batch, record.algorithm, record.samples.median_us, int(record.subject["workspace_bytes"]))
        for record in kept
    ]


def _alone(kernel: ConvKernel) -> Network:
    """The kernel alone, without a bias; raises OptionError for a gradient, which no backend offers algorithms of."""
    op = kernel.op
    if not isinstance(op, Conv):
        raise OptionError("algorithms of gradients are not measured; use the simulator, or give a table")
    x, weight = kernel.inputs
    builder = GraphBuilder("kernel", kernel.precision)
    value = builder.input("x", x.shape)
    with builder.unit("kernel", "Conv"):
        value = builder.add(op, value, builder.constant("w", weight.shape), name="kernel")
    return builder.network([value])


def with_interval(
    found: MicroBatching, known: Benchmarks, network: Network, cost_model: CostModel, training: bool
) -> MicroBatching:
    """The division with the interval of its time; unchanged where the times are measurements."""
    errors = schedule_errors(network, cost_model)
    if errors is None:
        return found
    kernels = convolution_kernels(network, training)
    timed = []
    for one in found.kernels:
        fitting = [row for row in known.rows[one.name] if row.workspace_bytes <= one.configuration.workspace_bytes]
        for part in one.configuration.parts:
            own = (row.time_us for row in fitting if (row.batch, row.algorithm) == (part.micro_batch, part.algorithm))
            timed.append((kernels[one.name].of_batch(part.micro_batch).step(), min(own), part.count))
    interval = errors.interval_of_steps(timed)
    remarks = (interval.remark,) if interval.remark else ()
    return replace(found, interval_us=(interval.low_us, interval.high_us), remarks=remarks)


def runnable_schedule(found: MicroBatching, network: Network, cost_model: CostModel) -> Schedule:
    """The schedule of a network's units one after another, with the convolutions in the micro-batches found for them.

    ``network`` has its gradients where these were divided, too. A micro-batch runs as the fastest variant of its unit
    that needs no more workspace than its kernel was given, where the cost model knows workspaces.
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
            names = list(part_names(unit.name, parts))
        room_bytes |= dict.fromkeys(names, max(one.workspace_bytes for one in own))
    divided = with_micro_batches(network, Division(units=sizes))
    problems = problems_of(divided, cost_model)
    stages = [_one_by_one(problem, cost_model, room_bytes) for problem in problems]
    notes = [*divided.notes, f"Convolutions in micro-batches: {', '.join(sizes) or 'none'}."]
    if whole:
        notes.append(
            f"These units hold several convolutions, or combine images, and run undivided: {', '.join(whole)}."
        )
    options = {OPTION: {name: len(own) for name, own in sizes.items()}}
    return build_schedule(divided, problems, stages, cost_model, "sequential", options=options, notes=notes)


def _one_by_one(problem: ScheduleProblem, cost_model: CostModel, room_bytes: Mapping[str, int]) -> list[PlannedStage]:
    """A stage a unit, as its fastest variant in the workspace that it has; where none fits, the smallest."""
    stages = sequential_stages(problem)
    if not isinstance(cost_model, VariantCostModel):
        return stages
    for unit, (name, variants) in enumerate(zip(problem.unit_names, cost_model.variants(problem), strict=True)):
        if variants[0].workspace_bytes > room_bytes.get(name, variants[0].workspace_bytes):
            fitting = [each for each in variants if each.workspace_bytes <= room_bytes[name]]
            chosen = min(fitting or variants, key=lambda each: each.alone_us if fitting else each.workspace_bytes)
            stages[unit] = replace(stages[unit], variants=((unit, chosen.name),))
    return stages


def benchmarks(
    network: Network, cost_model: CostModel, policy: str = "all", training: bool = False, progress: Progress = ignore
) -> Benchmarks:
    """Time the convolutions of a network; raises OptionError where it has none, or where the cost model knows no
    algorithms. ``progress`` is told of the sizes of micro-batches that are benchmarked, of all distinct kernels.
    """
    kernels = convolution_kernels(network, training)
    if not kernels:
        raise OptionError(f"{network.name!r} has no convolution whose batch could be divided; give another model")
    known: dict[ConvKernel, list[BenchmarkRow]] = {kernel: [] for kernel in kernels.values()}
    wanted = [(kernel, size) for kernel in known for size in micro_batch_sizes(policy, kernel.batch)]
    progress(0, len(wanted))
    for done, (kernel, size) in enumerate(wanted, 1):
        known[kernel] += _rows(kernel.of_batch(size), cost_model)
        progress(done, len(wanted))
    return Benchmarks(
        {name: kernel.batch for name, kernel in kernels.items()},
        {name: tuple(known[kernel]) for name, kernel in kernels.items()},
        policy,
    )


def _rows(kernel: ConvKernel, cost_model: CostModel) -> list[BenchmarkRow]:
    if isinstance(cost_model, DeviceCostModel):
        return simulated_rows(kernel, cost_model)
    if isinstance(cost_model, MeasuredCostModel):
        return measured_rows(kernel, cost_model)
    raise OptionError(
        f"`cost_model` {cost_model.identity.name!r} does not time the algorithms of a convolution one by one; "
        "use the simulator, or give a table"
    )
