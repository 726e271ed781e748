"""Two schedules of one model whose units differ, in terms of what shares a unit in both.

The joins of branches of a model may be fused into products for one schedule, and apart for another. *Parts* are the ops
that share a unit in both schedules; each unit of either is made of one or several. A part has the name of the unit that
it is in either schedule, or of its last op.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from iossim.base.errors import ScheduleError
from iossim.schedule.schedule import AnySchedule, Schedule, Stage
from iossim.transforms.replay import network_of

#: Parts of each unit of a schedule, in topological order.
Parts = Mapping[str, tuple[str, ...]]


def common_parts(first: AnySchedule, second: AnySchedule, model: str | None = None) -> tuple[Parts, Parts]:
    """The parts of two schedules; with the same units in both, each unit is one.

    Raises ScheduleError unless both hold the same ops, and the errors of loading where the units differ.
    """
    ours, theirs = (
        {unit for each in (one.stages if isinstance(one, Schedule) else one.launches) for unit in each.units}
        for one in (first, second)
    )
    if ours == theirs:
        alike = {unit: (unit,) for unit in ours}
        return alike, alike
    networks = [network_of(one, model) for one in (first, second)]
    ops = [node.name for node in networks[0].graph.nodes]
    if ops != [node.name for node in networks[1].graph.nodes]:
        unit = min(ours ^ theirs)
        reason = f"unit {unit!r} is in the {'first' if unit in ours else 'second'} one alone"
        remedy = "give two of the same model, with the same `rewrite` and `micro_batch`"
        raise ScheduleError(f"the schedules belong to different networks: {reason}; {remedy}")
    own, other = ({node: unit.name for unit in network.units for node in unit.nodes} for network in networks)
    last: dict[tuple[str, str], str] = {}
    for node, op in enumerate(ops):
        last.pop((own[node], other[node]), None)  # parts are in the order of their last ops
        last[own[node], other[node]] = op
    counts = [Counter(owners) for owners in zip(*last, strict=True)]
    found: tuple[dict[str, tuple[str, ...]], ...] = {}, {}
    for owners, op in last.items():
        whole = (owner for owner, count in zip(owners, counts, strict=True) if count[owner] == 1)
        name = next(whole, op)
        for parts, owner in zip(found, owners, strict=True):
            parts[owner] = (*parts.get(owner, ()), name)
    return found[0], found[1]


def shared_units(parts: Parts) -> list[tuple[str, ...]]:
    """The units of several parts, which the other schedule has in several units."""
    return [several for several in parts.values() if len(several) > 1]


def in_parts(schedule: Schedule, parts: Parts) -> list[Stage]:
    """The stages of a schedule, with the parts of each unit in its place."""

    def divided(group: list[str]) -> list[str]:
        return [part for unit in group for part in parts[unit]]

    return [stage.model_copy(update={"groups": list(map(divided, stage.groups))}) for stage in schedule.stages]
