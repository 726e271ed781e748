"""Stages of a schedule as the simulator runs them: when each kernel starts and ends, and on which SMs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from iossim.backends.simulator.device_sharing import Fluid, KnownSlowdowns
from iossim.backends.simulator.kernel_model import KernelModel
from iossim.backends.simulator.preparation import PreparedProblem
from iossim.backends.simulator.stage_pricing import StagePricing, price_concurrent
from iossim.base.compiled import Floats
from iossim.base.errors import ScheduleError
from iossim.execution.backend import Divided
from iossim.execution.execution import Span
from iossim.ir.network import Block, Network
from iossim.schedule.batch import FASTEST, Strategy
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.schedule.schedule import Schedule, Stage


@dataclass(frozen=True, eq=False)
class StageRun:
    """A stage as it ran. ``spans``, ``[kernels, 3]``: stream, start and end of each kernel of ``prepared``.

    ``labels`` are the units, or the merged one, and ``models`` what priced the kernels of each. ``groups`` of units
    run side by side, in the order of their issue. ``sms`` are the SMs of each group, or empty.
    """

    duration_us: float
    labels: tuple[str, ...]
    prepared: PreparedProblem
    models: tuple[KernelModel, ...]
    groups: tuple[tuple[int, ...], ...]
    spans: Floats
    sms: tuple[range, ...] = ()


def run_stage(pricing: StagePricing, network: Network, stage: Stage, number: int = 0) -> StageRun:
    """Run stage ``number`` of a schedule; raises ScheduleError if its units are to merge and do not."""
    units = sorted(network.unit_index[name] for name in stage.units)
    if stage.strategy is Strategy.MERGE:
        merged = pricing.units.price_merged(network, units)
        names = [network.units[unit].name for unit in units]
        if merged is None:
            raise ScheduleError(f"stage {number}: units {', '.join(names)} do not merge; run them concurrently")
        prepared = PreparedProblem.of([merged])
        labels: tuple[str, ...] = ("+".join(names),)
        mask, predecessors, groups = 1, np.zeros(1, dtype=np.uint64), [1]
    else:
        problem = ScheduleProblem.of_block(network, Block(f"stage {number}", tuple(units)))
        variants = [stage.variants.get(name, FASTEST) for name in problem.unit_names]
        labels, mask, predecessors = problem.unit_names, problem.full, problem.predecessors
        groups = problem.groups(mask)
        if pricing.is_divided and len(groups) > 1:
            return _run_divided(pricing, problem, variants, tuple(tuple(bits(group)) for group in groups))
        prepared = pricing.prepare(problem, variants)
    fluid = Fluid.of(prepared.kernels, pricing.interference, *pricing.limits, KnownSlowdowns.room(1), has_spans=True)
    (duration_us,) = price_concurrent(np.array([mask], dtype=np.uint64), predecessors, [fluid]).tolist()
    models = (pricing.units.whole,) * len(labels)
    return StageRun(duration_us, labels, prepared, models, tuple(tuple(bits(group)) for group in groups), fluid.spans)


def _run_divided(
    pricing: StagePricing, problem: ScheduleProblem, variants: Sequence[str], groups: tuple[tuple[int, ...], ...]
) -> StageRun:
    """A stage of several groups, each on SMs of its own: all as much slower as DRAM and power make the whole."""
    from iossim.backends.simulator.partition import divided_spans

    divided = pricing.partition(problem, variants)
    sms, price_us = divided.divide(groups)
    size_of = {unit: len(part) for group, part in zip(groups, sms, strict=True) for unit in group}
    by_size = {size: pricing.units.price(problem, variants, size) for size in set(size_of.values())}
    units = range(len(problem))
    prepared = PreparedProblem.of([by_size[size_of[unit]][unit] for unit in units])
    spans = divided_spans(prepared, groups, sms, price_us)
    models = tuple(pricing.units.model(size_of[unit]) for unit in units)
    return StageRun(price_us, problem.unit_names, prepared, models, groups, spans, sms)


def timeline(
    pricing: StagePricing, price_boundary: Callable[[bool, bool], float], network: Network, schedule: Schedule
) -> tuple[Span, ...]:
    """Kernels of a schedule with their times; the last end is the schedule's latency, boundaries included."""
    spans: list[Span] = []
    now_us = 0.0
    before: Stage | None = None
    for number, stage in enumerate(schedule.stages):
        if before is not None:
            now_us += price_boundary(before.concurrent, stage.concurrent)
        before = stage
        run = run_stage(pricing, network, stage, number)
        spans += [
            replace(span, start_us=now_us + span.start_us, end_us=now_us + span.end_us)
            for span in kernel_spans(run, number)
        ]
        now_us += run.duration_us
    return tuple(spans)


def kernel_spans(run: StageRun, number: int) -> list[Span]:
    """The kernels of stage ``number`` by stream and start, from the stage's own start."""
    begin = run.prepared.kernels.kernel_begin.tolist()
    sms_of = {unit: sms for group, sms in zip(run.groups, run.sms, strict=False) for unit in group}
    spans = [
        Span(name, label, number, int(stream), start_us, end_us, sms_of.get(unit))
        for unit, (label, price) in enumerate(zip(run.labels, run.prepared.units, strict=True))
        for name, (stream, start_us, end_us) in zip(
            price.names, run.spans[begin[unit] : begin[unit + 1]].tolist(), strict=True
        )
    ]
    return sorted(spans, key=lambda span: (span.stream, span.start_us))


def divided_as_priced(pricing: StagePricing, network: Network) -> Divided:
    """Divides the SMs among the groups of a stage of a network as the stage's price does."""

    def divide(groups: Sequence[Sequence[int]], variants: Mapping[str, str]) -> tuple[range, ...]:
        units = tuple(sorted(unit for group in groups for unit in group))
        problem = ScheduleProblem.of_block(network, Block("stage", units))
        names = [variants.get(name, FASTEST) for name in problem.unit_names]
        place = {unit: index for index, unit in enumerate(problem.units)}
        return pricing.partition(problem, names).divide([[place[unit] for unit in group] for group in groups])[0]

    return divide
