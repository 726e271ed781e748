"""``iossim diff``: two schedules of one network, stage by stage, and whether their difference exceeds the noise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iossim.cli import options
from iossim.cli.outputs import Part, present

if TYPE_CHECKING:
    from iossim.tasks.schedule_diff import ScheduleDiff

FirstSchedule = Annotated[Path, options.argument("A", "A schedule.json.")]
SecondSchedule = Annotated[
    Path, options.argument("B", "Another one of the same network, for the same or another device or batch size.")
]
AllStages = Annotated[bool, options.switch("--all", "Show the stages that are the same, too.")]


def register(app: typer.Typer) -> None:
    app.command(
        "diff",
        help="Compare two schedules of one network: which units moved, what was merged, split or joined, and what that is "
        "worth.",
        epilog="The exit code is 0 whether the schedules differ or not, and 2 where they are not of one network.",
    )(diff)


def diff(
    a: FirstSchedule,
    b: SecondSchedule,
    model: options.OtherModel = None,
    all_stages: AllStages = False,
    as_json: options.Json = False,
) -> None:
    """Compare two saved schedules."""
    from iossim.schedule.schedule import Schedule
    from iossim.tasks.schedule_diff import diff as diff_schedules

    found = diff_schedules(Schedule.read(a), Schedule.read(b), model)
    present(found.to_json, _parts(found, all_stages), as_json)


def _parts(found: ScheduleDiff, all_stages: bool) -> Iterator[Part]:
    from iossim.report.schedule_diff import diff_lines, diff_table

    yield from diff_lines(found)
    if found.changed or all_stages:
        yield diff_table(found, all_stages)
