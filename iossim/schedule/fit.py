"""Whether a schedule is one of a network's: the same graph, the same blocks, each unit once, each stage valid.

A stage is valid if everything its units read is made in an earlier stage or earlier in the same group, if its groups
are the connected components of its units (so that they may run side by side, and are priced as they run), and, for a
merged stage, if one convolution computes all of its units.
"""

from __future__ import annotations

from collections.abc import Sequence

from iossim.errors import ScheduleError, did_you_mean
from iossim.ir.merging import merged_convolution
from iossim.ir.network import Block, Network
from iossim.schedule.schedule import BlockSchedule, Schedule, Stage
from iossim.schedule.strategy import Strategy

_REMEDY = "write the schedule again with optimize"


def fit(schedule: Schedule, network: Network) -> None:
    """Raise ScheduleError, naming the block, stage and unit at fault, unless ``schedule`` is one of ``network``'s."""
    if schedule.graph_hash != network.graph.hash:
        raise ScheduleError(
            f"the schedule of {schedule.network!r} is for a graph with hash {schedule.graph_hash}, "
            f"{network.name!r} has {network.graph.hash}; load the model and batch that it was made for, or {_REMEDY}"
        )
    expected = [block.name for block in network.blocks]
    given = [block.name for block in schedule.blocks]
    if given != expected:
        at = next((i for i, pair in enumerate(zip(given, expected, strict=False)) if pair[0] != pair[1]), None)
        reason = (
            f"it has {len(given)} blocks, the network has {len(expected)}"
            if at is None
            else f"its block {at} is {given[at]!r}, the network's is {expected[at]!r}"
        )
        raise ScheduleError(
            f"the schedule of {schedule.network!r} does not fit {network.name!r}: {reason}; {_REMEDY}"
        )
    for block, block_schedule in zip(network.blocks, schedule.blocks, strict=True):
        _fit_block(network, block, block_schedule)


def _fit_block(network: Network, block: Block, schedule: BlockSchedule) -> None:
    members = {network.units[unit].name for unit in block.units}
    seen: set[str] = set()
    for number, stage in enumerate(schedule.stages):
        where = f"block {block.name!r}, stage {number}"
        if not stage.groups or not all(stage.groups):
            raise ScheduleError(f"{where}: it has a group without units; {_REMEDY}")
        for name in stage.units:
            if name not in members:
                reason = "belongs to another block" if name in network.unit_index else "is no unit of the network"
                raise ScheduleError(f"{where}: {name!r} {reason}; {did_you_mean(name, members)}")
            if name in seen:
                raise ScheduleError(f"{where}: unit {name!r} is scheduled twice; keep one of the two")
            seen.add(name)
    missing = sorted(members - seen, key=lambda name: network.unit_index[name])
    if missing:
        others = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise ScheduleError(f"block {block.name!r}: unit {missing[0]!r}{others} is in no stage; add it or {_REMEDY}")
    done: set[str] = set()
    for number, stage in enumerate(schedule.stages):
        where = f"block {block.name!r}, stage {number}"
        _fit_variants(stage, where)
        if stage.strategy is Strategy.MERGE:
            _fit_merged(network, stage, where)
        _fit_order(network, stage, members, done, where)
        for group in stage.groups:
            _fit_connected(network, group, stage, where)
        done.update(stage.units)


def _fit_variants(stage: Stage, where: str) -> None:
    """Variants are of units of the stage; which there are knows whoever prices or runs it."""
    for name in stage.variants:
        if name not in stage.units:
            raise ScheduleError(
                f"{where}: it names a variant of {name!r}, which it does not hold; {did_you_mean(name, stage.units)}"
            )
    if stage.variants and stage.strategy is Strategy.MERGE:
        raise ScheduleError(
            f"{where}: it is merged and names variants; leave them out: it is one convolution of its own"
        )


def _fit_merged(network: Network, stage: Stage, where: str) -> None:
    if len(stage.groups) != 1:
        raise ScheduleError(
            f"{where}: it is merged and has {len(stage.groups)} groups; put the units of a merged stage in one group"
        )
    try:
        merged_convolution(network, [network.unit_index[name] for name in stage.units])
    except ScheduleError as error:
        raise ScheduleError(f"{where}: {error}; use the strategy 'concurrent'") from None


def _fit_order(network: Network, stage: Stage, members: set[str], done: set[str], where: str) -> None:
    """Everything read within the block is made in an earlier stage, or earlier in the same group."""
    group_of = {name: number for number, group in enumerate(stage.groups) for name in group}
    for group in stage.groups:
        ran: set[str] = set()
        for name in group:
            for before in _predecessors(network, name):
                if before not in members or before in done or before in ran:
                    continue
                if before not in group_of:
                    reason = "which runs in a later stage; move it behind that stage"
                elif group_of[before] != group_of[name]:
                    reason = "which runs in another group of the stage; put both in one group"
                else:
                    reason = "which comes later in its group; swap the two"
                raise ScheduleError(f"{where}: unit {name!r} reads {before!r}, {reason}")
            ran.add(name)


def _fit_connected(network: Network, group: Sequence[str], stage: Stage, where: str) -> None:
    """A group of a concurrent stage is one connected component, since that is what its price is for."""
    if stage.strategy is Strategy.MERGE:
        return
    neighbours: dict[str, set[str]] = {name: set() for name in group}
    for name in group:
        for before in _predecessors(network, name):
            if before in neighbours:
                neighbours[name].add(before)
                neighbours[before].add(name)
    reached, frontier = {group[0]}, [group[0]]
    while frontier:
        for name in neighbours[frontier.pop()] - reached:
            reached.add(name)
            frontier.append(name)
    for name in group:
        if name not in reached:
            raise ScheduleError(
                f"{where}: units {group[0]!r} and {name!r} share a group and no edge joins them; "
                "give each connected component a group of its own"
            )


def _predecessors(network: Network, name: str) -> list[str]:
    return [network.units[before].name for before in network.predecessors[network.unit_index[name]]]
