"""``iossim simulate``: a saved schedule priced on another device."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iossim.cli import options

SavedSchedule = Annotated[Path, typer.Argument(metavar="SCHEDULE", help="A schedule.json that optimize wrote.")]
OtherModel = Annotated[
    str | None,
    typer.Option("--model", metavar="MODEL", help="The model, where it is no longer where the schedule says."),
]
OtherEngine = Annotated[
    str | None, typer.Option("--engine", metavar="NAME", help="paper or graph; by default the schedule's own.")
]


def register(app: typer.Typer) -> None:
    app.command("simulate", help="Price a saved schedule on a device, stage by stage.")(simulate)


def simulate(
    schedule: SavedSchedule,
    device: options.Device = None,
    engine: OtherEngine = None,
    model: OtherModel = None,
    cost_model: options.CostModelName = "simulator",
    as_json: options.Json = False,
) -> None:
    """Price a saved schedule, by default on its own device."""
    from dataclasses import replace

    from iossim import api
    from iossim.ir.network import ModelSource
    from iossim.models.load import load_source
    from iossim.schedule.schedule import Schedule

    saved = Schedule.read(schedule)
    network = None
    if model is not None:
        source = ModelSource(saved.source.model, saved.source.batch, tuple(saved.source.options.items()))
        network = load_source(replace(source, model=model))
    priced = api.simulate(saved, device, network=network, engine=engine, cost_model=cost_model)
    if as_json:
        typer.echo(priced.model_dump_json(indent=1))
        return
    from rich.console import Console

    from iossim.reporting.console import schedule_table

    console = Console()
    console.print(schedule_table(priced))
    ratio = priced.latency_us / saved.latency_us if saved.latency_us else 1.0
    console.print(
        f"{priced.latency_us / 1e3:.3f} ms on {priced.device}, {saved.latency_us / 1e3:.3f} ms on {saved.device} "
        f"where it was found ({ratio:.2f}x)",
        highlight=False,
    )
