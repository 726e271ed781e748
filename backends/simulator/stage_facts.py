"""Why a stage takes what it takes: its time, divided by what holds it up.

The time of a stage is that of the stream which ends last, and what this stream does at each moment is known: it waits
for the host, its kernel starts, is busy with its longest resource (Williams et al., the roofline model, 2009), waits
because the kernel does not fill the SMs, or is slower than alone because of others. The parts add up to the whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate
from math import ceil, fsum

import numpy as np

from iossim.backends.simulator.kernel_model import KernelModel
from iossim.backends.simulator.kernel_rows import CORE_CLASSES, TENSOR_CLASSES, TILED_CLASSES, kernel_table
from iossim.backends.simulator.kernel_times import (
    ARITHMETIC,
    DRAM,
    L2,
    POWER,
    RESULTS,
    WAITED,
    arithmetic_times,
    grid_blocks,
    time_kernels,
)
from iossim.backends.simulator.stage_runs import StageRun
from iossim.base.compiled import Floats
from iossim.cost.facts import KernelFacts, Limit, StageFacts
from iossim.hardware.compute_capability import WARP_THREADS
from iossim.hardware.lowering.kernel import Kernel, resident_blocks
from iossim.ir.network import Network
from iossim.schedule.schedule import Stage


def stage_facts(run: StageRun, network: Network, stage: Stage) -> StageFacts:
    """The facts of a run of a stage of a network's schedule."""
    units = [network.unit_index[name] for name in stage.units]
    kernels = [kernel for unit in run.prepared.units for kernel in unit.kernels]
    profile = run.models[0].profile
    table = kernel_table(profile.limits, kernels)
    of_kernel = [model for model, unit in zip(run.models, run.prepared.units, strict=True) for _ in unit.kernels]
    times = np.zeros((len(kernels), RESULTS))
    for model in set(of_kernel):
        own = [index for index, one in enumerate(of_kernel) if one is model]
        times[own] = time_kernels(table[own], model.rates)
    blocks = [int(grid_blocks(row, model.rates)) for row, model in zip(table, of_kernel, strict=True)]
    peak_tflops = max(profile.fp32_tflops, profile.reduced_precision_tflops(network.precision) or 0.0)
    facts = _kernels(run, kernels, blocks, times, of_kernel, peak_tflops > profile.fp32_tflops)
    duration_us = run.duration_us
    flops = sum(network.graph.work(node).flops for unit in units for node in network.unit_nodes(network.units[unit]))
    dram_bytes = fsum(
        row[DRAM] * model.rates.dram_bytes_per_us[work_class]
        for row, model, work_class in zip(times.tolist(), of_kernel, table["work_class"].tolist(), strict=True)
    )
    begin = run.prepared.kernels.kernel_begin.tolist()
    chains = [fsum(run.prepared.units[unit].device_us for unit in group) for group in run.groups]
    warps_us = fsum((one.end_us - one.start_us) * one.occupancy for one in facts)
    used = (
        (warps_us, duration_us),
        (flops, peak_tflops * 1e6 * duration_us),
        (dram_bytes, profile.dram_bandwidth_gbps * 1e3 * duration_us),
    )
    occupancy, arithmetic, dram = (min(1.0, asked / most) if duration_us else 0.0 for asked, most in used)
    return StageFacts(
        duration_us,
        _divided(run, facts, begin),
        max(chains, default=0.0),
        fsum(us for unit in run.prepared.units for us in unit.host_us),
        *(occupancy, arithmetic, dram),
        tuple(sorted(facts, key=lambda one: (one.stream, one.start_us))),
        tuple(map(len, run.sms)),
        profile.device_kind.multiprocessors,
    )


def _kernels(
    run: StageRun,
    kernels: Sequence[Kernel],
    blocks: Sequence[int],
    times: Floats,
    models: Sequence[KernelModel],
    has_tensor_cores: bool,
) -> list[KernelFacts]:
    """The facts of all kernels, in the run's order; ``blocks`` of the grid and ``models`` one a kernel."""
    if not kernels:
        return []
    profile = models[0].profile
    labels = [label for label, unit in zip(run.labels, run.prepared.units, strict=True) for _ in unit.kernels]
    alone_us = [price.alone_us for unit in run.prepared.units for price in unit.prices]
    found = []
    for kernel, count, label, own_us, row, span, model in zip(
        kernels, blocks, labels, alone_us, times, run.spans, models, strict=True
    ):
        sms = int(model.rates.sms)
        resident = resident_blocks(profile.limits, *kernel.block_needs)
        spread = min(count / sms, resident)
        warps = ceil(kernel.threads_per_block / WARP_THREADS)
        found.append(
            KernelFacts(
                kernel.name,
                label,
                int(span[0]),
                *(float(span[1]), float(span[2]), own_us),
                count,
                resident,
                count / (sms * resident) if resident else float("inf"),
                min(1.0, spread * warps / profile.limits.resident_warps) * (sms / profile.sm_count),
                _alone(kernel, own_us, row, model, len(run.groups) > 1, has_tensor_cores),
            )
        )
    return found


