"""Checks that a schedule fits a network: same graph and blocks, each unit once, all stages or streams valid.

A stage is valid if all inputs of its units are made in an earlier stage or earlier in the same group, if its groups
are the connected components of its units (so that they may run concurrently, as priced), and, for a
merged stage, if one convolution computes all of its units. Streams are valid if their launches can be issued in some
order, and every producer of a launch's inputs precedes it by its stream's order and the waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import TypeGuard

from iossim.base.errors import ScheduleError, did_you_mean
from iossim.ir.merging import merged_convolution
from iossim.ir.network import Block, Network
from iossim.schedule.batch import FASTEST, Strategy
from iossim.schedule.planned_stage import PlannedStage
from iossim.schedule.problem import ScheduleProblem
from iossim.schedule.schedule import AnySchedule, BlockSchedule, SavedSchedule, Stage, StreamSchedule
from iossim.schedule.streams import issue_order, units_read

#: Unit names, whose groups follow from the graph; groups of names; ``{"merge": names}``; or a stage of a schedule.
OwnStage = Stage | Mapping[str, Sequence[str]] | Sequence[str] | Sequence[Sequence[str]]

_REMEDY = "write the schedule again with optimize"
_MERGED_VARIANT = "it is merged and names variants; leave them out: it is one convolution of its own"


def fit(schedule: AnySchedule, network: Network) -> None:
    """Raise ScheduleError, naming stage or stream and unit, unless ``schedule`` fits ``network``."""
    if schedule.graph_hash != network.graph.hash:
        raise ScheduleError(
            f"the schedule of {schedule.network!r} is for a graph with hash {schedule.graph_hash}, "
            f"{network.name!r} has {network.graph.hash}; load the model and batch that it was made for, or {_REMEDY}"
        )
    if isinstance(schedule, StreamSchedule):
        _fit_streams(network, schedule)
        return
    expected = [block.name for block in network.blocks]
    given = [block.name for block in schedule.blocks]
    if given != expected:
        at = next((i for i, pair in enumerate(zip(given, expected, strict=False)) if pair[0] != pair[1]), None)
        reason = (
            f"it has {len(given)} blocks, the network has {len(expected)}"
            if at is None
            else f"its block {at} is {given[at]!r}, the network's is {expected[at]!r}"
        )
        raise ScheduleError(f"the schedule of {schedule.network!r} does not fit {network.name!r}: {reason}; {_REMEDY}")
    for block, own in zip(network.blocks, schedule.blocks, strict=True):
        _fit_block(network, block, own, [f"block {block.name!r}, stage {number}" for number in range(len(own.stages))])


def fit_stages(network: Network, problems: Sequence[ScheduleProblem], own: Iterable[OwnStage]) -> list[BlockSchedule]:
    """Stages of one's own by block, given one problem a block; raises ScheduleError, naming the stage (counted from 0)
    and the unit, unless they are a schedule of the network.
    """
    if isinstance(own, str | SavedSchedule) or not isinstance(own, Iterable):
        raise ScheduleError(f"{own!r} is no list of stages; give one, such as the `stages` of a schedule")
    block_of = {name: number for number, problem in enumerate(problems) for name in problem.unit_names}
    found: list[list[Stage]] = [[] for _ in problems]
    places: list[list[str]] = [[] for _ in problems]
    seen: set[str] = set()
    last = 0
    for number, given in enumerate(own):
        where = f"stage {number}"
        stage, grouped = _stage(given, where)
        for unit in stage.units:
            if unit not in block_of:
                raise ScheduleError(f"{where}: {unit!r} is no unit of {network.name!r}; {did_you_mean(unit, block_of)}")
            if unit in seen:
                raise ScheduleError(f"{where}: unit {unit!r} is scheduled twice; keep one of the two")
            seen.add(unit)
        block = _block(problems, [(unit, block_of[unit]) for unit in stage.units], last, where)
        if not grouped:
            names = problems[block].unit_names
            mask = sum(1 << names.index(unit) for unit in stage.units)
            stage = PlannedStage(mask, Strategy.CONCURRENT).named(problems[block])
        last = block
        found[block].append(stage)
        places[block].append(where)
    blocks = [BlockSchedule(name=each.name, stages=stages) for each, stages in zip(problems, found, strict=True)]
    for whole, schedule, named in zip(network.blocks, blocks, places, strict=True):
        _fit_block(network, whole, schedule, named)
    return blocks


def _block(problems: Sequence[ScheduleProblem], units: Sequence[tuple[str, int]], last: int, where: str) -> int:
    """The block of a stage, given its units and their blocks, after a stage of block ``last``."""
    first, block = units[0]
    for unit, other in units:
        if other != block:
            two = f"{first!r} is in block {problems[block].name!r}, {unit!r} in block {problems[other].name!r}"
            raise ScheduleError(f"{where}: {two}; split it into stages of one block each")
    if block < last:
        raise ScheduleError(
            f"{where}: {first!r} is in block {problems[block].name!r}, and a stage of the later block "
            f"{problems[last].name!r} precedes it; move it before that one"
        )
    return block


def _stage(given: object, where: str) -> tuple[Stage, bool]:
    """The stage without a price, and whether its groups are given."""
    if isinstance(given, Stage) and all(given.groups) and given.groups:
        return given, True
    merged = isinstance(given, Mapping) and list(given) == ["merge"]
    parts = [given["merge"]] if isinstance(given, Mapping) and merged else given
    flat = not merged and _is_names(parts)
    groups = [parts] if flat else parts
    if not (isinstance(groups, list | tuple) and groups and all(map(_is_names, groups))):
        forms = "a list of unit names, a list of groups of them, or {'merge': names}"
        raise ScheduleError(f"{where}: {given!r} is no stage; give {forms}")
    strategy = Strategy.MERGE if merged else Strategy.CONCURRENT
    return Stage(strategy=strategy, groups=[list(group) for group in groups], latency_us=0.0), not flat


def _is_names(given: object) -> TypeGuard[Sequence[str]]:
    return isinstance(given, list | tuple) and bool(given) and all(isinstance(name, str) for name in given)


def _fit_streams(network: Network, schedule: StreamSchedule) -> None:
    launches = [(f"stream {stream}", launch) for stream, own in enumerate(schedule.streams) for launch in own]
    members = set(network.unit_index)
    _fit_members([(where, launch.units) for where, launch in launches], members, network, "the schedule", "stream")
    for where, launch in launches:
        for name in launch.after:
            if name not in members:
                raise ScheduleError(f"{where}: {name!r} is no unit of the network; {did_you_mean(name, members)}")
        if len(launch.units) > 1:
            _fit_merged(network, launch.units, where, "give each unit a launch of its own")
            if launch.variant:
                raise ScheduleError(f"{where}: {_MERGED_VARIANT}")
    # For each launch, by its position in the order of issue, the positions of those that surely ran before it.
    order = issue_order(schedule)
    place = {unit: number for number, (_, launch) in enumerate(order) for unit in launch.units}
    before: list[int] = []
    last: dict[int, int] = {}
    for number, (stream, launch) in enumerate(order):
        direct = [place[unit] for unit in launch.after] + ([last[stream]] if stream in last else [])
        before.append(reduce(or_, (before[one] | 1 << one for one in direct), 0))
        last[stream] = number
        for unit in launch.units:
            for needed in units_read(network, unit):
                if not before[number] >> place[needed] & 1:
                    raise ScheduleError(
                        f"stream {stream}: unit {unit!r} reads {needed!r}, and nothing orders the two; let it wait "
                        "for that"
                    )


def _fit_block(network: Network, block: Block, schedule: BlockSchedule, places: Sequence[str]) -> None:
    """Raise ScheduleError unless ``schedule`` fits ``block``; ``places`` names its stages in the message."""
    members = {network.units[unit].name for unit in block.units}
    for where, stage in zip(places, schedule.stages, strict=True):
        if not stage.groups or not all(stage.groups):
            raise ScheduleError(f"{where}: it has a group without units; {_REMEDY}")
    parts = [(where, stage.units) for where, stage in zip(places, schedule.stages, strict=True)]
    _fit_members(parts, members, network, f"block {block.name!r}", "stage")
    done: set[str] = set()
    for where, stage in zip(places, schedule.stages, strict=True):
        _fit_variants(stage, where)
        if stage.strategy is Strategy.MERGE:
            if len(stage.groups) != 1:
                raise ScheduleError(
                    f"{where}: it is merged and has {len(stage.groups)} groups; put the units of a merged stage in "
                    "one group"
                )
            _fit_merged(network, stage.units, where, "use the strategy 'concurrent'")
        _fit_order(network, stage, members, done, where)
        for group in stage.groups:
            _fit_connected(network, group, stage, where)
        done.update(stage.units)


def _fit_members(
    parts: Sequence[tuple[str, Sequence[str]]], members: set[str], network: Network, whole: str, part: str
) -> None:
    """Check that each of ``members`` is in exactly one of the parts, each given as its description and its units."""
    seen: set[str] = set()
    for where, units in parts:
        for name in units:
            if name not in members:
                reason = "belongs to another block" if name in network.unit_index else "is no unit of the network"
                raise ScheduleError(f"{where}: {name!r} {reason}; {did_you_mean(name, members)}")
            if name in seen:
                raise ScheduleError(f"{where}: unit {name!r} is scheduled twice; keep one of the two")
            seen.add(name)
    missing = sorted(members - seen, key=lambda name: network.unit_index[name])
    if missing:
        others = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise ScheduleError(f"{whole}: unit {missing[0]!r}{others} is in no {part}; add it or {_REMEDY}")


def _fit_variants(stage: Stage, where: str) -> None:
    """Check that variants are of the stage's units; whether they exist is checked when pricing or running."""
    for name in stage.variants:
        if name not in stage.units:
            raise ScheduleError(
                f"{where}: it names a variant of {name!r}, which it does not hold; {did_you_mean(name, stage.units)}"
            )
    if stage.variants and stage.strategy is Strategy.MERGE:
        raise ScheduleError(f"{where}: {_MERGED_VARIANT}")


