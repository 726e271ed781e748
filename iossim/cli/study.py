"""``iossim study``: the studies that ship, what a study will do, and a new one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from iossim.base.errors import OptionError
from iossim.cli import options
from iossim.cli.outputs import present, table
from iossim.cli.study_run import register_in

if TYPE_CHECKING:
    from iossim.study.forecast import Forecast
    from iossim.study.scenario import Scenario

NewName = Annotated[str, options.argument("NAME", "What the study is to be called: letters, digits, - and _.")]
Title = Annotated[str | None, options.option("--title", "TEXT", "What it is about, in a few words.")]
Models = Annotated[
    str | None, options.option("--models", "A,B", "Networks of the zoo, or ONNX files, with commas between.")
]
Devices = Annotated[str | None, options.option("--devices", "A,B", "Devices, with commas between.")]
BatchSizes = Annotated[str | None, options.option("--batch-sizes", "1,8", "Batch sizes.")]
Schedulers = Annotated[str | None, options.option("--schedulers", "A,B", "What makes the schedules.")]
Questions = Annotated[
    list[str] | None,
    options.option(
        "--question", "MAPPING", "As a scenario has it: '{best: scheduler, for_each: [model]}'; may be repeated."
    ),
]
NewFile = Annotated[Path | None, options.option("--out -o", "FILE", "The file to write; by default NAME.yaml here.")]
Force = Annotated[bool, options.switch("--force", "Replace a file that is there already.")]
Yes = Annotated[bool, options.switch("--yes -y", "Ask nothing: defaults for all that is not given.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="What-if studies: scenarios run as a sweep, and reports that answer their questions.")
    group.callback(invoke_without_command=True)(options.help_without_command)
    group.command("list", help="The scenarios that ship.")(list_scenarios)
    group.command("show", help="What a scenario will do, before it is run.")(show_scenario)
    group.command("new", help="Write a commented scenario to fill in.")(new_study)
    register_in(group)
    app.add_typer(group, name="study")


def list_scenarios(as_json: options.Json = False) -> None:
    """The scenarios that ship, with their points."""
    from iossim.study.points import count_points
    from iossim.study.scenario_file import read_scenario, scenario_names

    rows: list[dict[str, Any]] = []
    for name in scenario_names():
        scenario = read_scenario(name)
        points = count_points(scenario)
        schedules = points * len(scenario.schedulers)
        rows.append({"name": name, "title": scenario.title, "points": points, "schedules": schedules})
    present(rows, table("Scenarios", rows, wraps=("title",)), as_json)


def show_scenario(name: options.ScenarioName, as_json: options.Json = False) -> None:
    """What a scenario will do: points, schedulers, questions, and how much work that is."""
    from iossim.study.forecast import forecast
    from iossim.study.scenario_file import read_scenario

    scenario = read_scenario(name)
    expected = forecast(scenario)
    document = {"scenario": scenario.model_dump(mode="json"), "work": asdict(expected)}
    said = [scenario.description, *_axes_in_words(scenario), *_sentences(scenario), *_work_in_words(expected)]
    first = f"{scenario.name}: {scenario.title or 'no title'}"
    last = f"run it: iossim study run {name} --out {scenario.name}"
    present(document, [first, *(text.rstrip() for text in said if text), last], as_json)


def _axes_in_words(scenario: Scenario) -> Iterator[str]:
    from iossim.study.points import labels_of

    joined = {"grid": "all combinations of", "zip": "side by side", "points": "listed one by one"}[scenario.combine]
    yield f"points: {joined}"
    for axis, labels in labels_of(scenario).items():
        if len(labels) > 1 or axis in ("model", "device", "scheduler"):
            yield f"  {axis}: {'; '.join(map(str, labels))}"


def _sentences(scenario: Scenario) -> Iterator[str]:
    from iossim.study.question import in_words

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


def new_study(
    name: NewName,
    title: Title = None,
    models: Models = None,
    devices: Devices = None,
    batch_sizes: BatchSizes = None,
    schedulers: Schedulers = None,
    question: Questions = None,
    out: NewFile = None,
    force: Force = False,
    yes: Yes = False,
) -> None:
    """Ask for what is not given, and write a scenario with a comment on everything else."""
    from iossim.report.schemas import schema
    from iossim.study.scenario_template import Wishes, write_new_scenario

    path = out or Path(f"{name}.yaml")
    if path.exists() and not force:
        raise OptionError(f"{path} is there already; choose another --out, or give --force to replace it")

    def asked(given: str | None, text: str, default: str) -> str:
        return given if given is not None else default if yes else typer.prompt(text, default=default, err=True)

    wishes = Wishes(
        name=name,
        title=asked(title, "What is it about?", name.replace("_", " ").replace("-", " ").capitalize()),
        models=_split(asked(models, "Networks (see 'iossim models list'), with commas between", "inception_v3")),
        devices=_split(asked(devices, "Devices (see 'iossim devices list'), with commas between", "v100-sxm2,t4")),
        batch_sizes=_numbers(asked(batch_sizes, "Batch sizes", "1,8,32")),
        schedulers=_split(asked(schedulers, "Schedulers", "sequential,ios-both")),
        questions=question or [asked(None, "Question", "{best: scheduler, for_each: [model, device]}")],
    )
    scenario = write_new_scenario(wishes, path, schema("scenario"), replace=force)
    typer.echo(
        f"wrote {path}; see what it will do: iossim study show {path}; run it: iossim study run {path} --out {scenario.name}"
    )


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _numbers(text: str) -> list[int]:
    parts = _split(text)
    for part in parts:
        if not part.isdecimal():
            raise OptionError(f"--batch-sizes {part!r} is not a whole number; write 1,8,32")
    return [int(part) for part in parts]
