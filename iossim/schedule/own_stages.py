"""Stages that a caller names, in execution order, as the blocks of a schedule without prices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeGuard

from iossim.base.errors import ScheduleError, did_you_mean
from iossim.ir.network import Network
from iossim.schedule.batch import Strategy
from iossim.schedule.fit import fit_block
from iossim.schedule.planned_stage import PlannedStage
from iossim.schedule.problem import ScheduleProblem
from iossim.schedule.schedule import BlockSchedule, SavedSchedule, Stage

#: Unit names, whose groups follow from the graph; groups of names; ``{"merge": names}``; or a stage of a schedule.
OwnStage = Stage | Mapping[str, Sequence[str]] | Sequence[str] | Sequence[Sequence[str]]


def blocks_of(network: Network, problems: Sequence[ScheduleProblem], stages: Iterable[OwnStage]) -> list[BlockSchedule]:
    """The stages by block, given one problem a block; raises ScheduleError, naming the stage (counted from 0) and the
    unit, unless they are a schedule of the network.
    """
    if isinstance(stages, str | SavedSchedule) or not isinstance(stages, Iterable):
        raise ScheduleError(f"{stages!r} is no list of stages; give one, such as the `stages` of a schedule")
    block_of = {name: number for number, problem in enumerate(problems) for name in problem.unit_names}
    found: list[list[Stage]] = [[] for _ in problems]
    places: list[list[str]] = [[] for _ in problems]
    seen: set[str] = set()
    last = 0
    for number, given in enumerate(stages):
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
    blocks = [BlockSchedule(name=each.name, stages=own) for each, own in zip(problems, found, strict=True)]
    for of, own, named in zip(network.blocks, blocks, places, strict=True):
        fit_block(network, of, own, named)
    return blocks


def _block(problems: Sequence[ScheduleProblem], units: Sequence[tuple[str, int]], last: int, where: str) -> int:
    """The block of a stage, given its units and their blocks, behind a stage of block ``last``."""
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
    flat = _is_names(parts)
    groups = [parts] if flat else parts
    if not (isinstance(groups, list | tuple) and groups and all(map(_is_names, groups))):
        forms = "a list of unit names, a list of groups of them, or {'merge': names}"
        raise ScheduleError(f"{where}: {given!r} is no stage; give {forms}")
    strategy = Strategy.MERGE if merged else Strategy.CONCURRENT
    return Stage(strategy=strategy, groups=[list(group) for group in groups], latency_us=0.0), not flat


def _is_names(given: object) -> TypeGuard[Sequence[str]]:
    return isinstance(given, list | tuple) and bool(given) and all(isinstance(name, str) for name in given)
