"""Schedules as they run: kernels over time as they are priced, and their blocks on the SMs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

from evidence.guide.drawing import WIDTH, Drawing, colour
from iossim.backends.simulator.events import run_plan
from iossim.backends.simulator.events.multiprocessors import KernelRun, MultiprocessorClass
from iossim.cost.capabilities import DeviceCostModel
from iossim.execution.engine import Engine
from iossim.execution.execution import Span
from iossim.execution.lower import lower_schedule
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.schedule.schedule import Schedule

_LEFT, _LANE, _SM = 14, 26, 2.5
#: Opacity of kernels that prepare a unit's longest one.
_PALE = "0.42"


def timelines(
    network: Network,
    schedules: Sequence[Schedule],
    cost_model: DeviceCostModel,
    step_us: int = 100,
    names: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """One lane for each stream, all on one scale; under the last schedule its bound and its interval. A kernel has the
    label and colour of its unit, or of that unit's name in ``names``; then stages too narrow for their price have none.
    """
    picture = Drawing(f"{' and '.join(each.scheduler for each in schedules)} of {network.name} over time")
    end_us = 1.02 * max(each.latency_us for each in schedules)
    scale, y = (WIDTH - 2 * _LEFT) / end_us, 24.0
    for schedule in schedules:
        spans = cost_model.timeline(network, schedule)
        height = _LANE * (1 + max(span.stream for span in spans)) + 8
        picture.text(_LEFT, y, f"{schedule.scheduler}: {schedule.latency_us:.1f} us", "bold")
        y, x = y + 10, float(_LEFT)
        for stage in schedule.stages:
            apart, wide = scale * stage.boundary_us, scale * stage.latency_us
            picture.box(x, y, apart, height, "sync")
            picture.box(x + apart, y, wide - 1.5, height, "band")
            price = f"{stage.latency_us:.1f}"
            if not names or wide > 8.5 * len(price):
                picture.text(x + apart + wide / 2, y + height + 16, price, "middle soft")
            x += apart + wide
        for span in spans:
            start, wide = _LEFT + scale * span.start_us, max(1.0, scale * (span.end_us - span.start_us))
            units = [names.get(unit, unit) for unit in span.unit.split("+")]
            top, (unit, *merged), long = y + 6 + _LANE * span.stream, units, _is_longest(span, spans)
            more = {} if long else {"fill_opacity": _PALE}
            picture.box(start, top, wide, _LANE - 4 - 5 * len(merged), colour(unit), **more)
            for row, other in enumerate(merged, 1):  # what is merged with it has a strip each
                picture.box(start, top + _LANE - 4 - 5 * row, wide, 5, colour(other), **more)
            label = "+".join(units)
            if long and wide > max(12, 8 * len(label)):
                picture.label(start + wide / 2, top + (13 if merged else 16), label, unit)
        y += height + 44
    last, y = schedules[-1], y - 10
    assert last.interval_us is not None
    assert last.relaxed_bound_us is not None
    bound, low, high = (_LEFT + scale * us for us in (last.relaxed_bound_us, *last.interval_us))
    picture.line(low, y, high, y, "best")
    for x in (bound, low, high):
        picture.line(x, y - 7, x, y + 7, "best")
    picture.text(bound, y + 24, f"bound {last.relaxed_bound_us:.1f}", "middle")
    picture.text(bound + 54, y + 24, f"90% interval {last.interval_us[0]:.1f}-{last.interval_us[1]:.1f}", "")
    picture.axis(y + 42, _LEFT, scale, end_us, step_us)
    return picture.svg(y + 76)


def kernel_sizes(network: Network) -> dict[str, str]:
    """A short name of each unit: the size of a convolution's filter, or the kind of the op."""
    found = {}
    for unit in network.units:
        node = network.graph.nodes[unit.nodes[0]]
        sizes = network.graph.types[node.inputs[1]].shape[2:] if node.op.kind == "conv" else ()
        found[unit.name] = "x".join(map(str, sizes)) or node.op.kind.rpartition("_")[2]
    return found


