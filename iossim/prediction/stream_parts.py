"""Parts of the latency interval of a schedule of streams: its launches as stages, and the slopes of its whole plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from math import fsum

import numpy as np

from iossim.cost.capabilities import DeviceCostModel, StreamCostModel
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


def launches_as_stages(network: Network, schedule: StreamSchedule, model: DeviceCostModel) -> tuple[list[Stage], float]:
    """Launches as stages, with their parts of the latency, and the time in which several streams run, us."""
    spans = model.timeline(network, schedule)
    took_us: dict[str, float] = defaultdict(float)
    for span in spans:
        took_us[span.unit] += span.end_us - span.start_us
    scale = schedule.latency_us / (fsum(took_us.values()) or 1.0)
    named = ((Strategy.MERGE if len(one.units) > 1 else Strategy.CONCURRENT, one.units) for one in schedule.launches)
    stages = [Stage(strategy=how, groups=[own], latency_us=scale * took_us["+".join(own)]) for how, own in named]
    edges = sorted([(span.start_us, 1) for span in spans] + [(span.end_us, -1) for span in spans])
    several = np.cumsum([change for _, change in edges])[:-1] > 1
    return stages, float(np.diff([time_us for time_us, _ in edges])[several].sum())
