"""``iossim devices``: the devices that are known, what is known of one, and new ones from datasheet facts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from iossim.cli import options
from iossim.cli.derive import derive
from iossim.cli.flags import with_flags
from iossim.cli.outputs import plain_console, print_json

DeviceName = Annotated[str, typer.Argument(metavar="DEVICE", help="A device's name, or a profile.yaml.")]

Whole = Annotated[bool, typer.Option("--all", help="The whole profile as YAML, with bands and resampled parameters.")]
NewName = Annotated[str, typer.Argument(metavar="NAME", help="What the device is to be called.")]
NewFile = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="FILE", help="The file to write; by default NAME.yaml here.")
]
Profiles = Annotated[list[str], typer.Argument(metavar="PROFILE...", help="Names of devices, or profiles' files.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Device profiles: datasheet facts and model parameters.")
    group.callback(invoke_without_command=True)(options.help_without_command)
    group.command("list", help="The devices that have a profile.")(list_devices)
    group.command("show", help="What is known of a device, and from where.")(show_device)
    group.command("derive", help="Describe a GPU that is not at hand, from datasheet facts.")(derive)
    group.command("new", help="Write a commented profile to fill in.")(new_device)
    group.command("validate", help="Check profiles: find facts that cannot be right.")(validate_devices)
    app.add_typer(group, name="devices")


def list_devices(as_json: options.Json = False) -> None:
    """The devices that ship, the user's, and those of plugins; a profile that cannot be read is a warning."""
    from iossim.base.errors import IossimError
    from iossim.base.notices import warn_once
    from iossim.hardware.edge import edge_device
    from iossim.hardware.edge_names import edge_names
    from iossim.hardware.load import device, device_names, origin

    rows: list[dict[str, Any]] = []
    for name in device_names():
        try:
            profile = device(name)
        except IossimError as error:
            warn_once(with_flags(str(error)))
            continue
        rows.append(
            {
                "name": name,
                "also": profile.aliases,
                "architecture": str(profile.architecture),
                "SMs": profile.sm_count,
                "clock_ghz": profile.boost_clock_ghz,
                "fp32_tflops": profile.fp32_tflops,
                "dram_gbps": profile.dram_bandwidth_gbps,
                "parameters": profile.provenance.kind,
                "from": origin(name),
            }
        )
    for name in edge_names():
        try:
            edge = edge_device(name)
        except IossimError as error:
            warn_once(with_flags(str(error)))
            continue
        rows.append(
            {
                "name": name,
                "also": edge.aliases,
                "architecture": edge.kind,
                "SMs": edge.units.value,
                "clock_ghz": edge.clock_ghz.value,
                "fp32_tflops": edge.gflops(edge.first_precision) / 1e3,
                "dram_gbps": edge.external.bandwidth_gbps.value,
                "parameters": "datasheet",
                "from": origin(name),
            }
        )
    if as_json:
        print_json(rows)
        return
    from iossim.base.tables import Column, records_table

    # A path may be long; what a device is called is read whole.
    shown = [{**row, "also": ", ".join(row["also"])} for row in rows]
    titles = {"architecture": "arch."}
    columns = [
        Column(key, titles.get(key, ""), wraps=key in ("also", "from"), digits=1 if key == "dram_gbps" else 2)
        for key in rows[0]
    ]
    plain_console().print(records_table("Devices", shown, columns))


def show_device(name: DeviceName, whole: Whole = False, as_json: options.Json = False) -> None:
    """What is known of a device: facts, parameters, errors.

    With --all or --json the whole profile, which is a profile again: saved to a file, it is the same device.
    """
    from iossim.hardware.edge import edge_device
    from iossim.hardware.edge_names import edge_names
    from iossim.hardware.load import device

    profile = edge_device(name) if name in edge_names() else device(name)
    if as_json:
        print_json(profile.model_dump(mode="json"))
        return
    if whole:
        import yaml

        typer.echo(yaml.safe_dump(profile.model_dump(mode="json"), sort_keys=False).rstrip())
        return
    from iossim.hardware.profile import DeviceProfile
    from iossim.report.device_summary import device_summary, edge_summary

    summary = device_summary(profile) if isinstance(profile, DeviceProfile) else edge_summary(profile)
    plain_console().print(summary)


def new_device(name: NewName, out: NewFile = None) -> None:
    """Write a profile to fill in, with a comment on each fact; a file that is there already is left alone."""
    from iossim.hardware.load import user_folder
    from iossim.hardware.template import write_template

    path = out or Path(f"{name}.yaml")
    write_template(name, path, user_folder())
    typer.echo(f"wrote {path}; fill it in, then: iossim devices validate {path}")


def validate_devices(profiles: Profiles, as_json: options.Json = False) -> None:
    """Check that facts are within what their generation has, and agree with one another; exit code 2 where they do not."""
    from iossim.base.errors import DeviceError, IossimError
    from iossim.hardware.edge import edge_device
    from iossim.hardware.edge_names import edge_names
    from iossim.hardware.load import device, file_beside
    from iossim.hardware.plausibility import implausible

    found: dict[str, list[str]] = {}
    for name in map(file_beside, profiles):
        try:
            if name in edge_names():
                edge_device(name)  # what cannot be is refused as it is read
                found[name] = []
            else:
                found[name] = implausible(device(name, checked=False))
        except IossimError as error:
            found[name] = [with_flags(str(error))]
    if as_json:
        print_json([{"profile": name, "problems": problems} for name, problems in found.items()])
    else:
        for name, problems in found.items():
            typer.echo(f"{name}: {'plausible' if not problems else ''}".rstrip())
            for problem in problems:
                typer.echo(f"  {problem}")
    if wrong := [name for name, problems in found.items() if problems]:
        raise DeviceError(
            f"{len(wrong)} of {len(found)} profiles failed validation: {', '.join(wrong)}; correct them"
        )