def _alone(
    kernel: Kernel, alone_us: float, times: Floats, model: KernelModel, has_neighbours: bool, has_tensor_cores: bool
) -> dict[Limit, float]:
    """Limits of a kernel on an idle device: start, wait for DRAM, the longest resource as far as it fills the SMs."""
    rates, sms = model.rates, int(model.rates.sms)
    (row,) = kernel_table(model.profile.limits, (kernel,))
    start_us = min(alone_us, rates.gap_us + float(rates.ramp_us[row["work_class"]]))
    waited_us = float(times[WAITED])
    body_us = alone_us - start_us - waited_us
    l2_drawn, dram_drawn = (float(drawn[row["work_class"]]) for drawn in (rates.l2_drawn, rates.dram_drawn))
    l2_us, dram_us = float(times[L2]) / l2_drawn, float(times[DRAM]) / dram_drawn
    longest_us = max(times[ARITHMETIC], l2_us, dram_us)
    parts: dict[Limit, float] = {Limit.START: start_us} | ({Limit.DRAM: waited_us} if waited_us else {})
    if body_us <= 0.0 or longest_us <= 0.0:
        return {Limit.START: alone_us}
    spread = kernel.blocks / sms
    even = spread / ceil(spread)
    issue_us = arithmetic_times(row, rates, spread, ceil(spread))[1]
    hidden = 1.0
    if dram_us == longest_us:
        limit, filled = Limit.DRAM, dram_drawn
    elif l2_us == longest_us:
        # The traffic of streaming kernels counts as spread over all SMs.
        limit, filled = Limit.L2, max(issue_us / longest_us, even) if kernel.work_class in TILED_CLASSES else l2_drawn
    elif times[POWER] == longest_us:
        limit, filled = Limit.POWER, 1.0
    else:
        # The busiest SM, if its warps hid all latency, would end after this part of the time.
        limit = Limit.CUDA_CORES if has_tensor_cores and kernel.work_class not in TENSOR_CLASSES else Limit.ARITHMETIC
        hidden = min(1.0, issue_us / even / longest_us)
        filled = even * hidden
    if kernel.work_class in CORE_CLASSES:
        # A thread has a core; the others are idle unless other groups have them.
        filled, hidden = 1.0 if has_neighbours else even, 1.0
    filled = min(1.0, filled)
    idle = {limit: filled, Limit.UNFILLED: hidden - filled, Limit.LATENCY: 1.0 - hidden}
    return parts | {one: parts.get(one, 0.0) + part * body_us for one, part in idle.items() if part > 0.0}


def _divided(run: StageRun, kernels: Sequence[KernelFacts], begin: Sequence[int]) -> dict[Limit, float]:
    """The time of the stream that ends last, by what held it up."""
    if not kernels:
        return {}
    issued_us = _issued(run, begin)
    last = max(range(len(kernels)), key=lambda index: (kernels[index].end_us, -kernels[index].stream))
    stream = kernels[last].stream
    own = sorted(
        (index for index in range(len(kernels)) if kernels[index].stream == stream),
        key=lambda index: (kernels[index].start_us, index),
    )
    parts: dict[Limit, list[float]] = defaultdict(list)
    before_us = 0.0
    for index in own:
        kernel = kernels[index]
        wait_us = kernel.start_us - before_us
        # A stage of one group is no fluid: all that its stream waits for is the host.
        host_us = wait_us if len(run.groups) == 1 else min(wait_us, max(0.0, issued_us[index] - before_us))
        parts[Limit.HOST].append(host_us)
        parts[Limit.QUEUE].append(wait_us - host_us)
        taken_us = kernel.end_us - kernel.start_us
        parts[Limit.SHARING].append(max(0.0, taken_us - kernel.alone_us))
        for limit, us in kernel.limits_us.items():
            parts[limit].append(us)
        before_us = kernel.end_us
    # A stage of one group ends with its host or its device, whichever is longer.
    parts[Limit.HOST].append(run.duration_us - before_us)
    totals = {limit: fsum(parts[limit]) for limit in Limit if limit in parts}
    return {limit: us for limit, us in totals.items() if us > 1e-9 * run.duration_us}


def _issued(run: StageRun, begin: Sequence[int]) -> dict[int, float]:
    """Time of issue of each kernel, by its number, group after group, us."""
    units = [unit for group in run.groups for unit in group]
    kernels = [kernel for unit in units for kernel in range(begin[unit], begin[unit + 1])]
    host_us = [us for unit in units for us in run.prepared.units[unit].host_us]
    return dict(zip(kernels, accumulate(host_us), strict=True))
