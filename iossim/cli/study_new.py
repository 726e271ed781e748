"""``iossim study new``: asks what a study is to be about, and writes a commented scenario."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iossim.base.errors import OptionError

NewName = Annotated[
    str, typer.Argument(metavar="NAME", help="What the study is to be called: letters, digits, - and _.")
]
Title = Annotated[str | None, typer.Option("--title", metavar="TEXT", help="What it is about, in a few words.")]
Models = Annotated[
    str | None,
    typer.Option("--models", metavar="A,B", help="Networks of the zoo, or ONNX files, with commas between."),
]
Devices = Annotated[str | None, typer.Option("--devices", metavar="A,B", help="Devices, with commas between.")]
BatchSizes = Annotated[str | None, typer.Option("--batch-sizes", metavar="1,8", help="Batch sizes.")]
Schedulers = Annotated[str | None, typer.Option("--schedulers", metavar="A,B", help="What makes the schedules.")]
Questions = Annotated[
    list[str] | None,
    typer.Option(
        "--question",
        metavar="MAPPING",
        help="As a scenario has it: '{best: scheduler, for_each: [model]}'; may be repeated.",
    ),
]
NewFile = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="FILE", help="The file to write; by default NAME.yaml here.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that is there already.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing: defaults for all that is not given.")]


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
