"""Schedules of streams as tables and sentences: the launches and waits of each stream, and the critical path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from iossim.base.tables import Cell, keyed_table
from iossim.report.diff_words import difference_lines, few_words
from iossim.report.schedule_words import INTERRUPTED, heading
from iossim.schedule.schedule import StreamLaunch, StreamSchedule
from iossim.tasks.stream_diff import StreamDiff
from iossim.tasks.stream_explain import LaunchExplanation, StreamExplanation


def stream_table(schedule: StreamSchedule) -> Table:
    """One row per stream: its launches in order, each with the events that it waits for in brackets."""
    rows: list[dict[str, Cell]] = [
        {
            "stream": number,
            "launches": len(own),
            "waits": sum(len(launch.after) for launch in own),
            "order": " > ".join(map(_launch, own)),
        }
        for number, own in enumerate(schedule.streams)
    ]
    titles = {"order": "launches (> in order, [what it waits for])"}
    return keyed_table(heading(schedule), rows, titles=titles, wraps=("order",))


def _launch(launch: StreamLaunch) -> str:
    waits = f"[{', '.join(launch.after)}] " if launch.after else ""
    return waits + " + ".join(launch.units)


def stream_summary(schedule: StreamSchedule) -> str:
    """Latency, streams and waits, gap to the bound, and notes."""
    waits = sum(len(launch.after) for launch in schedule.launches)
    lines = [
        f"{schedule.latency_us / 1e3:.3f} ms in {len(schedule.streams)} streams; {waits} waits for events of other "
        "streams, and no barriers"
    ]
    if schedule.relaxed_bound_us:
        gap = schedule.latency_us / schedule.relaxed_bound_us - 1
        bound = f"Lower bound of all streams: {schedule.relaxed_bound_us / 1e3:.3f} ms"
        lines.append(f"{bound}; this schedule is {gap:.1%} above it")
    lines += [f"note: {note}" for note in schedule.notes]
    return "\n".join(lines if schedule.complete else [*lines, INTERRUPTED])


def path_lines(found: StreamExplanation) -> Iterator[str]:
    """The critical path and its parts."""
    if found.critical:
        yield f"Critical path: {path_words(found)}"


def path_words(found: StreamExplanation) -> str:
    """Number of launches on a critical path, and its parts."""
    divided = ", ".join(f"{name} {us / found.latency_us:.0%}" for name, us in found.path_us.items())
    return f"{len(found.critical)} of {len(found.launches)} launches; {divided}"


def launches_table(launches: Sequence[LaunchExplanation], title: str = "") -> Table:
    """One row per launch: when it ran, its last wait, the delay by others, and its slack."""
    rows: list[dict[str, Cell]] = [
        {
            "unit": one.unit,
            "stream": one.stream,
            "start_us": one.start_us,
            "takes_us": one.end_us - one.start_us,
            "sharing_us": one.sharing_us,
            "slack_us": one.slack_us,
            "critical": "*" if one.is_critical else "",
            "waited_for": f"{one.cause}: {one.behind}" if one.behind else str(one.cause),
        }
        for one in launches
    ]
    return keyed_table(
        title, rows, titles={"critical": "", "waited_for": "waited for last"}, wraps=("waited_for",), digits=1
    )


def stream_diff_lines(found: StreamDiff) -> Iterator[str]:
    """Two schedules as plans: their times, merged and moved units, and critical paths."""
    yield from (*difference_lines(found), "Latencies are those of whole plans, stages with their barriers")
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


def stream_diff_table(found: StreamDiff, all_units: bool = False) -> Table:
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
    return keyed_table(
        "streams in A and B (* in another one: those of most common units are the same), and starts",
        rows,
        titles={"a_us": "A", "b_us": "B", "first": "beside in A alone", "second": "beside in B alone"},
        wraps=("first", "second"),
        shortens=("unit",),
        digits=1,
    )
