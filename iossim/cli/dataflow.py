"""``iossim dataflow``: networks on edge devices, split over their units and written in the order in which they are read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from iossim.cli import options
from iossim.cli.option_groups import takes_options
from iossim.cli.outputs import Writer, pictures, plain_console, print_json, text_file, wants_plot, write_files
from iossim.errors import OptionError

if TYPE_CHECKING:
    from iossim.analysis.dataflow import Dataflow

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A model, as for 'iossim optimize'.")]
EdgeName = Annotated[
    str | None,
    typer.Option("--device", "-d", metavar="NAME", help="An edge device: c6678, zcu102, or a profile.yaml."),
]
Policy = Annotated[
    str,
    typer.Option("--policy", metavar="NAME", help="How operators are split: priority (the paper's), exhaustive."),
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Networks on edge devices: split over units, linked.")
    group.callback(invoke_without_command=True)(options.help_without_command)
    group.command("optimize", help="Plan a network on an edge device, and time the plan.")(optimize)
    app.add_typer(group, name="dataflow")


@takes_options
def optimize(
    model: Model,
    device: EdgeName = None,
    *,
    batch: options.Batch = None,
    dtype: options.ModelDataType = None,
    policy: Policy = "priority",
    as_json: options.Json = False,
    out: options.Out = None,
    plot: options.Plot = None,
) -> None:
    """Plan a network on an edge device: each operator whole, split over the units, and linked besides.

    With --out the plan goes to DIR/plan.json, with every transfer's bytes and addresses, and the times to DIR/dataflow.json.
    """
    from iossim import api
    from iossim.models.load import load
    from iossim.reporting.dataflow_words import dataflow_table, dataflow_words
    from iossim.user_files import check_writable

    if device is None:
        raise OptionError("dataflow needs an edge device; give --device c6678 ('iossim devices list' tells them)")
    if out is not None:
        check_writable(out)
    network = load(model, batch=batch, dtype=dtype)
    found = api.dataflow(network, device, policy=policy)
    title = f"{network.name} on {found.device.name}, batch {network.source.batch}"
    if as_json:
        print_json(found.to_json())
    else:
        console = plain_console()
        console.print(title, style="bold")
        console.print(dataflow_table(found))
        console.print(dataflow_words(found), soft_wrap=True)
    if out is not None:
        write_files(out, _files(found, title, wants_plot(plot)))


def _files(found: Dataflow, title: str, draws: bool) -> dict[str, Writer]:
    from iossim.dataflow.plan import Variant
    from iossim.dataflow.plan_json import plan_to_json

    plan = json.dumps(plan_to_json(found.plans[Variant.FULL])) + "\n"
    files = {"plan.json": text_file(plan), "dataflow.json": text_file(json.dumps(found.to_json(), indent=1) + "\n")}
    if draws:
        from iossim.reporting.figures.memory_use import memory_figure

        files |= pictures(memory_figure(found, title))
    return files
