"""Parts of the latency interval of a schedule of streams: its launches as stages, and the slopes of its whole plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from math import fsum

import numpy as np

from iossim.cost.capabilities import DeviceCostModel, StreamCostModel
from iossim.execution.execution import Span
from iossim.hardware.profile import DeviceProfile, with_values
from iossim.ir.network import Network
from iossim.schedule.batch import Strategy
from iossim.schedule.schedule import Stage, StreamSchedule
from iossim.search.assemble import plan_us


def plan_changes_us(
    network: Network,
    schedule: StreamSchedule,
    model: DeviceCostModel,
    profile: DeviceProfile,
    steps: Mapping[str, float],
) -> dict[str, float]:
    """Change of the latency of a whole plan when a parameter changes by 1, by its name; ``steps`` are tried."""
    values, found = profile.parameter_values, dict[str, float]()
    assert isinstance(model, StreamCostModel)
    base_us = plan_us(schedule, network, model)
    for name, step in steps.items():
        changed = model.at(with_values(profile, {name: values[name] + step}))
        assert isinstance(changed, StreamCostModel)
        found[name] = (plan_us(schedule, network, changed) - base_us) / step
    return found


def spans_as_stages(
    spans: Sequence[Span], latency_us: float, known: Container[str]
) -> tuple[list[Stage], tuple[tuple[str, ...], ...], float]:
    """Launches as stages, with their parts of the latency; the launches of each stream; and the time in which several
    streams run, us. A span's unit is a ``known`` one, or several that are merged, with plus signs between them.
    """
    took_us: dict[str, float] = defaultdict(float)
    streams: dict[int, dict[str, None]] = defaultdict(dict)
    for span in sorted(spans, key=lambda span: (span.start_us, span.end_us)):
        took_us[span.unit] += span.end_us - span.start_us
        streams[span.stream][span.unit] = None
    scale = latency_us / (fsum(took_us.values()) or 1.0)
    units = [[name] if name in known else name.split("+") for name in took_us]
    stages = [
        Stage(strategy=Strategy.MERGE if len(own) > 1 else Strategy.CONCURRENT, groups=[own], latency_us=scale * own_us)
        for own, own_us in zip(units, took_us.values(), strict=True)
    ]
    edges = sorted([(span.start_us, 1) for span in spans] + [(span.end_us, -1) for span in spans])
    several = np.cumsum([change for _, change in edges])[:-1] > 1
    shared_us = float(np.diff([time_us for time_us, _ in edges])[several].sum())
    return stages, tuple(tuple(streams[number]) for number in sorted(streams)), shared_us
