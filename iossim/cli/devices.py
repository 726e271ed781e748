"""``iossim devices``: the devices that ship, what is known of one, and new ones from datasheet facts."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from iossim.cli import options
from iossim.cli.derive import derive

DeviceName = Annotated[str, typer.Argument(metavar="DEVICE", help="A device's name, or a profile.yaml.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Device profiles: datasheet facts and model parameters.")
    group.callback(invoke_without_command=True)(options.help_without_command)
    group.command("list", help="The devices that have a profile.")(list_devices)
    group.command("show", help="What is known of a device, and from where.")(show_device)
    group.command("derive", help="Describe a GPU that is not at hand, from datasheet facts.")(derive)
    app.add_typer(group, name="devices")


def list_devices(as_json: options.Json = False) -> None:
    """The devices that ship, and this machine's processor once it has a profile."""
    from iossim.devices.load import device, device_names

    rows: list[dict[str, Any]] = []
    for name in device_names():
        profile = device(name)
        rows.append(
            {
                "name": name,
                "architecture": str(profile.architecture),
                "SMs": profile.sm_count,
                "clock_ghz": profile.boost_clock_ghz,
                "fp32_tflops": profile.fp32_tflops,
                "dram_gbps": profile.dram_bandwidth_gbps,
                "parameters": profile.provenance.kind,
            }
        )
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    from rich.console import Console

    from iossim.reporting.console import records_table

    Console().print(records_table("Devices", rows))


def show_device(name: DeviceName, as_json: options.Json = False) -> None:
    """What is known of a device."""
    import yaml

    from iossim.devices.load import device

    profile = device(name)
    data = profile.model_dump(mode="json")
    typer.echo(json.dumps(data, indent=1) if as_json else yaml.safe_dump(data, sort_keys=False).rstrip())
