"""Sentences on the result of a search: its expected time and its proof, and a comparison of schedulers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from iossim.base.display import counted
from iossim.schedule.schedule import SavedSchedule, Schedule
from iossim.search.options import StageSpace

if TYPE_CHECKING:
    from iossim.tasks.comparison import Comparison

#: Line below a schedule whose search was interrupted.
INTERRUPTED = "Interrupted: this is the best schedule found so far, not a proven optimum"


def expectation(interval_us: Sequence[float] | None) -> str | None:
    """Interval of 90% of measurements, in words; None where the prices are no prediction."""
    return f"Expected on hardware: {interval_words(interval_us)} (90% interval)" if interval_us else None


def interval_words(bounds_us: Sequence[float]) -> str:
    low_ms, high_ms = (bound_us / 1e3 for bound_us in bounds_us)
    digits = 2 if low_ms >= 1 else 3
    return f"{low_ms:.{digits}f}-{high_ms:.{digits}f} ms"


def whose(found: SavedSchedule) -> str:
    """The end of a proof of a network whose joins were chosen, or that was rewritten or divided: nothing is proved of
    other such networks.
    """
    if not {"rewriting", "micro_batches"}.isdisjoint(found.source.options):
        return " for the changed network"
    return " for these joins" if "joins" in found.source.options else ""


def describe(space: StageSpace) -> str:
    pruning = [
        f"groups of at most {counted(space.max_group_size, 'unit')}" if space.max_group_size else "",
        f"at most {counted(space.max_groups, 'group')}" if space.max_groups else "",
    ]
    return ", ".join([f"{space.definition} stages", *filter(None, pruning)])


def optimality(found: Schedule) -> str | None:
    """Proven optimality or bound of a schedule, in words; None for a scheduler that does not search."""
    if not found.complete:
        return INTERRUPTED
    if "stages" not in found.options:
        return None
    if "measurements" in found.options and not found.options["everything_measured"]:
        return None
    if not found.proven:
        return "Not proven optimal: part of the search space was left out (see the notes)"
    space = StageSpace(*(found.options[name] for name in ("stages", "max_group_size", "max_groups")))
    stages = describe(space) if found.options["concurrent"] else "single units and merged convolutions"
    among = stages if found.options["merge"] else f"{stages}, without merging"
    return f"Provably optimal under this cost model ({among}){whose(found)}"


def comparison_notes(found: Comparison) -> list[str]:
    """Notes below a comparison's table: its columns of published figures, and remarks."""
    seen = [one.scheduler for one in found.schedules if found.is_in_sample(one.scheduler)]
    lines = []
    if seen:
        lines.append(f"error: simulated against published; only the figure of {' and '.join(seen)} was fitted to")
        if any(row.left_out_us for row in found.rows):
            lines.append("LOO: the error of a fit without any figure of this network (leave one out)")
    every = (*found.schedules, *found.streams)
    return [*lines, *dict.fromkeys(f"note: {note}" for one in every for note in (*one.notes, *one.remarks))]


def comparison_lines(found: Comparison) -> list[str]:
    """The best of a comparison: its latency, its interval and proof, and the price of the other engine."""
    best, baseline = found.best, found.baseline
    said = filter(None, (outcome.sentence() for outcome in found.outcomes))
    lines = [*(sentence[0].upper() + sentence[1:] for sentence in said), *found.remarks]
    # Intervals and proofs apply to sums of stages.
    by_sums = not found.plans_us and found.best_of_all.schedule is best
    if found.best_us < found.baseline_us * (1 - 1e-9):
        speedup = f"speed-up {found.baseline_us / found.best_us:.2f}x over {baseline.scheduler}"
        tie = ", within the noise" if by_sums and baseline.scheduler in best.ties else ""
        lines.append(f"Best: {found.best_of_all.label}, {found.best_us / 1e3:.3f} ms, {speedup}{tie}")
    else:
        lines.append(f"Best: no scheduler is faster than {baseline.scheduler}")
    lines += filter(None, [expectation(best.interval_us) if by_sums else None])
    if not found.complete:
        lines.append("Interrupted: the search is incomplete; the last row is the best schedule so far")
    elif by_sums and (claim := optimality(found.fastest_of_stages[-1].schedule)):
        lines.append(claim)
    return [*lines, found.other_engine.sentence()] if found.other_engine else lines
