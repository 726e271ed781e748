"""Two schedules of one network compared: sentences, and a table of what changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table

from iossim.base.display import counted
from iossim.base.tables import Cell, described_table
from iossim.report.schedule_tables import heading, path_words, stage_words
from iossim.schedule.schedule import AnySchedule, Schedule, Stage
from iossim.tasks.schedule_diff import Passage, ScheduleDiff, in_parts, shared_units
from iossim.tasks.stream_diff import StreamDiff


def _difference(found: ScheduleDiff | StreamDiff) -> list[str]:
    """Two schedules, and their difference in time."""
    first, second = found.first, found.second
    lines = [f"A: {_described(first)}", f"B: {_described(second)}"]
    if found.same_prices:
        more_us = second.latency_us - first.latency_us
        part = more_us / first.latency_us if first.latency_us else 0.0
        noise = {None: "", True: ": within the noise", False: ": more than the noise"}[found.tie]
        lines.append(f"B against A: {more_us:+.1f} us ({part:+.1%}){noise}" if more_us else "B takes as long as A")
    elif found.cross is not None:
        cross = found.cross
        lines.append(_crossed("A", first, cross.second_at_first_us, cross.tie_at_first))
        lines.append(_crossed("B", second, cross.first_at_second_us, cross.tie_at_second))
    return [*lines, *(f"Unknown: {reason}" for reason in found.unknown)]


def diff_lines(found: ScheduleDiff | StreamDiff) -> list[str]:
    """Two schedules, their difference in time, and what runs otherwise."""
    return [
        *_difference(found),
        *_units_alone(found),
        *(_of_stages(found) if isinstance(found, ScheduleDiff) else _of_streams(found)),
    ]


def diff_tables(found: ScheduleDiff | StreamDiff, whole: bool) -> list[Table]:
    """A table of what differs, or of all (``whole``); none where nothing does."""
    if isinstance(found, ScheduleDiff):
        return [_passages(found, whole)] if whole or found.changed else []
    return [_units(found, whole)] if whole or any(one.changed for one in found.units) else []


def _units_alone(found: ScheduleDiff | StreamDiff) -> Iterator[str]:
    """Units that one of them has alone, by the ops that both have in common: ``a+b``."""
    for name, parts in zip("AB", found.parts, strict=True):
        if units := shared_units(parts):
            yield f"Units of {name} alone: {few_words(list(map('+'.join, units)))}"


def _of_stages(found: ScheduleDiff) -> list[str]:
    changed = found.changed
    same = sum(passage.is_same for passage in found.passages)
    if not changed:
        return [f"All {same} stages are the same" if same > 1 else "The one stage is the same"]
    counts = Counter(str(passage.change) for passage in changed)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    own, other = found.decided_otherwise
    lines = [
        f"Identical stages: {same}. Runs of stages that differ: {len(changed)} ({kinds})",
        f"Stages that differ: {own} of {len(found.first.stages)} in A, {other} of {len(found.second.stages)} in B",
    ]
    if found.moved:
        lines.append(f"Units that run with other units: {few_words(found.moved)}")
    return lines


def few_words(names: Sequence[str]) -> str:
    """The number of names, and the first of them."""
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"{len(names)} ({', '.join(names[:8])}{more})" if names else "0"


def _passages(found: ScheduleDiff, all_passages: bool) -> Table:
    """The passages that differ, or all of them, by block: stages of both schedules and their times."""
    rows: list[Mapping[str, Cell]] = []
    before = ""
    named = ({unit: ("+".join(own),) for unit, own in parts.items()} for parts in found.parts)
    own, other = map(in_parts, (found.first, found.second), named)
    for passage in found.passages:
        if passage.is_same and not all_passages:
            continue
        rows.append(
            {
                "block": "" if passage.block == before else passage.block,
                "change": str(passage.change),
                "a_us": passage.first_us,
                "b_us": passage.second_us,
                "first": _stages(own, passage.first_stages, passage.block),
                "second": "as A" if passage.is_same else _stages(other, passage.second_stages, passage.block),
            }
        )
        before = passage.block
    same = [passage for passage in found.passages if passage.is_same]
    rows += [_total("identical", same)] if same and not all_passages else []
    rows.append(_total("all", found.passages))
    return described_table(__package__, "diff", "", rows)


def _total(name: str, passages: Sequence[Passage]) -> Mapping[str, Cell]:
    return {
        "block": name,
        "change": "",
        "a_us": sum(passage.first_us for passage in passages),
        "b_us": sum(passage.second_us for passage in passages),
        "first": f"stages: {sum(len(passage.first_stages) for passage in passages)}",
        "second": f"stages: {sum(len(passage.second_stages) for passage in passages)}",
    }


def _described(schedule: AnySchedule) -> str:
    if isinstance(schedule, Schedule):
        groups = "1 group" if schedule.streams == 1 else f"{schedule.streams} concurrent groups"
        return f"{heading(schedule)} in {counted(len(schedule.stages), 'stage')}, at most {groups}"
    waits = sum(len(one.after) for one in schedule.launches)
    return f"{heading(schedule)} in {counted(len(schedule.streams), 'stream')}, {counted(waits, 'wait')}"


def _crossed(name: str, at: AnySchedule, other_us: float, tie: bool | None) -> str:
    other = "B" if name == "A" else "A"
    part = at.excess(other_us)
    noise = {None: "", True: ", within the noise", False: ", more than the noise"}[tie]
    setup = f"On the setup of {name} ({at.device}, batch {at.source.batch}, {at.engine} engine)"
    took = f"{name} {at.latency_us / 1e3:.3f} ms, {other} {other_us / 1e3:.3f} ms ({part:+.1%}{noise})"
    return f"{setup}: {took}"


def _stages(stages: Sequence[Stage], numbers: Sequence[int], block: str) -> str:
    return "\n".join(f"{number}: {stage_words(stages[number], block)}" for number in numbers)


def _of_streams(found: StreamDiff) -> Iterator[str]:
    """Two schedules as plans: merged and moved units, and critical paths."""
    yield "Latencies are those of whole plans, stages with their barriers"
    yield f"Units in another stream: {few_words(found.moved)}"
    first, second = found.pairs
    yield f"Pairs of units side by side: {len(first)} in A, {len(second)} in B, {len(first & second)} in both"
    for name, run, merged, critical in zip("AB", found.runs, found.merged_alone, found.critical_alone, strict=True):
        yield f"Critical path of {name}: {run.latency_us / 1e3:.3f} ms, {path_words(run)}"
        yield from (
            f"{what} in {name} alone: {few_words(units)}"
            for what, units in (("Merged", merged), ("Critical", critical))
            if units
        )


def _units(found: StreamDiff, all_units: bool) -> Table:
    """One row per unit that moved to another stream, or runs beside others (or per unit): its stream and start in both,
    and what it runs beside in only one of them.
    """
    rows: list[dict[str, Cell]] = [
        {
            "unit": one.unit,
            "streams": f"{one.first_stream} {one.second_stream}{' *' if one.moved else ''}",
            "a_us": one.first_start_us,
            "b_us": one.second_start_us,
            "first": ", ".join(one.beside_first_alone),
            "second": ", ".join(one.beside_second_alone),
        }
        for one in found.units
        if all_units or one.changed
    ]
    title = "streams in A and B (* the unit changed streams; streams are matched by their common units), and starts"
    return described_table(__package__, "stream_diff", title, rows)
