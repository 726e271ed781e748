"""The parts of a block that are solved as a whole.

A part is the whole block, pruned where it has too many transitions, one of several runs of a block that is too wide,
or a window of its stages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from iossim.cost.model import CostModel
from iossim.ir.network import Network
from iossim.schedule.problem import ScheduleProblem
from iossim.search.lattice import (
    FEW_STATES,
    Lattice,
    MergedStages,
    build_lattice,
    left_out_of_merges,
    no_merges,
    price_merges,
)
from iossim.search.options import SearchLimits, SearchOptions, StageSpace

#: Sizes of windows: small ones gain most, and soon. The first is also the size of the first schedule's runs. Windows
#: twice as large as the second take five times as long, and gain another 1 or 2% (NASNet-A-large, HRNet-W18).
WINDOWS = SearchLimits(3_000, 300_000), SearchLimits(10_000, 1_000_000)
#: The pruning of the paper's experiments (section 4.1): r and s.
PAPER_GROUP_SIZE, PAPER_GROUPS = 3, 8


@dataclass(frozen=True, slots=True)
class BlockNote:
    """Treatment of a block that is too large to be solved as a whole, in words; and the size of its runs, if any."""

    sentence: str
    runs: tuple[int, ...] = ()


def notes_of_blocks(notes: Sequence[tuple[str, BlockNote]]) -> list[str]:
    """Notes of blocks in words; blocks that were treated alike share a sentence."""
    told: list[str] = []
    for sentence in dict.fromkeys(note.sentence for _, note in notes):
        blocks = list(dict.fromkeys(name for name, note in notes if note.sentence == sentence))
        runs = [size for _, note in notes if note.sentence == sentence for size in note.runs]
        if len(blocks) == 1:
            which, sizes = f"block {blocks[0]}", ", ".join(map(str, runs))
        else:
            which = f"{len(blocks)} blocks, {blocks[0]} the first"
            sizes = f"{min(runs)} to {max(runs)}" if runs else ""
        told.append(f"{which}: {sentence}" + (f" into runs of {sizes} units" if sizes else ""))
    return told


def shown_in_notes(network: Network, notes: Sequence[str]) -> list[str]:
    """These notes with the names by which the blocks in them are shown."""
    if not notes:
        return []
    from iossim.ir.shown_names import shown_names  # few schedules have notes

    names = shown_names(network).names
    return [re.sub(r"\S+\.\.\S+?(?=:? )", lambda found: names.get(found[0], found[0]), note) for note in notes]


#: Builds the lattice of a problem of at most that many states.
Build = Callable[[ScheduleProblem, int], Lattice | None]


@dataclass(frozen=True, eq=False)
class Part:
    """A problem that is solved as a whole: a block, or a run of one that is too wide; ``units`` are the block's."""

    problem: ScheduleProblem
    lattice: Lattice
    units: tuple[int, ...]
    space: StageSpace
    merges: MergedStages

    @staticmethod
    def of(
        problem: ScheduleProblem,
        units: tuple[int, ...],
        cost_model: CostModel,
        options: SearchOptions,
        build: Build = build_lattice,
        few_states: int | None = None,
        prune: bool = False,
    ) -> Part | None:
        """The part of a problem, whose ``units`` are the block's; None if it has too many states, or transitions.

        Those of up to ``few_states`` states, by default :data:`FEW_STATES`, are not counted. With ``prune`` the space
        may be pruned for it.
        """
        lattice = build(problem, options.limits.max_states)
        space = None if lattice is None else _solvable_space(problem, lattice, options, few_states, prune)
        if lattice is None or space is None:
            return None
        merges = price_merges(problem, cost_model, space.max_groups or len(problem)) if space.merge else no_merges()
        return Part(problem, lattice, units, space, merges)


def prepare_block(
    problem: ScheduleProblem,
    cost_model: CostModel,
    options: SearchOptions,
    few_states: int | None = None,
    build: Build = build_lattice,
    runs: SearchLimits | None = None,
) -> tuple[list[Part], list[BlockNote]]:
    """The block as a whole if it can be solved, else pruned, else in runs; and what was done to it.

    With ``runs``, the limits of its runs, a block that is not solved as a whole is split and not pruned: it is improved
    in windows afterwards. For the others see :meth:`Part.of`.
    """
    given = options
    todo = [tuple(range(len(problem)))]
    parts: list[Part] = []
    while todo:
        units = todo.pop(0)
        own = options.space.ordered(problem) if len(units) == len(problem) else problem.restrict(units)
        part = Part.of(own, units, cost_model, options, build, few_states, prune=runs is None)
        if part is not None:
            parts.append(part)
            continue
        todo = [*_halves(problem, units), *todo]
        if runs is not None:
            options = replace(options, limits=runs.least(given.limits))
    notes: list[BlockNote] = []
    if len(parts) > 1 and runs is not None:
        notes.append(BlockNote("too wide to be solved as a whole, solved in windows that overlap"))
    elif len(parts) > 1:
        notes.append(BlockNote("too wide to be solved as a whole, split", tuple(len(part.units) for part in parts)))
    pruned = {part.space for part in parts} - {options.space}
    notes += [
        BlockNote(
            "too many transitions to be solved unpruned, pruned to groups of at most "
            f"{space.max_group_size} units, {space.max_groups} groups"
        )
        for space in pruned
    ]
    if options.space.merge and (many := left_out_of_merges(problem)):
        merged = f"{many} convolutions of one input merge in pairs, in runs and as a whole, in no other sets"
        notes.append(BlockNote(merged))
    return parts, notes


def _solvable_space(
    problem: ScheduleProblem, lattice: Lattice, options: SearchOptions, few_states: int | None, prune: bool
) -> StageSpace | None:
    """The space itself, or pruned as in the paper, or None if that still has too many transitions."""
    space, limit = options.space, options.limits.max_transitions
    if not space.concurrent or len(lattice) <= (FEW_STATES if few_states is None else few_states):
        return space
    from iossim.search.counting import more_transitions_than  # few blocks have so many states

    pruned = space.pruned(PAPER_GROUP_SIZE, PAPER_GROUPS)
    for tried in dict.fromkeys((space, pruned) if prune else (space,)):
        if not more_transitions_than(limit, problem, lattice, tried, sampled=True):
            return tried
    return None


def _halves(problem: ScheduleProblem, units: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Units cut in two, the first half done before the second.

    The cut is between two depths (longest paths from an entry), as near to the middle as possible: units of one depth
    may run concurrently. If all have one depth, the cut is in the middle.
    """
    depth = problem.depths
    ordered = sorted(units, key=lambda unit: (depth[unit], unit))
    middle = len(units) / 2
    cuts = [cut for cut in range(1, len(ordered)) if depth[ordered[cut - 1]] != depth[ordered[cut]]]
    cut = min(cuts, key=lambda cut: abs(cut - middle)) if cuts else len(units) // 2
    return [tuple(sorted(ordered[:cut])), tuple(sorted(ordered[cut:]))]
