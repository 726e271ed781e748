"""``iossim study``: the studies that ship, what one will do, a new one; modules of this package whose names begin with
``study_`` add what runs and reports them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from iossim.base.registry import modules
from iossim.cli import options
from iossim.cli.outputs import plain_console, print_json
from iossim.cli.study_new import new_study

if TYPE_CHECKING:
    from iossim.study.forecast import Forecast
    from iossim.study.scenario import Scenario


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="What-if studies: scenarios run as a sweep, and reports that answer their questions.")
    group.callback(invoke_without_command=True)(options.help_without_command)
    group.command("list", help="The scenarios that ship.")(list_scenarios)
    group.command("show", help="What a scenario will do, before it is run.")(show_scenario)
    group.command("new", help="Write a commented scenario to fill in.")(new_study)
    for module in modules("iossim.cli"):
        if module.__name__.startswith("iossim.cli.study_") and hasattr(module, "register_in"):
            module.register_in(group)
    app.add_typer(group, name="study")


def list_scenarios(as_json: options.Json = False) -> None:
    """The scenarios that ship, with their points."""
    from iossim.study.points import count_points
    from iossim.study.scenario_file import read_scenario, scenario_names

    rows: list[dict[str, Any]] = []
    for name in scenario_names():
        scenario = read_scenario(name)
        points = count_points(scenario)
        rows.append(
            {
                "name": name,
                "title": scenario.title,
                "points": points,
                "schedules": points * len(scenario.schedulers),
            }
        )
    if as_json:
        print_json(rows)
        return
    from iossim.base.tables import Column, records_table

    columns = [Column("name"), Column("title", wraps=True), Column("points"), Column("schedules")]
    plain_console().print(records_table("Scenarios", rows, columns))


def show_scenario(name: options.ScenarioName, as_json: options.Json = False) -> None:
    """What a scenario will do: points, schedulers, questions, and how much work that is."""
    from iossim.study.forecast import forecast
    from iossim.study.scenario_file import read_scenario

    scenario = read_scenario(name)
    expected = forecast(scenario)
    if as_json:
        data = {"scenario": scenario.model_dump(mode="json"), "work": expected.to_json()}
        print_json(data)
        return
    typer.echo(f"{scenario.name}: {scenario.title or 'no title'}")
    for text in (scenario.description, *_axes_in_words(scenario), *_sentences(scenario), *_work_in_words(expected)):
        if text:
            typer.echo(text.rstrip())
    typer.echo(f"run it: iossim study run {name} --out {scenario.name}")


def _axes_in_words(scenario: Scenario) -> Iterator[str]:
    from iossim.study.points import labels_of

    joined = {"grid": "all combinations of", "zip": "side by side", "points": "listed one by one"}[scenario.combine]
    yield f"points: {joined}"
    for axis, labels in labels_of(scenario).items():
        if len(labels) > 1 or axis in ("model", "device", "scheduler"):
            yield f"  {axis}: {'; '.join(map(str, labels))}"


def _sentences(scenario: Scenario) -> Iterator[str]:
    from iossim.study.question_words import in_words

    for title, texts in (
        ("asks", list(map(in_words, scenario.questions))),
        ("constraints", list(map(in_words, scenario.constraints))),
        ("prices schedules across", scenario.cross_evaluate),
        ("measures besides", scenario.measures),
        ("published", [f"{each.says} ({each.source})" for each in scenario.published]),
    ):
        if texts:
            yield f"{title}:"
            yield from (f"  {text}" for text in texts)


def _work_in_words(expected: Forecast) -> Iterator[str]:
    yield f"work: {expected.points:,} points, {expected.schedules:,} schedules"
    if expected.cross_prices:
        yield f"  {expected.cross_prices:,} prices of schedules at other points"
    if expected.event_simulations:
        yield f"  {expected.event_simulations:,} runs on the event-driven simulator, of about a second each"
    for each in expected.searches:
        stages = "too many stages to count" if each.stages is None else f"{each.stages:,} distinct stages"
        yield f"  {each.model}, searched {each.search}: {each.units} units, the widest block has {each.largest_block}, {stages}"
    if expected.seconds is None:
        yield "  how long it takes cannot be told: a search is too wide to count, or prices are measured"
    else:
        yield f"  about {_duration(expected.seconds)} on the {expected.cores} cores of this machine, within a factor of three"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
