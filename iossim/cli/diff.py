"""``iossim diff``: two schedules of one network, stage by stage, and whether their difference exceeds the noise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iossim.cli import options
from iossim.cli.outputs import plain_console, print_json

FirstSchedule = Annotated[Path, typer.Argument(metavar="A", help="A schedule.json.")]
SecondSchedule = Annotated[
    Path,
    typer.Argument(
        metavar="B", help="Another one of the same network, for the same or another device or batch size."
    ),
]
AllStages = Annotated[bool, typer.Option("--all", help="Show the stages that are the same, too.")]


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
    if as_json:
        print_json(found.to_json())
        return
    from iossim.report.schedule_diff import diff_lines, diff_table

    for line in diff_lines(found):
        typer.echo(line)
    if found.changed or all_stages:
        plain_console().print(diff_table(found, all_stages))