def blocks_on_sms(network: Network, schedules: Sequence[Schedule], units: Sequence[str], profile: DeviceProfile) -> str:
    """The SMs from top to bottom over time while ``units`` run; an SM is shared in proportion to the warps held."""
    picture = Drawing(f"Blocks of {' and '.join(units)} on the {profile.sm_count} SMs of {profile.name}")
    runs = [_held(network, schedule, units, profile) for schedule in schedules]
    ends_us = [max(held.end_us for held in run) for run in runs]
    scale, y = (WIDTH - 2 * _LEFT) / max(ends_us), 24.0
    for schedule, run, end_us in zip(schedules, runs, ends_us, strict=True):
        busy = sum(len(held.sms) * (held.end_us - held.start_us) for held in run) / (profile.sm_count * end_us)
        picture.text(_LEFT, y, f"{schedule.scheduler}: {end_us:.1f} us, {busy:.0%} of the SMs' time in use", "bold")
        y += 10
        picture.box(_LEFT, y, scale * end_us, _SM * profile.sm_count, "band")
        largest: dict[_Kernel, tuple[float, float, float]] = {}
        for held in run:
            start, wide = _LEFT + scale * held.start_us, scale * (held.end_us - held.start_us)
            # Blocks of two kernels on one SM are drawn on each SM, those of one kernel on all of its SMs at once.
            for sms in [held.sms] if len(held.warps) == 1 else [range(sm, sm + 1) for sm in held.sms]:
                top = y + _SM * sms.start
                for kernel, warps in held.warps:
                    tall = _SM * len(sms) * warps / sum(own for _, own in held.warps)
                    more = {} if kernel.longest else {"fill_opacity": _PALE}
                    picture.box(start, top, wide - 0.7, tall, colour(kernel.unit), **more)
                    largest[kernel] = max(
                        largest.get(kernel, (0.0, 0.0, 0.0)), (wide * tall, start + wide / 2, top + tall / 2)
                    )
                    top += tall
        for kernel, (_, across, middle) in largest.items():
            if kernel.longest:
                picture.label(across, middle + 5, f"{kernel.unit}: {kernel.blocks} blocks", kernel.unit)
        y += _SM * profile.sm_count + 30
    picture.axis(y - 18, _LEFT, scale, max(ends_us), 50)
    return picture.svg(y + 14)


def _is_longest(span: Span, spans: Sequence[Span]) -> bool:
    """True where a kernel is the longest of its unit: the one that does its work, rather than prepares it."""
    return span is max((each for each in spans if each.unit == span.unit), key=lambda each: each.end_us - each.start_us)


class _Kernel(NamedTuple):
    unit: str
    blocks: int
    longest: bool


class _Held(NamedTuple):
    """Contents of SMs over an interval of time: kernels, with the warps of each."""

    start_us: float
    end_us: float
    sms: range
    warps: tuple[tuple[_Kernel, int], ...]


#: The warps of each kernel on an SM.
_Contents = tuple[tuple[KernelRun, int], ...]


def _held(network: Network, schedule: Schedule, units: Sequence[str], profile: DeviceProfile) -> list[_Held]:
    """Contents of the SMs from the start of the first kernel of ``units``, time 0, to the end of the last."""
    present: dict[int, tuple[float, _Contents]] = {}
    past: defaultdict[tuple[float, float, _Contents], list[int]] = defaultdict(list)

    def observe(now: float, classes: list[MultiprocessorClass]) -> None:
        for found in classes:
            residents = sorted(found.residents.values(), key=lambda own: own.run.number)
            contents = tuple((own.run, own.count * own.run.demand.footprint.warps) for own in residents)
            # Blocks placed just now have made no progress: a wave has begun.
            wave = found.updated_us == now and any(own.cohorts[-1].started == own.progress for own in residents)
            for sm in found.sms:
                since, before = present.get(sm, (now, ()))
                if wave or before != contents:
                    past[since, now, before].append(sm)
                    since = now
                present[sm] = since, contents

    engine = Engine.named(schedule.engine or Engine.PAPER)
    spans = run_plan(lower_schedule(schedule, network, engine), network, profile, engine, observer=observe).spans
    span_of = {(span.name, span.start_us, span.end_us): span for span in spans}
    begin_us = min(span.start_us for span in spans if span.unit in units)
    found = []
    for (since, until, contents), sms in past.items():
        own = [(span_of[run.demand.work.name, run.start_us, run.end_us], run, warps) for run, warps in contents]
        if any(span.unit in units for span, _, _ in own):
            warps = tuple(
                (_Kernel(span.unit, run.demand.work.blocks, _is_longest(span, spans)), count)
                for span, run, count in own
            )
            found += [_Held(since - begin_us, until - begin_us, each, warps) for each in _ranges(sorted(sms))]
    return found


def _ranges(numbers: Sequence[int]) -> list[range]:
    """Rising numbers as ranges."""
    ends = [place for place in range(1, len(numbers)) if numbers[place] > numbers[place - 1] + 1]
    return [range(numbers[begin], numbers[end - 1] + 1) for begin, end in pairwise([0, *ends, len(numbers)])]
