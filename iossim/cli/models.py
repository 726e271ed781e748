"""``iossim models``: the zoo, and what is in a model."""

from __future__ import annotations

import json
from collections import Counter

import typer

from iossim.cli import options
from iossim.cli.loading import ModelOptions, takes_model_options


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Networks of the zoo, and what is in a model file.")
    group.callback(invoke_without_command=True)(options.help_without_command)
    group.command("list", help="The networks of the zoo.")(list_models)
    group.command("show", help="What is in a network: units, blocks, work, parameters.")(show_model)
    app.add_typer(group, name="models")


def list_models(as_json: options.Json = False) -> None:
    """The networks of the zoo."""
    from iossim.models.catalogue import zoo_models

    rows = [
        {"name": zoo.name, "input": "x".join(map(str, zoo.input_shape)), "description": zoo.description}
        for zoo in zoo_models()
    ]
    _show("Networks of the zoo", rows, as_json)


@takes_model_options
def show_model(
    model: options.Model,
    reading: ModelOptions,
    as_json: options.Json = False,
) -> None:
    """What is in a network."""
    from iossim.study.network_summary import summarise

    network = reading.network(model)
    found = summarise(network)
    blocks = [
        {
            "block": block.name,
            "units": len(block.units),
            "width": width,
            "kinds": ", ".join(
                f"{count} {kind}"
                for kind, count in sorted(Counter(network.units[unit].kind for unit in block.units).items())
            ),
        }
        for block, width in zip(network.blocks, found.block_widths, strict=True)
    ]
    facts = {
        "model": network.name,
        "hash": network.graph.hash,
        "dtype": str(network.precision),
        "inputs": {name: list(network.graph.types[name].shape) for name in network.graph.inputs},
        "outputs": {name: list(network.graph.types[name].shape) for name in network.graph.outputs},
        **network.statistics(),
        "flops": found.flops,
        "weight_bytes": found.weight_bytes,
        "activation_bytes": found.activation_bytes,
        "width": found.width,
        "parallelism": found.parallelism,
        "foreign_ops": network.foreign,
        "notes": [*network.notes, *network.remarks],
    }
    if as_json:
        typer.echo(json.dumps({**facts, "block_list": blocks}, indent=1))
        return
    typer.echo(f"{network.name}: {facts['ops']} ops, {facts['units']} units in {facts['blocks']} blocks")
    typer.echo(f"{facts['macs'] / 1e9:.3f} G multiply-adds, {facts['parameters'] / 1e6:.2f} M parameters")
    typer.echo(
        f"weights {found.weight_bytes / 2**20:.1f} MiB, activations at least {found.activation_bytes / 2**20:.1f} MiB "
        "one unit after another"
    )
    typer.echo(
        f"at most {found.width} units side by side; all arithmetic is {found.parallelism:.2f} times that of the "
        "costliest path"
    )
    for role in ("inputs", "outputs"):
        shapes = ", ".join(f"{name} {'x'.join(map(str, size))}" for name, size in facts[role].items())
        typer.echo(f"{role}: {shapes}")
    for note in facts["notes"]:
        typer.echo(f"note: {note}")
    _show("", blocks, False)


def _show(title: str, rows: list[dict[str, str]] | list[dict[str, object]], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    from rich.console import Console

    from iossim.reporting.console import Column, records_table

    columns = [Column(key, wraps=key in ("description", "kinds", "title")) for key in rows[0]]
    Console().print(records_table(title, rows, columns))  # type: ignore[arg-type]