def _fit_merged(network: Network, units: Sequence[str], where: str, remedy: str) -> None:
    try:
        merged_convolution(network, [network.unit_index[name] for name in units])
    except ScheduleError as error:
        raise ScheduleError(f"{where}: {error}; {remedy}") from None


def _fit_order(network: Network, stage: Stage, members: set[str], done: set[str], where: str) -> None:
    """Check that all inputs from within the block are made in an earlier stage, or earlier in the same group."""
    group_of = {name: number for number, group in enumerate(stage.groups) for name in group}
    for group in stage.groups:
        ran: set[str] = set()
        for name in group:
            for before in units_read(network, name):
                if before not in members or before in done or before in ran:
                    continue
                if before not in group_of:
                    reason = "which runs in a later stage; move it after that stage"
                elif group_of[before] != group_of[name]:
                    reason = "which runs in another group of the stage; put both in one group"
                else:
                    reason = "which comes later in its group; swap the two"
                raise ScheduleError(f"{where}: unit {name!r} reads {before!r}, {reason}")
            ran.add(name)


def _fit_connected(network: Network, group: Sequence[str], stage: Stage, where: str) -> None:
    """Check that a group of a concurrent stage is one connected component, as its price assumes."""
    if stage.strategy is Strategy.MERGE:
        return
    edges = [(before, name) for name in group for before in units_read(network, name) if before in group]
    reached = {group[0]}
    for _ in group:  # each time at least one more unit, until all that can be are reached
        reached |= {end for edge in edges if not reached.isdisjoint(edge) for end in edge}
    for name in group:
        if name not in reached:
            raise ScheduleError(
                f"{where}: units {group[0]!r} and {name!r} share a group and no edge joins them; "
                "give each connected component a group of its own"
            )


def with_variants(schedule: AnySchedule, variants: Mapping[str, str] | None = None) -> AnySchedule:
    """The schedule with these variants of units, others as before; by default with all units as fastest alone."""

    def of(unit: str, before: str) -> str:
        return FASTEST if variants is None else variants.get(unit, before)

    def renamed(stage: Stage) -> Stage:
        own = {unit: of(unit, stage.variants.get(unit, FASTEST)) for unit in stage.units}
        return stage.model_copy(update={"variants": {unit: variant for unit, variant in own.items() if variant}})

    if isinstance(schedule, StreamSchedule):
        streams = [
            [one.model_copy(update={"variant": of(one.units[0], one.variant)}) for one in own]
            for own in schedule.streams
        ]
        return schedule.model_copy(update={"streams": streams})
    blocks = [block.model_copy(update={"stages": [renamed(one) for one in block.stages]}) for block in schedule.blocks]
    return schedule.model_copy(update={"blocks": blocks})
